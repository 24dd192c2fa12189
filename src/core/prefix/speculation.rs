//! Live speculations: requests that were placed, and whose prefill isn't confirmed yet.
//!
//! A speculation is entered once, at the hold where its chain ends; the holds above only count how many pass through
//! them. So a request costs one entry however long its path is, and splitting a run moves entries without copying
//! them.

use super::super::ids::RequestId;
use super::super::time::Time;
use super::hash::{ByNumber, map_bytes};
use super::hold::{Hold, NIL};
use super::lru::Holds;

#[derive(Clone, Debug)]
pub(super) struct Speculation {
    pub(super) id: RequestId,
    pub(super) since: Time,
    /// The hold in whose run the chain ends, and how many blocks of that run belong to the chain.
    pub(super) hold: u32,
    pub(super) end: u32,
    /// Neighbours in the hold's list.
    next: u32,
    prev: u32,
    /// Neighbours in the order of placement.
    earlier: u32,
    later: u32,
}

pub(super) struct Speculations {
    slab: Vec<Speculation>,
    free: Vec<u32>,
    by_id: ByNumber<u32>,
    first: u32,
    last: u32,
}

impl Default for Speculations {
    fn default() -> Self {
        Speculations { slab: Vec::new(), free: Vec::new(), by_id: ByNumber::default(), first: NIL, last: NIL }
    }
}

impl Speculations {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn contains(&self, id: RequestId) -> bool {
        self.by_id.contains_key(&id.0)
    }

    pub(super) fn get(&self, id: RequestId) -> Option<&Speculation> {
        self.slab.get(*self.by_id.get(&id.0)? as usize)
    }

    /// The speculation that was placed first.
    pub(super) fn oldest(&self) -> Option<&Speculation> {
        self.slab.get(self.first as usize)
    }

    /// Those that end in this hold.
    pub(super) fn of<'a>(&'a self, hold: &Hold) -> impl Iterator<Item = &'a Speculation> {
        let first = self.slab.get(hold.ends as usize);
        std::iter::successors(first, |s| self.slab.get(s.next as usize))
    }

    /// Enters a speculation whose chain ends after `end` blocks of the run of `hold`.
    pub(super) fn add(&mut self, holds: &mut Holds, id: RequestId, since: Time, hold: u32, end: u32) {
        let new = Speculation { id, since, hold, end, next: NIL, prev: NIL, earlier: self.last, later: NIL };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slab[slot as usize] = new;
                slot
            }
            None => {
                self.slab.push(new);
                (self.slab.len() - 1) as u32
            }
        };
        match self.last {
            NIL => self.first = slot,
            last => self.slab[last as usize].later = slot,
        }
        self.last = slot;
        self.by_id.insert(id.0, slot);
        self.attach(holds, slot, hold, end);
    }

    /// Takes a speculation out. Its hold's speculated part shrinks to what others still cover.
    pub(super) fn remove(&mut self, holds: &mut Holds, id: RequestId) -> Option<Speculation> {
        let slot = self.by_id.remove(&id.0)?;
        self.detach(holds, slot);
        let gone = self.slab[slot as usize].clone();
        match gone.earlier {
            NIL => self.first = gone.later,
            earlier => self.slab[earlier as usize].later = gone.later,
        }
        match gone.later {
            NIL => self.last = gone.earlier,
            later => self.slab[later as usize].earlier = gone.earlier,
        }
        self.free.push(slot);
        self.cover(holds, gone.hold, gone.end);
        Some(gone)
    }

    /// Takes out all that end in `hold`.
    pub(super) fn remove_all(&mut self, holds: &mut Holds, hold: u32) {
        while let Some(entry) = self.slab.get(holds.get(hold).ends as usize) {
            let id = entry.id;
            self.remove(holds, id);
        }
    }

    /// Recomputes what the speculations of `hold` cover, after one that ended at `end` has gone. With many alike the
    /// search ends at the first.
    fn cover(&self, holds: &mut Holds, hold: u32, end: u32) {
        let old = holds.get(hold).speculated;
        if holds.get(hold).through > 0 || end < old {
            return;
        }
        let mut covered = 0;
        for other in self.of(holds.get(hold)) {
            covered = covered.max(other.end);
            if covered >= old {
                break;
            }
        }
        holds.get_mut(hold).speculated = covered;
    }

    /// One speculation fewer passes through `hold`, whose run has `len` blocks.
    pub(super) fn pass_no_more(&self, holds: &mut Holds, hold: u32, len: u32) {
        let entry = holds.get_mut(hold);
        debug_assert!(entry.through > 0, "a speculation passed without being counted");
        entry.through = entry.through.saturating_sub(1);
        self.cover(holds, hold, len);
    }

    /// Shortens every speculation of `hold` to at most `end` blocks of its run.
    pub(super) fn clamp(&mut self, holds: &mut Holds, hold: u32, end: u32) {
        let mut at = holds.get(hold).ends;
        while let Some(entry) = self.slab.get_mut(at as usize) {
            entry.end = entry.end.min(end);
            at = entry.next;
        }
        let hold = holds.get_mut(hold);
        hold.speculated = hold.speculated.min(end);
    }

    /// Moves speculations between two parts of a path: those of `from` for which `to` gives a new end go to the hold
    /// `target`. Returns how many went. Neither hold's counters change.
    pub(super) fn transfer(
        &mut self,
        holds: &mut Holds,
        from: u32,
        target: u32,
        to: impl Fn(u32) -> Option<u32>,
    ) -> u32 {
        let mut moved = 0;
        let mut at = holds.get(from).ends;
        while let Some(entry) = self.slab.get(at as usize) {
            let next = entry.next;
            if let Some(end) = to(entry.end) {
                self.detach(holds, at);
                self.attach_quietly(holds, at, target, end);
                moved += 1;
            }
            at = next;
        }
        moved
    }

    /// Moves the ends of all speculations of `hold` by `by` blocks, as its run grew or shrank at the front.
    pub(super) fn shift(&mut self, holds: &Holds, hold: u32, by: i32) {
        let mut at = holds.get(hold).ends;
        while let Some(entry) = self.slab.get_mut(at as usize) {
            entry.end = entry.end.saturating_add_signed(by);
            at = entry.next;
        }
    }

    fn attach(&mut self, holds: &mut Holds, slot: u32, hold: u32, end: u32) {
        self.attach_quietly(holds, slot, hold, end);
        let hold = holds.get_mut(hold);
        hold.speculated = hold.speculated.max(end);
    }

    fn attach_quietly(&mut self, holds: &mut Holds, slot: u32, hold: u32, end: u32) {
        let next = std::mem::replace(&mut holds.get_mut(hold).ends, slot);
        if let Some(next) = self.slab.get_mut(next as usize) {
            next.prev = slot;
        }
        let entry = &mut self.slab[slot as usize];
        entry.hold = hold;
        entry.end = end;
        entry.prev = NIL;
        entry.next = next;
    }

    fn detach(&mut self, holds: &mut Holds, slot: u32) {
        let Speculation { hold, prev, next, .. } = self.slab[slot as usize];
        match prev {
            NIL => holds.get_mut(hold).ends = next,
            prev => self.slab[prev as usize].next = next,
        }
        if let Some(next) = self.slab.get_mut(next as usize) {
            next.prev = prev;
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.slab.capacity() * std::mem::size_of::<Speculation>()
            + self.free.capacity() * 4
            + map_bytes(self.by_id.capacity(), 16)
    }

    /// All live speculations in the order of placement.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Speculation> {
        std::iter::successors(self.oldest(), |s| self.slab.get(s.later as usize))
    }
}
