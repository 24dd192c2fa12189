//! What a door asks of the router, and how it is refused.

use super::{Router, TokenPrompt};
use crate::core::{Length, ModelId, Rejection, ReplicaId, Request, RequestId, Time};
use smallvec::SmallVec;
use std::sync::Arc;

/// Everything that a placement needs to know of a request. Kept between the attempts of one request.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// The model, as the client said it.
    pub model: Option<String>,
    /// Chained block hashes of the prompt.
    pub chain: Vec<u64>,
    /// The prompt in the engine's tokens, if they are known: it counts then, and the text is the fallback.
    pub tokens: Option<TokenPrompt>,
    /// Identity of the prompt's start, for the order of ties.
    pub head: u64,
    /// Bytes of prompt text.
    pub text_bytes: u64,
    /// Most output tokens that the client wants.
    pub max_output: Option<u32>,
    /// Parallel choices.
    pub choices: u32,
    /// Does it generate, or is it a call to be placed by load alone?
    pub generates: bool,
    /// Will the first token be seen?
    pub streams: bool,
    /// The response that it continues.
    pub previous_response: Option<String>,
    /// Priority band: the higher, the sooner.
    pub priority: i8,
    /// Whose request it is, as a hash; 0: not known.
    pub tenant: u64,
    /// Replicas that have failed this request already.
    pub tried: SmallVec<[ReplicaId; 2]>,
    /// The only replicas that may serve it, sorted; `None`: any.
    pub only: Option<Arc<[ReplicaId]>>,
    /// How many of the next cheapest replicas are wanted beside the choice.
    pub fallbacks: usize,
}

impl Ask {
    /// Blocks of the chain that counts.
    pub(super) fn blocks(&self) -> &[u64] {
        self.tokens.as_ref().map_or(&self.chain, |t| &t.chain)
    }

    pub(super) fn to_core(
        &self,
        id: RequestId,
        model: Option<ModelId>,
        pinned: Option<ReplicaId>,
        block: u32,
        deadline: Time,
    ) -> Request {
        Request {
            id,
            model,
            length: match &self.tokens {
                Some(t) => Length::Tokens { tokens: t.tokens, block: t.block },
                None => Length::Text { bytes: self.text_bytes, block },
            },
            max_output: self.max_output,
            choices: self.choices.max(1),
            head: self.tokens.as_ref().map_or(self.head, |t| t.head),
            generates: self.generates,
            streams: self.streams,
            pinned,
            priority: self.priority,
            tenant: self.tenant,
            deadline: Some(deadline),
            exclude: self.tried.clone(),
            only: self.only.clone(),
        }
    }
}

/// Why a request wasn't placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No replica serves the model.
    UnknownModel {
        /// Those that are served.
        known: Arc<[Arc<str>]>,
    },
    /// The prompt is longer than any replica takes.
    TooLong {
        /// Its tokens, as far as known.
        prompt: u32,
        /// Tokens of the longest context.
        max: u32,
    },
    /// None is up, or all have been tried.
    NoReplica {
        /// Seconds after which to try again.
        retry_after: u32,
    },
    /// Too many wait already.
    QueueFull {
        /// Seconds after which to try again.
        retry_after: u32,
    },
    /// Many wait, and it was among those that had to go so that others come to their turn.
    Shed {
        /// Seconds after which to try again.
        retry_after: u32,
    },
    /// Its time to wait is over.
    Deadline {
        /// Seconds after which to try again.
        retry_after: u32,
    },
    /// The replica that has the response it continues is gone.
    PinnedGone,
}

impl Refusal {
    /// Its name in metrics, if it is about too much traffic.
    pub fn shed_reason(&self) -> Option<&'static str> {
        match self {
            Refusal::QueueFull { .. } => Some("queue_full"),
            Refusal::Shed { .. } => Some("shed"),
            Refusal::Deadline { .. } => Some("deadline"),
            _ => None,
        }
    }

    pub(super) fn from_core(rejection: Rejection, router: &Router) -> Self {
        match rejection {
            Rejection::UnknownModel => Refusal::UnknownModel { known: router.model_names() },
            Rejection::TooLong { prompt, max } => Refusal::TooLong { prompt, max },
            Rejection::NoReplica => Refusal::NoReplica { retry_after: 2 },
            Rejection::QueueFull => Refusal::QueueFull { retry_after: router.retry_after() },
            Rejection::Shed => Refusal::Shed { retry_after: router.retry_after() },
            Rejection::Deadline => Refusal::Deadline { retry_after: router.retry_after() },
            Rejection::PinnedGone => Refusal::PinnedGone,
        }
    }
}
