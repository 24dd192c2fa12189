//! Idle connections to replicas: one pool a worker, so that nothing of it is shared.
//!
//! Last in, first out, so that few connections are kept warm and the others age out. The age cap is below the five
//! seconds after which the replicas' usual HTTP server closes an idle connection; what remains of that race is
//! handled where requests are sent.

use super::upstream::Upstream;
use crate::core::ReplicaId;
use std::time::{Duration, Instant};

/// Idle connections kept a replica and worker; more are closed.
const KEEP: usize = 256;

#[derive(Default)]
struct Shelf {
    life: u32,
    #[expect(clippy::vec_box, reason = "a connection is a kilobyte and moves with each request")]
    idle: Vec<Box<Upstream>>,
}

/// The idle connections of one worker.
pub(super) struct Pool {
    /// Indexed by the replica's slot: dense and bounded.
    shelves: Vec<Shelf>,
    max_age: Duration,
}

impl Pool {
    /// Connections idle for longer than `max_age` are not used again.
    pub(super) fn new(max_age: Duration) -> Self {
        Pool { shelves: Vec::new(), max_age }
    }

    /// From now on this age is too old.
    pub(super) fn keep_idle(&mut self, max_age: Duration) {
        self.max_age = max_age;
    }

    /// The connection used last, if there is one that looks alive and rested no longer than `max_age` (which can
    /// only shorten the pool's own).
    pub(super) fn take(
        &mut self,
        replica: ReplicaId,
        now: Instant,
        max_age: Option<Duration>,
    ) -> Option<Box<Upstream>> {
        let max_age = max_age.map_or(self.max_age, |age| age.min(self.max_age));
        let shelf = self.shelves.get_mut(usize::from(replica.slot)).filter(|s| s.life == replica.life)?;
        while let Some(mut upstream) = shelf.idle.pop() {
            if now.duration_since(upstream.idle_since()) > max_age {
                // The ones below are older still; the sweep closes them.
                return None;
            }
            if upstream.alive() {
                return Some(upstream);
            }
        }
        None
    }

    /// Takes a connection back whose answer was read to its end. It is closed when it can't serve again.
    pub(super) fn put(&mut self, replica: ReplicaId, mut upstream: Box<Upstream>, now: Instant) {
        if !upstream.reusable() {
            return;
        }
        let slot = usize::from(replica.slot);
        if self.shelves.len() <= slot {
            self.shelves.resize_with(slot + 1, Shelf::default);
        }
        let shelf = &mut self.shelves[slot];
        if shelf.life != replica.life {
            shelf.idle.clear();
            shelf.life = replica.life;
        }
        if shelf.idle.len() < KEEP {
            upstream.rest(now);
            shelf.idle.push(upstream);
        }
    }

    /// Closes what is too old, and all of the replicas that are no longer `live`.
    pub(super) fn sweep(&mut self, now: Instant, live: impl Fn(ReplicaId) -> bool) {
        for (slot, shelf) in self.shelves.iter_mut().enumerate() {
            if shelf.idle.is_empty() {
                continue;
            }
            let id = ReplicaId { slot: u16::try_from(slot).unwrap_or(u16::MAX), life: shelf.life };
            if live(id) {
                let fresh = shelf.idle.partition_point(|u| now.duration_since(u.idle_since()) > self.max_age);
                shelf.idle.drain(..fresh);
            } else {
                shelf.idle.clear();
            }
        }
    }
}
