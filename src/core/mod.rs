//! The brain of the router, without any I/O.
//!
//! Nothing in here opens a socket, starts a task, takes a lock, reads a clock or rolls global dice. Time arrives as a
//! [`Time`] and randomness as a seed, so the code that routes production traffic also replays a trace in virtual time,
//! the same each run.

pub mod ids;
pub mod prefix;
pub mod request;
pub mod time;

pub use ids::{Holder, ModelId, ReplicaId, RequestId};
pub use request::Request;
pub use time::Time;
