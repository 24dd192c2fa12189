//! All replicas of a pool, and everything in flight.
//!
//! The fleet is one plain value: the shell keeps it behind one short lock, the simulator owns it. Membership is by
//! [`ReplicaId`], one life of one slot; requests end by their own id, exactly once, also when their replica has left
//! and another lives in its place.

use super::adapters::Adapters;
use super::admission::{LaneRules, Lanes, Queue, Tenants};
use super::cost::Weights;
use super::health::{Probe, Rules, State};
use super::ids::{Holder, ModelId, ReplicaId, RequestId};
use super::learn::{Fit, median};
use super::ledger::Polled;
use super::model::ModelStats;
use super::replica::{Facts, Medians, Replica};
use super::speed::Shape;
use super::time::Time;
use std::collections::{BTreeMap, BTreeSet};

/// What a fleet is set up with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The prior of all speeds.
    pub prior: Shape,
    /// Weights of the price.
    pub weights: Weights,
    /// When a replica is taken out and brought back.
    pub rules: Rules,
    /// Seconds in which a new or recovered replica grows into its full share.
    pub slow_start: f64,
    /// Tokens a byte of text to start from.
    pub tokens_per_byte: f64,
    /// Requests that may wait at most, in all lanes and in line. 0: nobody waits, and there are no lanes.
    pub queue: usize,
    /// When requests wait in lanes, and in which order.
    pub lanes: LaneRules,
    /// Seed of what is random: who is shed.
    pub seed: u64,
    /// Replicas at most.
    pub max_replicas: Holder,
    /// Models at most; traffic of others is priced with the defaults.
    pub max_models: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            prior: Shape::DENSE_32B,
            weights: Weights::default(),
            rules: Rules::default(),
            slow_start: 30.0,
            tokens_per_byte: 0.25,
            queue: 16_384,
            lanes: LaneRules::default(),
            seed: 1,
            max_replicas: 1024,
            max_models: 1024,
        }
    }
}

/// Why a request failed, as far as the replica is concerned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Failure {
    /// No connection could be made.
    Connect,
    /// The connection was closed before or in the answer.
    Reset,
    /// It answered with this server error.
    Status(u16),
    /// Nothing came in time.
    Timeout,
    /// The replica asks for patience (429, or 503 with `Retry-After`): no failure, but nothing new for so many seconds.
    BackPressure {
        /// Seconds it asked for.
        retry_after: Option<f64>,
    },
    /// The client's fault (any other 4xx): says nothing about the replica.
    Blameless,
}

/// What is known when a request ended well.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Prompt tokens, from `usage`.
    pub prompt_tokens: Option<u32>,
    /// Prompt tokens that the engine found in its cache, from `usage`.
    pub cached_tokens: Option<u32>,
    /// Output tokens over all choices, from `usage` or counted.
    pub output_tokens: Option<u32>,
}

/// What the fleet remembers of a placed request, beside the ledger's entry.
#[derive(Clone, Debug)]
pub(super) struct Booked {
    pub(super) replica: ReplicaId,
    pub(super) model: Option<ModelId>,
    /// Bytes of text, when the prompt is text.
    pub(super) bytes: Option<u64>,
    pub(super) prompt: f64,
    pub(super) cached: f64,
    pub(super) choices: u32,
    pub(super) placed: Time,
    pub(super) first: Option<Time>,
    /// Seconds that decoding of others adds to its prefill, by the shape.
    pub(super) disturbance: f64,
    /// Nothing was queued before it: its TTFT measures its prefill.
    pub(super) clean: bool,
    /// A decode step by the shape when its first token came.
    pub(super) step: f64,
    /// The account of its tenant, and the tokens charged there.
    pub(super) account: u64,
    pub(super) charged: f64,
    /// What [`prefilled`](super::ledger::Ledger::prefilled) was then.
    pub(super) prefilled: f64,
}

