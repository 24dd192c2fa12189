//! The shell around the core: the locks, the clock, the wake-ups.
//!
//! Two short locks. The **fleet** (ledgers, prices) is locked once a pick: choosing and reserving are one step. The
//! **index** has its own, so that what is learned of caches never stands in a pick's way; its readers don't exclude each
//! other. Neither is held across an await, hashing happens outside both, and tokens of a running stream take none: they
//! are counted in the reservation and booked in strides.

mod ask;
mod cached;
mod elsewhere;
mod endpoint;
mod explain;
mod kv;
mod members;
mod names;
pub mod objectives;
mod reservation;
mod responses;
mod snapshot;
mod tokens;
mod views;
mod waiters;

pub use crate::tokenize::Kind;
pub use ask::{Ask, Refusal};
pub use cached::{CachedTokens, Found};
pub use elsewhere::Counts;
pub use endpoint::{Endpoint, Member};
pub use explain::{CandidateView, Explanation, PriceView};
pub use kv::{KvSlot, KvView, Trust};
pub use members::{ModelInfo, Page};
pub use reservation::Reservation;
pub use snapshot::Snapshot;
pub use tokens::{Inexact, TokenPrompt, Tokens, TokensError};
pub use views::ReplicaView;

use crate::config::Config;
use crate::core::cost::Weights;
use crate::core::fallback::Next;
use crate::core::health::Rules;
use crate::core::prefix::{IndexConfig, IndexStats, Matches, PrefixIndex, Space};
use crate::core::{Arrival, Fleet, LaneRules, Placed, ReplicaId, Request, RequestId, Seen, Settings, Time};
use arc_swap::ArcSwap;
use endpoint::Slots;
use names::Names;
use objectives::{Objectives, Rewrites};
use parking_lot::{Mutex, RwLock};
use reservation::Where;
use responses::Responses;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokens::Placement;
// Virtual in simulations that pause time; otherwise the system's monotonic clock.
use tokio::time::Instant;
use waiters::Waiters;

/// The router: one for all workers of a process.
pub struct Router {
    started: Instant,
    fleet: Mutex<Fleet>,
    /// Who holds which text.
    index: RwLock<PrefixIndex>,
    /// Who holds which tokens, in the engines' blocks: what their events say, where they do. Of its own, because a
    /// cache's room is counted in blocks.
    exact: RwLock<PrefixIndex>,
    ranks: ArcSwap<kv::Ranks>,
    tokens: OnceLock<Tokens>,
    names: RwLock<Names>,
    slots: ArcSwap<Slots>,
    /// Serialises membership changes; the data plane never takes it.
    members: Mutex<members::Members>,
    models: ArcSwap<members::ModelList>,
    objectives: ArcSwap<Objectives>,
    rewrites: ArcSwap<Rewrites>,
    waiters: Waiters,
    responses: Mutex<Responses>,
    /// What an earlier router knew of replicas that haven't joined yet.
    pending: Mutex<Option<snapshot::Pending>>,
    next_id: AtomicU64,
    /// Longest wait in line, in nanoseconds.
    queue_timeout: AtomicU64,
    seed: u64,
    block_bytes: u32,
}

/// Buffers of one thread, so that a pick allocates nothing.
#[derive(Default)]
struct Scratch {
    matches: Matches,
    space: Vec<Space>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What the fleet is set up with.
fn settings(config: &Config) -> Settings {
    Settings {
        prior: config.speed.prior(),
        weights: Weights {
            harm: config.price.harm,
            decode: config.price.decode,
            tie: config.price.tie,
            ..Weights::default()
        },
        rules: Rules {
            suspect_after: config.health.suspect_after,
            recover_after: config.health.recover_after,
            ..Rules::default()
        },
        slow_start: config.health.slow_start.secs(),
        tokens_per_byte: config.index.tokens_per_byte,
        queue: config.queue.max as usize,
        lanes: LaneRules {
            on: config.lanes.enabled,
            pending: config.lanes.pending.secs(),
            aging: config.lanes.aging,
            per_lane: config.lanes.per_replica as usize,
            ..LaneRules::default()
        },
        max_replicas: MAX_REPLICAS,
        ..Settings::default()
    }
}

/// Replicas that a router can hold; bounds the dense tables.
const MAX_REPLICAS: u16 = 1024;

impl Router {
    /// A router without replicas. `seed` keys the block hashes when the configuration doesn't say.
    pub fn new(config: &Config, seed: u64) -> Arc<Self> {
        let settings = Settings { seed: seed.rotate_left(32), ..settings(config) };
        let index = IndexConfig {
            max_blocks: usize::try_from(config.index.max_blocks).unwrap_or(usize::MAX),
            max_holders: MAX_REPLICAS,
            ..IndexConfig::default()
        };
        let exact =
            IndexConfig { max_holders: MAX_REPLICAS + kv::MAX_RANKS, exact_removal: true, ..index.clone() };
        Arc::new(Router {
            started: Instant::now(),
            fleet: Mutex::new(Fleet::new(settings)),
            index: RwLock::new(PrefixIndex::new(index)),
            exact: RwLock::new(PrefixIndex::new(exact)),
            ranks: ArcSwap::default(),
            tokens: OnceLock::new(),
            names: RwLock::new(Names::new()),
            slots: ArcSwap::default(),
            members: Mutex::default(),
            models: ArcSwap::default(),
            objectives: ArcSwap::default(),
            rewrites: ArcSwap::default(),
            waiters: Waiters::default(),
            responses: Mutex::new(Responses::new()),
            pending: Mutex::new(None),
            next_id: AtomicU64::new(1),
            queue_timeout: AtomicU64::new(nanos(config.queue.timeout.get())),
            seed: config.index.seed.unwrap_or(seed),
            block_bytes: config.index.block_bytes,
        })
    }

