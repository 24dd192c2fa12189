//! Homing itself as a policy: the production [`Fleet`] and [`PrefixIndex`], driven as the router's shell drives them.
//!
//! An arrival is matched, placed and speculated; a first token and progress go to the ledger; the end confirms the
//! prompt with the output behind it, or takes it back if it failed. Once a second, the housekeeping. No cost, belief or
//! rule is repeated here: what is measured is what is shipped.
//!
//! With lanes, requests wait in them as in production. Without, nobody waits here although the fleet may want it (all
//! replicas full): then the limits are lifted for this one, and the engine's queue is where it waits. [`Homing::lifted`]
//! counts them.

use super::Context;
use crate::core::fleet::{Failure, Fleet, Outcome, Settings};
use crate::core::health::Probe;
use crate::core::ids::{ModelId, ReplicaId, RequestId};
use crate::core::ledger::Polled;
use crate::core::place::Seen;
use crate::core::policy::{Arriving, Placement, Policy, Sight};
use crate::core::prefix::{IndexConfig, Matches, PrefixIndex, Space};
use crate::core::replica::Facts;
use crate::core::request::{Length, Request};
use crate::core::time::Time;
use crate::core::{Arrival, Placed, Turns};
use std::collections::BTreeMap;

/// Seconds between two housekeepings, as in the shell.
const TICK: f64 = 1.0;
/// Tokens of a predicted prefix from which finding none of it is no matter of rounding, as in the shell.
const SURELY_CACHED: u32 = 1024;
/// Whole misses in a row after which a cache is believed to be lost, as in the shell.
const LOST_AFTER: u8 = 3;

/// Where it knows the caches from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knowledge {
    /// Its own estimate: what it sent, and the capacities that it was told.
    Estimate,
    /// What engines tell, and what was sent and has not ended (engines pin it). The estimate still says how much room
    /// there is, and what goes on where.
    Exact,
}

/// How it is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// The fleet's settings, the prior of all speeds among them.
    pub settings: Settings,
    /// Where it knows the caches from.
    pub knowledge: Knowledge,
    /// Tokens that a replica's cache holds, until it joins and says so; 0 = not known.
    pub kv_tokens: u64,
    /// Tokens of a block of the chains.
    pub block_tokens: u32,
    /// Bounds of the index.
    pub index: IndexConfig,
}

