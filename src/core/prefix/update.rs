//! What changes belief: placements, first tokens, failures, and what engines report.

use super::super::ids::{Holder, RequestId};
use super::super::time::Time;
use super::hold::NIL;
use super::index::PrefixIndex;

impl PrefixIndex {
    /// `h` has all of `chain`, for sure, as of now.
    pub fn insert(&mut self, now: Time, chain: &[u64], h: Holder) {
        self.enter(now, chain, h, None);
    }

    /// Request `id` was placed on `h`: its prefix is believed to be there from this moment, so that the next one with
    /// the same prefix follows it. Lives until [`confirm`](Self::confirm) or [`rollback`](Self::rollback); a request
    /// that speculates again gives up its earlier place.
    ///
    /// A prompt without a full block leaves nothing to confirm or to roll back.
    pub fn speculate(&mut self, now: Time, id: RequestId, chain: &[u64], h: Holder) {
        self.forget_request(id);
        if self.cfg.max_speculations == 0 {
            return;
        }
        while self.specs.len() >= self.cfg.max_speculations {
            let Some(oldest) = self.specs.oldest().map(|s| s.id) else { break };
            self.rollback(oldest);
            self.dropped += 1;
        }
        self.enter(now, chain, h, Some(id));
    }

    fn enter(&mut self, now: Time, chain: &[u64], h: Holder, request: Option<RequestId>) {
        let chain = &chain[..chain.len().min(self.cfg.max_blocks)];
        if chain.is_empty() || self.holds.member(h).is_none() {
            return;
        }
        let mut path = std::mem::take(&mut self.path);
        let end = self.ensure(chain, h, &mut path);
        let mut grown = 0;
        for (i, &node) in path.iter().enumerate() {
            let last = i + 1 == path.len();
            let len = self.nodes.get(node).len();
            let need = if last { end } else { len };
            let id = self.hold_at(node, h, now);
            let lead = self.holds.get(id).lead();
            if lead < need {
                let missing = &self.nodes.get(node).run[lead as usize..need as usize];
                missing.iter().for_each(|&block| self.ghosts.asked(block));
            }
            match request {
                None => grown += self.holds.get_mut(id).confirm(need),
                Some(request) if last => self.specs.add(&mut self.holds, request, now, id, need),
                Some(_) => {
                    let hold = self.holds.get_mut(id);
                    hold.through += 1;
                    hold.speculated = len;
                }
            }
            self.refresh(id);
        }
        self.used(now, h, &mut path, grown);
        self.path = path;
        self.fit(h);
        self.fit_all();
    }

    /// A path was used: its holds are the newest, root first, and what was output behind them and is prompt now
    /// (`grown` blocks of it) is not counted twice.
    pub(super) fn used(&mut self, now: Time, h: Holder, path: &mut Vec<u32>, mut grown: u32) {
        for &node in path.iter().rev() {
            let Some(id) = self.nodes.get(node).hold_of(h) else { continue };
            let tail = self.holds.get(id).tail;
            if tail != NIL {
                self.holds.move_newest(tail);
                self.holds.get_mut(tail).used = now;
                let blocks = self.holds.get(tail).confirmed;
                self.shrink_tail(tail, grown);
                grown = grown.saturating_sub(blocks);
            }
            self.holds.move_newest(id);
            self.holds.get_mut(id).used = now;
        }
        self.merge_path(path);
    }

    /// The prefill of `id` is done (its first token came, or it finished): what was believed counts as there.
    /// `tail_blocks` is what it generated since, in blocks; a caller that confirms at the first token books the rest
    /// with [`output`](Self::output) when it knows. Unknown requests are ignored.
    ///
    /// Where events say what is there, it isn't confirmed but waits for its event ([`PrefixIndex::settle_due`]).
    pub fn confirm(&mut self, now: Time, id: RequestId, tail_blocks: u32) {
        if self.await_event(now, id) {
            return;
        }
        let Some(speculation) = self.specs.remove(&mut self.holds, id) else { return };
        let leaf = speculation.hold;
        let h = self.holds.get(leaf).holder;
        let mut path = std::mem::take(&mut self.path);
        self.path_to(leaf, &mut path);
        let mut grown = self.holds.get_mut(leaf).confirm(speculation.end);
        self.refresh(leaf);
        for &node in &path[..path.len() - 1] {
            let Some(id) = self.nodes.get(node).hold_of(h) else { continue };
            let len = self.nodes.get(node).len();
            self.specs.pass_no_more(&mut self.holds, id, len);
            grown += self.holds.get_mut(id).confirm(len);
            self.refresh(id);
        }
        self.used(now, h, &mut path, grown);
        self.path = path;
        self.add_tail(leaf, tail_blocks, now);
        self.fit(h);
    }

