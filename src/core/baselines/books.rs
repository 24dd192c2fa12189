//! What a router knows of its own traffic: requests in flight, and tokens whose prefill isn't done.

use crate::core::ids::RequestId;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
struct Flight {
    replica: usize,
    /// Its first token wasn't seen yet.
    waits: bool,
    /// Uncached prompt tokens, 0 once its first token was seen.
    pending: u64,
}

/// One replica's load, as its router counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    /// Requests in flight.
    pub(super) requests: u32,
    /// Those that wait for their first token.
    pub(super) waiting: u32,
    /// Uncached prompt tokens of those that wait for their first token.
    pub(super) pending: u64,
}

/// The books of one router; as large as what is in flight.
#[derive(Clone, Debug, Default)]
pub(super) struct Books {
    flights: BTreeMap<RequestId, Flight>,
    loads: Vec<Load>,
}

impl Books {
    /// The load of `replica`.
    pub(super) fn load(&self, replica: usize) -> Load {
        self.loads.get(replica).copied().unwrap_or_default()
    }

    /// Requests in flight on `replica`.
    pub(super) fn requests(&self, replica: usize) -> f64 {
        f64::from(self.load(replica).requests)
    }

    /// Uncached tokens on `replica` whose prefill isn't done.
    pub(super) fn pending(&self, replica: usize) -> f64 {
        self.load(replica).pending as f64
    }

    /// Books a request of so many uncached tokens.
    pub(super) fn place(&mut self, id: RequestId, replica: usize, uncached: u64) {
        self.finish(id);
        if self.loads.len() <= replica {
            self.loads.resize(replica + 1, Load::default());
        }
        self.loads[replica].requests += 1;
        self.loads[replica].waiting += 1;
        self.loads[replica].pending += uncached;
        self.flights.insert(id, Flight { replica, waits: true, pending: uncached });
    }

    /// Its prefill is done.
    pub(super) fn first_token(&mut self, id: RequestId) {
        if let Some(f) = self.flights.get_mut(&id) {
            let load = &mut self.loads[f.replica];
            load.pending -= std::mem::take(&mut f.pending);
            load.waiting -= u32::from(std::mem::take(&mut f.waits));
        }
    }

    /// It ended; says where it was, if it was on the books.
    pub(super) fn finish(&mut self, id: RequestId) -> Option<usize> {
        self.first_token(id);
        let f = self.flights.remove(&id)?;
        self.loads[f.replica].requests -= 1;
        Some(f.replica)
    }

    /// A replica is gone, and all it had with it.
    pub(super) fn left(&mut self, replica: usize) {
        self.flights.retain(|_, f| f.replica != replica);
        if let Some(load) = self.loads.get_mut(replica) {
            *load = Load::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_given_back_once() {
        let mut b = Books::default();
        let (one, two) = (RequestId(1), RequestId(2));
        b.place(one, 3, 100);
        b.place(two, 3, 50);
        assert_eq!(b.load(3), Load { requests: 2, waiting: 2, pending: 150 });
        b.first_token(one);
        b.first_token(one);
        assert_eq!(b.load(3), Load { requests: 2, waiting: 1, pending: 50 });
        assert_eq!((b.finish(one), b.finish(one)), (Some(3), None));
        b.left(3);
        assert_eq!(b.finish(two), None);
        assert_eq!((b.load(3), b.load(99)), (Load::default(), Load::default()));
    }
}
