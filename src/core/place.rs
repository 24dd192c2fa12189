//! Filter, price, choose, reserve: one step, so that two requests never see the same idle replica.

use super::cost::{self, Here, Load, Price};
use super::decision::{Arrival, Candidate, Decision, Excluded, Placed, Rejection, Ticket};
use super::fleet::{Booked, Fleet};
use super::health::State;
use super::ledger::Flight;
use super::model::ModelStats;
use super::prefix::Space;
use super::replica::Replica;
use super::request::{Length, Request};
use super::time::Time;
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What the index knows of a prompt: dense over replica slots; slots beyond the end hold nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen<'a> {
    /// Leading blocks of the prompt's chain that each replica holds.
    pub matched: &'a [u32],
    /// How each replica's cache stands.
    pub space: &'a [Space],
    /// The longest match ends where no known prompt goes on: this is a conversation's next turn, not a prefix that
    /// several share.
    pub continues: bool,
}

/// A sure excess: an estimate of a prompt's length is this much over the limit before a request is refused for it.
const SURELY: f64 = 1.25;
/// The same while the tokens a byte aren't learned: text of one token in sixteen bytes would still fit.
const UNSURE: f64 = 4.0;
/// Prompts seen before the learned tokens a byte can refuse one.
const SURE_AFTER: f64 = 5.0;
/// A conversation leaves its home only for a price under this share of the home's: what it saves once by moving, it
/// pays at the old place in cache that is no longer of use, and neighbours' loads change faster than caches.
const STAY: f64 = 0.8;
/// Prices this near (seconds) are equal, whatever the share.
const EQUAL: f64 = 1e-4;

pub(super) type List = SmallVec<[Candidate; 32]>;

impl Fleet {
    /// A request comes: choose and reserve, or wait where it chose, or refuse. A waiting request arrives again when it is its turn.
    pub fn arrive(&mut self, now: Time, req: &Request, seen: &Seen<'_>) -> Arrival {
        if let Some(rejection) = self.turned_away(now, req) {
            return Arrival::Rejected(rejection);
        }
        if self.lanes.get(req.id).is_none() && self.queue.behind(req.id, req.model) {
            return self.wait(req);
        }
        let load = self.size(req);
        let list = self.survey(now, req, seen, &load, false);
        let Some((at, _)) = self.choose(now, req, seen, &load, &list) else {
            return self.refuse(req, &load, &list);
        };
        let account = match self.wait_in_lane(now, req, &load, &list[at]) {
            Ok(arrival) => return arrival,
            Err(account) => account,
        };
        let placed = self.book(now, req, &load, &list[at], account);
        self.queue.leave(req.id);
        Arrival::Placed(placed)
    }

    /// What would be decided, and why, without reserving anything.
    pub fn explain(&self, now: Time, req: &Request, seen: &Seen<'_>) -> Decision {
        let load = self.size(req);
        let list = self.survey(now, req, seen, &load, true);
        let choice = self.choose(now, req, seen, &load, &list);
        Decision {
            chosen: choice.map(|(at, _)| list[at].replica),
            tied: choice.map_or(0, |(_, tied)| tied),
            candidates: list.into_vec(),
            prompt: load.prompt,
            output: load.output,
        }
    }

    /// Tokens of a prompt, and what it will decode.
    pub(super) fn size(&self, req: &Request) -> Load {
        let stats = req.model.and_then(|m| self.models.get(&m));
        let ratio = stats.map_or(self.settings.tokens_per_byte, ModelStats::tokens_per_byte);
        let prompt = match req.length {
            Length::Text { bytes, .. } => bytes as f64 * ratio,
            Length::Tokens { tokens, .. } => f64::from(tokens),
        };
        let output = match stats {
            Some(s) => s.expected_output(req.max_output),
            None => ModelStats::new(ratio).expected_output(req.max_output),
        };
        Load { prompt: prompt.max(1.0), output, choices: f64::from(req.choices.max(1)) }
    }

