//! A prompt as a chain of hashes over blocks of token ids: the engine's own view of its prefix cache.
//!
//! The rules are those of vLLM's prefix cache, so that a chain made of a request's ids and one made of the blocks that
//! an engine announces meet in the index:
//!
//! - Only full blocks count. The rest of a prompt is computed each time.
//! - The last token of a request is always computed, because its logits are wanted: a prompt of exactly `n` blocks
//!   finds at most `n - 1` of them ([`TokenChain::reusable`]). All `n` are in the cache afterwards.
//! - What else makes blocks differ enters as an extra key. Model, LoRA adapter and cache salt are in the root and so in
//!   every block after it; an image is in each block that one of its placeholder tokens lies in ([`link`]).
//!
//! The hashes are ours, not the engine's: these depend on its version, algorithm and seed, and are opaque here.

use super::chain::{Head, Root, root_hash};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Tokens hashed in one call; longer blocks are folded. Engines use 16 to 128 tokens a block.
const PIECE: usize = 64;

/// Distinguishes a block's extra keys from its ids, whatever either contains.
const EXTRA: &[u8; 8] = b"\xFFextra\0\0";

/// What the first block of such a chain follows. `block_tokens` enters: chains of different block sizes have nothing
/// in common. `seed` is the one of [`Blocks`](super::Blocks).
pub fn root(seed: u64, block_tokens: u32, root: &Root<'_>) -> u64 {
    // The high bit keeps token chains apart from text chains of the same size.
    root_hash(seed, u64::from(block_tokens) | 1 << 63, root)
}

/// The hash of the block `ids` that follows the block `before` (or the root). `extra` are the keys of what lies in this
/// very block besides its ids (images, by whatever identifies them), in the order of their positions.
pub fn link(seed: u64, before: u64, ids: &[u32], extra: &[&[u8]]) -> u64 {
    let mut hash = before;
    let mut buf = [0; 8 + 4 * PIECE];
    for piece in ids.chunks(PIECE) {
        buf[..8].copy_from_slice(&hash.to_le_bytes());
        for (slot, id) in buf[8..].chunks_exact_mut(4).zip(piece) {
            slot.copy_from_slice(&id.to_le_bytes());
        }
        hash = xxh3_64_with_seed(&buf[..8 + 4 * piece.len()], seed);
    }
    for key in extra {
        buf[..8].copy_from_slice(&hash.to_le_bytes());
        buf[8..16].copy_from_slice(EXTRA);
        buf[16..24].copy_from_slice(&xxh3_64_with_seed(key, seed).to_le_bytes());
        hash = xxh3_64_with_seed(&buf[..24], seed);
    }
    hash
}

/// The chain of one prompt, grown as its ids become known.
#[derive(Clone, Debug)]
pub struct TokenChain {
    seed: u64,
    size: usize,
    tip: u64,
    open: Vec<u32>,
    hashes: Vec<u64>,
}

impl TokenChain {
    /// An empty chain of blocks of `block_tokens` (at least 1) under `keys`. Routers that are to agree share `seed`.
    pub fn new(seed: u64, block_tokens: u32, keys: &Root<'_>) -> Self {
        let size = block_tokens.max(1);
        TokenChain {
            seed,
            size: size as usize,
            tip: root(seed, size, keys),
            open: Vec::new(),
            hashes: Vec::new(),
        }
    }

    /// Appends ids. However they are split over calls, the chain is the same.
    pub fn extend(&mut self, mut ids: &[u32]) {
        if !self.open.is_empty() {
            let take = ids.len().min(self.size - self.open.len());
            self.open.extend_from_slice(&ids[..take]);
            ids = &ids[take..];
            if self.open.len() < self.size {
                return;
            }
            self.tip = link(self.seed, self.tip, &self.open, &[]);
            self.hashes.push(self.tip);
            self.open.clear();
        }
        let blocks = ids.chunks_exact(self.size);
        self.hashes.reserve(blocks.len());
        self.open.extend_from_slice(blocks.remainder());
        for block in blocks {
            self.tip = link(self.seed, self.tip, block, &[]);
            self.hashes.push(self.tip);
        }
    }

    /// Tokens so far.
    pub fn tokens(&self) -> usize {
        self.hashes.len() * self.size + self.open.len()
    }

