//! Hashers for keys that need little or no hashing.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Map from a block hash. Block hashes are uniform and keyed already; hashing them again would only cost time.
pub(super) type ByBlock<V> = HashMap<u64, V, BuildHasherDefault<Identity>>;

/// Map from a request's number. Numbers are our own and often in sequence: one multiplication spreads them.
pub(super) type ByNumber<V> = HashMap<u64, V, BuildHasherDefault<Spread>>;

#[derive(Clone, Copy, Default)]
pub(super) struct Identity(u64);

#[derive(Clone, Copy, Default)]
pub(super) struct Spread(u64);

impl Hasher for Identity {
    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.0 = self.0.rotate_left(8) ^ u64::from(b));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Hasher for Spread {
    fn write_u64(&mut self, n: u64) {
        // 2^64 divided by the golden ratio: Knuth's multiplicative hashing.
        self.0 = n.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(self.0 ^ u64::from(b)));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Bytes of heap that a hash map of this capacity takes: a bucket and a control byte for each of 8/7 slots.
pub(super) fn map_bytes(capacity: usize, entry: usize) -> usize {
    capacity * (entry + 1) * 8 / 7
}