    /// Tokens of one block of the request's chain.
    fn block_tokens(&self, req: &Request, load: &Load) -> f64 {
        match req.length {
            Length::Text { bytes, block } => f64::from(block) * load.prompt / (bytes as f64).max(1.0),
            Length::Tokens { block, .. } => f64::from(block),
        }
    }

    /// Every replica with its exclusion or price; prices of the excluded only when `all`.
    pub(super) fn survey(&self, now: Time, req: &Request, seen: &Seen<'_>, load: &Load, all: bool) -> List {
        let block = self.block_tokens(req, load);
        // The last token is always computed, and engines reuse whole blocks.
        let most = match req.length {
            Length::Text { .. } => load.prompt - 1.0,
            Length::Tokens { .. } => ((load.prompt - 1.0) / block.max(1.0)).floor() * block,
        };
        let share = self.established(now, req);
        let shape = self.fit.shape();
        let mut list = List::new();
        for r in self.replicas.iter().flatten() {
            let slot = usize::from(r.id.slot);
            let blocks = seen.matched.get(slot).copied().unwrap_or(0);
            let cached = (f64::from(blocks) * block).min(most).max(0.0);
            let space = seen.space.get(slot).copied().unwrap_or_default();
            let tokens = |blocks: u64| blocks as f64 * block;
            let excluded = self.excluded(now, r, req, load, share);
            let wanted = all || excluded.is_none_or(Excluded::soft);
            let mut price = match (wanted, req.generates) {
                (false, _) => Price::default(),
                (true, true) => {
                    let here =
                        Here { cached, room: space.room.map(tokens), pinned: space.pinned.map(tokens) };
                    let price = cost::price(now, shape, &self.settings.weights, r, load, &here);
                    Price { adapter: r.adapters.load_seconds(req.model), ..price }
                }
                (true, false) => cost::call_price(now, shape, r),
            };
            if wanted && self.lanes_on() {
                self.price_lane(now, req, r, load, &mut price);
            }
            list.push(Candidate { replica: r.id, blocks, cached, price, excluded });
        }
        list
    }

    fn excluded(
        &self,
        now: Time,
        r: &Replica,
        req: &Request,
        load: &Load,
        share: Option<f64>,
    ) -> Option<Excluded> {
        let long = self.too_long(r, req, load);
        if r.left || r.draining {
            Some(Excluded::Draining)
        } else if !r.serves(req.model) {
            Some(Excluded::Model)
        } else if req.only.as_ref().is_some_and(|only| only.binary_search(&r.id).is_err()) {
            Some(Excluded::Subset)
        } else if req.exclude.contains(&r.id) {
            Some(Excluded::Tried)
        } else if req.pinned.is_some_and(|p| p != r.id) {
            Some(Excluded::NotPinned)
        } else if r.health.state() != State::Ready {
            Some(Excluded::State(r.health.state()))
        } else if long == Some(Excluded::TooLong) {
            long
        } else if self.shut(now, r, req.id) {
            Some(Excluded::Full)
        } else if long.is_some() {
            // From here on: what may be overlooked. It must not hide what may not.
            long
        } else if share.is_some_and(|mean| self.above_slow_start(now, r, mean)) {
            Some(Excluded::SlowStart)
        } else if now < r.paused_until {
            Some(Excluded::Paused)
        } else {
            None
        }
    }

    /// Mean in-flight of the replicas that are past their slow start; `None` while there are none, since then there
    /// is nobody whose share could be compared.
    fn established(&self, now: Time, req: &Request) -> Option<f64> {
        let (mut n, mut sum, mut young) = (0u32, 0u32, false);
        for r in self.replicas.iter().flatten() {
            if r.left || r.draining || r.health.state() != State::Ready || !r.serves(req.model) {
                continue;
            }
            if now.since(r.health.ready_since()) >= self.settings.slow_start {
                n += 1;
                sum += r.ledger.in_flight();
            } else {
                young = true;
            }
        }
        (young && n > 0).then(|| f64::from(sum) / f64::from(n))
    }

