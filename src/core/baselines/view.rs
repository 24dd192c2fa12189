//! How llm-d's router knows who holds what.
//!
//! Two producers of the same figure in the project: `approx-prefix-cache-producer` remembers what it routed, and
//! `precise-prefix-cache-scorer` follows KV events.

use super::active::Active;
use super::lru::Lru;
use crate::core::ids::RequestId;
use crate::core::policy::{Arriving, Sight};

/// Tokens that the approximate index remembers a replica by default: 31,250 blocks of 64 tokens.
pub(super) const REMEMBERED: u64 = 31_250 * 64;

/// Prompt tokens of `request` that have to be computed where `blocks` of its chain are held. The last is always.
pub(super) fn uncached(request: &Arriving<'_>, blocks: u32) -> u64 {
    let cached = u64::from(blocks) * u64::from(request.block_tokens);
    u64::from(request.prompt_tokens).saturating_sub(cached).max(1)
}

/// Leading blocks of the request's chain that events tell of.
pub(super) fn told(sight: &Sight<'_>, replica: usize) -> u32 {
    sight.exact.get(replica).copied().unwrap_or(0)
}

/// What is believed of the caches.
#[derive(Clone, Debug)]
pub(super) enum View {
    /// Each replica's blocks in the order of use, learned when a request is sent. Three readings are better for the
    /// rival than the letter: no cap on the matched length, a replica's true capacity where it is told (the
    /// project's `autoTune`), and a prompt's head outlives its tail, as in engines. The memory's grain is the
    /// chain's.
    Approximate {
        /// Blocks by replica.
        seen: Vec<Lru<()>>,
        /// Tokens remembered, by replica.
        room: Vec<u64>,
    },
    /// Events, and what is in flight (the project's speculative indexing), which engines pin anyhow.
    Precise(Active),
}

impl View {
    pub(super) fn approximate(replicas: usize, kv_tokens: u64) -> Self {
        let room = if kv_tokens > 0 { kv_tokens } else { REMEMBERED };
        View::Approximate {
            seen: (0..replicas).map(|_| Lru::default()).collect(),
            room: vec![room; replicas],
        }
    }

    pub(super) fn precise() -> Self {
        View::Precise(Active::default())
    }

    pub(super) fn is_precise(&self) -> bool {
        matches!(self, View::Precise(_))
    }

    /// Leading blocks of the request's chain on `replica`.
    pub(super) fn lead(&self, request: &Arriving<'_>, sight: &Sight<'_>, replica: usize) -> u32 {
        match self {
            View::Approximate { seen, .. } => seen.get(replica).map_or(0, |lru| lru.lead(request.chain)),
            View::Precise(active) => told(sight, replica).max(active.lead(replica, request.chain)),
        }
    }

    /// A request was sent.
    pub(super) fn place(&mut self, request: &Arriving<'_>, replica: usize) {
        match self {
            View::Approximate { seen, room } => {
                if seen.len() <= replica {
                    seen.resize_with(replica + 1, Lru::default);
                    room.resize(replica + 1, REMEMBERED);
                }
                for &hash in request.chain.iter().rev() {
                    seen[replica].touch(hash);
                }
                seen[replica].shrink((room[replica] / u64::from(request.block_tokens.max(1))) as usize);
            }
            View::Precise(active) => active.place(request.id, replica, request.chain, 0),
        }
    }

    pub(super) fn finish(&mut self, id: RequestId) {
        if let View::Precise(active) = self {
            active.finish(id);
        }
    }

    pub(super) fn joined(&mut self, replica: usize, kv_tokens: u64) {
        self.left(replica);
        if let View::Approximate { seen, room } = self {
            if room.len() <= replica {
                seen.resize_with(replica + 1, Lru::default);
                room.resize(replica + 1, REMEMBERED);
            }
            room[replica] = if kv_tokens > 0 { kv_tokens } else { REMEMBERED };
        }
    }

    pub(super) fn left(&mut self, replica: usize) {
        match self {
            View::Approximate { seen, .. } => {
                if let Some(lru) = seen.get_mut(replica) {
                    *lru = Lru::default();
                }
            }
            View::Precise(active) => active.left(replica),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::hand::{ask, see};
    use super::*;

    #[test]
    fn the_approximate_view_forgets_the_oldest_tail_first() {
        let mut v = View::approximate(2, 3 * 512);
        v.place(&ask(1, &[1, 2], 1024), 0);
        v.place(&ask(2, &[3], 512), 0);
        let lead = |v: &View, chain: &[u64], r| v.lead(&ask(9, chain, 2048), &see(&[0, 1]), r);
        assert_eq!((lead(&v, &[1, 2], 0), lead(&v, &[3], 0), lead(&v, &[1], 1)), (2, 1, 0));
        v.place(&ask(3, &[4], 512), 0);
        assert_eq!((lead(&v, &[1, 2], 0), lead(&v, &[3], 0)), (1, 1));
        v.joined(0, 512);
        assert_eq!(lead(&v, &[3], 0), 0);
    }

    #[test]
    fn the_precise_view_adds_what_is_in_flight_to_what_is_told() {
        let mut v = View::precise();
        let a = ask(1, &[1, 2, 3], 1600);
        v.place(&a, 1);
        let sight = Sight { up: &[0, 1], exact: &[2, 1] };
        assert_eq!((v.lead(&a, &sight, 0), v.lead(&a, &sight, 1)), (2, 3));
        v.finish(a.id);
        assert_eq!(v.lead(&a, &sight, 1), 1);
        assert_eq!((uncached(&a, 1), uncached(&a, 4)), (1088, 1));
    }
}
