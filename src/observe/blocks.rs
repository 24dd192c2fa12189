//! Identities of prompt blocks in the access log: what a replay needs to know of a prompt, and no more.
//!
//! Equal identities mean equal prompts up to and including that block. They are keyed with SipHash: without the key nobody can
//! check a guess of what a prompt said. With the same key and the same `index.seed` identities of two runs can be compared.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Tokens of a block in the log; the unit of published traces.
pub const BLOCK_TOKENS: u32 = 512;

/// The key of the identities.
#[derive(Clone)]
pub struct BlockKey(u64, u64);

impl std::fmt::Debug for BlockKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BlockKey(***)")
    }
}

#[expect(deprecated, reason = "the one keyed hash of the standard library; its replacement hides the key")]
fn sip(k0: u64, k1: u64, bytes: &[u8]) -> u64 {
    let mut h = std::hash::SipHasher::new_with_keys(k0, k1);
    h.write(bytes);
    h.finish()
}

impl BlockKey {
    /// A key that nobody knows, for the life of the process.
    pub fn random() -> Self {
        // Two states: each draws its own keys.
        BlockKey(RandomState::new().hash_one(0), RandomState::new().hash_one(1))
    }

    /// The key from the bytes of a file (16 or more, random).
    pub fn from_bytes(bytes: &[u8]) -> Self {
        BlockKey(sip(0, 0, bytes), sip(0, 1, bytes))
    }

    /// Identities of the blocks of [`BLOCK_TOKENS`] tokens of a prompt whose chained hashes are `chain`, one for each
    /// block of `tokens_per_block` tokens. A rest at the end counts as a block. Each fits in 52 bits: readers of JSON
    /// that know only floats keep them exact.
    pub fn identities(&self, chain: &[u64], tokens_per_block: f64) -> Vec<u64> {
        // Chained: the last hash of a group stands for everything up to there.
        let group = (f64::from(BLOCK_TOKENS) / tokens_per_block).round().max(1.0) as usize;
        let last_of = |hashes: &[u64]| hashes.last().map(|h| sip(self.0, self.1, &h.to_le_bytes()) >> 12);
        chain.chunks(group).filter_map(last_of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_prefixes_have_equal_identities_and_the_key_matters() {
        let key = BlockKey::from_bytes(b"0123456789abcdef");
        let a: Vec<u64> = (0..20).collect();
        let mut b = a.clone();
        b[17] = 999;
        // 64 tokens a block: eight make 512, and 20 make two and a rest.
        let (ia, ib) = (key.identities(&a, 64.0), key.identities(&b, 64.0));
        assert_eq!((ia.len(), &ia[..2]), (3, &ib[..2]));
        let c = key.identities(&[1, 2, 3], 64.0);
        assert_eq!(c.len(), 1);
        assert_ne!(BlockKey::from_bytes(b"another").identities(&a, 64.0)[0], ia[0]);
        assert_eq!(BlockKey::from_bytes(b"0123456789abcdef").identities(&a, 64.0), ia);
        assert_ne!(BlockKey::random().identities(&a, 64.0), BlockKey::random().identities(&a, 64.0));
        assert!(ia.iter().all(|id| *id < 1 << 52));
    }

    #[test]
    fn odd_sizes_are_borne() {
        let key = BlockKey::random();
        assert_eq!(key.identities(&[], 64.0), [] as [u64; 0]);
        for tokens in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-9, 1e9] {
            assert!(key.identities(&[1, 2], tokens).len() <= 2, "{tokens}");
        }
    }
}
