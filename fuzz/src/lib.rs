//! What is fuzzed: everything that reads bytes from outside, each with what must hold whatever the bytes are. A target
//! panics when it doesn't. libFuzzer drives them (`fuzz_targets/`), and so does a test of the main package, with its own
//! mutations of the corpus (`tests/fuzz_corpus.rs`).

mod targets;

pub use targets::*;
