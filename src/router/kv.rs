//! What engines say of their caches, on its way into the index.
//!
//! Token chains have an index of their own beside that of text chains: the same structure, the same code, but other
//! blocks, other capacities, and for some of its holders another source of truth. A replica with several data-parallel
//! ranks is several holders in it: rank 0 under the replica's slot, the others under numbers of their own.

use super::Router;
use super::members::Known;
use crate::core::ReplicaId;
use crate::core::ids::Holder;
use crate::core::prefix::exact::Change;
use crate::core::prefix::{Matches, PrefixIndex};
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How far events are believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Not at all: there are none, or they were lost.
    #[default]
    Estimate,
    /// What they say, but not that they say all: something from before is missing.
    Partial,
    /// They say all there is.
    Exact,
}

impl Trust {
    /// The word for it in labels.
    pub const fn label(self) -> &'static str {
        match self {
            Trust::Estimate => "estimate",
            Trust::Partial => "events_partial",
            Trust::Exact => "events",
        }
    }
}

/// What is known of one publisher, for the admin port and the metrics. Counts are totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct KvView {
    /// Source of truth: `events`, `events_partial` or `estimate`.
    pub source: &'static str,
    /// Seconds from the making of the last batch to its taking in.
    pub lag_s: Option<f64>,
    /// Batches taken in.
    pub batches: u64,
    /// Events in them.
    pub events: u64,
    /// Batches that had to be asked for.
    pub replayed: u64,
    /// Times that a number was missing.
    pub gaps: u64,
    /// Batches that couldn't be had any more.
    pub lost_batches: u64,
    /// Batches that came twice, or too late.
    pub repeated: u64,
    /// Times that the engine began anew.
    pub restarts: u64,
    /// Messages and events that couldn't be read, or were none of ours.
    pub unreadable: u64,
    /// Events of a type that isn't known.
    pub unknown: u64,
    /// Blocks of the engine that are known now.
    pub blocks: u64,
    /// Of them, on the host or in a store.
    pub host_blocks: u64,
    /// Blocks that wait for their beginning.
    pub orphans: u64,
    /// Removals of blocks that were never heard of.
    pub unknown_removals: u64,
    /// Blocks that aren't followed: too many, or contradictory.
    pub refused: u64,
}

impl KvView {
    /// What says what the cache of a replica with these publishers holds: the least that one of its ranks has.
    pub(super) fn source_of<'a>(ranks: impl Iterator<Item = &'a Arc<KvSlot>>) -> &'static str {
        let order = [Trust::Estimate, Trust::Partial, Trust::Exact];
        let rank_of = |slot: &Arc<KvSlot>| {
            let source = slot.get().source;
            order.iter().position(|trust| trust.label() == source).unwrap_or(0)
        };
        order[ranks.map(rank_of).min().unwrap_or(0)].label()
    }
}

/// Where one publisher's status is left.
#[derive(Debug, Default)]
pub struct KvSlot(Mutex<KvView>);

impl KvSlot {
    /// Leaves it.
    pub fn set(&self, view: KvView) {
        *self.0.lock() = view;
    }

    /// Reads it.
    pub fn get(&self) -> KvView {
        *self.0.lock()
    }
}

/// What a replica's events and its requests tell each other, without a lock.
#[derive(Debug, Default)]
pub(super) struct KvSignals {
    /// How often its process began anew, or its events were found wrong: each time, who follows them has to begin anew.
    restarts: AtomicU32,
    /// Something is missing that a report could bring.
    wants: AtomicBool,
    /// Is its engine one that gives reports, and may it be asked?
    able: AtomicBool,
    asked: AtomicU32,
    /// Answers in a row that found less than events said.
    surprises: AtomicU32,
}

/// Answers in a row that find less than predicted, until what events said is doubted. A cache that is much too small
/// for its load evicts between a placement and its prefill, so a few mean nothing.
const SURPRISES: u32 = 24;
/// One request in so many carries the question.
const SAMPLE: u32 = 8;

impl KvSignals {
    /// Should this request ask for a report of what it finds cached?
    pub(super) fn report(&self) -> bool {
        self.wants.load(Ordering::Relaxed)
            && self.able.load(Ordering::Relaxed)
            && self.asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(SAMPLE)
    }

