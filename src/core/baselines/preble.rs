//! Exploit or explore: Preble's E2 (ICLR '25; `global_scheduler_with_time.py` at 0c962c4).
//!
//! If more of the prompt is cached than not: among those who hold most of it, the one with the least load. Else the
//! least of load + eviction + prefill, all in seconds:
//! - load: prefill of what had to be computed in the last 3 minutes, and decoding of what is in flight (mean output ×
//!   the median TPOT of the last 200 requests);
//! - eviction: of the blocks that this prompt would push out, least recently used first, miss rate × uses × prefill
//!   seconds, for those that were used in the last 3 minutes;
//! - prefill of what is uncached there.
//!
//! It keeps its own estimate of the caches: what it sent, LRU by each replica's capacity. Better for the rival than
//! the letter: nothing is evicted while there is room (the project assumes a full cache); the fitted prefill model is
//! the true shape; and a holder with over 15 times the least load (the project's `HIGH_LOAD_THRESHOLD`, whose
//! rebalancing is commented out) is left for exploring.

use super::lru::Lru;
use super::rng::Rng;
use super::view::uncached;
use crate::core::ids::RequestId;
use crate::core::policy::{Arriving, Policy, Sight};
use crate::core::speed::Shape;
use crate::core::time::Time;
use std::collections::{BTreeMap, VecDeque};

/// Seconds of history.
const WINDOW: f64 = 180.0;
/// Load over the least from which a holder is left.
const HIGH_LOAD: f64 = 15.0;
/// Output tokens expected before any was seen.
const FIRST_OUTPUT: f64 = 45.0;
/// Seconds a token expected before any was seen.
const FIRST_TPOT: f64 = 0.15;
/// Requests whose TPOT is remembered.
const REMEMBERED: usize = 200;

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    used: Time,
    uses: u32,
    misses: u32,
    /// Seconds of its prefill.
    seconds: f64,
}

#[derive(Clone, Debug, Default)]
struct Gpu {
    cache: Lru<Block>,
    kv_tokens: u64,
    /// Seconds of prefill that were sent here, and when.
    sent: VecDeque<(Time, f64)>,
    prefill: f64,
    active: u32,
    tpot: VecDeque<f64>,
    /// Median of `tpot`.
    step: Option<f64>,
}

impl Gpu {
    fn forget(&mut self, now: Time) {
        while self.sent.front().is_some_and(|s| now.since(s.0) > WINDOW) {
            self.prefill -= self.sent.pop_front().map_or(0.0, |s| s.1);
        }
        if self.sent.is_empty() {
            self.prefill = 0.0;
        }
    }

    fn load(&self, output: f64) -> f64 {
        self.prefill + f64::from(self.active) * output * self.step.unwrap_or(FIRST_TPOT)
    }

    /// Seconds that pushing out enough for `new` blocks costs.
    fn eviction(&self, now: Time, new: usize, block_tokens: u32) -> f64 {
        let room = (self.kv_tokens / u64::from(block_tokens.max(1))) as usize;
        let victims = (self.cache.len() + new).saturating_sub(room);
        let lately = |b: &&Block| now.since(b.used) <= WINDOW && b.uses > 0;
        // Miss rate × uses is the number of misses.
        self.cache.oldest().take(victims).filter(lately).map(|b| f64::from(b.misses) * b.seconds).sum()
    }
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    gpu: usize,
    first: Option<Time>,
}

/// The policy.
#[derive(Clone, Debug)]
pub(super) struct ExploitOrExplore {
    shape: Shape,
    gpus: Vec<Gpu>,
    flights: BTreeMap<RequestId, Flight>,
    output: f64,
    outputs: f64,
    rng: Rng,
}

impl ExploitOrExplore {
    pub(super) fn new(replicas: usize, kv_tokens: u64, shape: Shape, seed: u64) -> Self {
        let gpus = (0..replicas).map(|_| Gpu { kv_tokens, ..Gpu::default() }).collect();
        let rng = Rng::new(seed);
        ExploitOrExplore { shape, gpus, flights: BTreeMap::new(), output: FIRST_OUTPUT, outputs: 0.0, rng }
    }

    fn make_room(&mut self, replica: usize) {
        if self.gpus.len() <= replica {
            self.gpus.resize_with(replica + 1, Gpu::default);
        }
    }

