//! Dynamo's KV router: dynamo-kv-router 1.6.1, temperature 0, no queueing, exact caches by KV events.
//!
//! `cost = scale·max(0, (pending prefill tokens + prompt)/block − credit·cached blocks) + potential decode blocks +
//! w·active requests`, argmin, equals drawn; blocks of 16 tokens. Prefill load is flat: a request's uncached tokens
//! count in full until its first token. Potential decode blocks: distinct blocks of the requests in flight, this one's
//! among them, without output (`--router-track-output-blocks` is off by default). No host or disk tier, so their
//! credits don't show.

use super::active::Active;
use super::books::Books;
use super::rng::Rng;
use super::view::{told, uncached};
use crate::core::ids::RequestId;
use crate::core::policy::{Arriving, Policy, Sight};
use crate::core::time::Time;

/// Tokens of a block.
const BLOCK: f64 = 16.0;

/// The policy.
#[derive(Clone, Debug)]
pub(super) struct KvRouter {
    name: &'static str,
    /// `overlap_score_credit`
    credit: f64,
    /// `prefill_load_scale`
    scale: f64,
    /// `decode_active_request_weight`
    weight: f64,
    books: Books,
    active: Active,
    rng: Rng,
}

impl KvRouter {
    fn new(name: &'static str, credit: f64, scale: f64, weight: f64, seed: u64) -> Self {
        let rng = Rng::new(seed);
        KvRouter { name, credit, scale, weight, books: Books::default(), active: Active::default(), rng }
    }

    /// The defaults: credit 1, scale 1, weight 0.
    pub(super) fn default_preset(seed: u64) -> Self {
        KvRouter::new("dynamo", 1.0, 1.0, 0.0, seed)
    }

    /// The agentic preset: credit 2, scale 4, weight 64.
    pub(super) fn agentic(seed: u64) -> Self {
        KvRouter::new("dynamo-agentic", 2.0, 4.0, 64.0, seed)
    }

    fn cost(&self, request: &Arriving<'_>, sight: &Sight<'_>, i: usize) -> f64 {
        let block = f64::from(request.block_tokens) / BLOCK;
        let prefill = (self.books.pending(i) + f64::from(request.prompt_tokens)) / BLOCK;
        let cached = f64::from(told(sight, i)) * block;
        let new = request.chain.len() as f64 - f64::from(self.active.lead(i, request.chain));
        let full = (self.active.blocks(i) as f64 + new) * block;
        let tails = (self.active.tails(i) + tail(request)) as f64;
        self.scale * (prefill - self.credit * cached).max(0.0)
            + full
            + tails
            + self.weight * self.books.requests(i)
    }
}

/// Blocks of 16 tokens, the last one partial, beyond the chain's full blocks.
fn tail(request: &Arriving<'_>) -> u64 {
    let full = request.chain.len() as u64 * u64::from(request.block_tokens);
    u64::from(request.prompt_tokens).saturating_sub(full).div_ceil(BLOCK as u64)
}

impl Policy for KvRouter {
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
        let own = u64::from(request.prompt_tokens).min(uncached(request, told(sight, chosen)));
        self.books.place(request.id, chosen, own);
        self.active.place(request.id, chosen, request.chain, tail(request));
        chosen
    }

    fn first_token(&mut self, _now: Time, id: RequestId) {
        self.books.first_token(id);
    }

    fn finish(&mut self, _now: Time, id: RequestId, _output_tokens: u32, _cached: u32) {
        self.books.finish(id);
        self.active.finish(id);
    }

    fn left(&mut self, _now: Time, replica: usize) {
        self.books.left(replica);
        self.active.left(replica);
    }
}

#[cfg(test)]
mod tests {
    use super::super::hand::ask;
    use super::*;

    const UP: [usize; 2] = [0, 1];

    #[test]
    fn by_hand() {
        let mut p = KvRouter::default_preset(1);
        let a = ask(1, &[1, 2], 1056);
        let sight = Sight { up: &UP, exact: &[0, 2] };
        // Prompt 66 blocks, all of them to decode (64 full and 2 of the tail); 64 cached on 1.
        assert_eq!((p.cost(&a, &sight, 0), p.cost(&a, &sight, 1)), (132.0, 68.0));
        assert_eq!(p.place(Time(0), &a, &sight), 1);
        assert_eq!(p.books.load(1).pending, 32);
        // A second one alike: 32 pending tokens are 2 blocks more of prefill; of its blocks only the tail is new.
        let b = ask(2, &[1, 2], 1056);
        assert_eq!(p.cost(&b, &sight, 1), (2.0 + 66.0 - 64.0) + 64.0 + 2.0 + 2.0);
        p.first_token(Time(0), a.id);
        assert_eq!(p.cost(&b, &sight, 1), (66.0 - 64.0) + 64.0 + 4.0);
        p.finish(Time(0), a.id, 10, 1024);
        assert_eq!(p.cost(&b, &sight, 1), 68.0);
    }

    #[test]
    fn the_agentic_preset_credits_twice_and_weighs_requests() {
        let mut p = KvRouter::agentic(1);
        let a = ask(1, &[1, 2, 3], 1536);
        let sight = Sight { up: &UP, exact: &[1, 0] };
        // 4·(96 − 2·32) + 96 against 4·96 + 96.
        assert_eq!((p.cost(&a, &sight, 0), p.cost(&a, &sight, 1)), (224.0, 480.0));
        assert_eq!(p.place(Time(0), &a, &sight), 0);
        p.first_token(Time(0), a.id);
        assert_eq!(p.cost(&ask(2, &[1, 2, 3], 1536), &sight, 0), 224.0 + 64.0);
    }
}
