//! What is learned of an answer while it passes.

use super::reply::Pieces;
use crate::core::Outcome;
use crate::openai::{Facts, Framer, FramerMode, Tail, TailScan, Usage, Weave};
use bytes::Bytes;
use smallvec::smallvec;

/// How an answer is read.
#[derive(Debug)]
pub enum Watch {
    /// As a stream of events.
    Events(Box<Framer>),
    /// As a stream of events that another replica can continue.
    Woven(Box<Weave>),
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
            Watch::Woven(weave) => weave.push(&chunk).into_iter().collect(),
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
            Watch::Woven(weave) => weave.finish(),
            Watch::Json(scan, tail) => {
                *tail = Some(scan.finish());
                None
            }
            Watch::Blind => None,
        }
    }

    /// Has the model begun to speak? Only events tell.
    pub fn first_token(&self) -> bool {
        self.facts().is_some_and(|f| f.first_token)
    }

    /// Tokens so far, about.
    pub fn tokens(&self) -> u32 {
        self.facts().map_or(0, |f| u32::try_from(f.tokens).unwrap_or(u32::MAX))
    }

    /// Those of them that the present replica made.
    pub fn tokens_here(&self) -> u32 {
        match self {
            Watch::Woven(weave) => u32::try_from(weave.of_this_engine()).unwrap_or(u32::MAX),
            _ => self.tokens(),
        }
    }

    fn facts(&self) -> Option<&Facts> {
        match self {
            Watch::Events(framer) => Some(framer.facts()),
            Watch::Woven(weave) => Some(weave.facts()),
            Watch::Json(..) | Watch::Blind => None,
        }
    }

    /// What the replica counted.
    pub fn usage(&self) -> Option<Usage> {
        match self {
            Watch::Events(framer) => framer.facts().usage,
            Watch::Woven(weave) => weave.usage(),
            Watch::Json(_, tail) => tail.as_ref().and_then(|t| t.usage),
            Watch::Blind => None,
        }
    }

    /// Did the answer say that it failed?
    pub fn error(&self) -> bool {
        match self {
            Watch::Json(_, tail) => tail.as_ref().is_some_and(|t| t.error),
            _ => self.facts().is_some_and(|f| f.error),
        }
    }

    /// The identifier under which the replica may have stored the answer.
    pub fn id(&self) -> Option<&str> {
        match self {
            Watch::Json(_, tail) => tail.as_ref().and_then(|t| t.id.as_deref()),
            _ => self.facts().and_then(|f| f.response_id.as_deref()),
        }
    }

    /// For the router.
    pub fn outcome(&self) -> Outcome {
        if let Watch::Woven(weave) = self
            && weave.continued()
        {
            // What this replica had for a prompt isn't what was placed, so nothing is learned of that.
            return Outcome { output_tokens: Some(self.tokens_here()), ..Outcome::default() };
        }
        let usage = self.usage();
        let counted = Some(self.tokens()).filter(|n| *n > 0);
        Outcome {
            prompt_tokens: usage.map(|u| u.prompt_tokens),
            cached_tokens: usage.and_then(|u| u.cached_tokens),
            output_tokens: usage.map(|u| u.completion_tokens).or(counted),
        }
    }
}
