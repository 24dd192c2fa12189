//! How much a cache holds, learned where its engine doesn't say.
//!
//! Without a capacity nothing is ever believed to be evicted, so what is predicted grows past what is there. Each
//! answer that finds less than predicted bounds the capacity from above: since that prefix was last used, so many tokens
//! have come in, and it was pushed out. Each answer that finds more says that it was bounded too tightly.

/// What is believed of one cache's size, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Learned {
    tokens: Option<f64>,
    misses: u32,
}

/// Misses until they are believed: one may have other reasons (a reset, another router's traffic).
const SURE: u32 = 3;
/// Share by which one miss lowers the belief towards what it says.
const STEP: f64 = 0.3;
/// Growth with each answer that finds more than was believed to fit.
const GROWTH: f64 = 1.03;

impl Learned {
    /// A prefix of which `since` tokens had come in since its last use wasn't there any more.
    pub fn missed(&mut self, since: f64) {
        self.misses = self.misses.saturating_add(1);
        let bound = since.max(1.0);
        self.tokens = Some(match self.tokens {
            None => bound,
            Some(now) if bound < now => now + STEP * (bound - now),
            Some(now) => now,
        });
    }

    /// More was found than was believed to fit.
    pub fn found_more(&mut self) {
        if let Some(now) = &mut self.tokens {
            *now *= GROWTH;
        }
    }

    /// Tokens that fit; `None` while too little was seen.
    pub fn tokens(&self) -> Option<u64> {
        self.tokens.filter(|_| self.misses >= SURE).map(|t| t as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::prefix::{IndexConfig, Matches, PrefixIndex};
    use crate::core::{RequestId, Time};
    use std::collections::VecDeque;

    #[test]
    fn a_few_misses_are_needed_and_hits_lift_it() {
        let mut learned = Learned::default();
        learned.found_more();
        learned.missed(1000.0);
        learned.missed(900.0);
        assert_eq!(learned.tokens(), None);
        learned.missed(2000.0);
        assert_eq!(learned.tokens(), Some(970));
        learned.found_more();
        assert_eq!(learned.tokens(), Some(999));
    }

    /// An engine with a plain LRU cache of single-block prompts, an index that isn't told its size, and the loop that
    /// the router closes between them.
    #[test]
    fn the_size_of_an_lru_cache_is_found_out() {
        for capacity in [200usize, 800] {
            let mut rng = fastrand::Rng::with_seed(4);
            let mut index = PrefixIndex::new(IndexConfig::default());
            index.join(0, None);
            let mut learned = Learned::default();
            let mut cache: VecDeque<u64> = VecDeque::new();
            let mut out = Matches::new();
            let (mut late, mut wrong) = (0, 0);
            for n in 0..40_000u64 {
                // Popular prompts come often, rare ones seldom: every distance occurs.
                let block = (rng.f64().powi(3) * 3000.0) as u64;
                let chain = [block.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15)];
                let now = Time(n + 1);
                index.matches(&chain, &mut out);
                let (predicted, used) = (out.get(0) > 0, index.last_used(&chain, 0));
                index.speculate(now, RequestId(n), &chain, 0);
                let actual = cache.iter().position(|&b| b == block);
                match actual {
                    Some(at) => drop(cache.remove(at)),
                    None if cache.len() == capacity => drop(cache.pop_front()),
                    None => {}
                }
                cache.push_back(block);
                match (predicted, actual.is_some()) {
                    (true, false) => learned.missed(used.map_or(0.0, |t| index.held_since(0, t) as f64)),
                    (false, true) => learned.found_more(),
                    _ => {}
                }
                index.confirm(now, RequestId(n), 0);
                index.set_capacity(0, learned.tokens());
                if n >= 20_000 {
                    late += 1;
                    wrong += u32::from(predicted != actual.is_some());
                }
            }
            let found = learned.tokens().unwrap() as f64 / capacity as f64;
            assert!((0.8..1.25).contains(&found), "{found} of {capacity}");
            assert!(wrong * 20 < late, "{wrong} of {late} predictions were wrong");
        }
    }
}
