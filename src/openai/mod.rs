//! What the router must understand of OpenAI-shaped traffic, without copying or rewriting it.
//!
//! - [`scan()`]: a request body, read where it lies: the parameters, and the prompt in the order in which the model will
//!   see it, for the prefix chain.
//! - [`splice_usage`]: the one key that the router may add to a body.
//! - [`Framer`]: a stream of events, watched as it passes: first token, tokens so far, usage, end.
//! - [`TailScan`]: an answer that isn't streamed, watched at its ends.
//! - [`Weave`]: a stream that can be continued by another engine.
//! - [`Problem`]: what went wrong, in words and shapes that clients know.

mod completions;
mod content;
mod error;
pub mod json;
mod message;
mod quoted;
mod scan;
mod sink;
mod splice;
mod sse;
mod staged;
mod start;
mod tape;
pub mod text;
mod usage;
mod weave;
mod window;

#[cfg(test)]
mod scan_tests;

pub use error::{ErrorShape, Kind, Problem, Source};
pub use json::BadJson;
pub use scan::{Features, Scan, Shape, StreamOptions, scan};
pub use sink::{Ignore, MAX_NAME, Media, Part, Sink};
pub use splice::{Splice, splice_ids, splice_usage};
pub use sse::{Facts, Framer, FramerMode, HOLD, Pieces, Tail, TailScan};
pub use start::{Start, scan_start};
pub use tape::Scratch;
pub use usage::Usage;
pub use weave::{Recipe, Weave};
