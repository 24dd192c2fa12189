//! What we believe about one replica.

use super::adapters::Adapters;
use super::health::Health;
use super::ids::{ModelId, ReplicaId};
use super::learn::Scale;
use super::ledger::Ledger;
use super::time::Time;

/// What is told about a replica when it joins.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Stable over restarts of the router and equal in all routers (a hash of its address): orders ties.
    pub key: u64,
    /// Models and adapters that it serves, sorted; `None` = not known yet: it may serve any.
    pub models: Option<Vec<ModelId>>,
    /// Longest prompt plus answer that it takes, in tokens.
    pub max_model_len: Option<u32>,
    /// Tokens that its KV cache holds.
    pub capacity: Option<u64>,
    /// Requests in flight at most, if the operator says so.
    pub max_in_flight: Option<u32>,
}

/// One member of the fleet.
#[derive(Clone, Debug)]
pub struct Replica {
    /// Which life of which slot.
    pub id: ReplicaId,
    /// What is known of it.
    pub facts: Facts,
    /// Its state.
    pub health: Health,
    /// Gets nothing new, and leaves when what it has is done.
    pub draining: bool,
    /// It left: kept only until its last request has ended.
    pub left: bool,
    /// What it has in flight.
    pub ledger: Ledger,
    /// How much slower than the pool's shape its prefills are.
    pub prefill: Scale,
    /// How much slower than the pool's shape its decode steps are.
    pub decode: Scale,
    /// Its LoRA adapters.
    pub adapters: Adapters,
    /// Both as factors, drawn to the pool's medians: what prices are made with.
    pub pace: Pace,
    /// When it last was given a prompt of which it held nothing.
    pub last_cold: Time,
    /// Failures, decayed; see [`Replica::trouble`].
    failures: f64,
    failures_at: Time,
    /// Not before this: the replica asked to be left alone (`Retry-After`).
    pub paused_until: Time,
}

/// Seconds in which half of the memory of a failure fades.
const FORGET: f64 = 10.0;
/// Seconds of waiting that one remembered failure is priced at, doubled with each that follows at once: a retry, and what
/// it risks.
const FAILURE_COST: f64 = 0.5;
/// Successes over which the memory of a failure fades to about a third.
const OUTCOMES: f64 = 10.0;
/// Failures remembered at most.
const FAILURES_MAX: f64 = 10.0;
/// Seconds late under which a first token isn't overdue: scheduling, network, an estimate a little off.
const GRACE: f64 = 0.5;

/// Logarithms of the pool's median scales, which those of the replicas are drawn to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Medians {
    /// Of prefills.
    pub prefill: f64,
    /// Of decode steps.
    pub decode: f64,
}

/// How many times slower than the pool's shape a replica is. Kept, because a price is taken far more often than a speed
/// changes.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Its prefills.
    pub prefill: f64,
    /// Its decode steps.
    pub decode: f64,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { prefill: 1.0, decode: 1.0 }
    }
}

impl Replica {
    /// A replica that has just joined.
    pub fn new(id: ReplicaId, facts: Facts) -> Self {
        Replica {
            id,
            facts,
            health: Health::new(),
            draining: false,
            left: false,
            ledger: Ledger::default(),
            prefill: Scale::default(),
            decode: Scale::default(),
            adapters: Adapters::default(),
            pace: Pace::default(),
            last_cold: Time(0),
            failures: 0.0,
            failures_at: Time(0),
            paused_until: Time(0),
        }
    }

    /// Takes its pace anew; it moves with what was measured, and with time while nothing is.
    pub fn repace(&mut self, now: Time, medians: Medians) {
        self.pace = Pace {
            prefill: self.prefill.log(now, medians.prefill).exp(),
            decode: self.decode.log(now, medians.decode).exp(),
        };
        self.ledger.fade(now);
    }

    /// Does it serve `model`? True while its models aren't known.
    pub fn serves(&self, model: Option<ModelId>) -> bool {
        match (model, &self.facts.models) {
            (Some(m), Some(list)) => list.binary_search(&m).is_ok(),
            _ => true,
        }
    }

    /// Seconds of waiting that its recent failures and its overdue prefills are priced at. A replica that fails fast
    /// is never busy: without this it would look like the best place there is.
    pub fn trouble(&self, now: Time) -> f64 {
        let streak = 2f64.powi(self.health.failures().min(3) as i32);
        let priced = FAILURE_COST * self.remembered(now) * streak;
        priced + (self.ledger.overdue(now) - GRACE).max(0.0)
    }

    /// A request failed by its fault.
    pub fn failed(&mut self, now: Time) {
        self.failures = (self.remembered(now) + 1.0).min(FAILURES_MAX);
        self.failures_at = now;
    }

    /// A request succeeded: failures fade with traffic as well as with time, so that one in a thousand costs next to
    /// nothing and one in three a lot.
    pub fn succeeded(&mut self, now: Time) {
        self.health.succeeded();
        if self.failures > 0.0 {
            self.failures = self.remembered(now) * (1.0 - 1.0 / OUTCOMES);
            self.failures_at = now;
        }
    }

    fn remembered(&self, now: Time) -> f64 {
        let kept = self.failures * 0.5f64.powf(now.since(self.failures_at) / FORGET);
        if kept < 0.01 { 0.0 } else { kept }
    }

    /// Requests in flight at most: the operator's word, else what its own queue taught.
    pub fn cap(&self, now: Time) -> Option<u32> {
        self.facts.max_in_flight.or_else(|| self.ledger.limit(now))
    }
}
