//! How many retries the router may add to a fleet that is already in trouble.
//!
//! A fifth of the requests, and at least ten a second. Without such a cap a fleet that fails under load would get
//! twice the load. Both parts may be saved up for a short while: a replica that dies fails all its requests at once.

use crate::core::Time;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// One retry, in the unit of what requests pay in.
const RETRY: i64 = 1000;
/// Most retries that requests may save up.
const MAX_SAVED: i64 = 1000 * RETRY;
/// Most of the floor that may be saved up.
const FLOOR_NANOS: u64 = 10_000_000_000;

/// The budget of the whole process; workers share it.
#[derive(Debug)]
pub(super) struct Budget {
    deposit: AtomicI64,
    saved: AtomicI64,
    /// Nanoseconds of the floor that one retry costs.
    cost: AtomicU64,
    /// The floor as a clock: the time up to which its retries are spent.
    spent_until: AtomicU64,
}

impl Budget {
    /// Each request pays for `share` of a retry, and `floor` retries a second are free. Starts with a full floor.
    pub(super) fn new(share: f64, floor: u32) -> Self {
        let budget = Budget {
            deposit: AtomicI64::new(0),
            saved: AtomicI64::new(0),
            cost: AtomicU64::new(0),
            spent_until: AtomicU64::new(0),
        };
        budget.set(share, floor);
        budget
    }

    /// Other terms from now on; what is saved up stays.
    pub(super) fn set(&self, share: f64, floor: u32) {
        self.deposit.store((share.clamp(0.0, 1.0) * RETRY as f64) as i64, Relaxed);
        let cost = 1_000_000_000_u64.checked_div(u64::from(floor)).unwrap_or(u64::MAX);
        self.cost.store(cost, Relaxed);
    }

    /// A request arrived.
    pub(super) fn deposit(&self) {
        if self.saved.load(Relaxed) < MAX_SAVED {
            self.saved.fetch_add(self.deposit.load(Relaxed), Relaxed);
        }
    }

    /// Takes one retry if there is one.
    pub(super) fn withdraw(&self, now: Time) -> bool {
        let take = |saved: i64| (saved >= RETRY).then_some(saved - RETRY);
        if self.saved.fetch_update(Relaxed, Relaxed, take).is_ok() {
            return true;
        }
        // The window that may be spent ends now; it begins at `now.0` on a clock shifted by its length.
        let (begin, end) = (now.0, now.0.saturating_add(FLOOR_NANOS));
        let cost = self.cost.load(Relaxed);
        let take = |until: u64| {
            let until = until.max(begin).saturating_add(cost);
            (until <= end).then_some(until)
        };
        self.spent_until.fetch_update(Relaxed, Relaxed, take).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(budget: &Budget, at: f64) -> usize {
        (0..100_000).take_while(|_| budget.withdraw(Time::from_secs(at))).count()
    }

    #[test]
    fn a_quiet_router_has_ten_a_second() {
        let budget = Budget::new(0.2, 10);
        assert_eq!(drain(&budget, 0.0), 100, "ten seconds' worth to begin with");
        assert_eq!(drain(&budget, 0.05), 0);
        assert_eq!(drain(&budget, 1.0), 10);
        assert_eq!(drain(&budget, 1000.0), 100, "no more than ten seconds' worth is saved up");
    }

    #[test]
    fn a_busy_router_has_a_fifth_of_its_requests() {
        let budget = Budget::new(0.2, 10);
        drain(&budget, 0.0);
        for _ in 0..1000 {
            budget.deposit();
        }
        assert_eq!(drain(&budget, 0.0), 200);
        for _ in 0..1_000_000 {
            budget.deposit();
        }
        assert_eq!(drain(&budget, 0.0), 1000, "savings are bounded");
    }
}