    /// Takes over what of the configuration can change while it runs: weights, rules of health, the line. What was
    /// learned stays, and so does everything in flight.
    pub fn reconfigure(&self, config: &Config) {
        self.queue_timeout.store(nanos(config.queue.timeout.get()), Ordering::Relaxed);
        self.fleet.lock().reconfigure(settings(config));
        self.wake();
    }

    /// Time since the router started, as the core counts it.
    pub fn now(&self) -> Time {
        Time(0) + self.started.elapsed()
    }

    /// Seed of the block hashes, for [`crate::core::prefix::Blocks`].
    pub fn chain_seed(&self) -> u64 {
        self.seed
    }

    /// Bytes of text in a block of the chain.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes as usize
    }

    /// Chooses a replica and reserves it. Waits, bounded by the configuration, when that replica can't start the request soon.
    /// Dropping the future gives its place up.
    ///
    /// # Errors
    /// A [`Refusal`] that says why, and when trying again makes sense.
    pub async fn place(self: &Arc<Self>, ask: &Ask) -> Result<Reservation, Refusal> {
        let id = self.next_id();
        let begun = Instant::now();
        let request = self.request(id, ask);
        if let Some(done) = self.attempt(&request, ask, begun) {
            return done;
        }
        let seat = self.waiters.sit(self, id);
        let deadline = begun + self.patience();
        loop {
            // Once more after sitting down: room may have come between the refusal and the seat.
            if let Some(done) = self.attempt(&request, ask, begun) {
                return done;
            }
            let until = seat.look().map_or(deadline, |look| deadline.min(look));
            let rang = tokio::time::timeout_at(until, seat.turn()).await.is_ok();
            if !rang && until == deadline {
                return Err(Refusal::Deadline { retry_after: self.retry_after() });
            }
        }
    }

