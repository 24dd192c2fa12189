//! Who holds which prefix: block chains of prompts, and the radix index over them.
//!
//! - [`chain`]: from a prompt's text to block hashes, each of which stands for its block and all before it.
//! - [`token_chain`]: the same over an engine's token ids, by the rules of its prefix cache.
//! - [`index`]: the radix tree over such chains, with a set of holders for each run of blocks.
//! - [`snapshot`]: the index as bytes, for the next process.
//!
//! The index is a believer, not a witness: it estimates what an engine's cache holds from what was sent there
//! (`update`), from the cache's capacity (`evict`, `lru`) and from what the engine says (`correct`, `remove`).

pub mod chain;
pub mod exact;
pub mod index;
pub mod matches;
pub mod snapshot;
pub mod token_chain;

mod bits;
mod evict;
mod follow;
mod ghost;
mod hash;
mod hold;
mod holes;
mod invariants;
mod lru;
mod node;
mod shape;
mod speculation;
mod update;

#[cfg(test)]
mod follow_tests;
#[cfg(test)]
#[path = "model_tests.rs"]
mod model;
#[cfg(test)]
mod snapshot_tests;
#[cfg(test)]
mod tests;

pub use chain::{Blocks, Head, Part, Root, TEXT_BLOCK};
pub use index::{IndexConfig, IndexStats, PrefixIndex, Space};
pub use matches::Matches;
pub use snapshot::Saved;
pub use token_chain::TokenChain;
