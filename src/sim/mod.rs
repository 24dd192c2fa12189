//! Simulated engines, the demo's workload, and what is needed to run it.

pub mod engine;
