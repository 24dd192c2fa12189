//! What the router knows, for the router that comes after it: the index, and the speeds that were learned.
//!
//! The bytes are made and read here; files and pipes are the business of whoever runs the router. What was read waits for
//! the replicas to join, since only then they have numbers: at once for a list, later where they are discovered. A
//! replica is known again by its name *and* its address.

use super::Router;
use super::endpoint::Member;
use crate::core::learn::{Fit, Scale};
use crate::core::model::ModelStats;
use crate::core::prefix::snapshot::{Corrupt, Header, Saved};
use crate::core::{ReplicaId, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Seconds for which a snapshot waits for the replicas that it speaks of.
const PATIENCE: f64 = 600.0;
/// Bytes of a snapshot for each block that an index may hold, and besides: one that is larger isn't read.
const BYTES_A_BLOCK: u64 = 32;
const BYTES_BESIDES: u64 = 16 << 20;

/// A snapshot that was read and fits this router.
#[derive(Debug)]
pub struct Snapshot {
    saved: Saved,
    learned: Learned,
}

/// The speeds, as they lie in the snapshot.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Learned {
    fit: Vec<f64>,
    models: BTreeMap<String, Vec<f64>>,
    replicas: BTreeMap<String, Speeds>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Speeds {
    prefill: Vec<f64>,
    decode: Vec<f64>,
}

/// What still waits for its replica.
#[derive(Debug)]
pub(super) struct Pending {
    snapshot: Snapshot,
    until: Time,
}

impl Snapshot {
    /// Reads one.
    ///
    /// # Errors
    /// See [`Corrupt`]; nothing of it is used then.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        let saved = Saved::decode(bytes)?;
        let learned = serde_json::from_slice(saved.extra()).unwrap_or_default();
        Ok(Snapshot { saved, learned })
    }

    /// The seed that keys its block hashes: a router that uses it must use the same.
    pub fn seed(&self) -> u64 {
        self.saved.header().seed
    }

    /// Bytes of text in a block.
    pub fn block_bytes(&self) -> u32 {
        self.saved.header().block_bytes
    }

    /// When it was taken, in seconds since 1970.
    pub fn written(&self) -> u64 {
        self.saved.header().written
    }

    /// Most bytes of a snapshot of an index of `max_blocks`.
    pub fn most_bytes(max_blocks: u64) -> u64 {
        max_blocks.saturating_mul(BYTES_A_BLOCK).saturating_add(BYTES_BESIDES)
    }
}

impl Router {
    /// What is known now, as bytes. `written`: seconds since 1970.
    pub fn snapshot(&self, written: u64) -> Vec<u8> {
        let now = self.now();
        let known: Vec<(ReplicaId, String)> = self.members.lock().identities();
        let learned = {
            let names: Vec<_> = self.names.read().iter().map(|(n, id)| (n.clone(), id)).collect();
            let fleet = self.fleet.lock();
            let stats =
                |(n, id): &(std::sync::Arc<str>, _)| Some((n.to_string(), fleet.model(*id)?.save().to_vec()));
            let speeds = |(id, name): &(ReplicaId, String)| {
                let r = fleet.get(*id)?;
                let (prefill, decode) = (r.prefill.save(now).to_vec(), r.decode.save(now).to_vec());
                Some((name.clone(), Speeds { prefill, decode }))
            };
            Learned {
                fit: fleet.fit().save().to_vec(),
                models: names.iter().filter_map(stats).collect(),
                replicas: known.iter().filter_map(speeds).collect(),
            }
        };
        let extra = serde_json::to_vec(&learned).unwrap_or_default();
        let header = Header { seed: self.seed, block_bytes: self.block_bytes, written };
        let name = |h| known.iter().find(|(id, _)| id.slot == h).map(|(_, name)| name.clone());
        // The lock is held for the copy, and no longer.
        let draft = self.index.read().snapshot(header, name, &extra);
        draft.seal()
    }

    /// Takes over what an earlier router knew. Replicas get theirs when they join.
    ///
    /// # Errors
    /// When its blocks are others than this router's. The message says so.
    pub fn remember(&self, snapshot: Snapshot) -> Result<(), String> {
        if snapshot.seed() != self.seed || snapshot.block_bytes() != self.block_bytes {
            return Err("its blocks were hashed with another seed or cut to another size".to_owned());
        }
        let mut fleet = self.fleet.lock();
        if let Some(fit) = Fit::restore(*fleet.fit().prior(), &snapshot.learned.fit) {
            fleet.set_fit(fit);
        }
        drop(fleet);
        *self.pending.lock() = Some(Pending { snapshot, until: self.now().plus(PATIENCE) });
        Ok(())
    }

    /// A replica has joined: it gets what is remembered of it.
    pub(super) fn recall(&self, id: ReplicaId, member: &Member) {
        let now = self.now();
        let mut pending = self.pending.lock();
        let Some(Pending { snapshot, .. }) = &mut *pending else { return };
        let name = member.identity();
        if let Some(speeds) = snapshot.learned.replicas.remove(&name) {
            let scale = |list: &[f64]| Scale::restore(now, list).unwrap_or_default();
            self.fleet.lock().set_speeds(self.now(), id, scale(&speeds.prefill), scale(&speeds.decode));
        }
        let mut index = self.index.write();
        if let Some(blocks) = snapshot.saved.restore(&mut index, now, &name, id.slot) {
            tracing::info!(replica = member.spec.label(), blocks, "its cache is known from the last run");
        }
    }

    /// Models were listed: what is remembered of their traffic counts again.
    pub(super) fn recall_models(&self) {
        let mut pending = self.pending.lock();
        let Some(Pending { snapshot, .. }) = &mut *pending else { return };
        let names = self.names.read();
        let mut fleet = self.fleet.lock();
        snapshot.learned.models.retain(|name, list| match (names.get(name), ModelStats::restore(list)) {
            (Some(id), Some(stats)) => {
                fleet.set_model(id, stats);
                false
            }
            (None, Some(_)) => true,
            (_, None) => false,
        });
    }

    /// After a while those who haven't come back won't.
    pub(super) fn forget_snapshot(&self) {
        let mut pending = self.pending.lock();
        let over = pending.as_ref().is_some_and(|p| p.until <= self.now());
        if let Some(old) = pending.take_if(|_| over) {
            let left: Vec<&str> = old.snapshot.saved.waiting().collect();
            if !left.is_empty() {
                tracing::info!(
                    ?left,
                    "replicas of the last run that didn't come back: their caches are forgotten"
                );
            }
        }
    }
}
