//! Blocks of the prompts in flight, each counted once a replica.

use super::lru::Table;
use crate::core::ids::RequestId;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
struct Flight {
    replica: usize,
    chain: Box<[u64]>,
    tail: u64,
}

/// Which blocks the requests in flight pin, by replica; as large as what is in flight.
#[derive(Clone, Debug, Default)]
pub(super) struct Active {
    flights: BTreeMap<RequestId, Flight>,
    blocks: Vec<Table<u32>>,
    tails: Vec<u64>,
}

impl Active {
    /// Leading blocks of `chain` that requests in flight on `replica` have.
    pub(super) fn lead(&self, replica: usize, chain: &[u64]) -> u32 {
        let Some(table) = self.blocks.get(replica) else { return 0 };
        chain.iter().take_while(|h| table.contains_key(h)).count() as u32
    }

    /// Distinct blocks on `replica`.
    pub(super) fn blocks(&self, replica: usize) -> u64 {
        self.blocks.get(replica).map_or(0, |t| t.len() as u64)
    }

    /// Tokens on `replica` beyond full blocks.
    pub(super) fn tails(&self, replica: usize) -> u64 {
        self.tails.get(replica).copied().unwrap_or(0)
    }

    /// Books a prompt: its full blocks, and so many of `tail` beyond them (in the caller's unit).
    pub(super) fn place(&mut self, id: RequestId, replica: usize, chain: &[u64], tail: u64) {
        self.finish(id);
        if self.blocks.len() <= replica {
            self.blocks.resize_with(replica + 1, Table::default);
            self.tails.resize(replica + 1, 0);
        }
        for &hash in chain {
            *self.blocks[replica].entry(hash).or_insert(0) += 1;
        }
        self.tails[replica] += tail;
        self.flights.insert(id, Flight { replica, chain: chain.into(), tail });
    }

    /// It ended.
    pub(super) fn finish(&mut self, id: RequestId) {
        let Some(f) = self.flights.remove(&id) else { return };
        let table = &mut self.blocks[f.replica];
        for hash in f.chain {
            if let Some(n) = table.get_mut(&hash) {
                *n -= 1;
                if *n == 0 {
                    table.remove(&hash);
                }
            }
        }
        self.tails[f.replica] -= f.tail;
    }

    /// A replica is gone.
    pub(super) fn left(&mut self, replica: usize) {
        self.flights.retain(|_, f| f.replica != replica);
        if let (Some(table), Some(tail)) = (self.blocks.get_mut(replica), self.tails.get_mut(replica)) {
            table.clear();
            *tail = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_blocks_count_once_and_until_the_last_is_done() {
        let mut a = Active::default();
        a.place(RequestId(1), 1, &[1, 2, 3], 5);
        a.place(RequestId(2), 1, &[1, 2, 4], 2);
        assert_eq!((a.blocks(1), a.tails(1), a.lead(1, &[1, 2, 4, 9]), a.lead(0, &[1])), (4, 7, 3, 0));
        a.finish(RequestId(1));
        a.finish(RequestId(1));
        assert_eq!((a.blocks(1), a.tails(1), a.lead(1, &[1, 2, 3])), (3, 2, 2));
        a.left(1);
        a.finish(RequestId(2));
        assert_eq!((a.blocks(1), a.tails(1)), (0, 0));
    }
}