    fn above_slow_start(&self, now: Time, r: &Replica, mean: f64) -> bool {
        let age = now.since(r.health.ready_since()) / self.settings.slow_start.max(1e-9);
        age < 1.0 && f64::from(r.ledger.in_flight()) >= (age.max(0.1) * (mean + 1.0)).max(1.0)
    }

    /// The cheapest eligible candidate and how many tied with it.
    fn choose(
        &self,
        now: Time,
        req: &Request,
        seen: &Seen<'_>,
        load: &Load,
        list: &List,
    ) -> Option<(usize, usize)> {
        // Those who are out only for politeness count when there is nobody else.
        let hard = list.iter().any(|c| c.excluded.is_none());
        let eligible =
            |c: &&Candidate| c.excluded.is_none() || (!hard && c.excluded.is_some_and(Excluded::soft));
        let best = list.iter().filter(eligible).map(|c| c.price.total()).min_by(f64::total_cmp)?;
        // Who waits stays where it waits, unless another place is clearly cheaper now.
        if let Some(lane) = self.waits_at(req.id)
            && let Some(at) = list.iter().position(|c| c.replica == lane && eligible(&c))
            && list[at].price.total() * self.settings.lanes.stay <= best
        {
            return Some((at, 1));
        }
        if seen.continues
            && let Some(home) = self.home(list.iter().enumerate().filter(|(_, c)| eligible(c)))
            && list[home].price.total() * STAY <= best
        {
            return Some((home, 1));
        }
        // The part of the price that everybody pays anyhow doesn't widen a tie.
        let base =
            self.settings.weights.decode * load.output * self.fit.shape().step * self.medians.decode.exp();
        let base = if req.generates { base } else { 0.0 };
        let width = (best - base).max(0.0) * self.settings.weights.tie + EQUAL;
        let mut tied = 0;
        let winner = list
            .iter()
            .enumerate()
            .filter(|(_, c)| eligible(c) && c.price.total() <= best + width)
            .inspect(|_| tied += 1)
            .min_by_key(|(_, c)| {
                let r = self.get(c.replica);
                let busy = r.map_or(0, |r| r.ledger.sequences(now) as u32 + r.ledger.calls());
                let cold = r.map_or(Time(0), |r| r.last_cold);
                let key = r.map_or(0, |r| r.facts.key);
                // Holding more of it breaks a tie too: why fill a second cache for nothing?
                (busy, std::cmp::Reverse(c.blocks), cold, xxh3_64_with_seed(&key.to_le_bytes(), req.head))
            })
            .map(|(at, _)| at)?;
        Some((winner, tied))
    }