/// The fleet.
#[derive(Clone, Debug)]
pub struct Fleet {
    pub(super) settings: Settings,
    pub(super) replicas: Vec<Option<Replica>>,
    lives: Vec<u32>,
    pub(super) booked: BTreeMap<RequestId, Booked>,
    pub(super) models: BTreeMap<ModelId, ModelStats>,
    pub(super) fit: Fit,
    pub(super) medians: Medians,
    pub(super) queue: Queue,
    pub(super) lanes: Lanes,
    pub(super) tenants: Tenants,
    /// Shed while they waited, and not told yet.
    pub(super) shed: BTreeSet<RequestId>,
    scratch: Vec<f64>,
    finishes: u32,
}

/// Every so many finished requests the medians are taken anew (a sort over all replicas).
const MEDIANS_EVERY: u32 = 16;

impl Fleet {
    /// An empty fleet.
    pub fn new(settings: Settings) -> Self {
        Fleet {
            fit: Fit::new(settings.prior),
            queue: Queue::new(settings.queue),
            lanes: Lanes::default(),
            tenants: Tenants::default(),
            shed: BTreeSet::new(),
            settings,
            replicas: Vec::new(),
            lives: Vec::new(),
            booked: BTreeMap::new(),
            models: BTreeMap::new(),
            medians: Medians::default(),
            scratch: Vec::new(),
            finishes: 0,
        }
    }

    /// A replica joins. `None` if the fleet is as large as the settings allow.
    pub fn join(&mut self, facts: Facts) -> Option<ReplicaId> {
        let free = self.replicas.iter().position(Option::is_none);
        let slot = match free {
            Some(s) => s,
            None if self.replicas.len() < usize::from(self.settings.max_replicas) => {
                self.replicas.push(None);
                self.lives.push(0);
                self.replicas.len() - 1
            }
            None => return None,
        };
        self.lives[slot] = self.lives[slot].wrapping_add(1);
        let id = ReplicaId { slot: slot as Holder, life: self.lives[slot] };
        self.replicas[slot] = Some(Replica::new(id, facts));
        Some(id)
    }

    /// A replica leaves: it gets nothing more, and its slot is free once its last request has ended.
    pub fn leave(&mut self, id: ReplicaId) {
        if let Some(r) = self.get_mut(id) {
            r.left = true;
        }
        self.bury(id);
    }

    /// Stops or resumes giving a replica new requests.
    pub fn drain(&mut self, id: ReplicaId, draining: bool) {
        if let Some(r) = self.get_mut(id) {
            r.draining = draining;
        }
    }

    /// The replica of that life, if it is still on the books.
    pub fn get(&self, id: ReplicaId) -> Option<&Replica> {
        self.replicas.get(usize::from(id.slot))?.as_ref().filter(|r| r.id == id)
    }

    /// Changes what is known of a replica (models, context length, capacity).
    pub fn facts(&mut self, id: ReplicaId, change: impl FnOnce(&mut Facts)) {
        if let Some(r) = self.get_mut(id) {
            change(&mut r.facts);
        }
    }

    /// Changes what is known of a replica's LoRA adapters.
    pub fn adapters(&mut self, id: ReplicaId, change: impl FnOnce(&mut Adapters)) {
        if let Some(r) = self.get_mut(id) {
            change(&mut r.adapters);
        }
    }

    /// Seconds until a placed request should have ended, by what is expected of it; 0 once that is past.
    pub fn remaining(&self, now: Time, id: RequestId) -> Option<f64> {
        let b = self.booked.get(&id)?;
        let r = self.get(b.replica)?;
        let left = r.ledger.remaining(now, id)?;
        let step = self.fit.shape().decode_step(r.ledger.sequences(now), r.ledger.context(now));
        Some(left.prefill + left.tokens * step * r.pace.decode)
    }

    /// All replicas on the books.
    pub fn replicas(&self) -> impl Iterator<Item = &Replica> {
        self.replicas.iter().flatten()
    }

