//! LMetric: uncached tokens × batch size, argmin (arXiv 2603.15202).
//!
//! The paper's indicator leaves two readings, and both are here: `(pending + new)·(n + 1)` with the uncached tokens
//! that wait for their first token, and `new·(n + 1)`; `n` requests are in flight. Exact knowledge of caches. A prompt
//! that is cached in whole still computes its last token, so that the batch decides among those who hold it.

use super::books::Books;
use super::rng::Rng;
use super::view::{told, uncached};
use crate::core::ids::RequestId;
use crate::core::policy::{Arriving, Policy, Sight};
use crate::core::time::Time;

/// The policy.
#[derive(Clone, Debug)]
pub(super) struct Product {
    name: &'static str,
    with_pending: bool,
    books: Books,
    rng: Rng,
}

impl Product {
    /// `(pending + new)·(n + 1)`
    pub(super) fn pending_and_new(seed: u64) -> Self {
        Product { name: "lmetric", with_pending: true, books: Books::default(), rng: Rng::new(seed) }
    }

    /// `new·(n + 1)`
    pub(super) fn new_only(seed: u64) -> Self {
        Product { name: "lmetric-new", with_pending: false, ..Product::pending_and_new(seed) }
    }

    fn cost(&self, request: &Arriving<'_>, sight: &Sight<'_>, i: usize) -> f64 {
        let pending = if self.with_pending { self.books.pending(i) } else { 0.0 };
        (pending + uncached(request, told(sight, i)) as f64) * (self.books.requests(i) + 1.0)
    }
}

impl Policy for Product {
    fn name(&self) -> &str {
        self.name
    }

    fn knows_caches(&self) -> bool {
        true
    }

    fn place(&mut self, _now: Time, request: &Arriving<'_>, sight: &Sight<'_>) -> usize {
        let mut rng = self.rng.clone();
        let chosen = rng.least(sight.up, |i| self.cost(request, sight, i));
        self.rng = rng;
        self.books.place(request.id, chosen, uncached(request, told(sight, chosen)));
        chosen
    }

    fn first_token(&mut self, _now: Time, id: RequestId) {
        self.books.first_token(id);
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
    use super::super::hand::ask;
    use super::*;

    #[test]
    fn both_readings_by_hand() {
        let sight = Sight { up: &[0, 1], exact: &[1, 0] };
        for (mut p, there) in [(Product::pending_and_new(1), 1176.0), (Product::new_only(1), 1176.0)] {
            let a = ask(1, &[1, 2], 1100);
            assert_eq!((p.cost(&a, &sight, 0), p.cost(&a, &sight, 1)), (588.0, 1100.0));
            assert_eq!(p.place(Time(0), &a, &sight), 0);
            let b = ask(2, &[1, 2], 1100);
            let pending = if p.with_pending { 1176.0 } else { 0.0 };
            assert_eq!(p.cost(&b, &sight, 0), pending + there);
            assert_eq!(p.place(Time(0), &b, &sight), 1, "1,100 is less");
            p.first_token(Time(0), a.id);
            assert_eq!(p.cost(&b, &sight, 0), 1176.0);
            p.finish(Time(0), a.id, 3, 512);
            assert_eq!(p.cost(&b, &sight, 0), 588.0);
        }
    }

    #[test]
    fn a_prompt_cached_in_whole_still_costs_a_token() {
        let mut p = Product::new_only(1);
        let sight = Sight { up: &[0, 1], exact: &[1, 1] };
        let first = p.place(Time(0), &ask(1, &[1], 512), &sight);
        assert_eq!(p.cost(&ask(2, &[1], 512), &sight, first), 2.0);
        assert_eq!(p.place(Time(0), &ask(2, &[1], 512), &sight), 1 - first);
    }
}
