//! Streams of server-sent events, watched as they pass.

mod facts;
mod framer;
mod tail;
#[cfg(test)]
mod tests;

pub use facts::Facts;
pub use framer::{Framer, FramerMode, HOLD, Pieces};
pub use tail::{Tail, TailScan};
