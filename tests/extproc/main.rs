//! The endpoint picker as Envoy meets it: a real gRPC client, every line of the protocol.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a socket of the test's own that fails has failed the test"
)]

mod bodies;
mod doors;
mod ends;
mod example;
mod picks;
mod rig;
