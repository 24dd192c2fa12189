//! What one holder has of one run.
//!
//! Two sources are kept apart, so that either can be taken back without touching the other: *confirmed* blocks (a
//! prefix of the run, less holes) and *speculated* ones (a prefix, as long as the farthest live speculation reaches).
//! What the holder is believed to have is their union.

use super::super::ids::Holder;
use super::super::time::Time;
use super::holes::Holes;

/// No entry, in every slab of the index.
pub(super) const NIL: u32 = u32::MAX;

/// One holder's part of one run; or, with `node == NIL`, an anonymous stretch of generated output, whose blocks
/// (`confirmed` of them) press on the capacity but can't be matched.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) node: u32,
    pub(super) holder: Holder,
    /// Neighbours in the holder's order of recency.
    pub(super) newer: u32,
    pub(super) older: u32,
    /// Blocks of the run up to the last confirmed one.
    pub(super) confirmed: u32,
    /// Confirmed blocks that are missing after all; never the last one.
    pub(super) holes: Option<Box<Holes>>,
    /// Leading blocks that live speculations cover.
    pub(super) speculated: u32,
    /// Live speculations of this holder that end in a run below this one.
    pub(super) through: u32,
    /// Head of the list of speculations that end in this run.
    pub(super) ends: u32,
    /// Blocks held, as last booked on the holder.
    pub(super) count: u32,
    /// Of these, blocks that live speculations cover, as last booked.
    pub(super) pinned: u32,
    /// Latest output generated behind this run; for an anonymous stretch, the hold that it belongs to.
    pub(super) tail: u32,
    /// Last time a request used it.
    pub(super) used: Time,
}

impl Hold {
    pub(super) fn new(node: u32, holder: Holder, used: Time) -> Self {
        Hold {
            node,
            holder,
            newer: NIL,
            older: NIL,
            confirmed: 0,
            holes: None,
            speculated: 0,
            through: 0,
            ends: NIL,
            count: 0,
            pinned: 0,
            tail: NIL,
            used,
        }
    }

    /// Blocks up to the last one held.
    pub(super) fn extent(&self) -> u32 {
        self.confirmed.max(self.speculated)
    }

    /// Leading blocks held without a gap.
    pub(super) fn lead(&self) -> u32 {
        let gap = self.holes.as_ref().and_then(|holes| holes.first_from(self.speculated));
        gap.unwrap_or(self.extent())
    }

    /// Blocks held.
    pub(super) fn measure(&self) -> u32 {
        self.extent() - self.holes.as_ref().map_or(0, |holes| holes.count_from(self.speculated))
    }

    pub(super) fn holds(&self, i: u32) -> bool {
        i < self.speculated || self.confirms(i)
    }

    pub(super) fn confirms(&self, i: u32) -> bool {
        i < self.confirmed && !self.holes.as_ref().is_some_and(|holes| holes.contains(i))
    }

    /// The first `n` blocks are there for sure. Returns how many the confirmed part grew by at its end.
    pub(super) fn confirm(&mut self, n: u32) -> u32 {
        if n >= self.confirmed {
            self.holes = None;
            return n - std::mem::replace(&mut self.confirmed, n);
        }
        if let Some(holes) = &mut self.holes {
            holes.fill_before(n);
        }
        self.tidy();
        0
    }

    /// The blocks from `from` up to `to` are there for sure, whatever is before them.
    pub(super) fn confirm_range(&mut self, from: u32, to: u32) {
        if from >= to {
            return;
        }
        if from > self.confirmed {
            let gap = self.confirmed..from;
            let holes = self.holes.get_or_insert_default();
            gap.for_each(|i| holes.insert(i));
        }
        if let Some(holes) = &mut self.holes {
            (from..to.min(self.confirmed)).for_each(|i| holes.remove(i));
        }
        self.confirmed = self.confirmed.max(to);
        self.tidy();
    }

    /// The blocks from `from` up to `to` are not confirmed any more.
    pub(super) fn deny(&mut self, from: u32, to: u32) {
        if from >= to || from >= self.confirmed {
            return;
        }
        if to >= self.confirmed {
            self.confirmed = from;
            if let Some(holes) = &mut self.holes {
                holes.truncate(from);
            }
        } else {
            let holes = self.holes.get_or_insert_default();
            (from..to).for_each(|i| holes.insert(i));
        }
        self.tidy();
    }

    /// Keeps the rule that the last confirmed block is no hole, and no empty bitmap.
    pub(super) fn tidy(&mut self) {
        let Some(holes) = &mut self.holes else { return };
        while self.confirmed > 0 && holes.contains(self.confirmed - 1) {
            self.confirmed -= 1;
        }
        holes.truncate(self.confirmed);
        if holes.is_empty() {
            self.holes = None;
        }
    }

    /// Splits the confirmed part at block `k`: returns the front, keeps what is behind, counted from `k`.
    pub(super) fn split_confirmed(&mut self, k: u32) -> (u32, Option<Box<Holes>>) {
        let front = self.confirmed.min(k);
        self.confirmed -= front;
        let behind = self.holes.as_mut().map(|holes| Box::new(holes.split_off(k)));
        let front_holes = std::mem::replace(&mut self.holes, behind);
        self.tidy();
        (front, front_holes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speculation_covers_holes_and_uncovers_them_again() {
        let mut hold = Hold::new(0, 0, Time(0));
        assert_eq!(hold.confirm(10), 10);
        hold.deny(3, 4);
        assert_eq!((hold.lead(), hold.measure(), hold.extent()), (3, 9, 10));
        hold.speculated = 6;
        assert_eq!((hold.lead(), hold.measure()), (10, 10));
        hold.speculated = 0;
        assert_eq!((hold.lead(), hold.measure()), (3, 9));
        assert_eq!(hold.confirm(5), 0);
        assert_eq!((hold.lead(), hold.holes.is_none()), (10, true));
    }

    #[test]
    fn the_last_confirmed_block_is_never_a_hole() {
        let mut hold = Hold::new(0, 0, Time(0));
        hold.confirm(6);
        hold.deny(2, 5);
        hold.deny(5, 6);
        assert_eq!((hold.confirmed, hold.holes.is_none()), (2, true));
        hold.deny(0, 9);
        assert_eq!(hold.extent(), 0);
    }
}
