//! Homing: a cache-aware router for LLM inference.
//!
//! A request goes *home*: to the replica that already holds the longest part of its prompt in the KV cache, unless
//! waiting there would cost more than computing the prefix again elsewhere. The map of the house:
//!
//! - [`core`]: the brain. Sans-I/O; time and randomness come in as arguments. It knows prefixes, prices and places.
//! - [`openai`]: what must be understood of requests and answers on the wire, read where they lie.

pub mod core;
pub mod openai;
