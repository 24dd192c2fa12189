//! What an engine says of its own cache, in its own hashes, and how that becomes knowledge in ours.
//!
//! - [`event`]: what was announced, in plain types.
//! - [`follower`]: one holder's table from the engine's hashes to our chain, reference counts included. It turns events
//!   into [`Change`]s to the index, which know nothing of the engine any more.
//! - `ledger`: who refers to a block: tiers and attention groups; `bridge`, `spans`: block sizes that aren't ours; `orphans`:
//!   blocks whose beginning we haven't seen.
//!
//! The follower does the hashing and the bookkeeping and needs no lock; what is left to do under the index's lock is
//! [`PrefixIndex::apply`](super::PrefixIndex::apply), a few blocks at a time.

pub mod event;
pub mod follower;

mod bridge;
mod ledger;
mod orphans;
mod spans;

#[cfg(test)]
#[path = "follower_tests.rs"]
mod tests;

pub use event::{KvEvent, Removed, Stored, Tier};
pub use follower::{Change, Follower, FollowerConfig, Tally};
