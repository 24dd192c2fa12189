//! The brain of the router, without any I/O.
//!
//! Nothing in here opens a socket, starts a task, takes a lock, reads a clock or rolls global dice. Time arrives as a
//! [`Time`] and randomness as a seed, so the code that routes production traffic also replays a trace in virtual time,
//! the same each run.

pub mod adapters;
pub mod admission;
pub mod baselines;
pub mod capacity;
mod carry;
pub mod cost;
pub mod decision;
pub mod fallback;
pub mod fleet;
pub mod health;
pub mod ids;
pub mod learn;
pub mod ledger;
mod lessons;
pub mod model;
pub mod place;
pub mod policy;
pub mod prefix;
pub mod replica;
pub mod request;
pub mod speed;
pub mod time;
pub mod waiting;

pub use admission::LaneRules;
pub use decision::{Arrival, Placed, Rejection, Ticket};
pub use fleet::{Failure, Fleet, Outcome, Settings};
pub use ids::{Holder, ModelId, ReplicaId, RequestId};
pub use place::Seen;
pub use request::{Length, Request};
pub use time::Time;
pub use waiting::Turns;
