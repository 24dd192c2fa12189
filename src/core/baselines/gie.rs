//! Weighted sums of scores: the Gateway API Inference Extension and llm-d's router 0.10.
//!
//! `Σ weight·score`, the highest wins, equals drawn (`max-score-picker`):
//! - queue: `(max − q)/(max − min)` of the requests waiting in the engines, 1 if all have the same;
//! - KV: 1 − the share of the cache in use;
//! - prefix: matched blocks of all blocks;
//! - no-hit LRU (llm-d): for a request that nobody has anything of, the rank of the replica that was given such a one
//!   the longest ago, from 1 to 0; 0.5 for all others.
//!
//! Queue and KV are scraped (each 50 ms by default), so they are what was last polled; a replica whose page was never
//! seen counts as idle, as in the project. On pages alone everything that comes between two looks goes to one place,
//! and a prefill that runs with nothing behind it looks idle. So the queue is taken as those of the router's own
//! requests that wait for their first token, if they are more than the page shows: mostly better for the rival, and by
//! far. The names that end in `-polled` keep to the letter.

use super::books::Books;
use super::rng::Rng;
use super::view::View;
use crate::core::ids::RequestId;
use crate::core::ledger::Polled;
use crate::core::policy::{Arriving, Policy, Sight};
use crate::core::time::Time;

/// Seconds between two scrapes: `--refresh-metrics-interval`.
const SCRAPE: f64 = 0.05;

#[derive(Clone, Copy, Debug)]
pub(super) struct Weights {
    pub(super) prefix: f64,
    pub(super) queue: f64,
    pub(super) kv: f64,
    pub(super) no_hit: f64,
}

/// The policy.
#[derive(Clone, Debug)]
pub(super) struct WeightedSum {
    name: &'static str,
    weights: Weights,
    view: View,
    books: Books,
    /// Only pages count for the queue.
    polled_only: bool,
    pages: Vec<Polled>,
    /// Replicas that were given cold requests, the longest ago first.
    cold: Vec<usize>,
    rng: Rng,
}

impl WeightedSum {
    pub(super) fn new(name: &'static str, weights: Weights, view: View, seed: u64) -> Self {
        let (books, rng) = (Books::default(), Rng::new(seed));
        let (pages, cold) = (Vec::new(), Vec::new());
        WeightedSum { name, weights, view, books, polled_only: false, pages, cold, rng }
    }

    /// To the letter: the queue is what the pages say.
    pub(super) fn polled_only(self) -> Self {
        WeightedSum { polled_only: true, ..self }
    }

    fn page(&self, i: usize) -> Polled {
        self.pages.get(i).copied().unwrap_or_default()
    }

    fn waiting(&self, i: usize) -> f64 {
        let own = if self.polled_only { 0 } else { self.books.load(i).waiting };
        f64::from(self.page(i).waiting.unwrap_or(0).max(own))
    }

    /// Scores of the no-hit LRU for a cold request, in the order of `up`.
    fn ranks(&self, up: &[usize]) -> Vec<f64> {
        let never = up.iter().filter(|i| !self.cold.contains(i)).count();
        let mut fresh = 0;
        let steps = up.len().saturating_sub(1).max(1) as f64;
        up.iter()
            .map(|i| {
                let rank = match self.cold.iter().position(|c| c == i) {
                    Some(at) => never + at,
                    None => {
                        fresh += 1;
                        fresh - 1
                    }
                };
                (1.0 - rank as f64 / steps).max(0.0)
            })
            .collect()
    }

    /// Scores in the order of `up`, and whether the request is cold.
    fn scores(&self, request: &Arriving<'_>, sight: &Sight<'_>) -> (Vec<f64>, bool) {
        let (up, w) = (sight.up, &self.weights);
        let leads: Vec<u32> = up.iter().map(|&i| self.view.lead(request, sight, i)).collect();
        let cold = leads.iter().all(|&n| n == 0);
        let ranks = if cold && w.no_hit > 0.0 { self.ranks(up) } else { vec![0.5; up.len()] };
        let most = up.iter().map(|&i| self.waiting(i)).fold(0.0, f64::max);
        let least = up.iter().map(|&i| self.waiting(i)).fold(f64::INFINITY, f64::min);
        let score = |at: usize| {
            let i = up[at];
            let queue = if most > least { (most - self.waiting(i)) / (most - least) } else { 1.0 };
            let kv = 1.0 - self.page(i).kv_usage.unwrap_or(0.0);
            let prefix = f64::from(leads[at]) / request.chain.len().max(1) as f64;
            w.prefix * prefix + w.queue * queue + w.kv * kv + w.no_hit * ranks[at]
        };
        ((0..up.len()).map(score).collect(), cold)
    }
}

impl Policy for WeightedSum {
    fn name(&self) -> &str {
        self.name
    }

    fn knows_caches(&self) -> bool {
        self.view.is_precise()
    }

    fn looks_every(&self) -> Option<f64> {
        Some(SCRAPE)
    }

