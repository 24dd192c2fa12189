//! The index where engines say themselves what they have.
//!
//! Events change what is *confirmed*, exactly: a block is there from its announcement to its removal, wherever it lies
//! in its prompt, and no capacity is guessed. Speculation covers the time between a placement and its event; it ends
//! when the event of the request's last block has come, or a second after the prefill, when it is clear that none
//! comes. Recency is kept as always, so that the holder can go back to being estimated at any time.

use super::super::ids::{Holder, RequestId};
use super::super::time::Time;
use super::exact::Change;
use super::hold::NIL;
use super::index::PrefixIndex;
use super::node::common;
use std::time::Duration;

/// How long after its prefill a request waits for its event. Events come within milliseconds.
const GRACE: Duration = Duration::from_secs(1);
/// Requests that are looked through for one change; more than that have hardly just finished on one fleet.
const LOOK: usize = 256;

/// A request whose prefill is done and whose event hasn't come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settling {
    pub(super) id: RequestId,
    pub(super) holder: Holder,
    pub(super) until: Time,
}

impl PrefixIndex {
    /// From now on events say what `h` has (or, with `exact` false, no longer). What is believed of it stays.
    pub fn follow(&mut self, h: Holder, exact: bool) {
        if self.holds.member(h).is_none() {
            return;
        }
        if exact {
            self.nodes.keep_places();
        }
        let member = self.holds.member_mut(h);
        member.exact = exact;
        member.unanswered = 0;
        if !exact {
            self.fit(h);
        }
    }

    /// Do events say what `h` has?
    pub fn follows(&self, h: Holder) -> bool {
        self.holds.member(h).is_some_and(|member| member.exact)
    }

    /// Prefills in a row of which no event of `h` told: with more than a few, its publisher has fallen silent.
    pub fn unanswered(&self, h: Holder) -> u32 {
        self.holds.member(h).map_or(0, |member| member.unanswered)
    }

    /// What `h`'s engine said. Costs about a microsecond a block: callers hand in a few dozen at a time.
    pub fn apply(&mut self, now: Time, h: Holder, changes: &[Change]) {
        if self.holds.member(h).is_none() {
            return;
        }
        if !changes.is_empty() {
            self.holds.member_mut(h).unanswered = 0;
        }
        for change in changes {
            match change {
                Change::Hold { after, blocks } => {
                    self.hold_run(now, h, *after, blocks);
                }
                Change::Drop(blocks) => {
                    for &block in blocks {
                        self.remove(h, block);
                    }
                }
                Change::Clear => self.clear(h),
            }
        }
        self.settle_come(h);
        self.settle_due(now);
    }

    /// `h` has `blocks`, one after the other, behind the block `after` (`None`: from a prompt's start); what is before
    /// them is left as it is. Returns how many were entered: none if nobody here knows `after`.
    pub fn hold_run(&mut self, now: Time, h: Holder, after: Option<u64>, blocks: &[u64]) -> usize {
        if blocks.is_empty() || self.holds.member(h).is_none() {
            return 0;
        }
        self.nodes.keep_places();
        let mut path = std::mem::take(&mut self.path);
        path.clear();
        let entered = match self.start_of(after, &mut path) {
            Some(offset) => self.hold_below(now, h, offset, blocks, &mut path),
            None => 0,
        };
        self.path = path;
        self.fit_all();
        entered
    }

    /// The nodes from the root to the one of `after`, and the offset behind it there.
    fn start_of(&self, after: Option<u64>, path: &mut Vec<u32>) -> Option<u32> {
        let Some(after) = after else { return Some(0) };
        let &node = self.nodes.places.as_ref()?.get(&after)?;
        let at = self.nodes.get(node).run.iter().rposition(|&hash| hash == after)?;
        let mut up = node;
        while up != NIL {
            path.push(up);
            up = self.nodes.get(up).parent;
        }
        path.reverse();
        Some(at as u32 + 1)
    }

