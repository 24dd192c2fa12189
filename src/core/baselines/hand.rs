//! Short hands for the tests that are worked by hand.

use super::Context;
use crate::core::ids::RequestId;
use crate::core::ledger::Polled;
use crate::core::policy::{Arriving, Sight};
use crate::core::speed::Shape;

/// A request with blocks of 512 tokens.
pub(super) fn ask(id: u64, chain: &[u64], prompt_tokens: u32) -> Arriving<'_> {
    Arriving { id: RequestId(id), chain, block_tokens: 512, prompt_tokens, max_output: None, session: None }
}

/// All of these are up, and no events are heard.
pub(super) fn see(up: &[usize]) -> Sight<'_> {
    Sight { up, exact: &[] }
}

/// A page with so many waiting and that share of the cache in use.
pub(super) fn page(waiting: u32, kv_usage: f64) -> Polled {
    Polled { running: Some(8), waiting: Some(waiting), kv_usage: Some(kv_usage) }
}

/// A fleet of `replicas` with caches of a million tokens.
pub(super) fn context(replicas: usize) -> Context {
    Context { replicas, kv_tokens: 1_000_000, shape: Shape::PLAIN_8K, seed: 1, block_tokens: 512 }
}