    fn place(&mut self, _now: Time, request: &Arriving<'_>, sight: &Sight<'_>) -> usize {
        let (scores, cold) = self.scores(request, sight);
        let order: Vec<usize> = (0..sight.up.len()).collect();
        let best = self.rng.least(&order, |at| -scores[at]);
        let chosen = sight.up.get(best).copied().unwrap_or(0);
        if cold {
            self.cold.retain(|&i| i != chosen);
            self.cold.push(chosen);
        }
        self.view.place(request, chosen);
        self.books.place(request.id, chosen, 0);
        chosen
    }

    fn first_token(&mut self, _now: Time, id: RequestId) {
        self.books.first_token(id);
    }

    fn finish(&mut self, _now: Time, id: RequestId, _output_tokens: u32, _cached: u32) {
        self.view.finish(id);
        self.books.finish(id);
    }

    fn polled(&mut self, _now: Time, replica: usize, page: &Polled) {
        if self.pages.len() <= replica {
            self.pages.resize(replica + 1, Polled::default());
        }
        self.pages[replica] = *page;
    }

    fn joined(&mut self, _now: Time, replica: usize, kv_tokens: u64) {
        self.view.joined(replica, kv_tokens);
    }

    fn left(&mut self, _now: Time, replica: usize) {
        self.view.left(replica);
        self.books.left(replica);
        self.cold.retain(|&i| i != replica);
        if let Some(page) = self.pages.get_mut(replica) {
            *page = Polled::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::hand::{ask, page, see};
    use super::*;

    const UP: [usize; 3] = [0, 1, 2];

    fn sum(prefix: f64, no_hit: f64) -> WeightedSum {
        let weights = Weights { prefix, queue: 2.0, kv: 2.0, no_hit };
        WeightedSum::new("gie", weights, View::approximate(3, 1_000_000), 1)
    }

    fn near(got: &[f64], want: [f64; 3]) {
        assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-9), "{got:?} isn't {want:?}");
    }

    #[test]
    fn by_hand() {
        let mut p = sum(3.0, 0.0);
        let a = ask(1, &[1, 2, 3, 4], 2048);
        near(&p.scores(&a, &see(&UP)).0, [4.0; 3]);
        p.polled(Time(0), 0, &page(4, 0.5));
        p.polled(Time(0), 1, &page(0, 0.9));
        p.polled(Time(0), 2, &page(1, 0.2));
        // Queue 0, 1, 3/4 and KV 0.5, 0.1, 0.8, twice each.
        near(&p.scores(&a, &see(&UP)).0, [1.0, 2.2, 3.1]);
        assert_eq!(p.place(Time(0), &a, &see(&UP)), 2);
        // Three of four blocks are there now: 3 · 3/4 more.
        let b = ask(2, &[1, 2, 3, 9], 2048);
        near(&p.scores(&b, &see(&UP)).0, [1.0, 2.2, 5.35]);
        // The page of 1 shows nobody waiting, but three of its own wait there: queues 4, 3, 1.
        (90..93).for_each(|id| p.books.place(RequestId(id), 1, 0));
        near(&p.scores(&b, &see(&UP)).0, [1.0, 0.2 + 2.0 / 3.0, 5.85]);
        p.polled_only = true;
        near(&p.scores(&b, &see(&UP)).0, [1.0, 2.2, 5.35]);
        p.left(Time(0), 2);
        near(&p.scores(&b, &see(&UP)).0, [1.0, 2.2, 4.0]);
    }

    #[test]
    fn cold_requests_go_where_the_last_was_the_longest_ago() {
        let mut p = sum(3.0, 2.0);
        let cold = |p: &mut WeightedSum, id| p.place(Time(0), &ask(id, &[id * 10], 600), &see(&UP));
        near(&p.ranks(&UP), [1.0, 0.5, 0.0]);
        p.polled_only = true;
        assert_eq!((cold(&mut p, 1), cold(&mut p, 2), cold(&mut p, 3), cold(&mut p, 4)), (0, 1, 2, 0));
        near(&p.ranks(&UP), [0.0, 1.0, 0.5]);
        // What somebody has is neutral: 0.5 for all.
        near(&p.scores(&ask(5, &[20], 600), &see(&UP)).0, [5.0, 8.0, 5.0]);
    }

    #[test]
    fn events_count_where_they_are_heard() {
        let weights = Weights { prefix: 1.0, queue: 1.0, kv: 1.0, no_hit: 0.0 };
        let mut p = WeightedSum::new("gie-precise", weights, View::precise(), 1);
        assert!(p.knows_caches() && !sum(1.0, 0.0).knows_caches());
        let sight = Sight { up: &UP, exact: &[0, 1, 0] };
        let a = ask(1, &[1, 2], 1024);
        near(&p.scores(&a, &sight).0, [2.0, 2.5, 2.0]);
        assert_eq!(p.place(Time(0), &a, &sight), 1);
        // One waits there now, and what is in flight counts as held: 0 for the queue, 1 for the prefix.
        near(&p.scores(&ask(2, &[1, 2], 1024), &see(&UP)).0, [2.0, 2.0, 2.0]);
        p.first_token(Time(0), a.id);
        near(&p.scores(&ask(2, &[1, 2], 1024), &see(&UP)).0, [2.0, 3.0, 2.0]);
        p.finish(Time(0), a.id, 5, 512);
        near(&p.scores(&ask(2, &[1, 2], 1024), &see(&UP)).0, [2.0; 3]);
    }
}