    fn next_id(&self) -> RequestId {
        RequestId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// One try: `None` means wait.
    fn attempt(
        self: &Arc<Self>,
        req: &Request,
        ask: &Ask,
        begun: Instant,
    ) -> Option<Result<Reservation, Refusal>> {
        let picking = Instant::now();
        let now = self.now();
        let (arrival, next, more) = SCRATCH.with_borrow_mut(|s| {
            self.look(ask, s);
            let seen =
                Seen { matched: s.matches.as_slice(), space: &s.space, continues: s.matches.at_leaf() };
            let mut fleet = self.fleet.lock();
            let arrival = fleet.arrive(now, req, &seen);
            let next = match &arrival {
                Arrival::Placed(p) if ask.fallbacks > 0 => {
                    fleet.runners_up(now, req, &seen, p.replica, ask.fallbacks)
                }
                _ => Next::new(),
            };
            (arrival, next, fleet.waiting() > 0)
        });
        let placed = match arrival {
            Arrival::Waiting(_) => return None,
            Arrival::Rejected(r) => return Some(Err(Refusal::from_core(r, self))),
            Arrival::Placed(p) => p,
        };
        let at = self.enter(now, req.id, ask, placed, next);
        if more {
            self.wake();
        }
        Some(self.reserve(req, at, begun, picking))
    }

    /// A request was placed: from now on its prompt is believed to be there.
    fn enter(&self, now: Time, id: RequestId, ask: &Ask, placed: Placed, next: Next) -> Where {
        let used = self.last_used(ask, placed.replica);
        if !ask.chain.is_empty() && placed.fits {
            self.index.write().speculate(now, id, &ask.chain, placed.replica.slot);
        }
        let there = ask.tokens.as_ref().map(|tokens| self.placement(tokens, placed.replica));
        if let Some(there) = there.as_ref().filter(|there| !there.chain.is_empty() && placed.fits) {
            self.exact.write().speculate(now, id, &there.chain, there.holder);
        }
        let endpoint = self.slots.load().get(placed.replica);
        Where { placed, endpoint, text_bytes: ask.text_bytes, there, used, next }
    }

    fn reserve(
        self: &Arc<Self>,
        req: &Request,
        at: Where,
        begun: Instant,
        picking: Instant,
    ) -> Result<Reservation, Refusal> {
        let there = at.endpoint.is_some();
        // From here on the guard owns what was booked, also when the replica has left in between.
        let waited = picking.duration_since(begun);
        let guard = Reservation::new(self.clone(), req.id, at, waited, picking.elapsed());
        if there { Ok(guard) } else { Err(Refusal::NoReplica { retry_after: 1 }) }
    }

    /// When what it holds of this prompt was last used, while its capacity has to be learned from that.
    fn last_used(&self, ask: &Ask, replica: ReplicaId) -> Option<Time> {
        let slots = self.slots.load();
        let endpoint = slots.get(replica)?;
        if endpoint.told.load(Ordering::Relaxed) {
            return None;
        }
        let index = if ask.tokens.is_some() { self.exact.read() } else { self.index.read() };
        index.last_used(ask.blocks(), replica.slot)
    }

    /// Fills the scratch with what each replica holds of the prompt and how its cache stands.
    fn look(&self, ask: &Ask, s: &mut Scratch) {
        s.matches.clear();
        s.space.clear();
        let (chain, index) = match &ask.tokens {
            Some(tokens) => (&*tokens.chain, &self.exact),
            None => (&*ask.chain, &self.index),
        };
        if chain.is_empty() {
            return;
        }
        let index = index.read();
        index.matches(chain, &mut s.matches);
        if ask.tokens.is_some() {
            self.ranks.load().best(&mut s.matches);
        }
        let slots = self.slots.load();
        s.space.extend((0..slots.len()).map(|h| index.space(h as u16)));
    }

    /// Which rank of the chosen replica holds most of these tokens.
    fn placement(&self, tokens: &TokenPrompt, replica: ReplicaId) -> Placement {
        let ranks = self.ranks.load();
        let chain = tokens.chain.clone();
        if !ranks.several(replica.slot) {
            return Placement { chain, block: tokens.block, holder: replica.slot, rank: None };
        }
        let (rank, holder) = SCRATCH.with_borrow_mut(|s| {
            self.exact.read().matches(&chain, &mut s.matches);
            ranks.fullest(replica.slot, &s.matches)
        });
        Placement { chain, block: tokens.block, holder, rank: Some(rank) }
    }

    fn request(&self, id: RequestId, ask: &Ask) -> Request {
        let model = ask.model.as_ref().map(|name| self.names.read().get(name).unwrap_or(names::UNLISTED));
        // A response that nobody here remembers isn't pinned: the replica says whether it has it.
        let pinned = ask.previous_response.as_ref().and_then(|prev| self.responses.lock().get(prev));
        ask.to_core(id, model, pinned, self.block_bytes, self.now() + self.patience())
    }

    /// How long a request may wait.
    fn patience(&self) -> Duration {
        Duration::from_nanos(self.queue_timeout.load(Ordering::Relaxed))
    }

    /// Wakes those whose turn it may be.
    fn wake(&self) {
        let turns = self.fleet.lock().turns(self.now());
        for id in turns.go {
            self.waiters.wake(id);
        }
    }

    /// Seconds after which it makes sense to come again: the shortest queue's length.
    fn retry_after(&self) -> u32 {
        let now = self.now();
        let fleet = self.fleet.lock();
        let shortest = fleet.replicas().map(|r| r.ledger.wait(now)).fold(f64::INFINITY, f64::min);
        if shortest.is_finite() { shortest.ceil().clamp(1.0, 30.0) as u32 } else { 2 }
    }

    /// Remembers which replica has a stored response, so that a request that continues it goes there.
    pub fn remember_response(&self, response_id: &str, replica: ReplicaId) {
        self.responses.lock().insert(response_id, replica);
    }

    /// Priorities by the name of an objective, as they are now.
    pub fn objectives(&self) -> Arc<Objectives> {
        self.objectives.load_full()
    }

    /// Replaces the table of objectives.
    pub fn set_objectives(&self, objectives: Objectives) {
        self.objectives.store(Arc::new(objectives));
    }

    /// Which model is meant by a name, as it is now.
    pub fn rewrites(&self) -> Arc<Rewrites> {
        self.rewrites.load_full()
    }

    /// Replaces the rules for model names.
    pub fn set_rewrites(&self, rewrites: Rewrites) {
        self.rewrites.store(Arc::new(rewrites));
    }

    /// Regular housekeeping, about once a second: medians, capacities in blocks, the measure of regret, late wake-ups.
    pub fn tick(&self) {
        let reuse = self.index.read().reuse();
        self.fleet.lock().tick(self.now(), reuse);
        self.fit_capacities();
        self.exact.write().settle_due(self.now());
        self.forget_snapshot();
        if self.fleet.lock().waiting() > 0 {
            self.wake();
        }
    }

    /// What the index holds.
    pub fn index_stats(&self) -> IndexStats {
        self.index.read().stats()
    }

    /// Requests placed and not ended, and requests waiting.
    pub fn load(&self) -> (usize, usize) {
        let fleet = self.fleet.lock();
        (fleet.in_flight(), fleet.waiting())
    }

    /// Can any replica take requests?
    pub fn ready(&self) -> bool {
        self.fleet.lock().any_ready()
    }
}

#[cfg(test)]
mod tests;