    /// A health probe came back; true if the replica's state changed.
    pub fn probe(&mut self, now: Time, id: ReplicaId, probe: Probe) -> bool {
        let rules = self.settings.rules;
        self.get_mut(id).is_some_and(|r| r.health.probe(now, probe, &rules))
    }

    /// A metrics page came.
    pub fn load(&mut self, now: Time, id: ReplicaId, polled: Polled) {
        if let Some(r) = self.get_mut(id) {
            r.ledger.poll(now, polled);
        }
    }

    /// The engine's own counters: `requests` prefills took `seconds` each on average, `computed` tokens each. Used
    /// where no clean TTFT was measured lately, since it includes what prefills cost each other.
    pub fn counters(&mut self, now: Time, id: ReplicaId, requests: f64, seconds: f64, computed: f64) {
        let shape = *self.fit.shape();
        if let Some(r) = self.get_mut(id)
            && requests >= 1.0
            && computed >= 1.0
            && r.prefill.error(now) > COUNTERS_UNLESS
        {
            r.prefill.observe(now, seconds, shape.prefill(computed, 0.0), 0.3);
        }
    }

    /// The first token of a stream was seen.
    pub fn first_token(&mut self, now: Time, id: RequestId) {
        let shape = *self.fit.shape();
        let Some(b) = self.booked.get_mut(&id).filter(|b| b.first.is_none()) else { return };
        b.first = Some(now);
        let replica = b.replica;
        let Some(r) = self.replicas.get_mut(usize::from(replica.slot)).and_then(Option::as_mut) else {
            return;
        };
        r.ledger.first_token(now, id);
        r.health.succeeded();
        b.step = shape.decode_step(r.ledger.sequences(now), r.ledger.context(now));
        b.prefilled = r.ledger.prefilled();
    }

    /// So many output tokens were seen so far.
    pub fn progress(&mut self, id: RequestId, tokens: u32) {
        let Some(replica) = self.booked.get(&id).map(|b| b.replica) else { return };
        if let Some(r) = self.get_mut(replica) {
            r.ledger.progress(id, tokens);
        }
    }

    /// A request ended well.
    pub fn finish(&mut self, now: Time, id: RequestId, outcome: Outcome) {
        let Some(b) = self.release(now, id) else { return };
        if let Some(r) = self.get_mut(b.replica) {
            r.succeeded(now);
        }
        self.tenants.correct(b.account, taken(&b, &outcome) - b.charged);
        self.learn(now, &b, &outcome);
        self.bury(b.replica);
    }

    /// A request failed. True if its replica became a suspect by it.
    pub fn fail(&mut self, now: Time, id: RequestId, failure: Failure) -> bool {
        let Some(b) = self.release(now, id) else { return false };
        let rules = self.settings.rules;
        let spare = self.can_spare(b.replica);
        let mut suspect = false;
        if let Some(r) = self.get_mut(b.replica) {
            match failure {
                Failure::Blameless => {}
                Failure::BackPressure { retry_after } => {
                    let pause = retry_after.unwrap_or(BACK_OFF).clamp(0.0, BACK_OFF_MAX);
                    r.paused_until = r.paused_until.max(now.plus(pause));
                }
                _ => {
                    r.failed(now);
                    let its_own = !matches!(failure, Failure::Status(_));
                    suspect = r.health.failed(now, b.placed, &rules, its_own || spare);
                }
            }
        }
        self.bury(b.replica);
        suspect
    }

    /// The client left: everything that was booked for it is released.
    pub fn cancel(&mut self, now: Time, id: RequestId) {
        self.unqueue(id);
        if let Some(b) = self.release(now, id) {
            self.bury(b.replica);
        }
    }

    /// Gives up a place in a lane or in the line.
    pub fn unqueue(&mut self, id: RequestId) {
        self.queue.leave(id);
        self.shed.remove(&id);
        self.drop_from_lane(id);
    }

    /// Turns the lanes on or off; who waits goes on waiting. Returns what was before.
    pub fn use_lanes(&mut self, on: bool) -> bool {
        std::mem::replace(&mut self.settings.lanes.on, on)
    }