    fn load(&self, i: usize) -> f64 {
        self.gpus[i].load(self.output)
    }

    fn prefill(&self, request: &Arriving<'_>, lead: u32) -> f64 {
        let new = uncached(request, lead) as f64;
        self.shape.prefill(new, (f64::from(request.prompt_tokens) - new).max(0.0))
    }

    fn choose(&mut self, now: Time, request: &Arriving<'_>, up: &[usize], leads: &[u32]) -> usize {
        let mut rng = self.rng.clone();
        let most = leads.iter().copied().max().unwrap_or(0);
        let cached = u64::from(most) * u64::from(request.block_tokens);
        let mut chosen = None;
        if 2 * cached > u64::from(request.prompt_tokens) {
            let holders: Vec<usize> =
                up.iter().zip(leads).filter(|(_, l)| **l == most).map(|(&i, _)| i).collect();
            let holder = rng.least(&holders, |i| self.load(i));
            let least = up.iter().map(|&i| self.load(i)).fold(f64::INFINITY, f64::min);
            // 15 times nothing is nothing: an idle replica counts as if it had one such request.
            let step = self.gpus[holder].step.unwrap_or(FIRST_TPOT);
            let floor = self.prefill(request, 0) + self.output * step;
            chosen = Some(holder).filter(|&i| self.load(i) <= HIGH_LOAD * least.max(floor));
        }
        let chosen = chosen.unwrap_or_else(|| {
            rng.least(up, |i| {
                let lead = up.iter().position(|&u| u == i).map_or(0, |at| leads[at]);
                let new = request.chain.len().saturating_sub(lead as usize);
                self.load(i)
                    + self.gpus[i].eviction(now, new, request.block_tokens)
                    + self.prefill(request, lead)
            })
        });
        self.rng = rng;
        chosen
    }

    fn send(&mut self, now: Time, request: &Arriving<'_>, chosen: usize, lead: u32) {
        let seconds = self.prefill(request, lead);
        let block = f64::from(request.block_tokens);
        let shape = self.shape;
        let gpu = &mut self.gpus[chosen];
        gpu.sent.push_back((now, seconds));
        gpu.prefill += seconds;
        gpu.active += 1;
        for (at, &hash) in request.chain.iter().enumerate().rev() {
            let b = gpu.cache.touch(hash);
            if now.since(b.used) > WINDOW {
                *b = Block::default();
            }
            b.used = now;
            b.uses += 1;
            b.misses += u32::from(at >= lead as usize);
            b.seconds = shape.token * shape.work(block, at as f64 * block);
        }
        let room = gpu.kv_tokens / u64::from(request.block_tokens.max(1));
        gpu.cache.shrink(room as usize);
        self.flights.insert(request.id, Flight { gpu: chosen, first: None });
    }
}

impl Policy for ExploitOrExplore {
    fn name(&self) -> &str {
        "preble"
    }

    fn place(&mut self, now: Time, request: &Arriving<'_>, sight: &Sight<'_>) -> usize {
        let up = sight.up;
        up.iter().for_each(|&i| self.make_room(i));
        up.iter().for_each(|&i| self.gpus[i].forget(now));
        let leads: Vec<u32> = up.iter().map(|&i| self.gpus[i].cache.lead(request.chain)).collect();
        let chosen = self.choose(now, request, up, &leads);
        self.make_room(chosen);
        let lead = up.iter().position(|&u| u == chosen).map_or(0, |at| leads[at]);
        self.send(now, request, chosen, lead);
        chosen
    }

    fn first_token(&mut self, now: Time, id: RequestId) {
        if let Some(f) = self.flights.get_mut(&id) {
            f.first.get_or_insert(now);
        }
    }

    fn finish(&mut self, now: Time, id: RequestId, output_tokens: u32, _cached: u32) {
        let Some(f) = self.flights.remove(&id) else { return };
        let gpu = &mut self.gpus[f.gpu];
        gpu.active -= 1;
        if output_tokens > 1 {
            self.outputs = (self.outputs + 1.0).min(REMEMBERED as f64);
            self.output += (f64::from(output_tokens) - self.output) / self.outputs;
            if let Some(first) = f.first {
                gpu.tpot.push_back(now.since(first) / f64::from(output_tokens - 1));
                if gpu.tpot.len() > REMEMBERED {
                    gpu.tpot.pop_front();
                }
                let mut sorted: Vec<f64> = gpu.tpot.iter().copied().collect();
                sorted.sort_by(f64::total_cmp);
                gpu.step = sorted.get(sorted.len() / 2).copied();
            }
        }
    }