    fn hold_below(
        &mut self,
        now: Time,
        h: Holder,
        offset: u32,
        blocks: &[u64],
        path: &mut Vec<u32>,
    ) -> usize {
        let first = path.len().saturating_sub(1);
        let there = self.ensure_below(offset, blocks, h, path);
        let (mut at, mut left, mut offset) = (first, there as u32, offset);
        while let Some(&node) = path.get(at).filter(|_| left > 0) {
            let part = (self.nodes.get(node).len() - offset).min(left);
            if part > 0 {
                let id = self.hold_at(node, h, now);
                self.holds.get_mut(id).confirm_range(offset, offset + part);
                self.refresh(id);
            }
            left -= part;
            (at, offset) = (at + 1, 0);
        }
        self.used(now, h, path, 0);
        there
    }

    /// Makes `blocks` a path of the tree, behind `offset` blocks of the last node of `path`, which grows with it.
    /// Returns how many there are now: all, unless a hash starts a run elsewhere, which can only be a collision.
    fn ensure_below(&mut self, offset: u32, blocks: &[u64], h: Holder, path: &mut Vec<u32>) -> usize {
        let mut depth = 0;
        let (mut parent, mut at) = (path.last().copied().unwrap_or(NIL), offset as usize);
        loop {
            if parent != NIL {
                let run = &self.nodes.get(parent).run[at..];
                let rest = &blocks[depth..];
                let shared = if run.first() == rest.first() { common(run, rest) } else { 0 };
                depth += shared;
                at += shared;
            }
            let Some(&first) = blocks.get(depth) else { return depth };
            let inside = parent != NIL && at < self.nodes.get(parent).run.len();
            if !inside && let Some(child) = self.nodes.child(parent, first) {
                path.push(child);
                (parent, at) = (child, 0);
                continue;
            }
            if self.nodes.heads.contains_key(&first) {
                return depth;
            }
            let rest = &blocks[depth..];
            if inside {
                if self.nodes.heads.contains_key(&self.nodes.get(parent).run[at]) {
                    return depth;
                }
                let upper = self.split(parent, at as u32);
                if let Some(last) = path.last_mut() {
                    *last = upper;
                }
                parent = upper;
            } else if parent != NIL {
                let node = self.nodes.get(parent);
                if node.kids == 0 && node.refs.len() == 1 && node.refs[0].holder == h {
                    self.nodes.extend(parent, rest);
                    // The cut-offs beside the run are of its length; its holder's is set when the blocks are entered.
                    let only = self.nodes.get(parent).refs[0];
                    self.nodes.get_mut(parent).set_ref(only.holder, only.hold, only.lead);
                    return blocks.len();
                }
            }
            path.push(self.nodes.add(parent, rest));
            return blocks.len();
        }
    }

    /// Where events say what is there, a finished prefill isn't proof: it waits for its event. False where they don't.
    pub(super) fn await_event(&mut self, now: Time, id: RequestId) -> bool {
        let Some(holder) = self.specs.get(id).map(|s| self.holds.get(s.hold).holder) else { return false };
        if !self.follows(holder) {
            return false;
        }
        if self.has_come(id) {
            self.rollback(id);
        } else {
            self.settling.push_back(Settling { id, holder, until: now + GRACE });
        }
        true
    }

    /// Has the event of the request's last block come?
    fn has_come(&self, id: RequestId) -> bool {
        self.specs.get(id).is_some_and(|s| s.end > 0 && self.holds.get(s.hold).confirms(s.end - 1))
    }

    /// Ends the speculations of `h` whose events have come.
    fn settle_come(&mut self, h: Holder) {
        if self.settling.is_empty() {
            return;
        }
        let mut settling = std::mem::take(&mut self.settling);
        let mut looked = 0;
        settling.retain(|s| {
            looked += 1;
            if s.holder != h || looked > LOOK || !self.has_come(s.id) {
                return true;
            }
            self.rollback(s.id);
            false
        });
        self.settling = settling;
    }

    /// Ends the speculations whose prefill was done a while ago and whose events haven't come: their blocks aren't
    /// there. To be called about once a second; [`apply`](Self::apply) does it too.
    pub fn settle_due(&mut self, now: Time) {
        while let Some(&Settling { id, holder, .. }) = self.settling.front().filter(|s| s.until <= now) {
            self.settling.pop_front();
            if self.specs.get(id).is_some() && !self.has_come(id) && self.follows(holder) {
                let member = self.holds.member_mut(holder);
                member.unanswered = member.unanswered.saturating_add(1);
            }
            self.rollback(id);
        }
    }
}