    /// What it was set up with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes the medians anew and, given the index's measure, the share of evicted blocks asked for again.
    pub fn tick(&mut self, now: Time, reuse: f64) {
        self.settings.weights.reuse = reuse.clamp(0.0, 1.0);
        self.take_medians(now);
    }

    /// Requests placed and not ended.
    pub fn in_flight(&self) -> usize {
        self.booked.len()
    }

    /// Requests waiting, in lanes or in line.
    pub fn waiting(&self) -> usize {
        self.queue.len() + self.lanes.len() + self.shed.len()
    }

    /// Requests waiting in the lane of a replica.
    pub fn in_lane(&self, id: ReplicaId) -> usize {
        self.lanes.lane(id.slot).len()
    }

    /// Statistics of a model.
    pub fn model(&self, model: ModelId) -> Option<&ModelStats> {
        self.models.get(&model)
    }

    /// Forgets what was learned of all models but those.
    pub fn keep_models(&mut self, keep: impl Fn(ModelId) -> bool) {
        self.models.retain(|&id, _| keep(id));
    }

    /// The pool's learned shape and medians.
    pub fn speeds(&self) -> (&Shape, Medians) {
        (self.fit.shape(), self.medians)
    }

    /// Recounts everything. A message says what is wrong. The simulator calls it after each step.
    pub fn check_invariants(&self) -> Result<(), String> {
        let mut flights = 0;
        for (slot, r) in self.replicas.iter().enumerate() {
            let Some(r) = r else { continue };
            r.ledger.check().map_err(|e| format!("replica {slot}: {e}"))?;
            let n = r.ledger.in_flight() as usize;
            flights += n;
            if usize::from(r.id.slot) != slot || r.id.life != self.lives[slot] {
                return Err(format!("replica {slot} says it is {:?}", r.id));
            }
            if r.left && n == 0 {
                return Err(format!("replica {slot} left, has nothing in flight, and is still on the books"));
            }
        }
        if flights != self.booked.len() {
            return Err(format!("{} requests booked, {flights} in the ledgers", self.booked.len()));
        }
        self.check_waiting()?;
        for (id, b) in &self.booked {
            if self.get(b.replica).is_none() {
                return Err(format!("{id:?} is booked on {:?}, which is gone", b.replica));
            }
        }
        Ok(())
    }

    pub(super) fn get_mut(&mut self, id: ReplicaId) -> Option<&mut Replica> {
        self.replicas.get_mut(usize::from(id.slot))?.as_mut().filter(|r| r.id == id)
    }

    /// Is any replica up that a request could still go to, now or later?
    pub fn any_ready(&self) -> bool {
        self.replicas().any(|r| r.health.state() == State::Ready && !r.draining && !r.left)
    }

    /// Would at least half of the replicas that are up still be ready without this one (or is it the only one anyhow)?
    /// If not, server errors may well be the requests' own (one that fails on every engine it meets), and taking
    /// replicas out for them would end the service.
    fn can_spare(&self, id: ReplicaId) -> bool {
        let up = |r: &&Replica| {
            !r.left && !r.draining && matches!(r.health.state(), State::Ready | State::Suspect)
        };
        let all = self.replicas().filter(up).count();
        let others =
            self.replicas().filter(up).filter(|r| r.id != id && r.health.state() == State::Ready).count();
        all == 1 || others * 2 >= all
    }

    fn release(&mut self, now: Time, id: RequestId) -> Option<Booked> {
        let b = self.booked.remove(&id)?;
        self.tenants.close(b.account);
        if let Some(r) = self.get_mut(b.replica) {
            r.ledger.release(now, id);
        }
        Some(b)
    }

    fn bury(&mut self, id: ReplicaId) {
        if self.get(id).is_some_and(|r| r.left && r.ledger.in_flight() == 0) {
            self.replicas[usize::from(id.slot)] = None;
        }
    }

