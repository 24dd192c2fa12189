//! A reservation: what was booked for a request, given back exactly once.

use super::{Endpoint, Router};
use crate::core::fallback::Next;
use crate::core::{Failure, Outcome, Placed, ReplicaId, RequestId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Tokens of a stream that are counted here before the ledger hears of them.
const STRIDE: u32 = 128;
/// Tokens of a predicted prefix from which finding none of it is no matter of rounding.
const SURELY_CACHED: u32 = 1024;

/// The guard of one placed request. Dropped without [`finish`](Self::finish) or [`fail`](Self::fail), the request
/// counts as given up by its client.
pub struct Reservation {
    pub(super) router: Arc<Router>,
    pub(super) id: RequestId,
    placed: Placed,
    endpoint: Option<Arc<Endpoint>>,
    /// The next best, if the door asked for them.
    pub(super) next: Next,
    waited: Duration,
    decided: Duration,
    tokens: AtomicU32,
    begun: bool,
    open: bool,
}

impl Reservation {
    pub(super) fn new(
        router: Arc<Router>,
        id: RequestId,
        placed: Placed,
        endpoint: Option<Arc<Endpoint>>,
        waited: Duration,
        decided: Duration,
    ) -> Self {
        Reservation {
            router,
            id,
            placed,
            endpoint,
            next: Next::new(),
            waited,
            decided,
            tokens: AtomicU32::new(0),
            begun: false,
            open: true,
        }
    }

    /// Where the request goes; `None` only if the replica left in the very moment of placing.
    pub fn endpoint(&self) -> Option<&Arc<Endpoint>> {
        self.endpoint.as_ref()
    }

    /// The replica.
    pub fn replica(&self) -> ReplicaId {
        self.placed.replica
    }

    /// Prompt tokens believed to be cached there.
    pub fn predicted_cached(&self) -> u32 {
        self.placed.cached
    }

    /// Prompt tokens, estimated.
    pub fn prompt_tokens(&self) -> u32 {
        self.placed.prompt
    }

    /// Time spent waiting in line.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Time that the pick itself took, locks and match included.
    pub fn decision_time(&self) -> Duration {
        self.decided
    }

    /// The first token was seen.
    pub fn first_token(&mut self) {
        if !self.begun {
            self.begun = true;
            let now = self.router.now();
            let more = {
                let mut fleet = self.router.fleet.lock();
                fleet.first_token(now, self.id);
                fleet.waiting() > 0
            };
            // Its prefill is worked off: somebody's turn may have come.
            if more {
                self.router.wake();
            }
        }
    }

    /// So many output tokens were seen so far. Takes no lock except once in every 128 tokens.
    pub fn progress(&self, tokens: u32) {
        let before = self.tokens.swap(tokens, Ordering::Relaxed);
        if tokens / STRIDE > before / STRIDE {
            self.router.fleet.lock().progress(self.id, tokens);
        }
    }

    /// The request ended well.
    pub fn finish(mut self, outcome: Outcome) {
        self.open = false;
        let r = &self.router;
        let now = r.now();
        let more = {
            let mut fleet = r.fleet.lock();
            fleet.finish(now, self.id, outcome);
            fleet.waiting() > 0
        };
        self.settle(&outcome);
        if more {
            r.wake();
        }
    }

    /// The index hears how it ended: the prompt is in the cache now, and the answer presses on the capacity.
    fn settle(&self, outcome: &Outcome) {
        let r = &self.router;
        let tail =
            outcome.output_tokens.map_or(0.0, |t| (f64::from(t) / self.placed.block_tokens.max(1.0)).ceil());
        let lost = match (&self.endpoint, outcome.cached_tokens) {
            (Some(e), Some(cached)) if self.placed.cached >= SURELY_CACHED => e.cache_seems_lost(cached == 0),
            _ => false,
        };
        r.each_index(|index| {
            if lost {
                // Its cache was reset, or it restarted unseen: three long prefixes in a row weren't there.
                index.clear(self.placed.replica.slot);
            }
            index.confirm(r.now(), self.id, tail as u32);
        });
        if lost {
            let name = self.endpoint.as_ref().map_or("?", |e| &*e.name);
            tracing::warn!(
                replica = name,
                "its cache seems to be lost: what was believed of it is forgotten"
            );
        }
    }

    /// The request failed; what it was believed to leave in the cache is taken back.
    pub fn fail(mut self, failure: Failure) {
        self.open = false;
        let r = &self.router;
        let now = r.now();
        let (suspect, more) = {
            let mut fleet = r.fleet.lock();
            let suspect = fleet.fail(now, self.id, failure);
            (suspect, fleet.waiting() > 0)
        };
        r.each_index(|index| index.rollback(self.id));
        if suspect {
            let name = self.endpoint.as_ref().map_or("?", |e| &*e.name);
            tracing::warn!(replica = name, ?failure, "suspect after failures in a row: it gets probes only");
        }
        if more {
            r.wake();
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let r = &self.router;
        let now = r.now();
        let more = {
            let mut fleet = r.fleet.lock();
            fleet.cancel(now, self.id);
            fleet.waiting() > 0
        };
        // With its first token out, its prompt is in the cache, whatever became of the rest.
        r.each_index(
            |index| if self.begun { index.confirm(now, self.id, 0) } else { index.rollback(self.id) },
        );
        if more {
            r.wake();
        }
    }
}
