//! What is learned of an answer while it passes.

use super::reply::Pieces;
use crate::core::Outcome;
use crate::openai::{Framer, FramerMode, Tail, TailScan, Usage};
use bytes::Bytes;
use smallvec::smallvec;

/// How an answer is read.
#[derive(Debug)]
pub enum Watch {
    /// As a stream of events.
    Events(Box<Framer>),
    /// As JSON, its beginning and end.
    Json(Box<TailScan>, Option<Tail>),
    /// Not at all: compressed, or nothing that tells usage.
    Blind,
}

impl Watch {
    /// Events; `strip` takes those out that only the router asked for.
    pub fn events(strip: bool) -> Self {
        Watch::Events(Box::new(Framer::new(FramerMode { strip_usage: strip })))
    }

    /// A JSON answer.
    pub fn json() -> Self {
        Watch::Json(Box::default(), None)
    }

    /// Looks at a chunk; returns what goes on to the client.
    pub fn see(&mut self, chunk: Bytes) -> Pieces {
        match self {
            Watch::Events(framer) => framer.push(chunk),
            Watch::Json(scan, _) => {
                scan.push(&chunk);
                smallvec![chunk]
            }
            Watch::Blind => smallvec![chunk],
        }
    }

    /// The end; returns what was held back.
    pub fn end(&mut self) -> Option<Bytes> {
        match self {
            Watch::Events(framer) => framer.finish(),
            Watch::Json(scan, tail) => {
                *tail = Some(scan.finish());
                None
            }
            Watch::Blind => None,
        }
    }

    /// Has the model begun to speak? Only events tell.
    pub fn first_token(&self) -> bool {
        matches!(self, Watch::Events(framer) if framer.facts().first_token)
    }

    /// Tokens so far, about.
    pub fn tokens(&self) -> u32 {
        match self {
            Watch::Events(framer) => u32::try_from(framer.facts().tokens).unwrap_or(u32::MAX),
            _ => 0,
        }
    }

    /// What the replica counted.
    pub fn usage(&self) -> Option<Usage> {
        match self {
            Watch::Events(framer) => framer.facts().usage,
            Watch::Json(_, tail) => tail.as_ref().and_then(|t| t.usage),
            Watch::Blind => None,
        }
    }

    /// Did the answer say that it failed?
    pub fn error(&self) -> bool {
        match self {
            Watch::Events(framer) => framer.facts().error,
            Watch::Json(_, tail) => tail.as_ref().is_some_and(|t| t.error),
            Watch::Blind => false,
        }
    }

    /// The identifier under which the replica may have stored the answer.
    pub fn id(&self) -> Option<&str> {
        match self {
            Watch::Events(framer) => framer.facts().response_id.as_deref(),
            Watch::Json(_, tail) => tail.as_ref().and_then(|t| t.id.as_deref()),
            Watch::Blind => None,
        }
    }

    /// For the router.
    pub fn outcome(&self) -> Outcome {
        let usage = self.usage();
        let counted = Some(self.tokens()).filter(|n| *n > 0);
        Outcome {
            prompt_tokens: usage.map(|u| u.prompt_tokens),
            cached_tokens: usage.and_then(|u| u.cached_tokens),
            output_tokens: usage.map(|u| u.completion_tokens).or(counted),
        }
    }
}
