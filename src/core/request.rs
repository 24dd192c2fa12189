//! What the brain knows of a request.

use super::ids::{ModelId, ReplicaId, RequestId};
use super::prefix::chain::TEXT_BLOCK;
use super::time::Time;
use smallvec::SmallVec;
use std::sync::Arc;

/// How long a prompt is, and in which unit its chain counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// Text of so many bytes, cut into blocks of `block` bytes. Tokens follow from the model's learned tokens a byte.
    Text {
        /// Bytes of prompt text.
        bytes: u64,
        /// Bytes of one block of the chain.
        block: u32,
    },
    /// Exactly so many tokens, cut into blocks of `block` tokens.
    Tokens {
        /// Tokens of the prompt.
        tokens: u32,
        /// Tokens of one block of the chain.
        block: u32,
    },
}

/// A request to be placed. The prompt itself is not here: only its length, and (beside it) its chain.
#[derive(Clone, Debug)]
pub struct Request {
    /// Identity of this request, for the ledger.
    pub id: RequestId,
    /// Model asked for; `None` for requests that name none (they may go to any replica).
    pub model: Option<ModelId>,
    /// Length of the prompt.
    pub length: Length,
    /// Upper bound of output tokens that the client set, if any.
    pub max_output: Option<u32>,
    /// Parallel choices (`n`), at least 1: each decodes on its own.
    pub choices: u32,
    /// Identity of the prompt's start (its first block's hash): orders ties so that independent routers agree.
    pub head: u64,
    /// Does the request generate? Pass-through calls (embeddings, tokenize) are placed by load alone.
    pub generates: bool,
    /// Will its first token be seen when it comes (a stream)? Else the ledger goes by what it expects.
    pub streams: bool,
    /// The replica that must serve it, if one must (`previous_response_id`).
    pub pinned: Option<ReplicaId>,
    /// Priority band: the higher, the sooner, strictly. 0 is the usual one.
    pub priority: i8,
    /// Whose request it is, for fairness among those who wait: a hash of the tenant's name; 0 for those that name none.
    pub tenant: u64,
    /// It isn't wanted any more if it hasn't been placed by then.
    pub deadline: Option<Time>,
    /// Replicas already tried for this request: not eligible again.
    pub exclude: SmallVec<[ReplicaId; 2]>,
    /// The only replicas that it may go to, sorted (a gateway's subset); `None`: any.
    pub only: Option<Arc<[ReplicaId]>>,
}

impl Request {
    /// A streamed, generating request with a text prompt of `bytes`, defaults for all the rest.
    pub fn text(id: u64, model: ModelId, bytes: u64) -> Self {
        Request {
            id: RequestId(id),
            model: Some(model),
            length: Length::Text { bytes, block: TEXT_BLOCK as u32 },
            max_output: None,
            choices: 1,
            head: 0,
            generates: true,
            streams: true,
            pinned: None,
            priority: 0,
            tenant: 0,
            deadline: None,
            exclude: SmallVec::new(),
            only: None,
        }
    }
}