    /// The cheapest of those that hold most.
    fn home<'a>(&self, candidates: impl Iterator<Item = (usize, &'a Candidate)>) -> Option<usize> {
        candidates
            .filter(|(_, c)| c.blocks > 0)
            .max_by(|(_, a), (_, b)| {
                a.blocks.cmp(&b.blocks).then(b.price.total().total_cmp(&a.price.total()))
            })
            .map(|(at, _)| at)
    }

    pub(super) fn book(
        &mut self,
        now: Time,
        req: &Request,
        load: &Load,
        c: &Candidate,
        account: u64,
    ) -> Placed {
        let charged = load.prompt - c.cached + load.output * load.choices;
        self.tenants.placed(account, charged);
        if let Some(model) = req.model
            && self.models.len() < self.settings.max_models
        {
            let ratio = self.settings.tokens_per_byte;
            self.models.entry(model).or_insert_with(|| ModelStats::new(ratio));
        }
        let shape = *self.fit.shape();
        if let Some(r) = self.get_mut(c.replica) {
            if c.blocks == 0 {
                r.last_cold = now;
            }
            if let Some(model) = req.model {
                r.adapters.used(model);
            }
            let scale = r.pace.prefill;
            let here = Here { cached: c.cached, ..Here::default() };
            let prefill = if req.generates { cost::prefill(&shape, scale, load, &here) } else { 0.0 };
            let (n, context) = (r.ledger.sequences(now), r.ledger.context(now));
            let idle_step = shape.decode_step(n, context);
            // Each step of its prefill also decodes for the others, and it waits for half a step to begin.
            let chunks = shape.chunks(load.prompt - c.cached);
            let disturbance = if n > 0.0 { chunks * (idle_step - shape.step) + idle_step / 2.0 } else { 0.0 };
            let clean = req.streams && r.ledger.wait(now) <= 0.1 * prefill;
            r.ledger.book(
                now,
                Flight {
                    id: req.id,
                    prefill,
                    context: load.prompt as u32,
                    output: (load.output * load.choices) as u32,
                    sequences: load.choices as u32,
                    due: now,
                    prefilling: false,
                    streams: req.streams,
                    generates: req.generates,
                    produced: 0,
                },
            );
            let bytes = match req.length {
                Length::Text { bytes, .. } => Some(bytes),
                Length::Tokens { .. } => None,
            };
            let booked = Booked {
                replica: c.replica,
                model: req.model,
                bytes,
                prompt: load.prompt,
                cached: c.cached,
                choices: req.choices.max(1),
                placed: now,
                first: None,
                disturbance,
                clean: clean && req.generates,
                step: idle_step,
                account,
                charged,
                prefilled: 0.0,
            };
            self.booked.insert(req.id, booked);
        }
        Placed {
            replica: c.replica,
            cached: c.cached as u32,
            prompt: load.prompt as u32,
            block_tokens: self.block_tokens(req, load),
            fits: c.excluded != Some(Excluded::MaybeTooLong),
        }
    }

    /// No candidate: will there be one?
    fn refuse(&mut self, req: &Request, load: &Load, list: &List) -> Arrival {
        let any = |f: fn(Excluded) -> bool| list.iter().any(|c| c.excluded.is_some_and(f));
        let serves = |c: &&Candidate| !matches!(c.excluded, Some(Excluded::Model | Excluded::Draining));
        if any(|e| matches!(e, Excluded::Full | Excluded::State(State::Starting))) {
            return self.wait(req);
        }
        self.unqueue(req.id);
        let rejection = if !list.is_empty() && list.iter().all(|c| c.excluded == Some(Excluded::Model)) {
            Rejection::UnknownModel
        } else if any(|e| e == Excluded::TooLong) {
            let max =
                self.replicas().filter(|r| r.serves(req.model)).filter_map(|r| r.facts.max_model_len).max();
            Rejection::TooLong { prompt: load.prompt as u32, max: max.unwrap_or(0) }
        } else if req.pinned.is_some()
            && list.iter().filter(serves).all(|c| c.excluded != Some(Excluded::Full))
        {
            Rejection::PinnedGone
        } else {
            Rejection::NoReplica
        };
        Arrival::Rejected(rejection)
    }

    /// In the line of those whom nothing can take now.
    fn wait(&mut self, req: &Request) -> Arrival {
        self.drop_from_lane(req.id);
        let full = self.queue.len() + self.lanes.len() >= self.settings.queue && !self.queue.has(req.id);
        match self.queue.join(req.id, req.model) {
            Ok(()) if !full => Arrival::Waiting(Ticket { lane: None }),
            _ => {
                self.queue.leave(req.id);
                Arrival::Rejected(Rejection::QueueFull)
            }
        }
    }

    /// Is the prompt too long for the replica, surely or perhaps? An estimate refuses only when it is far off.
    fn too_long(&self, r: &Replica, req: &Request, load: &Load) -> Option<Excluded> {
        let max = f64::from(r.facts.max_model_len?);
        if !req.generates || load.prompt <= max {
            return None;
        }
        let margin = match req.length {
            Length::Tokens { .. } => 1.0,
            Length::Text { .. } => {
                let seen = req.model.and_then(|m| self.models.get(&m)).map_or(0.0, ModelStats::prompts_seen);
                if seen >= SURE_AFTER { SURELY } else { UNSURE }
            }
        };
        Some(if load.prompt > max * margin { Excluded::TooLong } else { Excluded::MaybeTooLong })
    }
}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;
