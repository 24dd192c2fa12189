//! Simulated engines, the demo's workload, and what is needed to run it.
//!
//! - [`engine`]: the model of an inference engine, in virtual time and without I/O. Everything else stands on it.
//! - [`http`]: the same engine behind a server that looks like vLLM, on a real clock.
//! - [`text`]: what its prompts and answers are made of.
//! - [`workload`]: conversations, from a small file and a seed; the bound that an infinite cache sets.
//! - [`driver`]: a client that has these conversations over HTTP and measures; [`round_robin`]: what it is compared with.
//! - [`offline`]: the same conversations in virtual time.
//! - [`replay`]: traces in virtual time, placed by the production code or by another policy.

mod client;
pub mod driver;
pub mod engine;
pub mod histogram;
pub mod http;
pub mod offline;
pub mod replay;
pub mod round_robin;
pub mod text;
pub mod workload;