    fn learn(&mut self, now: Time, b: &Booked, outcome: &Outcome) {
        if let Some(stats) = b.model.and_then(|m| self.models.get_mut(&m)) {
            if let (Some(bytes), Some(tokens)) = (b.bytes, outcome.prompt_tokens) {
                stats.saw_prompt(bytes, tokens);
            }
            if let Some(tokens) = outcome.output_tokens {
                stats.saw_output(f64::from(tokens) / f64::from(b.choices.max(1)));
            }
        }
        let shape = *self.fit.shape();
        let medians = self.medians;
        if let Some(first) = b.first
            && let Some(r) = self.get_mut(b.replica)
        {
            let tokens = outcome.output_tokens.unwrap_or(0);
            if b.choices == 1 && tokens >= LONG_ENOUGH {
                // Prompts of others that were computed meanwhile held it up: that is no slowness of decoding, and taken
                // for it would drive everybody away from where there is much to compute.
                let whole = now.since(first);
                let own = whole - (r.ledger.prefilled() - b.prefilled);
                let step_now =
                    shape.decode_step(r.ledger.sequences(now) + 1.0, r.ledger.context(now) + b.prompt);
                let share = own / whole.max(1e-9);
                if share >= MOSTLY_OWN {
                    r.decode.observe(now, own / f64::from(tokens - 1), (b.step + step_now) / 2.0, share);
                }
            }
            if b.clean {
                let prompt = outcome.prompt_tokens.map_or(b.prompt, f64::from);
                let cached = outcome.cached_tokens.map_or(b.cached, f64::from).min(prompt - 1.0).max(0.0);
                let ttft = first.since(b.placed);
                let own = (ttft - b.disturbance * r.pace.decode).max(0.3 * ttft);
                let expected = shape.prefill(prompt - cached, cached);
                // Small prefills measure the network and the scheduler as much as the engine.
                let weight = expected / (expected + SMALL);
                let relative = r.pace.prefill / medians.prefill.exp();
                r.prefill.observe(now, own, expected, weight);
                self.fit.observe(own / relative, prompt - cached, cached, weight);
            }
            self.repace(now, b.replica);
        }
        self.finishes += 1;
        if self.finishes.is_multiple_of(MEDIANS_EVERY) {
            self.take_medians(now);
        }
    }

    fn repace(&mut self, now: Time, id: ReplicaId) {
        let medians = self.medians;
        if let Some(r) = self.get_mut(id) {
            r.repace(now, medians);
        }
    }

    pub(super) fn take_medians(&mut self, now: Time) {
        let ups = || self.replicas.iter().flatten().filter(|r| !r.left);
        self.medians = Medians {
            prefill: median(ups().map(|r| &r.prefill), &mut self.scratch),
            decode: median(ups().map(|r| &r.decode), &mut self.scratch),
        };
        let medians = self.medians;
        self.replicas.iter_mut().flatten().for_each(|r| r.repace(now, medians));
    }
}

/// Tokens that a request took: what it computed of its prompt, and its output.
fn taken(b: &Booked, outcome: &Outcome) -> f64 {
    let prompt = outcome.prompt_tokens.map_or(b.prompt, f64::from);
    let cached = outcome.cached_tokens.map_or(b.cached, f64::from).min(prompt);
    prompt - cached + f64::from(outcome.output_tokens.unwrap_or(0))
}

/// Seconds of prefill at which a sample counts half.
const SMALL: f64 = 0.01;
/// Share of a stream's time that must be left, less other prompts, for it to say something about a step.
const MOSTLY_OWN: f64 = 0.5;
/// Output tokens from which a stream's mean gap says something about a step.
const LONG_ENOUGH: u32 = 8;
/// Standard error under which measured TTFTs suffice and the engine's counters aren't needed.
const COUNTERS_UNLESS: f64 = 0.15;
/// Seconds of patience when a replica asks for some without saying how much.
const BACK_OFF: f64 = 0.5;
/// Seconds of patience at most, whatever it asks for.
const BACK_OFF_MAX: f64 = 30.0;