impl Options {
    /// The defaults of production, with the context's prior and capacity.
    pub fn new(ctx: &Context, knowledge: Knowledge) -> Self {
        Options {
            settings: Settings { prior: ctx.shape, ..Settings::default() },
            knowledge,
            kv_tokens: ctx.kv_tokens,
            block_tokens: ctx.block_tokens,
            index: IndexConfig::default(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    placed: Placed,
    prompt_tokens: u32,
}

/// The production router's brain behind the trait of the policies.
pub struct Homing {
    name: String,
    options: Options,
    fleet: Fleet,
    index: PrefixIndex,
    /// Only what is in flight, for exact knowledge.
    live: PrefixIndex,
    /// Which life of which slot each replica is, and the replica of each slot.
    ids: Vec<Option<ReplicaId>>,
    numbers: Vec<usize>,
    misses: Vec<u8>,
    flights: BTreeMap<RequestId, Flight>,
    matches: Matches,
    live_matches: Matches,
    matched: Vec<u32>,
    space: Vec<Space>,
    ticked: Time,
    lifted: u64,
}

impl Homing {
    /// A router over `replicas` replicas with empty caches.
    pub fn new(name: &str, replicas: usize, options: Options) -> Self {
        let mut homing = Homing {
            name: name.to_owned(),
            fleet: Fleet::new(options.settings.clone()),
            index: PrefixIndex::new(options.index.clone()),
            live: PrefixIndex::new(options.index.clone()),
            ids: Vec::new(),
            numbers: Vec::new(),
            misses: Vec::new(),
            flights: BTreeMap::new(),
            matches: Matches::new(),
            live_matches: Matches::new(),
            matched: Vec::new(),
            space: Vec::new(),
            ticked: Time(0),
            lifted: 0,
            options,
        };
        let kv_tokens = homing.options.kv_tokens;
        (0..replicas).for_each(|i| homing.joined(Time(0), i, kv_tokens));
        homing
    }

    /// The fleet, for what can be asked of it (speeds learned, decisions explained).
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// What is believed of the caches.
    pub fn index(&self) -> &PrefixIndex {
        &self.index
    }

    /// Requests that should have waited and couldn't.
    pub fn lifted(&self) -> u64 {
        self.lifted
    }

    /// Recounts the books of the fleet and the index.
    ///
    /// # Errors
    /// What differs in the fleet's books. The index panics, as it does in tests.
    pub fn check(&self) -> Result<(), String> {
        self.index.check_invariants();
        self.fleet.check_invariants()
    }

    fn tick(&mut self, now: Time) {
        if now.since(self.ticked) >= TICK {
            self.ticked = now;
            self.fleet.tick(now, self.index.reuse());
        }
    }

    fn request(&self, arriving: &Arriving<'_>, up: &[usize]) -> Request {
        let absent = self.ids.iter().enumerate().filter(|(i, _)| !up.contains(i));
        Request {
            id: arriving.id,
            model: Some(ModelId(1)),
            length: Length::Tokens { tokens: arriving.prompt_tokens, block: arriving.block_tokens },
            max_output: arriving.max_output,
            choices: 1,
            head: arriving.chain.first().copied().unwrap_or(0),
            generates: true,
            streams: true,
            priority: 0,
            tenant: 0,
            deadline: None,
            pinned: None,
            exclude: absent.filter_map(|(_, id)| *id).collect(),
            only: None,
        }
    }

    /// Fills in what each slot holds of the chain, and how its cache stands.
    fn look(&mut self, chain: &[u64], exact: &[u32]) {
        self.index.matches(chain, &mut self.matches);
        self.matched.clear();
        self.space.clear();
        self.space.extend((0..self.numbers.len()).map(|slot| self.index.space(slot as u16)));
        if self.options.knowledge == Knowledge::Estimate {
            self.matched.extend_from_slice(self.matches.as_slice());
            return;
        }
        self.live.matches(chain, &mut self.live_matches);
        for (slot, &i) in self.numbers.iter().enumerate() {
            let told = exact.get(i).copied().unwrap_or(0);
            self.matched.push(told.max(self.live_matches.get(slot as u16)));
        }
    }

    fn arrive(&mut self, now: Time, request: &Request) -> Arrival {
        let seen = Seen { matched: &self.matched, space: &self.space, continues: self.matches.at_leaf() };
        self.fleet.arrive(now, request, &seen)
    }

    /// Once more, with room for all.
    fn arrive_anyhow(&mut self, now: Time, request: &Request) -> Arrival {
        self.fleet.unqueue(request.id);
        self.lifted += 1;
        let lanes = self.fleet.use_lanes(false);
        self.limit(Some(u32::MAX));
        let arrival = self.arrive(now, request);
        self.limit(None);
        self.fleet.use_lanes(lanes);
        arrival
    }

    fn limit(&mut self, most: Option<u32>) {
        for id in self.ids.iter().flatten() {
            self.fleet.facts(*id, |f| f.max_in_flight = most);
        }
    }

    /// A request arrives. One that may not wait is sent where it chose, whatever is there.
    fn take(&mut self, now: Time, arriving: &Arriving<'_>, sight: &Sight<'_>, may_wait: bool) -> Placement {
        self.tick(now);
        let request = self.request(arriving, sight.up);
        self.look(arriving.chain, sight.exact);
        let mut arrival = self.arrive(now, &request);
        if !may_wait && !matches!(arrival, Arrival::Placed(_)) {
            arrival = self.arrive_anyhow(now, &request);
        }
        let placed = match arrival {
            Arrival::Placed(placed) => placed,
            Arrival::Waiting(_) => return Placement::Waits,
            Arrival::Rejected(_) => return Placement::Refused,
        };
        let slot = placed.replica.slot;
        if !arriving.chain.is_empty() {
            self.index.speculate(now, arriving.id, arriving.chain, slot);
            if self.knows_caches() {
                self.live.speculate(now, arriving.id, arriving.chain, slot);
            }
        }
        self.flights.insert(arriving.id, Flight { placed, prompt_tokens: arriving.prompt_tokens });
        Placement::At(self.numbers[usize::from(slot)])
    }

    /// Three long prefixes in a row that weren't there: its cache was reset, or it restarted unseen.
    fn cache_seems_lost(&mut self, flight: &Flight, cached: u32) -> bool {
        if flight.placed.cached < SURELY_CACHED {
            return false;
        }
        let Some(misses) = self.misses.get_mut(usize::from(flight.placed.replica.slot)) else { return false };
        *misses = if cached == 0 { *misses + 1 } else { 0 };
        if *misses < LOST_AFTER {
            return false;
        }
        *misses = 0;
        true
    }
}

impl Policy for Homing {
    fn name(&self) -> &str {
        &self.name
    }

    fn knows_caches(&self) -> bool {
        self.options.knowledge == Knowledge::Exact
    }

    fn place(&mut self, now: Time, arriving: &Arriving<'_>, sight: &Sight<'_>) -> usize {
        match self.take(now, arriving, sight, false) {
            Placement::At(replica) => replica,
            Placement::Waits | Placement::Refused => sight.up.first().copied().unwrap_or(0),
        }
    }

    fn offer(&mut self, now: Time, arriving: &Arriving<'_>, sight: &Sight<'_>) -> Placement {
        self.take(now, arriving, sight, self.options.settings.lanes.on)
    }

    fn turns(&mut self, now: Time) -> Turns {
        self.tick(now);
        self.fleet.turns(now)
    }

    fn first_token(&mut self, now: Time, id: RequestId) {
        self.fleet.first_token(now, id);
    }

    fn progress(&mut self, _now: Time, id: RequestId, output_tokens: u32) {
        self.fleet.progress(id, output_tokens);
    }

    fn finish(&mut self, now: Time, id: RequestId, output_tokens: u32, cached: u32) {
        let Some(flight) = self.flights.remove(&id) else { return };
        self.live.rollback(id);
        let slot = flight.placed.replica.slot;
        if output_tokens == 0 {
            let gone = self.ids[self.numbers[usize::from(slot)]] != Some(flight.placed.replica);
            self.fleet.fail(now, id, if gone { Failure::Reset } else { Failure::Blameless });
            self.index.rollback(id);
            return;
        }
        let outcome = Outcome {
            prompt_tokens: Some(flight.prompt_tokens),
            cached_tokens: Some(cached),
            output_tokens: Some(output_tokens),
        };
        self.fleet.finish(now, id, outcome);
        if self.cache_seems_lost(&flight, cached) {
            self.index.clear(slot);
        }
        let tail = (f64::from(output_tokens) / flight.placed.block_tokens.max(1.0)).ceil();
        self.index.confirm(now, id, tail as u32);
    }

    fn polled(&mut self, now: Time, replica: usize, page: &Polled) {
        if let Some(id) = self.ids.get(replica).copied().flatten() {
            self.fleet.load(now, id, *page);
        }
    }

    fn joined(&mut self, now: Time, replica: usize, kv_tokens: u64) {
        self.left(now, replica);
        let capacity = Some(kv_tokens).filter(|&t| t > 0);
        // Ties are ordered by it: spread, as the hash of an address is.
        let key = super::rng::mix(replica as u64 + 1);
        let Some(id) = self.fleet.join(Facts { key, capacity, ..Facts::default() }) else { return };
        self.fleet.probe(now, id, Probe::Ok);
        let blocks = capacity.map(|t| t / u64::from(self.options.block_tokens.max(1)));
        self.index.join(id.slot, blocks);
        self.live.join(id.slot, None);
        let slot = usize::from(id.slot);
        self.ids.resize(self.ids.len().max(replica + 1), None);
        self.numbers.resize(self.numbers.len().max(slot + 1), 0);
        self.misses.resize(self.numbers.len(), 0);
        self.ids[replica] = Some(id);
        self.numbers[slot] = replica;
        self.misses[slot] = 0;
    }

    fn left(&mut self, _now: Time, replica: usize) {
        if let Some(id) = self.ids.get_mut(replica).and_then(Option::take) {
            self.fleet.leave(id);
            self.index.leave(id.slot);
            self.live.leave(id.slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::hand::{ask, context, page, see};
    use super::*;
    use crate::core::LaneRules;

    fn homing(replicas: usize, knowledge: Knowledge) -> Homing {
        let mut options = Options::new(&context(replicas), knowledge);
        options.settings.lanes = LaneRules::OFF;
        Homing::new("homing", replicas, options)
    }

    fn at(s: f64) -> Time {
        Time::from_secs(s)
    }

    #[test]
    fn a_conversation_comes_home_and_leaves_nothing_behind() {
        let mut h = homing(4, Knowledge::Estimate);
        let up = [0, 1, 2, 3];
        let chain: Vec<u64> = (1..=20).collect();
        let home = h.place(at(0.0), &ask(1, &chain, 10_300), &see(&up));
        h.first_token(at(1.3), RequestId(1));
        h.progress(at(2.0), RequestId(1), 128);
        h.finish(at(4.0), RequestId(1), 600, 0);
        let held = h.index.held(h.ids[home].unwrap().slot);
        assert_eq!(held, 20 + 2, "the prompt, and 600 tokens of output in blocks of 512");
        let longer: Vec<u64> = (1..=24).collect();
        assert_eq!(h.place(at(9.0), &ask(2, &longer, 12_300), &see(&up)), home);
        assert_eq!(h.flights[&RequestId(2)].placed.cached, 20 * 512);
        h.finish(at(10.0), RequestId(2), 0, 0);
        assert_eq!((h.fleet.in_flight(), h.flights.len(), h.index.stats().speculations), (0, 0, 0));
        h.check().unwrap();
    }

    #[test]
    fn exact_knowledge_is_what_is_told_and_what_is_in_flight() {
        let mut h = homing(2, Knowledge::Exact);
        let chain: Vec<u64> = (1..=20).collect();
        let told = |exact| Sight { up: &[0, 1], exact };
        assert_eq!(h.place(at(0.0), &ask(1, &chain, 10_300), &told(&[0, 20])), 1);
        assert_eq!(h.flights[&RequestId(1)].placed.cached, 20 * 512);
        // In flight on 1, whatever is told.
        h.look(&chain, &[0, 0]);
        assert_eq!(h.matched, [0, 20]);
        h.finish(at(1.0), RequestId(1), 5, 10_240);
        h.look(&chain, &[3, 0]);
        assert_eq!(h.matched, [3, 0]);
        h.check().unwrap();
    }

    #[test]
    fn a_replica_that_comes_back_is_another_life_with_an_empty_cache() {
        let mut h = homing(2, Knowledge::Estimate);
        let chain: Vec<u64> = (1..=20).collect();
        let home = h.place(at(0.0), &ask(1, &chain, 10_300), &see(&[0, 1]));
        let before = h.ids[home].unwrap();
        h.left(at(1.0), home);
        let other = 1 - home;
        assert_eq!(h.place(at(1.0), &ask(2, &[9], 600), &see(&[other])), other);
        h.joined(at(2.0), home, 1_000_000);
        assert_ne!(h.ids[home].unwrap().slot, before.slot, "its last request hasn't ended yet");
        h.look(&chain, &[]);
        assert!(h.matched.iter().all(|&n| n == 0));
        h.finish(at(2.0), RequestId(1), 0, 0);
        h.check().unwrap();
        h.left(at(3.0), home);
        h.joined(at(3.0), home, 1_000_000);
        assert_eq!((h.fleet.replicas().count(), h.fleet.in_flight()), (2, 1));
        let ready = |p: &mut Homing, id| p.place(at(40.0), &ask(id, &[id], 600), &see(&[home]));
        assert_eq!((ready(&mut h, 3), ready(&mut h, 4)), (home, home), "the one that is up");
        h.check().unwrap();
    }

    #[test]
    fn a_full_fleet_still_places() {
        let mut h = homing(1, Knowledge::Estimate);
        h.polled(at(0.0), 0, &page(5, 0.9));
        for id in 0..20 {
            assert_eq!(h.place(at(0.0), &ask(id, &[id + 1], 600), &see(&[0])), 0);
        }
        // A page with a queue allows two batches of the 8 that run.
        assert_eq!(h.lifted(), 4);
        h.check().unwrap();
        assert_eq!((h.fleet.in_flight(), h.fleet.waiting()), (20, 0));
    }

    #[test]
    fn with_lanes_requests_wait_until_it_is_their_turn() {
        let mut h = Homing::new("homing", 1, Options::new(&context(1), Knowledge::Estimate));
        let chains = [[1u64], [2]];
        let long = ask(1, &chains[0], 20_000);
        let short = ask(2, &chains[1], 600);
        assert_eq!(h.offer(at(0.0), &long, &see(&[0])), Placement::At(0));
        assert_eq!(h.offer(at(0.0), &short, &see(&[0])), Placement::Waits);
        assert!(h.turns(at(0.01)).go.is_empty() && h.turns(at(0.01)).look.is_some());
        h.first_token(at(0.3), RequestId(1));
        assert_eq!(h.turns(at(0.3)).go.as_slice(), [RequestId(2)]);
        assert_eq!(h.offer(at(0.3), &short, &see(&[0])), Placement::At(0));
        h.check().unwrap();
        // One that has to be placed at once is.
        assert_eq!(h.place(at(0.3), &ask(3, &[3], 20_000), &see(&[0])), 0);
        assert_eq!(h.place(at(0.3), &ask(4, &[4], 20_000), &see(&[0])), 0);
        assert_eq!((h.lifted(), h.fleet.waiting(), h.fleet.in_flight()), (1, 0, 4));
        h.check().unwrap();
    }

    #[test]
    fn a_cache_that_was_lost_unseen_is_noticed() {
        let mut h = homing(1, Knowledge::Estimate);
        let chain: Vec<u64> = (1..=20).collect();
        for id in 0..4 {
            h.place(at(id as f64), &ask(id, &chain, 10_300), &see(&[0]));
            h.finish(at(id as f64 + 0.5), RequestId(id), 5, 0);
        }
        assert_eq!(h.misses, [0]);
        assert_eq!(h.index.stats().held_blocks, 0, "its fourth miss of the same is the third in a row");
    }
}
