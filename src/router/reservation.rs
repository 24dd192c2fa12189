//! A reservation: what was booked for a request, given back exactly once.

use super::tokens::Placement;
use super::{Endpoint, Router};
use crate::core::fallback::Next;
use crate::core::{Failure, Outcome, Placed, ReplicaId, RequestId, Time};
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
    /// Bytes of the prompt's text.
    text_bytes: u64,
    /// Where its tokens are believed to be, if they are known.
    there: Option<Placement>,
    /// When what it has there was last used, if its capacity has to be learned.
    used: Option<Time>,
    /// The next best, if the door asked for them.
    pub(super) next: Next,
    waited: Duration,
    decided: Duration,
    tokens: AtomicU32,
    begun: bool,
    open: bool,
}

/// Where a request was placed.
pub(super) struct Where {
    pub(super) placed: Placed,
    pub(super) endpoint: Option<Arc<Endpoint>>,
    pub(super) text_bytes: u64,
    pub(super) there: Option<Placement>,
    pub(super) used: Option<Time>,
    pub(super) next: Next,
}

impl Reservation {
    pub(super) fn new(
        router: Arc<Router>,
        id: RequestId,
        at: Where,
        waited: Duration,
        decided: Duration,
    ) -> Self {
        Reservation {
            router,
            id,
            placed: at.placed,
            endpoint: at.endpoint,
            text_bytes: at.text_bytes,
            there: at.there,
            used: at.used,
            next: at.next,
            waited,
            decided,
            tokens: AtomicU32::new(0),
            begun: false,
            open: true,
        }
    }

    /// The data-parallel rank that holds most of it, where the replica has several.
    pub fn rank(&self) -> Option<u32> {
        self.there.as_ref()?.rank
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
        let lost = match (&self.endpoint, outcome.cached_tokens) {
            (Some(e), Some(cached)) if self.placed.cached >= SURELY_CACHED => e.cache_seems_lost(cached == 0),
            _ => false,
        };
        self.learn_capacity(outcome);
        if let Some(endpoint) = &self.endpoint {
            endpoint.cached.ended(self.placed.cached, outcome.cached_tokens);
        }
        let output = outcome.output_tokens.map_or(0.0, f64::from);
        let mut index = r.index.write();
        if lost {
            // Its cache was reset, or it restarted unseen: three long prefixes in a row weren't there.
            index.clear(self.placed.replica.slot);
        }
        index.confirm(r.now(), self.id, (output / self.text_block()).ceil() as u32);
        drop(index);
        self.settle_tokens(outcome, lost);
        if lost {
            let name = self.endpoint.as_ref().map_or("?", |e| &*e.name);
            tracing::warn!(
                replica = name,
                "its cache seems to be lost: what was believed of it is forgotten"
            );
        }
    }

    /// Less found than predicted, or more, tells how much fits where the engine doesn't.
    fn learn_capacity(&self, outcome: &Outcome) {
        let (Some(endpoint), Some(cached)) = (&self.endpoint, outcome.cached_tokens) else { return };
        if endpoint.told.load(Ordering::Relaxed) {
            return;
        }
        let (block, predicted) = (self.placed.block_tokens.max(1.0), f64::from(self.placed.cached));
        // A text's blocks are estimates of tokens: a tenth of it says nothing.
        let margin = if self.there.is_some() { block } else { block + predicted / 10.0 };
        let difference = predicted - f64::from(cached);
        if difference >= margin {
            let Some(used) = self.used else { return };
            let (index, holder) = match &self.there {
                Some(there) => (&self.router.exact, there.holder),
                None => (&self.router.index, self.placed.replica.slot),
            };
            let index = index.read();
            if !index.follows(holder) {
                let since = index.held_since(holder, used);
                drop(index);
                endpoint.capacity.lock().missed(since as f64 * block);
            }
        } else if difference <= -margin {
            endpoint.capacity.lock().found_more();
        }
    }

    /// Tokens in a block of the text's chain.
    fn text_block(&self) -> f64 {
        if self.there.is_none() {
            return self.placed.block_tokens.max(1.0);
        }
        let share = f64::from(self.router.block_bytes) / (self.text_bytes as f64).max(1.0);
        (f64::from(self.placed.prompt) * share).max(1.0)
    }

    /// The same for the engine's own view of it.
    fn settle_tokens(&self, outcome: &Outcome, lost: bool) {
        let Some(there) = &self.there else { return };
        let r = &self.router;
        let (now, block) = (r.now(), there.block.max(1));
        let tail = outcome.output_tokens.map_or(0, |tokens| tokens.div_ceil(block));
        let mut index = r.exact.write();
        let followed = index.follows(there.holder);
        if lost && !followed {
            index.clear(there.holder);
        }
        if let Some(cached) = outcome.cached_tokens.filter(|&cached| cached > self.placed.cached) {
            // More than was known: blocks from before the router listened.
            index.correct(now, &there.chain, there.holder, cached / block);
        }
        index.confirm(now, self.id, tail);
        drop(index);
        if let (true, Some(endpoint), Some(cached)) = (followed, &self.endpoint, outcome.cached_tokens) {
            if lost {
                endpoint.kv.restarted();
            }
            endpoint.kv.answered(cached + block <= self.placed.cached);
        }
    }

    /// It never came so far as to change a cache.
    fn take_back(&self) {
        self.router.index.write().rollback(self.id);
        if self.there.is_some() {
            self.router.exact.write().rollback(self.id);
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
        self.take_back();
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
        if self.begun {
            r.index.write().confirm(now, self.id, 0);
            if self.there.is_some() {
                r.exact.write().confirm(now, self.id, 0);
            }
        } else {
            self.take_back();
        }
        if more {
            r.wake();
        }
    }
}
