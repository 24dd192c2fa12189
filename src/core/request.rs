//! What the brain knows of a request.

use super::ids::{ModelId, ReplicaId, RequestId};
use smallvec::SmallVec;

/// A request to be placed. The prompt itself is not here: only its length, and (beside it) its chain.
#[derive(Clone, Debug)]
pub struct Request {
    /// Identity of this request, for the ledger.
    pub id: RequestId,
    /// Model asked for; `None` for requests that name none (they may go to any replica).
    pub model: Option<ModelId>,
    /// Prompt length in tokens: exact, or the text's bytes times the model's learned tokens a byte.
    pub prompt_tokens: u32,
    /// Upper bound of output tokens that the client set, if any.
    pub max_output: Option<u32>,
    /// Parallel choices (`n`), at least 1: each decodes on its own.
    pub choices: u32,
    /// First block hash of the chain (0 when there is no chain): orders ties so that independent routers agree.
    pub head: u64,
    /// Does the request generate? Pass-through calls (embeddings, tokenize) are placed by load alone.
    pub generates: bool,
    /// The replica that must serve it, if one must (`previous_response_id`).
    pub pinned: Option<ReplicaId>,
    /// Replicas already tried for this request: not eligible again.
    pub exclude: SmallVec<[ReplicaId; 2]>,
}

impl Request {
    /// A generating request with defaults, for tests and tools.
    pub fn new(id: u64, model: ModelId, prompt_tokens: u32) -> Self {
        Request {
            id: RequestId(id),
            model: Some(model),
            prompt_tokens,
            max_output: None,
            choices: 1,
            head: 0,
            generates: true,
            pinned: None,
            exclude: SmallVec::new(),
        }
    }
}
