//! Requests that wait because nothing can take them now.

mod queue;

pub use queue::{Full, Queue};
