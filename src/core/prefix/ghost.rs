//! How often is an evicted block asked for again?
//!
//! That share, `p`, prices an eviction: in a cache that turns over without regret `p` is near 0, in one that thrashes
//! near 1. It is measured on a sample, chosen by hash so that a block is always or never in it: sampled evictions go
//! to a list of ghosts of twice the fleet's capacity, and a placement that brings a ghost back counts as asked again.

use super::hash::{ByBlock, map_bytes};
use std::collections::VecDeque;

/// Evictions (of the sample) that stand as a prior of "no regret": without it the first few would swing `p`.
const PRIOR_EVICTIONS: f64 = 4.0;

/// Blocks of the fleet's caches in the sample from which on it is thinned: fewer measure too little, more cost memory.
const SAMPLE: u64 = 4096;

pub(super) struct Ghosts {
    /// The sample is one block in so many, at most.
    thinnest: u64,
    /// The sample is one block in so many.
    one_in: u64,
    /// Fleet capacity in blocks of the sample, at least 1.
    fleet: u64,
    serial: u64,
    found: ByBlock<u64>,
    order: VecDeque<(u64, u64)>,
    evicted: f64,
    asked: f64,
    since_halving: u64,
}

impl Ghosts {
    pub(super) fn new(one_in: u32) -> Self {
        Ghosts {
            thinnest: u64::from(one_in.max(1)),
            one_in: u64::from(one_in.max(1)),
            fleet: 1,
            serial: 0,
            found: ByBlock::default(),
            order: VecDeque::new(),
            evicted: 0.0,
            asked: 0.0,
            since_halving: 0,
        }
    }

    /// Sets the fleet's capacity in blocks (not of the sample). Small fleets are sampled more densely. When that changes
    /// what is in the sample, the list begins anew; what was measured stays.
    pub(super) fn set_fleet(&mut self, blocks: u64) {
        let mut one_in = self.thinnest;
        while one_in > 1 && blocks / one_in < SAMPLE {
            one_in /= 2;
        }
        if one_in != self.one_in {
            self.one_in = one_in;
            self.found.clear();
            self.order.clear();
        }
        self.fleet = (blocks / self.one_in).max(1);
        self.trim();
    }

    fn sampled(&self, block: u64) -> bool {
        block.is_multiple_of(self.one_in)
    }

    /// An engine has evicted this block, as far as we know.
    pub(super) fn evicted(&mut self, block: u64) {
        if !self.sampled(block) {
            return;
        }
        self.serial += 1;
        self.found.insert(block, self.serial);
        self.order.push_back((block, self.serial));
        self.trim();
        self.evicted += 1.0;
        self.since_halving += 1;
        if self.since_halving >= self.fleet {
            self.since_halving = 0;
            self.evicted /= 2.0;
            self.asked /= 2.0;
        }
    }

    /// A placement needs this block where it isn't.
    pub(super) fn asked(&mut self, block: u64) {
        if self.sampled(block) && self.found.remove(&block).is_some() {
            self.asked += 1.0;
        }
    }

    /// Entries whose block came back, or was evicted once more, are left in the order until they are the oldest:
    /// they count towards its bound, so memory has one too.
    fn trim(&mut self) {
        while self.order.len() as u64 > 2 * self.fleet {
            if let Some((block, serial)) = self.order.pop_front()
                && self.found.get(&block) == Some(&serial)
            {
                self.found.remove(&block);
            }
        }
    }

    /// Share of evicted blocks that were asked for again, from 0 to 1; 0 while nothing was evicted.
    pub(super) fn reuse(&self) -> f64 {
        (self.asked / (self.evicted + PRIOR_EVICTIONS)).min(1.0)
    }

    pub(super) fn bytes(&self) -> usize {
        map_bytes(self.found.capacity(), 16) + self.order.capacity() * 16
    }

    pub(super) fn check(&self) {
        assert!(self.found.len() <= self.order.len(), "a ghost without an end");
        assert!(self.order.len() as u64 <= 2 * self.fleet, "ghosts over their bound");
        assert!(self.asked >= 0.0 && self.evicted >= 0.0, "negative counts of ghosts");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_the_share_that_returns() {
        let mut ghosts = Ghosts::new(1);
        ghosts.set_fleet(1000);
        assert_eq!(ghosts.reuse(), 0.0);
        for block in 0..20_000 {
            ghosts.evicted(block);
            // Each fourth block returns after 500 other evictions, which is inside the list.
            if block >= 500 && block % 4 == 0 {
                ghosts.asked(block - 500);
            }
            // Asked for far too late, or never evicted: no regret of this cache.
            ghosts.asked(block.wrapping_sub(3001));
        }
        assert!((ghosts.reuse() - 0.25).abs() < 0.02, "{}", ghosts.reuse());
        assert!(ghosts.order.len() <= 2000);
        ghosts.check();
    }

    #[test]
    fn only_the_sample_is_kept() {
        let mut ghosts = Ghosts::new(64);
        ghosts.set_fleet(640_000);
        (0..640_000).for_each(|block| ghosts.evicted(block));
        assert_eq!(ghosts.found.len(), 10_000);
        ghosts.check();
    }

    #[test]
    fn a_small_fleet_is_sampled_densely() {
        let mut ghosts = Ghosts::new(64);
        ghosts.set_fleet(512);
        (0..512).for_each(|block| ghosts.evicted(block));
        assert_eq!(ghosts.found.len(), 512);
        (0..512).for_each(|block| ghosts.asked(block));
        assert!(ghosts.reuse() > 0.9);
        ghosts.set_fleet(10_000_000);
        assert!(ghosts.reuse() > 0.9, "what was measured stays");
        ghosts.check();
    }
}
