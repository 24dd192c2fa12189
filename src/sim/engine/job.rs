//! A request as the engine sees it, and what becomes of it.

use super::counters::Reason;
use super::kv::{BlockHash, BlockId};
use crate::core::Time;
use std::sync::Arc;

/// A request.
#[derive(Clone, Debug)]
pub struct Job {
    /// Identity, unique among the requests that the engine has now.
    pub id: u64,
    /// Hash of each full block of the prompt *and of the answer behind it*, each over its content and all before it:
    /// equal hashes mean equal prefixes. A chain that is shorter leaves the rest uncached. Giving the answer's blocks
    /// as well lets the next turn of a conversation find them.
    pub chain: Arc<[BlockHash]>,
    /// Length of the prompt, at least 1.
    pub prompt_tokens: u32,
    /// Tokens that will be generated for each choice, at least 1.
    pub output_tokens: u32,
    /// Sequences that decode from this prompt (`n`), at least 1. They share the prompt's full blocks.
    pub choices: u32,
    /// How it will end, if it isn't cancelled.
    pub ends: Reason,
}

/// What happened, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// End of the step in which it happened (for `Started`: its beginning).
    pub at: Time,
    /// The request.
    pub id: u64,
    /// What it was.
    pub kind: EventKind,
}

/// What can happen to a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EventKind {
    /// Admitted to the batch, with this many leading prompt tokens in the cache. Told once; not again after a preemption.
    Started {
        /// Tokens whose KV was there.
        cached_tokens: u32,
    },
    /// Prefill is done and the first token out.
    FirstToken,
    /// So many tokens of each choice are out. Told only in token mode, from the second on.
    Tokens(u32),
    /// The last token is out.
    Finished(Reason),
    /// Thrown out of the batch for want of blocks; it waits again and its tokens so far will be computed anew.
    Preempted,
    /// It needs more blocks or places than the engine has at all, and is not taken.
    Rejected,
}

/// A request inside the engine.
pub(super) struct Seq {
    pub(super) job: Job,
    pub(super) arrived: Time,
    pub(super) admitted: Option<Time>,
    pub(super) first: Option<Time>,
    /// Tokens found in the cache at the first admission.
    pub(super) cached: u32,
    /// Tokens of each choice that are out.
    pub(super) produced: u32,
    /// Tokens that prefill has to bring: the prompt, and after a preemption what had been generated.
    pub(super) target: u32,
    /// Tokens whose KV is there.
    pub(super) stored: u32,
    /// Tokens of prefill in the step under way.
    pub(super) chunk: u32,
    /// Takes part in the step under way as a decode.
    pub(super) decoding: bool,
    pub(super) blocks: Vec<BlockId>,
    /// How many of `blocks` are registered under their hash.
    pub(super) registered: usize,
}

impl Seq {
    pub(super) fn new(job: Job, arrived: Time) -> Self {
        Seq {
            arrived,
            admitted: None,
            first: None,
            cached: 0,
            produced: 0,
            target: job.prompt_tokens,
            stored: 0,
            chunk: 0,
            decoding: false,
            blocks: Vec::new(),
            registered: 0,
            job,
        }
    }

    pub(super) fn prefilled(&self) -> bool {
        self.stored >= self.target
    }

    pub(super) fn to_come(&self) -> u32 {
        self.job.output_tokens - self.produced
    }

    /// Blocks for `tokens` of this request: what is behind the prompt's full blocks is needed once a choice, as soon
    /// as the choices part.
    pub(super) fn blocks_for(&self, tokens: u32, block: u32) -> u32 {
        let shared = self.job.prompt_tokens / block;
        let all = tokens.div_ceil(block);
        if tokens <= self.job.prompt_tokens { all } else { shared + (all - shared) * self.job.choices }
    }

    /// Blocks of the chain that are in `tokens` and may be registered: with several choices only the prompt's.
    pub(super) fn registrable(&self, tokens: u32, block: u32) -> usize {
        let tokens = if self.job.choices > 1 { tokens.min(self.job.prompt_tokens) } else { tokens };
        ((tokens / block) as usize).min(self.job.chain.len())
    }
}
