//! llm-d's token load: router 0.10, `token-load-scorer` with `inflight-load-producer` and `prefix-cache-affinity-filter`.
//!
//! A replica's load is the uncached prompt tokens of the requests that wait for their first token there, and those
//! that this request would add; argmin, equals drawn. **Pending tokens** is that alone. **Sticky until saturated**
//! (llm-d, August 2026) goes before it: if any replicas have at least 0.8 of the prompt, only they count, unless the
//! least loaded of them has over τ tokens more than the least loaded of all; τ = 15,928 tokens/s of peak prefill ×
//! 18 s = 286,704 tokens, the project's default whatever the engine.

use super::books::Books;
use super::rng::Rng;
use super::view::{View, uncached};
use crate::core::ids::RequestId;
use crate::core::policy::{Arriving, Policy, Sight};
use crate::core::time::Time;

/// Share of the prompt's blocks from which a replica is sticky: `affinityThreshold`.
const AFFINITY: f64 = 0.8;
/// Tokens of load by which the sticky may be worse: `peakPrefillThroughput` × `maxTTFTPenaltyMs`.
const SATURATED: f64 = 15_928.0 * 18.0;

/// The policy.
#[derive(Clone, Debug)]
pub(super) struct TokenLoad {
    name: &'static str,
    sticky: bool,
    view: View,
    books: Books,
    rng: Rng,
}

impl TokenLoad {
    /// Pending tokens.
    pub(super) fn pending(name: &'static str, view: View, seed: u64) -> Self {
        TokenLoad { name, sticky: false, view, books: Books::default(), rng: Rng::new(seed) }
    }

    /// Sticky until saturated.
    pub(super) fn sticky(name: &'static str, view: View, seed: u64) -> Self {
        TokenLoad { sticky: true, ..TokenLoad::pending(name, view, seed) }
    }

    fn stuck(&self, request: &Arriving<'_>, up: &[usize], leads: &[u32]) -> Vec<usize> {
        let blocks = request.chain.len() as f64;
        let affine = |lead: u32| lead > 0 && f64::from(lead) >= AFFINITY * blocks;
        let held: Vec<usize> = up.iter().zip(leads).filter(|(_, l)| affine(**l)).map(|(&i, _)| i).collect();
        let least = |of: &[usize]| of.iter().map(|&i| self.books.pending(i)).fold(f64::INFINITY, f64::min);
        if held.is_empty() || least(&held) - least(up) > SATURATED { up.to_vec() } else { held }
    }
}

impl Policy for TokenLoad {
    fn name(&self) -> &str {
        self.name
    }

    fn knows_caches(&self) -> bool {
        self.view.is_precise()
    }

    fn place(&mut self, _now: Time, request: &Arriving<'_>, sight: &Sight<'_>) -> usize {
        let up = sight.up;
        let leads: Vec<u32> = up.iter().map(|&i| self.view.lead(request, sight, i)).collect();
        let kept = if self.sticky { self.stuck(request, up, &leads) } else { up.to_vec() };
        let own = |i: usize| {
            let lead = up.iter().position(|&u| u == i).map_or(0, |at| leads[at]);
            uncached(request, lead)
        };
        let chosen = self.rng.least(&kept, |i| self.books.pending(i) + own(i) as f64);
        self.books.place(request.id, chosen, own(chosen));
        self.view.place(request, chosen);
        chosen
    }

    fn first_token(&mut self, _now: Time, id: RequestId) {
        self.books.first_token(id);
    }

    fn finish(&mut self, _now: Time, id: RequestId, _output_tokens: u32, _cached: u32) {
        self.books.finish(id);
        self.view.finish(id);
    }

    fn joined(&mut self, _now: Time, replica: usize, kv_tokens: u64) {
        self.view.joined(replica, kv_tokens);
    }

    fn left(&mut self, _now: Time, replica: usize) {
        self.books.left(replica);
        self.view.left(replica);
    }
}

#[cfg(test)]
mod tests {
    use super::super::hand::{ask, see};
    use super::*;

    const UP: [usize; 2] = [0, 1];

    #[test]
    fn pending_tokens_by_hand() {
        let mut p = TokenLoad::pending("pending-tokens", View::approximate(2, 1_000_000), 1);
        let home = p.place(Time(0), &ask(1, &[1, 2], 1100), &see(&UP));
        // There: 1,100 pending and 76 of its own. Elsewhere: 1,100 of its own.
        let other = p.place(Time(0), &ask(2, &[1, 2], 1100), &see(&UP));
        assert_ne!(home, other);
        p.first_token(Time(0), RequestId(1));
        assert_eq!(p.place(Time(0), &ask(3, &[1, 2], 1100), &see(&UP)), home, "76 against 1,176");
        assert_eq!((p.books.load(home).pending, p.books.load(other).pending), (76, 1100));
        p.finish(Time(0), RequestId(2), 9, 0);
        assert_eq!(p.books.load(other).pending, 0);
    }

    #[test]
    fn sticky_until_the_difference_is_tau() {
        let mut p = TokenLoad::sticky("sticky", View::precise(), 1);
        let sight = Sight { up: &UP, exact: &[4, 3] };
        let a = ask(1, &[1, 2, 3, 4, 5], 2560);
        // 4 of 5 is 0.8; 3 of 5 isn't. Its own uncached tokens don't matter, nor does a load that is a little higher.
        p.books.place(RequestId(90), 0, 286_704);
        assert_eq!(p.place(Time(0), &a, &sight), 0);
        p.books.place(RequestId(91), 0, 1);
        assert_eq!(p.place(Time(0), &ask(2, &[1, 2, 3, 4, 5], 2560), &sight), 1);
        // Nobody sticky: the load decides.
        let cold = Sight { up: &UP, exact: &[0, 0] };
        assert_eq!(p.place(Time(0), &ask(3, &[9], 600), &cold), 1);
    }
}
