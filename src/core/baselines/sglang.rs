//! SGLang's `cache_aware`: sglang-router 0.3.2.
//!
//! When the loads are out of balance (`max − min > abs` and `max > rel·min`, requests in flight): least requests. Else
//! the replica that the tree remembers for the longest match, if `matched/prompt > threshold`; else the least loaded,
//! the first in the list among equals. Whatever is chosen, the tree learns it at selection time.
//!
//! The tree: what was routed, as texts in the project, as block chains here; a node answers with the tenant that
//! used it last. Every 60 s a tenant with more than `--max-tree-size` (2^26 characters, 4 to a token) loses its least
//! recently used leaves. The share that matched is counted in full blocks, of those that the prompt has: text would
//! match on into the last, partial block, where engines can't.

use super::books::Books;
use super::lru::Table;
use crate::core::ids::RequestId;
use crate::core::policy::{Arriving, Policy, Sight};
use crate::core::time::Time;
use smallvec::SmallVec;

/// Tokens that the tree remembers of a tenant.
const TREE_TOKENS: u64 = (1 << 26) / 4;
/// Seconds between two evictions: `--eviction-interval`.
const EVERY: f64 = 60.0;

#[derive(Clone, Debug, Default)]
struct Node {
    depth: u32,
    /// Who was sent this block, and the number of the last request that was; the last is the newest.
    tenants: SmallVec<[(u32, u64); 2]>,
}

/// The tree of what was routed. A block's hash stands for all before it, so a table of blocks is a tree.
#[derive(Clone, Debug, Default)]
struct Tree {
    nodes: Table<Node>,
    /// Blocks by tenant.
    sizes: Vec<usize>,
    clock: u64,
}

impl Tree {
    /// Blocks matched, and the last tenant of the deepest.
    fn longest(&self, chain: &[u64]) -> (usize, Option<usize>) {
        let mut found = (0, None);
        for (at, hash) in chain.iter().enumerate() {
            let Some(tenant) = self.nodes.get(hash).and_then(|n| n.tenants.last()) else { break };
            found = (at + 1, Some(tenant.0 as usize));
        }
        found
    }

    fn insert(&mut self, chain: &[u64], tenant: usize) {
        self.clock += 1;
        if self.sizes.len() <= tenant {
            self.sizes.resize(tenant + 1, 0);
        }
        for (depth, &hash) in chain.iter().enumerate() {
            let node = self.nodes.entry(hash).or_default();
            node.depth = depth as u32;
            match node.tenants.iter().position(|t| t.0 as usize == tenant) {
                Some(at) => {
                    node.tenants.remove(at);
                }
                None => self.sizes[tenant] += 1,
            }
            node.tenants.push((tenant as u32, self.clock));
        }
    }

    /// Brings a tenant down to `most` blocks, least recently used and deepest first.
    fn shrink(&mut self, tenant: usize, most: usize) {
        let size = self.sizes.get(tenant).copied().unwrap_or(0);
        if size <= most {
            return;
        }
        let its = |n: &Node| n.tenants.iter().find(|t| t.0 as usize == tenant).map(|t| t.1);
        let mut all: Vec<(u64, u32, u64)> =
            self.nodes.iter().filter_map(|(&hash, n)| Some((its(n)?, u32::MAX - n.depth, hash))).collect();
        all.sort_unstable();
        for (_, _, hash) in all.into_iter().take(size - most) {
            if let Some(node) = self.nodes.get_mut(&hash) {
                node.tenants.retain(|t| t.0 as usize != tenant);
                if node.tenants.is_empty() {
                    self.nodes.remove(&hash);
                }
            }
        }
        self.sizes[tenant] = most;
    }
}

/// The policy.
#[derive(Clone, Debug)]
pub(super) struct CacheAware {
    name: &'static str,
    threshold: f64,
    abs: f64,
    rel: f64,
    tree: Tree,
    books: Books,
    evicted: Time,
    tree_tokens: u64,
}

impl CacheAware {
    fn new(name: &'static str, threshold: f64, abs: f64, rel: f64) -> Self {
        CacheAware {
            name,
            threshold,
            abs,
            rel,
            tree: Tree::default(),
            books: Books::default(),
            evicted: Time(0),
            tree_tokens: TREE_TOKENS,
        }
    }

    /// The defaults of 0.3.2: `--cache-threshold 0.3 --balance-abs-threshold 64 --balance-rel-threshold 1.5`.
    pub(super) fn current() -> Self {
        CacheAware::new("sglang", 0.3, 64.0, 1.5)
    }

    /// The defaults of earlier versions.
    pub(super) fn earlier() -> Self {
        CacheAware::new("sglang-0.5-32", 0.5, 32.0, 1.5)
    }

