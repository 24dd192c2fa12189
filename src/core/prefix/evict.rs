//! Making room: a holder's capacity, the index's own bound, and anonymous stretches of generated output.

use super::super::ids::Holder;
use super::super::time::Time;
use super::hold::{Hold, NIL};
use super::index::PrefixIndex;

/// Entries that one call trims at most to bring a holder under its capacity, about a millisecond's work.
const TRIM_SLICE: usize = 4096;

/// Why blocks are dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// The engine has dropped them, as far as we know.
    Capacity,
    /// Only the index drops them; nothing was lost in an engine, so nothing can be regretted.
    Bound,
}

impl PrefixIndex {
    /// Evicts from `h` what its capacity has no room for, oldest leaf first.
    pub(super) fn fit(&mut self, h: Holder) {
        for _ in 0..TRIM_SLICE {
            let Some(member) = self.holds.member(h) else { return };
            let Some(capacity) = member.capacity.filter(|_| !member.exact) else { return };
            let over = (member.held + member.tails).saturating_sub(capacity);
            if over == 0 || !self.evict_oldest(h, over, Why::Capacity) {
                return;
            }
        }
    }

    /// Holds the index's own bound: the holder with most blocks gives up its oldest, until few enough are distinct.
    pub(super) fn fit_all(&mut self) {
        while self.nodes.blocks > self.cfg.max_blocks as u64 {
            let over = self.nodes.blocks - self.cfg.max_blocks as u64;
            let members = self.holds.members.iter().enumerate();
            let Some((h, _)) = members.max_by_key(|(_, member)| member.held) else { return };
            if !self.evict_oldest(h as Holder, over, Why::Bound) {
                return;
            }
        }
    }

    /// Drops up to `want` blocks from the end of the oldest entry of `h`. False if there is none.
    fn evict_oldest(&mut self, h: Holder, want: u64, why: Why) -> bool {
        let Some(id) = self.holds.member(h).map(|member| member.oldest).filter(|&id| id != NIL) else {
            return false;
        };
        let want = u32::try_from(want).unwrap_or(u32::MAX);
        let node = self.holds.get(id).node;
        if node == NIL {
            self.shrink_tail(id, want);
            return true;
        }
        let hold = self.holds.get(id);
        let old = hold.extent();
        // What requests in flight use, no engine evicts.
        let pinned = if why == Why::Capacity { hold.speculated } else { 0 };
        if pinned == old {
            return self.pass_over(id);
        }
        let mut keep = old;
        let mut dropped = 0;
        while keep > pinned && dropped < want {
            keep -= 1;
            dropped += u32::from(hold.holds(keep));
        }
        // A hold never ends with a missing block.
        while keep > pinned && !hold.holds(keep - 1) {
            keep -= 1;
        }
        for i in keep..old {
            if self.holds.get(id).holds(i) {
                self.note_eviction(self.nodes.get(node).run[i as usize], why);
            }
        }
        self.cut(id, keep);
        self.settle(node);
        true
    }

    /// The oldest entry is in use: it goes to the young end, where the end of its request would put it anyway, and the
    /// next oldest is asked. False if all that the holder has is in use.
    fn pass_over(&mut self, id: u32) -> bool {
        let hold = self.holds.get(id);
        let (h, mut node) = (hold.holder, hold.node);
        let member = self.holds.member_mut(h);
        if member.pinned >= member.held && member.tails == 0 {
            return false;
        }
        while node != NIL {
            if let Some(above) = self.nodes.get(node).hold_of(h) {
                self.holds.move_newest(above);
            }
            node = self.nodes.get(node).parent;
        }
        true
    }

    /// Cuts a hold that has nothing below it to its first `keep` blocks. Speculations that reach farther are
    /// shortened; if nothing is left they end at the run above.
    fn cut(&mut self, id: u32, keep: u32) {
        let hold = self.holds.get_mut(id);
        hold.deny(keep, u32::MAX);
        if keep > 0 {
            self.specs.clamp(&mut self.holds, id, keep);
        } else if hold.ends != NIL {
            let (node, h) = (hold.node, hold.holder);
            hold.speculated = 0;
            let parent = self.nodes.get(node).parent;
            let above = if parent == NIL { None } else { self.nodes.get(parent).hold_of(h) };
            if let Some(above_id) = above {
                let len = self.nodes.get(parent).len();
                let moved = self.specs.transfer(&mut self.holds, id, above_id, |_| Some(len));
                let above = self.holds.get_mut(above_id);
                above.through -= moved;
                above.speculated = len;
                self.refresh(above_id);
            }
            self.specs.remove_all(&mut self.holds, id);
        }
        self.refresh(id);
    }

    pub(super) fn note_eviction(&mut self, block: u64, why: Why) {
        match why {
            Why::Capacity => {
                self.evicted += 1;
                self.ghosts.evicted(block);
            }
            Why::Bound => self.forgotten += 1,
        }
    }

    /// Books generated output behind `leaf`, next older than it. What an earlier request generated there is no
    /// longer behind any particular leaf; it stays in line for eviction, or goes at once where no capacity bounds it.
    pub(super) fn add_tail(&mut self, leaf: u32, blocks: u32, now: Time) {
        let h = self.holds.get(leaf).holder;
        // Its engine announces what it generates, with the ids.
        if blocks == 0 || self.holds.member(h).is_none_or(|member| member.exact) {
            return;
        }
        let old = self.holds.get(leaf).tail;
        if old != NIL && self.holds.member_mut(h).capacity.is_some() {
            self.holds.get_mut(old).tail = NIL;
            self.join_tails(old);
        } else if old != NIL {
            self.drop_tail(old);
        }
        let mut tail = Hold::new(NIL, h, now);
        tail.confirmed = blocks;
        tail.tail = leaf;
        let id = self.holds.alloc(tail);
        self.holds.link_older_than(id, leaf);
        self.holds.get_mut(leaf).tail = id;
        self.holds.member_mut(h).tails += u64::from(blocks);
    }

    /// Makes one of two neighbouring stretches that belong to no leaf.
    fn join_tails(&mut self, id: u32) {
        let older = self.holds.get(id).older;
        if older == NIL {
            return;
        }
        let other = self.holds.get(older);
        if other.node == NIL && other.tail == NIL {
            let blocks = other.confirmed;
            self.holds.release(older);
            let hold = self.holds.get_mut(id);
            hold.confirmed = hold.confirmed.saturating_add(blocks);
        }
    }

    /// Takes up to `n` blocks from a stretch of output.
    pub(super) fn shrink_tail(&mut self, id: u32, n: u32) {
        let hold = self.holds.get_mut(id);
        let n = n.min(hold.confirmed);
        hold.confirmed -= n;
        let (h, left, leaf) = (hold.holder, hold.confirmed, hold.tail);
        self.holds.member_mut(h).tails -= u64::from(n);
        if left == 0 {
            if leaf != NIL {
                self.holds.get_mut(leaf).tail = NIL;
            }
            self.holds.release(id);
        }
    }

    pub(super) fn drop_tail(&mut self, id: u32) {
        self.shrink_tail(id, u32::MAX);
    }

    /// The output behind `from` is behind `to` now.
    pub(super) fn give_tail(&mut self, from: u32, to: u32) {
        let tail = std::mem::replace(&mut self.holds.get_mut(from).tail, NIL);
        if tail != NIL {
            self.holds.get_mut(tail).tail = to;
            self.holds.get_mut(to).tail = tail;
        }
    }
}
