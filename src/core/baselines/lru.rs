//! Blocks in the order of their last use.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

/// A map whose order is the same in every run.
pub(super) type Table<V> = HashMap<u64, V, BuildHasherDefault<DefaultHasher>>;

const NIL: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Slot<V> {
    hash: u64,
    value: V,
    older: u32,
    newer: u32,
}

/// Blocks by hash, each with a value, bounded by the caller with [`Lru::shrink`].
#[derive(Clone, Debug)]
pub(super) struct Lru<V> {
    at: Table<u32>,
    slots: Vec<Slot<V>>,
    free: Vec<u32>,
    oldest: u32,
    newest: u32,
}

impl<V> Default for Lru<V> {
    fn default() -> Self {
        Lru { at: Table::default(), slots: Vec::new(), free: Vec::new(), oldest: NIL, newest: NIL }
    }
}

impl<V: Default> Lru<V> {
    pub(super) fn len(&self) -> usize {
        self.at.len()
    }

    /// How many leading blocks of `chain` are here.
    pub(super) fn lead(&self, chain: &[u64]) -> u32 {
        chain.iter().take_while(|h| self.at.contains_key(h)).count() as u32
    }

    /// Uses a block, which becomes the newest; it comes in with the default value.
    pub(super) fn touch(&mut self, hash: u64) -> &mut V {
        let slot = match self.at.get(&hash) {
            Some(&slot) => {
                self.unlink(slot);
                slot
            }
            None => {
                let new = Slot { hash, value: V::default(), older: NIL, newer: NIL };
                let slot = match self.free.pop() {
                    Some(slot) => {
                        self.slots[slot as usize] = new;
                        slot
                    }
                    None => {
                        self.slots.push(new);
                        self.slots.len() as u32 - 1
                    }
                };
                self.at.insert(hash, slot);
                slot
            }
        };
        self.slots[slot as usize].older = self.newest;
        self.slots[slot as usize].newer = NIL;
        match self.newest {
            NIL => self.oldest = slot,
            newest => self.slots[newest as usize].newer = slot,
        }
        self.newest = slot;
        &mut self.slots[slot as usize].value
    }

    /// Drops the oldest until at most `most` are left.
    pub(super) fn shrink(&mut self, most: usize) {
        while self.len() > most {
            let slot = self.oldest;
            self.unlink(slot);
            self.at.remove(&self.slots[slot as usize].hash);
            self.free.push(slot);
        }
    }

    /// The values, oldest first.
    pub(super) fn oldest(&self) -> impl Iterator<Item = &V> {
        std::iter::successors(self.slots.get(self.oldest as usize), |s| self.slots.get(s.newer as usize))
            .map(|s| &s.value)
    }

    fn unlink(&mut self, slot: u32) {
        let Slot { older, newer, .. } = self.slots[slot as usize];
        match older {
            NIL => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
        match newer {
            NIL => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first_and_slots_are_used_again() {
        let mut lru = Lru::<u32>::default();
        for hash in [1, 2, 3] {
            *lru.touch(hash) = hash as u32 * 10;
        }
        lru.touch(1);
        assert_eq!(lru.oldest().copied().collect::<Vec<_>>(), [20, 30, 10]);
        lru.shrink(2);
        assert_eq!((lru.lead(&[1, 3, 2]), lru.lead(&[2, 1])), (2, 0));
        *lru.touch(4) += 1;
        assert_eq!((lru.len(), lru.slots.len()), (3, 3));
        assert_eq!(lru.oldest().copied().collect::<Vec<_>>(), [30, 10, 1]);
        lru.shrink(0);
        assert_eq!((lru.len(), lru.oldest().count()), (0, 0));
        assert_eq!(*lru.touch(9), 0);
        assert_eq!(lru.oldest().count(), 1);
    }
}
