//! The section on what outlives the process.

use super::units::Seconds;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What the router knows of the replicas' caches and speeds, kept in a file so that a restarted router knows it too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Snapshot {
    /// The file; null: none. It holds hashes of prompt blocks and the seed that keys them, never text. Keep it private.
    pub path: Option<PathBuf>,
    /// Time between two writes; it is also written when the process ends.
    pub every: Seconds,
    /// An older file isn't believed any more: the replicas' caches have moved on.
    pub max_age: Seconds,
}

impl Default for Snapshot {
    fn default() -> Self {
        Snapshot { path: None, every: Seconds::from_secs(60), max_age: Seconds::from_secs(3600) }
    }
}
