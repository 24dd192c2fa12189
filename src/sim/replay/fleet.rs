//! The simulated replicas of one replay, and which of them wakes next.

use super::setup::Setup;
use crate::core::Time;
use crate::core::ledger::Polled;
use crate::sim::engine::{Engine, Event, Fault, Job, Profile};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The engines, by number.
pub(super) struct Engines {
    all: Vec<Engine>,
    profile: Profile,
    slow: Vec<f64>,
    /// Do they tell of every token?
    tells: bool,
    /// When each was last said to wake; entries of the heap that disagree are stale.
    woken: Vec<Option<Time>>,
    heap: BinaryHeap<Reverse<(Time, usize)>>,
    /// Replicas that may be chosen, in order.
    up: Vec<usize>,
}

impl Engines {
    /// Idle engines with empty caches whose blocks are as long as the trace's.
    pub(super) fn new(setup: &Setup, block_tokens: u32) -> Self {
        let n = setup.replicas.max(1);
        let profile = Profile { block_tokens, ..setup.profile.clone() };
        let mut slow = vec![1.0; n];
        for &(i, factor) in &setup.trouble.slow {
            if let Some(s) = slow.get_mut(i) {
                *s = factor;
            }
        }
        let mut engines = Engines {
            all: Vec::new(),
            profile,
            slow,
            tells: setup.stride > 0,
            woken: vec![None; n],
            heap: BinaryHeap::new(),
            up: (0..n).collect(),
        };
        engines.all = (0..n).map(|i| engines.fresh(Time(0), i)).collect();
        engines
    }

    fn fresh(&self, now: Time, i: usize) -> Engine {
        let mut engine = Engine::new(self.profile.clone()).tell_tokens(self.tells);
        if self.slow[i] != 1.0 {
            engine.fault(now, Fault::Slow(self.slow[i]));
        }
        engine
    }

    /// How many there are, up or not.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Blocks that one of them holds.
    pub(super) fn blocks(&self) -> usize {
        self.profile.blocks() as usize
    }

    /// Those that may be chosen; never empty.
    pub(super) fn up(&self) -> &[usize] {
        &self.up
    }

    /// Leading blocks of `chain` in the cache of `i` now.
    pub(super) fn holds(&self, i: usize, chain: &[u64]) -> u32 {
        self.all[i].holds(chain) / self.profile.block_tokens
    }

    /// Hand a request to `i`.
    pub(super) fn submit(&mut self, now: Time, i: usize, job: Job) {
        self.all[i].submit(now, job);
        self.touch(i);
    }

    /// Which wakes next, and when.
    pub(super) fn next(&mut self) -> Option<(Time, usize)> {
        while let Some(&Reverse((t, i))) = self.heap.peek() {
            if self.woken[i] == Some(t) {
                return Some((t, i));
            }
            self.heap.pop();
        }
        None
    }

    /// Let everything happen on `i` that does until `now`.
    pub(super) fn advance(&mut self, now: Time, i: usize, out: &mut Vec<Event>) {
        self.woken[i] = None;
        self.all[i].advance(now, out);
        self.touch(i);
    }

    /// The gauges of `i` as its metrics page shows them.
    pub(super) fn page(&mut self, now: Time, i: usize, out: &mut Vec<Event>) -> Polled {
        // Brings the counts of a leap up to date. An engine with something due right now is left alone: requests of
        // the same time may still come, and they share its next step.
        if self.all[i].next().is_some_and(|t| t > now) {
            self.advance(now, i, out);
        }
        let c = self.all[i].snapshot();
        Polled { running: Some(c.running), waiting: Some(c.waiting), kv_usage: Some(c.kv_usage()) }
    }

    /// Replica `i` is gone with all that it holds. False if it is the last one, which stays.
    pub(super) fn down(&mut self, now: Time, i: usize) -> bool {
        let Some(at) = self.up.iter().position(|&u| u == i).filter(|_| self.up.len() > 1) else {
            return false;
        };
        self.up.remove(at);
        self.all[i] = self.fresh(now, i);
        self.touch(i);
        true
    }

    /// Replica `i` is back, empty.
    pub(super) fn back(&mut self, i: usize) {
        if let Err(at) = self.up.binary_search(&i) {
            self.up.insert(at, i);
        }
    }

    fn touch(&mut self, i: usize) {
        let next = self.all[i].next();
        if next != self.woken[i] {
            self.woken[i] = next;
            self.heap.extend(next.map(|t| Reverse((t, i))));
        }
    }
}