    pub(super) fn set_able(&self, able: bool) {
        self.able.store(able, Ordering::Relaxed);
    }

    /// An answer came: did it find less than events said? Too often in a row means that they have said something wrong,
    /// and everything is asked for anew.
    pub(super) fn answered(&self, less: bool) {
        if !less {
            self.surprises.store(0, Ordering::Relaxed);
        } else if self.surprises.fetch_add(1, Ordering::Relaxed) + 1 >= SURPRISES {
            self.surprises.store(0, Ordering::Relaxed);
            self.restarted();
        }
    }

    pub(super) fn restarted(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }
}

/// Holders of ranks beyond the first, by slot; and the numbers that are free.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranks {
    of: BTreeMap<(Holder, u32), Holder>,
    free: Vec<Holder>,
    next: Holder,
}

/// Tokens of a block where no tokenizer says: vLLM's own default.
const DEFAULT_BLOCK: u32 = 16;
/// Ranks beyond the first of all replicas together.
pub(super) const MAX_RANKS: u16 = 4096;

impl Ranks {
    fn holder(&self, slot: Holder, rank: u32) -> Option<Holder> {
        if rank == 0 { Some(slot) } else { self.of.get(&(slot, rank)).copied() }
    }

    fn add(&mut self, slot: Holder, rank: u32) -> Option<Holder> {
        if let Some(known) = self.holder(slot, rank) {
            return Some(known);
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.next < MAX_RANKS => {
                self.next += 1;
                super::MAX_REPLICAS + self.next - 1
            }
            None => return None,
        };
        self.of.insert((slot, rank), number);
        Some(number)
    }

    /// All holders of a replica.
    fn holders(&self, slot: Holder) -> impl Iterator<Item = Holder> + '_ {
        std::iter::once(slot).chain(self.of.range((slot, 0)..=(slot, u32::MAX)).map(|(_, holder)| *holder))
    }

    fn leave(&mut self, slot: Holder) -> Vec<Holder> {
        let gone: Vec<(Holder, u32)> =
            self.of.range((slot, 0)..=(slot, u32::MAX)).map(|(key, _)| *key).collect();
        let numbers: Vec<Holder> = gone.iter().filter_map(|key| self.of.remove(key)).collect();
        self.free.extend_from_slice(&numbers);
        numbers
    }

    /// Has that replica several ranks?
    pub(super) fn several(&self, slot: Holder) -> bool {
        self.of.range((slot, 0)..=(slot, u32::MAX)).next().is_some()
    }

    /// The rank of that replica that holds most, and its holder; of equals the first.
    pub(super) fn fullest(&self, slot: Holder, matches: &Matches) -> (u32, Holder) {
        let others = self.of.range((slot, 0)..=(slot, u32::MAX)).map(|(&(_, rank), &holder)| (rank, holder));
        let mut best = (0, slot);
        for (rank, holder) in others {
            if matches.get(holder) > matches.get(best.1) {
                best = (rank, holder);
            }
        }
        best
    }

    /// A replica holds what its best rank holds: into `out`, by slot.
    pub(super) fn best(&self, matches: &mut Matches) {
        for (&(slot, _), &holder) in &self.of {
            let there = matches.get(holder);
            if there > matches.get(slot) {
                matches.set(slot, there);
            }
        }
    }
}

impl Router {
    /// A publisher of that replica is about to be followed; where its status is to be left. `None`: it has left, or
    /// there are too many ranks.
    pub fn kv_attach(&self, id: ReplicaId, rank: u32) -> Option<Arc<KvSlot>> {
        let mut members = self.members.lock();
        let known = members.known_mut(id)?;
        let slot = known.kv.entry(rank).or_default().clone();
        let capacity = known.capacity_blocks(self.block_of(known));
        let mut ranks = (**self.ranks.load()).clone();
        let holder = ranks.add(id.slot, rank)?;
        self.ranks.store(Arc::new(ranks));
        let mut index = self.exact.write();
        index.join(holder, capacity);
        Some(slot)
    }

    /// Under which model the token chains of that replica's engine are rooted, and the tokens in one of their blocks.
    /// `None` until it is known what it serves. Without a tokenizer nothing is asked of its chains, but its events can
    /// be followed all the same.
    pub fn kv_identity(&self, id: ReplicaId) -> Option<(String, u32)> {
        self.identity(self.members.lock().known_mut(id)?)
    }

