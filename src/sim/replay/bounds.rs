//! What caches could hold at most, whoever places the requests.
//!
//! Both bounds are asked in order of arrival and know a prompt from the moment it was sent. That flatters them a little
//! (an engine knows a prompt when its prefill is done), so no placement reaches them under load.

use crate::sim::engine::HashTable;
use std::collections::VecDeque;

/// One cache, without bounds or with room for so many blocks, least recently used first out, of one prompt its tail
/// before its head.
#[derive(Debug, Default)]
pub struct Bound {
    room: Option<usize>,
    stamps: HashTable<u64>,
    /// Touches in order; those whose stamp is no longer the block's are stale.
    order: VecDeque<(u64, u64)>,
    clock: u64,
    block_tokens: u32,
    prompt: u64,
    cached: u64,
}

impl Bound {
    /// One cache that never forgets.
    pub fn infinite(block_tokens: u32) -> Self {
        Bound { block_tokens, ..Bound::default() }
    }

    /// One cache with room for `blocks` blocks: all the fleet's caches in one.
    pub fn pooled(block_tokens: u32, blocks: usize) -> Self {
        Bound { room: Some(blocks), block_tokens, ..Bound::default() }
    }

    /// A prompt is sent.
    pub fn ask(&mut self, chain: &[u64], prompt_tokens: u32) {
        // As in an engine, the last token is always computed.
        let most = (prompt_tokens.saturating_sub(1) / self.block_tokens.max(1)) as usize;
        let held = chain.iter().take(most).take_while(|h| self.stamps.contains_key(h)).count();
        self.prompt += u64::from(prompt_tokens);
        self.cached += held as u64 * u64::from(self.block_tokens);
        let Some(room) = self.room else {
            self.stamps.extend(chain.iter().map(|&h| (h, 0)));
            return;
        };
        for &hash in chain.iter().rev() {
            self.clock += 1;
            self.stamps.insert(hash, self.clock);
            self.order.push_back((hash, self.clock));
        }
        while self.stamps.len() > room {
            let Some((hash, stamp)) = self.order.pop_front() else { break };
            if self.stamps.get(&hash) == Some(&stamp) {
                self.stamps.remove(&hash);
            }
        }
        if self.order.len() > 2 * self.stamps.len() + 4096 {
            let stamps = &self.stamps;
            self.order.retain(|(hash, stamp)| stamps.get(hash) == Some(stamp));
        }
    }

    /// Cached share of all prompt tokens so far, 0..=1.
    pub fn share(&self) -> f64 {
        self.cached as f64 / self.prompt.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinite_by_hand() {
        let mut bound = Bound::infinite(10);
        bound.ask(&[1, 2], 25);
        bound.ask(&[1, 2, 3], 30);
        // All three blocks are known, but the last token has to be computed: two count.
        bound.ask(&[1, 2, 3], 30);
        assert!((bound.share() - 40.0 / 85.0).abs() < 1e-12);
    }

    #[test]
    fn pooled_loses_the_oldest_tail_first() {
        let mut bound = Bound::pooled(10, 3);
        bound.ask(&[1, 2], 21);
        bound.ask(&[3, 4], 21);
        assert_eq!(bound.share(), 0.0);
        // Block 2 is gone, block 1 is there.
        bound.ask(&[1, 2], 21);
        assert!((bound.share() - 10.0 / 63.0).abs() < 1e-12);
        // That pushed out block 4; 3 is there.
        bound.ask(&[3, 4], 21);
        assert!((bound.share() - 20.0 / 84.0).abs() < 1e-12);
    }

    #[test]
    fn a_chain_longer_than_the_cache_keeps_its_head_and_stale_touches_dont_pile_up() {
        let mut bound = Bound::pooled(10, 2);
        bound.ask(&[1, 2, 3], 31);
        bound.ask(&[1, 2, 3], 31);
        assert!((bound.share() - 20.0 / 62.0).abs() < 1e-12);
        let mut roomy = Bound::pooled(10, 100);
        for _ in 0..10_000 {
            roomy.ask(&[1, 2, 3], 31);
        }
        assert!(roomy.order.len() <= 4096 + 9);
    }
}
