//! What the router must understand of OpenAI-shaped traffic, without copying or rewriting it.
//!
//! - [`scan`]: a request body, read where it lies: the parameters, and the prompt in the order in which the model will
//!   see it, for the prefix chain.
//! - [`splice_usage`]: the one key that the router may add to a body.

mod completions;
mod content;
pub mod json;
mod message;
mod scan;
mod sink;
mod splice;
mod tape;
pub mod text;

#[cfg(test)]
mod scan_tests;

pub use json::BadJson;
pub use scan::{Features, Scan, Shape, StreamOptions, scan};
pub use sink::{Ignore, MAX_NAME, Media, Part, Sink};
pub use splice::{Splice, splice_usage};
pub use tape::Scratch;
