//! Homing: a cache-aware router for LLM inference.
//!
//! A request goes *home*: to the replica that already holds the longest part of its prompt in the KV cache, unless
//! waiting there would cost more than computing the prefix again elsewhere. The map of the house:
//!
//! - [`core`]: the brain. Sans-I/O; time and randomness come in as arguments. It knows prefixes, prices and places.
//! - [`openai`]: what must be understood of requests and answers on the wire, read where they lie.
//! - [`config`]: one YAML file, environment and flags on top; everything that is wrong with it is told at once.
//! - [`engine`]: what each model server calls its numbers; a page is scanned for the few that are needed.

pub mod config;
pub mod core;
pub mod engine;
pub mod openai;
