//! What a batch's number says: is it the next one, was something lost, does another life of the engine speak?
//!
//! Numbers begin at 0 with each process and there is no name of the process in them. What tells lives apart is the time
//! that a batch was made: a late or repeated batch is older than the last one seen, the first batches of a new life are
//! younger.

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It is the next one.
    Apply,
    /// It was seen before, or comes too late.
    Skip,
    /// Batches from this number on are missing.
    Gap(u64),
    /// The engine has begun anew.
    Restart,
}

/// The last batch that was taken in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Last {
    pub(super) seq: u64,
    pub(super) ts: f64,
}

/// Follows the numbers of one publisher.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Order {
    last: Option<Last>,
}

impl Order {
    /// What is to be done with batch `seq`, made at `ts`?
    pub(super) fn look(&self, seq: u64, ts: f64) -> Step {
        match self.last {
            None if seq == 0 => Step::Apply,
            None => Step::Gap(0),
            Some(last) if seq == last.seq + 1 && ts < last.ts - CLOCK => Step::Restart,
            Some(last) if seq == last.seq + 1 => Step::Apply,
            Some(last) if seq > last.seq => Step::Gap(last.seq + 1),
            Some(last) if ts > last.ts => Step::Restart,
            Some(_) => Step::Skip,
        }
    }

    /// Batch `seq` was taken in.
    pub(super) fn took(&mut self, seq: u64, ts: f64) {
        self.last = Some(Last { seq, ts });
    }

    /// The last batch taken in.
    pub(super) fn last(&self) -> Option<Last> {
        self.last
    }

    /// Nothing was seen of this life yet.
    pub(super) fn forget(&mut self) {
        self.last = None;
    }
}

/// A clock may be set back by this much (seconds) without meaning anything.
const CLOCK: f64 = 5.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seq: u64, ts: f64) -> Order {
        Order { last: Some(Last { seq, ts }) }
    }

    #[test]
    fn in_order_gaps_and_repetitions() {
        assert_eq!(Order::default().look(0, 5.0), Step::Apply);
        assert_eq!(Order::default().look(3, 5.0), Step::Gap(0));
        let order = at(7, 5.0);
        assert_eq!(order.look(8, 5.1), Step::Apply);
        assert_eq!(order.look(10, 5.3), Step::Gap(8));
        assert_eq!((order.look(7, 5.0), order.look(3, 4.0)), (Step::Skip, Step::Skip));
    }

    #[test]
    fn case_16_numbers_that_begin_anew_are_another_life() {
        assert_eq!(at(7, 5.0).look(0, 9.0), Step::Restart);
        assert_eq!(at(7, 5.0).look(6, 9.0), Step::Restart);
        assert_eq!(at(7, 500.0).look(8, 9.0), Step::Restart, "the same number by chance");
    }
}
