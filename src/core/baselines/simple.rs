//! Policies that know nothing of caches: random, round robin, least requests, power of two choices.
//!
//! What every proxy has (nginx, Envoy, HAProxy). In-flight counts are the router's own.

use super::books::Books;
use super::rng::Rng;
use crate::core::ids::RequestId;
use crate::core::policy::{Arriving, Policy, Sight};
use crate::core::time::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Random,
    RoundRobin,
    /// Equals are drawn, which is better than the first in the list: nobody gets all of a quiet time's traffic.
    LeastRequests,
    /// Two are drawn, and the one with fewer in flight is taken (Envoy's `LEAST_REQUEST` with equal weights).
    PowerOfTwo,
}

/// One of the four.
#[derive(Clone, Debug)]
pub(super) struct Simple {
    name: &'static str,
    rule: Rule,
    books: Books,
    rng: Rng,
    last: Option<usize>,
}

impl Simple {
    fn new(name: &'static str, rule: Rule, seed: u64) -> Self {
        Simple { name, rule, books: Books::default(), rng: Rng::new(seed), last: None }
    }

    pub(super) fn random(seed: u64) -> Self {
        Simple::new("random", Rule::Random, seed)
    }

    pub(super) fn round_robin() -> Self {
        Simple::new("round-robin", Rule::RoundRobin, 0)
    }

    pub(super) fn least_requests(seed: u64) -> Self {
        Simple::new("least-requests", Rule::LeastRequests, seed)
    }

    pub(super) fn power_of_two(seed: u64) -> Self {
        Simple::new("power-of-two", Rule::PowerOfTwo, seed)
    }
}

impl Policy for Simple {
    fn name(&self) -> &str {
        self.name
    }

    fn place(&mut self, _now: Time, request: &Arriving<'_>, sight: &Sight<'_>) -> usize {
        let up = sight.up;
        let chosen = match self.rule {
            Rule::Random => self.rng.one(up),
            Rule::RoundRobin => {
                let next = up.iter().find(|&&i| self.last.is_none_or(|last| i > last)).or(up.first());
                next.copied().unwrap_or(0)
            }
            Rule::LeastRequests => self.rng.least(up, |i| self.books.requests(i)),
            Rule::PowerOfTwo => {
                // Two different ones, if there are two.
                let a = self.rng.below(up.len());
                let b = (a + 1 + self.rng.below(up.len().saturating_sub(1))) % up.len().max(1);
                let pair = [a, b].map(|at| up.get(at).copied().unwrap_or(0));
                if self.books.requests(pair[1]) < self.books.requests(pair[0]) { pair[1] } else { pair[0] }
            }
        };
        self.last = Some(chosen);
        self.books.place(request.id, chosen, 0);
        chosen
    }

    fn finish(&mut self, _now: Time, id: RequestId, _output_tokens: u32, _cached: u32) {
        self.books.finish(id);
    }

    fn left(&mut self, _now: Time, replica: usize) {
        self.books.left(replica);
    }
}

#[cfg(test)]
mod tests {
    use super::super::hand::{ask, see};
    use super::*;

    fn place(p: &mut Simple, id: u64, up: &[usize]) -> usize {
        p.place(Time(0), &ask(id, &[], 100), &see(up))
    }

    #[test]
    fn round_robin_goes_round_and_steps_over_the_missing() {
        let mut p = Simple::round_robin();
        let got: Vec<usize> = (0..4).map(|id| place(&mut p, id, &[0, 1, 2])).collect();
        assert_eq!(got, [0, 1, 2, 0]);
        assert_eq!((place(&mut p, 4, &[0, 2]), place(&mut p, 5, &[0, 2])), (2, 0));
    }

    #[test]
    fn random_reaches_all_and_repeats_with_its_seed() {
        let run = |seed| {
            let mut p = Simple::random(seed);
            (0..400).map(|id| place(&mut p, id, &[0, 1, 2, 3])).collect::<Vec<_>>()
        };
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
        for i in 0..4 {
            assert!(run(3).iter().filter(|&&r| r == i).count() > 60);
        }
    }

    #[test]
    fn least_requests_takes_the_emptiest() {
        let mut p = Simple::least_requests(1);
        let mut first = [0, 1, 2].map(|id| place(&mut p, id, &[0, 1, 2]));
        p.finish(Time(0), RequestId(1), 1, 0);
        assert_eq!(place(&mut p, 3, &[0, 1, 2]), first[1]);
        first.sort_unstable();
        assert_eq!(first, [0, 1, 2]);
    }

    #[test]
    fn power_of_two_of_two_is_least_requests() {
        let mut p = Simple::power_of_two(1);
        let (a, b) = (place(&mut p, 0, &[0, 1]), place(&mut p, 1, &[0, 1]));
        assert_ne!(a, b);
        assert_eq!(place(&mut p, 2, &[1]), 1, "one alone is both of the two");
        assert_eq!(place(&mut p, 3, &[0, 1]), 0);
        // Of three with 2, 2 and 0 in flight, the empty one is drawn in two of three pairs.
        let mut hits = 0;
        for seed in 0..300 {
            let mut q = p.clone();
            q.rng = Rng::new(seed);
            hits += usize::from(place(&mut q, 9, &[0, 1, 2]) == 2);
        }
        assert!((170..230).contains(&hits), "{hits}");
    }
}