    fn identity(&self, known: &Known) -> Option<(String, u32)> {
        let mut models = known.names();
        if let Some((name, block)) = self.tokens.get().and_then(|tokens| tokens.identity(known.names())) {
            return Some((name.to_owned(), block));
        }
        Some((models.next()?.to_owned(), DEFAULT_BLOCK))
    }

    pub(super) fn block_of(&self, known: &Known) -> u32 {
        self.identity(known).map_or(DEFAULT_BLOCK, |(_, block)| block)
    }

    /// What one rank of that replica holds at most, in blocks of the token chain.
    pub(super) fn kv_capacity(&self, slot: Holder, blocks: Option<u64>) {
        let ranks = self.ranks.load();
        let mut index = self.exact.write();
        ranks.holders(slot).for_each(|holder| index.set_capacity(holder, blocks));
    }

    /// What one rank of that replica holds at most, in blocks of the token chain, if that is known.
    pub fn kv_capacity_blocks(&self, id: ReplicaId) -> Option<u64> {
        let mut members = self.members.lock();
        let known = members.known_mut(id)?;
        known.capacity_blocks(self.block_of(known))
    }

    /// Blocks of the token chain that all its ranks hold.
    pub(super) fn exact_blocks(&self, slot: Holder) -> u64 {
        let index = self.exact.read();
        self.ranks.load().holders(slot).map(|holder| index.held(holder)).sum()
    }

    fn kv_holder(&self, id: ReplicaId, rank: u32) -> Option<Holder> {
        self.slots.load().get(id)?;
        self.ranks.load().holder(id.slot, rank)
    }

    /// What an engine's events change. A few dozen blocks at a time: the index is locked for it.
    pub fn kv_apply(&self, id: ReplicaId, rank: u32, changes: &[Change]) {
        let now = self.now();
        if let Some(holder) = self.kv_holder(id, rank) {
            self.exact.write().apply(now, holder, changes);
        }
    }

    /// How far that engine's events are to be believed from now on.
    pub fn kv_trust(&self, id: ReplicaId, rank: u32, trust: Trust) {
        if let Some(holder) = self.kv_holder(id, rank) {
            let mut index = self.exact.write();
            index.follow(holder, trust != Trust::Estimate);
        }
    }

    /// Prefills there in a row of which no event told.
    pub fn kv_unanswered(&self, id: ReplicaId, rank: u32) -> u32 {
        self.kv_holder(id, rank).map_or(0, |holder| self.exact.read().unanswered(holder))
    }

    /// Something is missing that reports could bring (or not any more). Tells whether reports are under way.
    pub fn kv_reports(&self, id: ReplicaId, wanted: bool) -> bool {
        let Some(endpoint) = self.slots.load().get(id) else { return false };
        endpoint.kv.wants.store(wanted, Ordering::Relaxed);
        wanted && endpoint.kv.able.load(Ordering::Relaxed)
    }

    /// How often something else has shown that following its events has to begin anew.
    pub fn kv_restarts(&self, id: ReplicaId) -> u32 {
        self.slots.load().get(id).map_or(0, |e| e.kv.restarts.load(Ordering::Relaxed))
    }

    /// Does the replica serve?
    pub fn is_ready(&self, id: ReplicaId) -> bool {
        let fleet = self.fleet.lock();
        fleet.get(id).is_some_and(|r| r.health.state() == crate::core::health::State::Ready)
    }

    /// Forgets the ranks of a replica that left, and what they hold.
    pub(super) fn kv_leave(&self, slot: Holder) {
        let mut ranks = (**self.ranks.load()).clone();
        let gone = ranks.leave(slot);
        if !gone.is_empty() {
            self.ranks.store(Arc::new(ranks));
        }
        let mut index = self.exact.write();
        gone.into_iter().chain([slot]).for_each(|holder| index.leave(holder));
    }

    /// The index of token chains, for a snapshot of it.
    pub fn with_exact<T>(&self, act: impl FnOnce(&mut PrefixIndex) -> T) -> T {
        act(&mut self.exact.write())
    }
}