    fn joined(&mut self, now: Time, replica: usize, kv_tokens: u64) {
        self.left(now, replica);
        self.make_room(replica);
        self.gpus[replica].kv_tokens = kv_tokens;
    }

    fn left(&mut self, _now: Time, replica: usize) {
        self.flights.retain(|_, f| f.gpu != replica);
        if let Some(gpu) = self.gpus.get_mut(replica) {
            *gpu = Gpu { kv_tokens: gpu.kv_tokens, ..Gpu::default() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::hand::{ask, see};
    use super::*;

    const UP: [usize; 2] = [0, 1];

    fn policy(kv_tokens: u64) -> ExploitOrExplore {
        ExploitOrExplore::new(2, kv_tokens, Shape::PLAIN_8K, 1)
    }

    #[test]
    fn more_cached_than_not_is_exploited_else_the_cost_decides() {
        let mut p = policy(1_000_000);
        let home = p.place(Time(0), &ask(1, &[1, 2, 3], 1536), &see(&UP));
        // 1,024 of 2,000 cached: exploited, though the other one is idle.
        assert_eq!(p.place(Time(0), &ask(2, &[1, 2, 9], 2000), &see(&UP)), home);
        // 1,024 of 2,100 isn't more than the rest. Load there: prefills of 1,536 and 976 tokens, and two decode.
        let want = (1536.0 + 976.0) * 1.25e-4 + 2.0 * 0.008 + 2.0 * 45.0 * 0.15;
        assert!((p.load(home) - want).abs() < 1e-9);
        assert_eq!(p.place(Time(0), &ask(3, &[1, 2, 8], 2100), &see(&UP)), 1 - home);
    }

    #[test]
    fn load_fades_after_the_window_and_tpot_is_learned() {
        let mut p = policy(1_000_000);
        let home = p.place(Time(0), &ask(1, &[1], 512), &see(&UP));
        p.first_token(Time::from_secs(1.0), RequestId(1));
        p.finish(Time::from_secs(3.0), RequestId(1), 101, 0);
        assert_eq!((p.gpus[home].step, p.output, p.gpus[home].active), (Some(0.02), 101.0, 0));
        assert!((p.load(home) - 0.072).abs() < 1e-9);
        p.gpus[home].forget(Time::from_secs(181.0));
        assert_eq!(p.load(home), 0.0);
    }

    #[test]
    fn pushing_out_costs_misses_times_prefill_of_what_was_used_lately() {
        let mut p = policy(4 * 512);
        p.send(Time(0), &ask(1, &[1, 2, 3], 1536), 0, 0);
        p.send(Time(0), &ask(2, &[1, 2, 4], 1536), 0, 2);
        let block = 512.0 * 1.25e-4;
        let cost = |p: &ExploitOrExplore, s, new| p.gpus[0].eviction(Time::from_secs(s), new, 512);
        // The cache is full: block 3 goes first, then 4, then 2; each missed once.
        assert!((cost(&p, 0.0, 3) - 3.0 * block).abs() < 1e-9);
        assert_eq!((cost(&p, 0.0, 0), cost(&p, 200.0, 3)), (0.0, 0.0));
        assert_eq!(p.gpus[1].eviction(Time(0), 4, 512), 0.0, "there is room");
        p.joined(Time(0), 0, 1000);
        assert_eq!((p.gpus[0].cache.len(), p.flights.len()), (0, 0));
    }

    #[test]
    fn a_holder_far_above_the_rest_is_left() {
        let mut p = policy(1_000_000);
        let alike = |p: &mut ExploitOrExplore, id| p.place(Time(0), &ask(id, &[1, 2], 1024), &see(&UP));
        let home = alike(&mut p, 1);
        // One alike is 0.136 s of prefill and 6.75 s of decoding; the first was 6.886 s, each after it 6.758 s.
        // With 15 in flight that is 101.5 s, under 15 · 6.886 = 103.3; with 16 it is 108.3.
        assert!((2..=16).all(|id| alike(&mut p, id) == home));
        assert_eq!(alike(&mut p, 17), 1 - home);
    }
}