    /// One hash for each full block: what the engine has cached once the prompt is computed.
    pub fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// The leading blocks that a request with just this prompt can find in a cache.
    pub fn reusable(&self) -> &[u64] {
        &self.hashes[..reusable(self.tokens(), self.size)]
    }

    /// Identity of the prompt's start: its first block, or what there is if that is not full.
    pub fn head(&self) -> Head {
        match self.hashes.first() {
            Some(&first) => Head(first),
            None => Head(link(self.seed, self.tip, &self.open, &[])),
        }
    }

    /// The hashes, without a copy.
    pub fn into_hashes(self) -> Vec<u64> {
        self.hashes
    }
}

/// Blocks of `block` tokens that a prompt of `tokens` can find in a cache: the full ones before its last token.
pub fn reusable(tokens: usize, block: usize) -> usize {
    tokens.saturating_sub(1) / block.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const ROOT: Root<'static> = Root { model: "m", lora: None, cache_salt: None };

    fn chain(block: u32, root: &Root<'_>, ids: &[u32]) -> TokenChain {
        let mut chain = TokenChain::new(7, block, root);
        chain.extend(ids);
        chain
    }

    #[test]
    fn any_split_gives_the_same_chain_and_so_does_linking_block_by_block() {
        let ids: Vec<u32> = (0..333).collect();
        for block in [1, 3, 16, 64, 65, 128, 200] {
            let want = chain(block, &ROOT, &ids);
            assert_eq!(want.hashes().len(), ids.len() / block as usize);
            for step in [1, 2, 15, 16, 17, 100] {
                let mut got = TokenChain::new(7, block, &ROOT);
                ids.chunks(step).for_each(|part| got.extend(part));
                assert_eq!(got.hashes(), want.hashes(), "blocks of {block} in steps of {step}");
                assert_eq!((got.tokens(), got.head()), (333, want.head()));
            }
            let mut hash = root(7, block, &ROOT);
            for (part, &want) in ids.chunks_exact(block as usize).zip(want.hashes()) {
                hash = link(7, hash, part, &[]);
                assert_eq!(hash, want);
            }
        }
    }

    #[test]
    fn the_last_token_is_always_computed() {
        let ids = [1; 64];
        for (tokens, full, reusable) in
            [(0, 0, 0), (1, 0, 0), (16, 1, 0), (17, 1, 1), (32, 2, 1), (33, 2, 2), (64, 4, 3)]
        {
            let c = chain(16, &ROOT, &ids[..tokens]);
            assert_eq!((c.hashes().len(), c.reusable().len()), (full, reusable), "{tokens} tokens");
        }
    }

    #[test]
    fn case_7_salt_lora_model_and_block_size_keep_chains_apart() {
        let ids = [5; 128];
        let roots = [
            ROOT,
            Root { model: "n", ..ROOT },
            Root { lora: Some("l"), ..ROOT },
            Root { cache_salt: Some("l"), ..ROOT },
            Root { lora: Some("l"), cache_salt: Some("l"), ..ROOT },
        ];
        let mut seen = HashSet::new();
        for root in &roots {
            for block in [16, 32, 64, 128] {
                let c = chain(block, root, &ids);
                assert!(c.hashes().iter().all(|&h| seen.insert(h)), "{root:?} {block} shares a block");
            }
        }
    }

    #[test]
    fn an_image_is_part_of_its_block_and_of_all_that_follow() {
        let plain = link(7, 1, &[1, 2], &[]);
        let keys: [&[&[u8]]; 4] = [&[b"a"], &[b"b"], &[b"a", b"b"], &[b"b", b"a"]];
        let mut seen = HashSet::from([plain]);
        for extra in keys {
            let hash = link(7, 1, &[1, 2], extra);
            assert!(seen.insert(hash));
            assert!(seen.insert(link(7, hash, &[3, 4], &[])));
        }
    }

    #[test]
    fn short_prompts_keep_an_identity() {
        let heads: HashSet<Head> = (0..16).map(|n| chain(16, &ROOT, &vec![9; n]).head()).collect();
        assert_eq!(heads.len(), 16);
        assert_ne!(chain(16, &ROOT, &[1]).head(), chain(16, &ROOT, &[2]).head());
    }
}
