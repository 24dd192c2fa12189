//! Kubernetes discovery against a double of the API server.

#![cfg(feature = "kubernetes")]
#![expect(clippy::unwrap_used, reason = "tests")]

mod api;
mod faults;
mod fleet;
mod scene;
#[path = "../watch_double/mod.rs"]
mod watch_double;
