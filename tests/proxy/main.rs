//! The proxy at the level of sockets: real connections, replicas that misbehave on command.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a broken expectation ends the test"
)]

mod bodies;
mod cancel;
mod client;
mod double;
mod drain;
mod failures;
mod headers;
mod limits;
mod protocols;
mod rig;
mod streams;
