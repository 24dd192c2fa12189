//! The proxy at the level of sockets: real connections, replicas that misbehave on command.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a socket of the test's own that fails has failed the test"
)]

mod bodies;
mod cancel;
mod client;
mod double;
mod drain;
mod failures;
mod headers;
mod hedge;
mod lanes;
mod limits;
mod matrix;
mod prefixes;
mod protocols;
mod resume;
mod rig;
mod slow;
mod streams;
mod through;
mod websocket;
