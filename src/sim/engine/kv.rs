//! The block pool: the KV cache of one engine.
//!
//! A block is in one of three states: *used* (a running request refers to it), *cached* (nobody refers to it, but its
//! content is known by a hash and can be used again) or *free* (nobody refers to it and it holds nothing). Cached and
//! free blocks wait in one queue, free ones in front, then the cached ones by age: an allocation takes the front, so
//! the least recently used content is lost first, and of one request its tail before its head.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Hash of a block's content and of all blocks before it. 0 is reserved for "no content".
pub type BlockHash = u64;

/// Index of a block in the pool.
pub(super) type BlockId = u32;

const NIL: u32 = u32::MAX;

/// Block hashes are already well mixed: hashing them again would cost more than the look-up.
#[derive(Default)]
pub struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(b);
        }
    }

    fn write_u64(&mut self, v: u64) {
        // Trace files number their blocks 0, 1, 2…: spread these over the table's high bits too.
        self.0 = v.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// A hash map keyed by block hashes.
pub type HashTable<V> = HashMap<BlockHash, V, BuildHasherDefault<Identity>>;

#[derive(Clone, Copy)]
struct Block {
    hash: BlockHash,
    refs: u32,
    prev: u32,
    next: u32,
}

/// What has become of a block's content, for those to whom it is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolChange {
    /// It can be found from now on.
    Stored(BlockHash),
    /// It can't any more.
    Removed(BlockHash),
    /// Nothing can.
    Cleared,
}

/// All KV blocks of one engine.
pub(super) struct Pool {
    /// What has changed and wasn't taken yet; `None`: nobody wants to know.
    changes: Option<Vec<PoolChange>>,
    blocks: Vec<Block>,
    by_hash: HashTable<BlockId>,
    head: u32,
    tail: u32,
    queued: u32,
    cached: u32,
}

impl Pool {
    /// A pool of `total` empty blocks.
    pub(super) fn new(total: u32) -> Self {
        let mut pool = Pool {
            changes: None,
            blocks: vec![Block { hash: 0, refs: 0, prev: NIL, next: NIL }; total as usize],
            by_hash: HashTable::default(),
            head: NIL,
            tail: NIL,
            queued: 0,
            cached: 0,
        };
        for id in 0..total {
            pool.push_back(id);
        }
        pool
    }

    /// From now on changes are kept until they are taken.
    pub(super) fn tell_changes(&mut self) {
        self.changes.get_or_insert_default();
    }