    /// Request `id` failed before its prefill: what only it stood for is gone again. Blocks that another speculation
    /// covers, or that are confirmed, stay. Unknown requests are ignored.
    pub fn rollback(&mut self, id: RequestId) {
        let Some(speculation) = self.specs.remove(&mut self.holds, id) else { return };
        let h = self.holds.get(speculation.hold).holder;
        let mut path = std::mem::take(&mut self.path);
        self.path_to(speculation.hold, &mut path);
        self.refresh(speculation.hold);
        for &node in &path[..path.len() - 1] {
            let Some(id) = self.nodes.get(node).hold_of(h) else { continue };
            let len = self.nodes.get(node).len();
            self.specs.pass_no_more(&mut self.holds, id, len);
            self.refresh(id);
        }
        path.iter().rev().for_each(|&node| self.settle(node));
        self.path = path;
        self.fit(h);
    }

    /// The nodes from the root to a hold's, root first.
    fn path_to(&self, hold: u32, path: &mut Vec<u32>) {
        path.clear();
        let mut node = self.holds.get(hold).node;
        while node != NIL {
            path.push(node);
            node = self.nodes.get(node).parent;
        }
        path.reverse();
    }

    /// `h` has generated `blocks` of output behind `chain`. They can't be matched (their hashes aren't known) but
    /// take room: as old as the chain's last run, evicted just before it, and replaced as the conversation goes on.
    /// Ignored when `h` isn't known to have the chain's last run.
    pub fn output(&mut self, now: Time, chain: &[u64], h: Holder, blocks: u32) {
        let mut path = std::mem::take(&mut self.path);
        let (_, found) = self.descend(chain, &mut path);
        let leaf =
            path.last().filter(|_| found == chain.len()).and_then(|&node| self.nodes.get(node).hold_of(h));
        self.path = path;
        if let Some(leaf) = leaf {
            self.add_tail(leaf, blocks, now);
            self.fit(h);
        }
    }

    /// The engine says that `h` really had `held` leading blocks of `chain`.
    ///
    /// More than believed: they are entered as confirmed. Fewer: exactly the chain's blocks beyond `held` stop being
    /// confirmed, so that no chain through them matches farther. What hangs below them stays, unreachable, until the
    /// gap is filled or it has aged out. Live speculations stay: their prefill computes those blocks.
    ///
    /// Where events say what is there, only more than they say is entered: one that joined late never hears of what
    /// was stored before and is only found since.
    pub fn correct(&mut self, now: Time, chain: &[u64], h: Holder, held: u32) {
        let Some(exact) = self.holds.member(h).map(|member| member.exact) else { return };
        let keep = chain.len().min(held as usize);
        let mut path = std::mem::take(&mut self.path);
        let (end, _) = self.descend(chain, &mut path);
        let (mut depth, mut lead, mut whole) = (0, 0, true);
        for (i, &node) in path.iter().enumerate() {
            let last = i + 1 == path.len();
            let need = if last { end } else { self.nodes.get(node).len() } as usize;
            let has = (self.nodes.get(node).lead_of(h) as usize).min(need);
            lead += if whole { has } else { 0 };
            whole &= has == need;
            if keep < depth + need
                && !exact
                && let Some(id) = self.nodes.get(node).hold_of(h)
            {
                let from = keep.saturating_sub(depth) as u32;
                self.holds.get_mut(id).deny(from, need as u32);
                self.refresh(id);
            }
            depth += need;
        }
        path.iter().rev().for_each(|&node| self.settle(node));
        self.path = path;
        if lead < keep {
            self.insert(now, &chain[..keep], h);
        }
    }
}
