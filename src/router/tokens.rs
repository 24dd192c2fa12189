//! A prompt as the engine sees it: its token chain.

use crate::core::ids::Holder;
use crate::core::prefix::TokenChain;
use std::sync::Arc;

/// The tokens of a prompt, where they are known.
#[derive(Clone, Debug)]
pub struct Tokens {
    /// Chained hashes of its full blocks, of [`Router::block_tokens`](super::Router::block_tokens) ids each.
    pub chain: Arc<[u64]>,
    /// How many tokens it has.
    pub count: u32,
}

impl From<TokenChain> for Tokens {
    fn from(chain: TokenChain) -> Self {
        let count = u32::try_from(chain.tokens()).unwrap_or(u32::MAX);
        Tokens { chain: chain.into_hashes().into(), count }
    }
}

/// Where a placed request's tokens are believed to be.
#[derive(Clone, Debug)]
pub(super) struct Placement {
    pub(super) chain: Arc<[u64]>,
    pub(super) holder: Holder,
    /// The data-parallel rank of that holder, where there are several.
    pub(super) rank: Option<u32>,
}
