//! The ids of text segments, remembered within a bound of bytes.
//!
//! A template repeats most of a conversation each turn, word for word, though not always from the start: old turns lose
//! their reasoning. What lies between two control tokens is the same text with the same ids wherever it stands, so that
//! the next turn costs only its new segments.
//!
//! Entries live in two generations: what is asked for moves to the young one; when that is full, the old one is
//! dropped and the young one becomes old. That is nearly least-recently-used, at the cost of a map.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Locks are per shard, so that threads seldom meet.
const SHARDS: usize = 16;
/// Bytes that an entry takes besides its ids: key, pointer, reference counts, its share of the map's spare room.
const ENTRY: usize = 96;

/// Uniform keys need no hashing.
#[derive(Default)]
struct Uniform(u64);

impl Hasher for Uniform {
    fn write(&mut self, _: &[u8]) {}

    fn write_u128(&mut self, key: u128) {
        self.0 = key as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type Map = HashMap<u128, Arc<[u32]>, BuildHasherDefault<Uniform>>;

#[derive(Default)]
struct Shard {
    young: Map,
    old: Map,
    bytes: usize,
    old_bytes: usize,
}

/// A bounded, shared map from segments to their ids.
pub(super) struct Segments {
    shards: [Mutex<Shard>; SHARDS],
    /// Most bytes of a generation of a shard.
    most: usize,
    seed: u64,
}

impl std::fmt::Debug for Segments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Segments").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl Segments {
    /// A cache of at most `bytes` bytes. The key is secret, so that nobody can craft two texts of one hash.
    pub(super) fn new(bytes: usize) -> Self {
        Segments {
            shards: Default::default(),
            most: bytes / SHARDS / 2,
            seed: RandomState::new().hash_one(SHARDS),
        }
    }

    /// The key of a segment; `variant` keeps apart segments of the same text that encode differently.
    pub(super) fn key(&self, text: &str, variant: u64) -> u128 {
        xxh3_128_with_seed(text.as_bytes(), self.seed ^ variant)
    }

    fn shard(&self, key: u128) -> &Mutex<Shard> {
        &self.shards[(key >> 64) as usize % SHARDS]
    }

    pub(super) fn get(&self, key: u128) -> Option<Arc<[u32]>> {
        let mut shard = self.shard(key).lock();
        if let Some(ids) = shard.young.get(&key) {
            return Some(ids.clone());
        }
        let ids = shard.old.remove(&key)?;
        shard.old_bytes = shard.old_bytes.saturating_sub(size(&ids));
        shard.insert(key, ids.clone(), self.most);
        Some(ids)
    }

    pub(super) fn put(&self, key: u128, ids: &[u32]) {
        self.shard(key).lock().insert(key, ids.into(), self.most);
    }

    /// Bytes in use.
    pub(super) fn bytes(&self) -> usize {
        self.shards.iter().map(|s| s.lock()).map(|s| s.bytes + s.old_bytes).sum()
    }
}

fn size(ids: &[u32]) -> usize {
    ids.len() * 4 + ENTRY
}

impl Shard {
    fn insert(&mut self, key: u128, ids: Arc<[u32]>, most: usize) {
        let more = size(&ids);
        if more > most {
            return;
        }
        if self.bytes + more > most {
            self.old = std::mem::take(&mut self.young);
            self.old_bytes = std::mem::take(&mut self.bytes);
        }
        if self.young.insert(key, ids).is_none() {
            self.bytes += more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_within_its_bound_and_keeps_what_is_used() {
        let cache = Segments::new(1 << 20);
        let kept = cache.key("kept", 0);
        cache.put(kept, &[1, 2, 3]);
        for i in 0..50_000u32 {
            cache.put(cache.key(&i.to_string(), 0), &[i; 20]);
            assert_eq!(cache.get(kept).as_deref(), Some(&[1, 2, 3][..]), "after {i}");
            if i % 1000 == 0 {
                assert!(cache.bytes() <= 1 << 20);
            }
        }
        assert!(cache.bytes() > 1 << 18);
        assert_eq!(cache.get(cache.key("0", 0)), None, "the oldest went");
        assert!(cache.get(cache.key("49999", 0)).is_some());
        let large = cache.key("large", 0);
        cache.put(large, &vec![0; 1 << 20]);
        assert_eq!(cache.get(large), None, "more than the bound is not kept");
    }

    #[test]
    fn variants_of_a_text_are_kept_apart() {
        let cache = Segments::new(1 << 20);
        cache.put(cache.key("a", 0), &[1]);
        cache.put(cache.key("a", 1), &[2]);
        assert_eq!(cache.get(cache.key("a", 0)).as_deref(), Some(&[1][..]));
        assert_eq!(cache.get(cache.key("a", 1)).as_deref(), Some(&[2][..]));
    }
}