    /// On the timer; and at once for a tenant with twice its size, so that the tree is bounded in between.
    fn evict(&mut self, now: Time, block_tokens: u32) {
        let most = (self.tree_tokens / u64::from(block_tokens.max(1))) as usize;
        let due = now.since(self.evicted) >= EVERY;
        if due {
            self.evicted = now;
        }
        for tenant in 0..self.tree.sizes.len() {
            if due || self.tree.sizes[tenant] > 2 * most {
                self.tree.shrink(tenant, most);
            }
        }
    }
}

impl Policy for CacheAware {
    fn name(&self) -> &str {
        self.name
    }

    fn place(&mut self, now: Time, request: &Arriving<'_>, sight: &Sight<'_>) -> usize {
        self.evict(now, request.block_tokens);
        let loads = || sight.up.iter().map(|&i| self.books.requests(i));
        let (min, max) = (loads().fold(f64::INFINITY, f64::min), loads().fold(0.0, f64::max));
        let balanced = max - min <= self.abs || max <= self.rel * min;
        let (matched, tenant) = self.tree.longest(request.chain);
        let share = matched as f64 / request.chain.len().max(1) as f64;
        let home = tenant.filter(|t| balanced && share > self.threshold && sight.up.contains(t));
        let chosen = home.unwrap_or_else(|| {
            let emptiest = sight.up.iter().find(|&&i| self.books.requests(i) <= min);
            emptiest.copied().unwrap_or(0)
        });
        self.tree.insert(request.chain, chosen);
        self.books.place(request.id, chosen, 0);
        chosen
    }

    fn finish(&mut self, _now: Time, id: RequestId, _output_tokens: u32, _cached: u32) {
        self.books.finish(id);
    }

    fn left(&mut self, _now: Time, replica: usize) {
        self.books.left(replica);
        self.tree.shrink(replica, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::hand::{ask, see};
    use super::*;

    fn place(p: &mut CacheAware, id: u64, chain: &[u64]) -> usize {
        p.place(Time(0), &ask(id, chain, 512 * chain.len() as u32), &see(&[0, 1, 2]))
    }

    #[test]
    fn by_hand() {
        let mut p = CacheAware::current();
        assert_eq!(place(&mut p, 0, &[1, 2, 3]), 0, "all empty: the first");
        assert_eq!(place(&mut p, 1, &[9]), 1);
        assert_eq!(place(&mut p, 2, &[1, 4, 5, 6]), 2, "1 of 4 matches, which isn't over 0.3");
        assert_eq!(place(&mut p, 3, &[1, 2, 7]), 0, "2 of 3 do");
        assert_eq!(place(&mut p, 4, &[1, 8, 8]), 0, "1 of 3 is over 0.3; 0 used block 1 last");
        let mut q = CacheAware::earlier();
        assert_eq!(place(&mut q, 0, &[1, 2]), 0);
        assert_eq!(place(&mut q, 1, &[1, 3]), 1, "half isn't over 0.5");
        assert_eq!(place(&mut q, 2, &[1, 3, 4]), 1);
    }

    #[test]
    fn out_of_balance_it_forgets_the_cache() {
        let mut p = CacheAware::earlier();
        for id in 0..33 {
            assert_eq!(place(&mut p, id, &[1, 2]), 0);
        }
        // 33 against 0: over 32, and over 1.5 · 0.
        assert_eq!(place(&mut p, 33, &[1, 2]), 1);
        // The tree learnt that as well, and with 33 against 0 still: 2 is the least.
        assert_eq!(place(&mut p, 34, &[1, 2]), 2);
        // Now 33 − 1 = 32 isn't over 32: the last tenant has it.
        assert_eq!(place(&mut p, 35, &[1, 2]), 2);
        p.left(Time(0), 2);
        p.finish(Time(0), RequestId(0), 1, 0);
        assert_eq!(p.place(Time(0), &ask(36, &[1, 2], 1024), &see(&[0, 1])), 1, "the tenant before it");
    }

    #[test]
    fn a_tenant_too_large_loses_its_oldest_leaves_on_the_timer() {
        let mut p = CacheAware::current();
        p.tree_tokens = 3 * 512;
        place(&mut p, 0, &[1, 2, 3]);
        p.finish(Time(0), RequestId(0), 1, 0);
        place(&mut p, 1, &[1, 4]);
        assert_eq!(p.tree.sizes[0], 4);
        let late = Time::from_secs(61.0);
        p.evict(late, 512);
        assert_eq!((p.tree.sizes[0], p.tree.longest(&[1, 2, 3]).0, p.tree.longest(&[1, 4]).0), (3, 2, 2));
        p.tree.insert(&[5, 6, 7, 8], 0);
        p.evict(late, 512);
        assert_eq!(p.tree.sizes[0], 3, "twice the size isn't waited for");
        assert_eq!(p.tree.nodes.len(), 3);
    }
}
