//! What engines publish of their KV caches: the messages, and the wire that they come over.
//!
//! vLLM, SGLang and others that copied the format send batches of events in msgpack over ZeroMQ: `[ts, [event…], rank]`.
//! Of one format there are many layouts: an event is a map with a `type` or an array that begins with it, arrays end
//! after any field, and each release adds fields. Nothing of it is trusted: what can't be read costs the event, and if
//! the bytes end too early, the rest of its batch; both are counted.
//!
//! - `pack`: msgpack, read where it lies; `batch`: from bytes to events; `event`: one event
//! - `zmtp`: the wire protocol of ZeroMQ, as far as publishing, subscribing and replay need it
//! - `endpoint`: `tcp://host:port`
//! - `encode`: the other direction, for the simulated engine

mod batch;
mod encode;
mod endpoint;
mod event;
mod pack;
pub mod zmtp;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
#[path = "property_tests.rs"]
mod properties;

pub use batch::{Batch, decode};
pub use encode::{Layout, encode};
pub use endpoint::KvEndpoint;
