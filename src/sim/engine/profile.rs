//! How fast an engine is and how much it holds.
//!
//! One step of the engine takes
//! `t0 + Σ prefill chunks (a·u + q·(u·c + u²/2)) + Σ decoding (d + e·context)` seconds: `u` tokens computed on top of
//! `c` that are there already, and for each sequence that decodes its context in tokens.

use crate::core::speed::Shape;

/// Speeds in seconds, sizes in tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Seconds that each step takes whatever it does.
    pub t0: f64,
    /// Seconds a token of prefill.
    pub a: f64,
    /// Seconds a pair of tokens that attend to each other in prefill.
    pub q: f64,
    /// Seconds a sequence that decodes adds to a step.
    pub d: f64,
    /// Seconds a token of its context adds to that.
    pub e: f64,
    /// B: tokens that one step computes at most, decodes included.
    pub max_batched_tokens: u32,
    /// Tokens that the KV cache holds.
    pub kv_tokens: u64,
    /// Sequences that run at once.
    pub max_batch: u32,
    /// Tokens in one block of the KV cache.
    pub block_tokens: u32,
    /// Seconds from start until the engine can serve.
    pub startup: f64,
}

impl Profile {
    /// Names that [`Profile::named`] knows.
    pub const NAMES: [&'static str; 6] =
        ["dense-32b", "dense-32b-small", "moe", "plain-8k", "demo", "instant"];

    /// An engine of that shape that decodes and prefills in the same steps, with a cache of `kv_tokens`.
    pub fn of(shape: &Shape, kv_tokens: u64) -> Profile {
        Profile {
            t0: shape.step,
            a: shape.token,
            q: shape.pair,
            d: shape.sequence,
            e: shape.context,
            max_batched_tokens: shape.step_tokens,
            kv_tokens,
            max_batch: shape.batch,
            block_tokens: 16,
            startup: 0.0,
        }
    }

    /// A profile by its name. The first three are a 32B dense model and a mixture of experts on current accelerators,
    /// `plain-8k` an engine whose prefill is linear, `demo` a slow small one whose cache is short on purpose, and
    /// `instant` takes no time at all.
    pub fn named(name: &str) -> Option<Profile> {
        let dense = Profile::of(&Shape::DENSE_32B, 2_097_152);
        Some(match name {
            "dense-32b" => dense,
            "dense-32b-small" => Profile { kv_tokens: 262_144, ..dense },
            "moe" => Profile::of(&Shape::MOE, 2_500_000),
            "plain-8k" => Profile::of(&Shape::PLAIN_8K, 1_500_000),
            "demo" => Profile {
                t0: 0.015,
                a: 2e-4,
                q: 0.0,
                d: 5e-5,
                e: 0.0,
                max_batched_tokens: 2048,
                kv_tokens: 53_248,
                max_batch: 64,
                ..dense
            },
            "instant" => Profile {
                t0: 0.0,
                a: 0.0,
                q: 0.0,
                d: 0.0,
                e: 0.0,
                max_batched_tokens: 1 << 20,
                kv_tokens: 1 << 24,
                max_batch: 4096,
                // Long blocks: the work of the pool is all that an instant engine costs.
                block_tokens: 512,
                startup: 0.0,
            },
            _ => return None,
        })
    }

    /// Blocks in the KV cache, at least one.
    pub fn blocks(&self) -> u32 {
        let blocks = self.kv_tokens / u64::from(self.block_tokens.max(1));
        u32::try_from(blocks).unwrap_or(u32::MAX - 1).max(1)
    }

    /// Seconds that prefill of `u` tokens on top of `c` adds to a step.
    pub fn chunk(&self, u: u32, c: u32) -> f64 {
        let (u, c) = (f64::from(u), f64::from(c));
        self.a * u + self.q * (u * c + u * u / 2.0)
    }

    /// Seconds until the first token of a lone prompt with `u` uncached and `c` cached tokens.
    pub fn prefill(&self, u: u32, c: u32) -> f64 {
        self.t0 * f64::from(u.div_ceil(self.max_batched_tokens.max(1)).max(1)) + self.chunk(u, c)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_profile() {
        for name in Profile::NAMES {
            assert!(Profile::named(name).is_some_and(|p| p.blocks() > 1), "{name}");
        }
        assert_eq!(Profile::named("nonesuch"), None);
    }

    #[test]
    fn prefill_by_hand() {
        let p = Profile {
            t0: 0.01,
            a: 1e-4,
            q: 1e-8,
            max_batched_tokens: 1000,
            ..Profile::named("moe").unwrap()
        };
        // 2 steps of 10 ms; 1,500 · 0.1 ms; 1,500 · 500 + 1,500² / 2 = 1.875 M pairs of 10 ns.
        assert!((p.prefill(1500, 500) - (0.02 + 0.15 + 0.01875)).abs() < 1e-12);
    }
}