    /// What has changed since they were last taken.
    pub(super) fn take_changes(&mut self) -> Vec<PoolChange> {
        self.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn note(&mut self, change: PoolChange) {
        if let Some(changes) = &mut self.changes {
            changes.push(change);
        }
    }

    /// Blocks in the pool.
    pub(super) fn total(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Blocks that running requests refer to.
    pub(super) fn used(&self) -> u32 {
        self.total() - self.queued
    }

    /// Blocks that nobody refers to but whose content can be used again.
    pub(super) fn cached(&self) -> u32 {
        self.cached
    }

    /// Blocks that an allocation could take: free and cached ones.
    pub(super) fn available(&self) -> u32 {
        self.queued
    }

    /// How many leading blocks of `chain` the pool holds, and how many of those nobody refers to now (taking them
    /// makes as many fewer available).
    pub(super) fn lookup(&self, chain: &[BlockHash]) -> (usize, u32) {
        let mut idle = 0;
        for (i, hash) in chain.iter().enumerate() {
            match self.by_hash.get(hash) {
                Some(&id) => idle += u32::from(self.blocks[id as usize].refs == 0),
                None => return (i, idle),
            }
        }
        (chain.len(), idle)
    }

    /// Refer to the leading `n` blocks of `chain`, which [`Pool::lookup`] has just found, and append them to `out`.
    pub(super) fn take_cached(&mut self, chain: &[BlockHash], n: usize, out: &mut Vec<BlockId>) {
        for hash in &chain[..n] {
            let Some(&id) = self.by_hash.get(hash) else { return };
            if self.blocks[id as usize].refs == 0 {
                self.unlink(id);
                self.cached -= 1;
            }
            self.blocks[id as usize].refs += 1;
            out.push(id);
        }
    }

    /// Take one block, forgetting what it held. `None` when every block is in use.
    pub(super) fn allocate(&mut self) -> Option<BlockId> {
        let id = self.head;
        if id == NIL {
            return None;
        }
        self.unlink(id);
        self.forget(id);
        self.blocks[id as usize].refs = 1;
        Some(id)
    }

    /// Let the content of block `id`, which is in use, be found under `hash`. Content that another block holds
    /// already stays known under that other one.
    pub(super) fn register(&mut self, id: BlockId, hash: BlockHash) {
        if hash == 0 || self.blocks[id as usize].hash != 0 || self.by_hash.contains_key(&hash) {
            return;
        }
        self.blocks[id as usize].hash = hash;
        self.by_hash.insert(hash, id);
        self.note(PoolChange::Stored(hash));
    }

    /// Drop one reference to each block, the last first.
    pub(super) fn release(&mut self, ids: &mut Vec<BlockId>) {
        for id in ids.drain(..).rev() {
            let block = &mut self.blocks[id as usize];
            block.refs -= 1;
            if block.refs > 0 {
                continue;
            }
            if block.hash == 0 {
                self.push_front(id);
            } else {
                self.cached += 1;
                self.push_back(id);
            }
        }
    }

    /// Forget all content. Blocks in use stay in use, but can't be found any more.
    pub(super) fn clear(&mut self) {
        self.by_hash.clear();
        self.cached = 0;
        self.note(PoolChange::Cleared);
        for block in &mut self.blocks {
            block.hash = 0;
        }
    }

    /// Panics unless the counters agree with the blocks: free + cached + used = total, each in its place.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let (mut queued, mut cached, mut at, mut before) = (0, 0, self.head, NIL);
        while at != NIL {
            let block = &self.blocks[at as usize];
            assert_eq!((block.refs, block.prev), (0, before), "a block in use waits in the queue");
            queued += 1;
            cached += u32::from(block.hash != 0);
            (before, at) = (at, block.next);
        }
        assert_eq!((queued, cached, self.tail), (self.queued, self.cached, before));
        let used = self.blocks.iter().filter(|b| b.refs > 0).count() as u32;
        assert_eq!(used + queued, self.total(), "a block is lost");
        for (hash, &id) in &self.by_hash {
            assert_eq!(self.blocks[id as usize].hash, *hash);
        }
        assert_eq!(self.by_hash.len(), self.blocks.iter().filter(|b| b.hash != 0).count());
    }

    fn forget(&mut self, id: BlockId) {
        let hash = std::mem::take(&mut self.blocks[id as usize].hash);
        if hash != 0 {
            self.by_hash.remove(&hash);
            self.cached -= 1;
            self.note(PoolChange::Removed(hash));
        }
    }

    fn unlink(&mut self, id: BlockId) {
        let Block { prev, next, .. } = self.blocks[id as usize];
        match prev {
            NIL => self.head = next,
            p => self.blocks[p as usize].next = next,
        }
        match next {
            NIL => self.tail = prev,
            n => self.blocks[n as usize].prev = prev,
        }
        let block = &mut self.blocks[id as usize];
        (block.prev, block.next) = (NIL, NIL);
        self.queued -= 1;
    }

    fn push_back(&mut self, id: BlockId) {
        let tail = std::mem::replace(&mut self.tail, id);
        self.blocks[id as usize].prev = tail;
        match tail {
            NIL => self.head = id,
            t => self.blocks[t as usize].next = id,
        }
        self.queued += 1;
    }

    fn push_front(&mut self, id: BlockId) {
        let head = std::mem::replace(&mut self.head, id);
        self.blocks[id as usize].next = head;
        match head {
            NIL => self.tail = id,
            h => self.blocks[h as usize].prev = id,
        }
        self.queued += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(pool: &mut Pool, chain: &[u64]) {
        let mut ids = Vec::new();
        let (n, _) = pool.lookup(chain);
        pool.take_cached(chain, n, &mut ids);
        for &hash in &chain[n..] {
            let id = pool.allocate().unwrap();
            pool.register(id, hash);
            ids.push(id);
        }
        pool.check();
        pool.release(&mut ids);
        pool.check();
    }

    #[test]
    fn the_oldest_tail_is_lost_first() {
        let mut pool = Pool::new(4);
        store(&mut pool, &[1, 2]);
        store(&mut pool, &[3, 4]);
        store(&mut pool, &[5]);
        assert_eq!(pool.lookup(&[1, 2]).0, 1, "the tail of the oldest chain goes, its head stays");
        assert_eq!(pool.lookup(&[3, 4]).0, 2);
        store(&mut pool, &[1]);
        store(&mut pool, &[6, 7]);
        assert_eq!((pool.lookup(&[3, 4]).0, pool.lookup(&[1]).0), (0, 1), "use makes young");
    }

    #[test]
    fn blocks_in_use_are_never_taken() {
        let mut pool = Pool::new(2);
        let mut held = vec![pool.allocate().unwrap(), pool.allocate().unwrap()];
        pool.register(held[0], 9);
        assert_eq!(pool.allocate(), None);
        assert_eq!(pool.lookup(&[9]), (1, 0));
        let mut second = Vec::new();
        pool.take_cached(&[9], 1, &mut second);
        pool.release(&mut held);
        pool.check();
        assert_eq!((pool.used(), pool.cached(), pool.available()), (1, 0, 1));
        pool.release(&mut second);
        assert_eq!((pool.used(), pool.cached(), pool.lookup(&[9])), (0, 1, (1, 1)));
    }

    #[test]
    fn clearing_keeps_what_is_in_use() {
        let mut pool = Pool::new(3);
        store(&mut pool, &[1, 2]);
        let mut held = Vec::new();
        pool.take_cached(&[1, 2], 2, &mut held);
        pool.clear();
        pool.check();
        assert_eq!((pool.used(), pool.lookup(&[1]).0), (2, 0));
        pool.release(&mut held);
        pool.check();
        assert_eq!((pool.used(), pool.cached()), (0, 0));
    }
}
