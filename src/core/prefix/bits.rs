//! A set of holders, as long as its highest member needs.

use super::super::ids::Holder;
use smallvec::SmallVec;

/// Up to 128 holders inline; more spill to the heap, and only in runs that such a holder has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bits(SmallVec<[u64; 2]>);

impl Bits {
    pub(super) fn insert(&mut self, h: Holder) {
        let word = usize::from(h) / 64;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (h % 64);
    }

    pub(super) fn remove(&mut self, h: Holder) {
        if let Some(word) = self.0.get_mut(usize::from(h) / 64) {
            *word &= !(1 << (h % 64));
        }
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    pub(super) fn contains(&self, h: Holder) -> bool {
        self.0.get(usize::from(h) / 64).is_some_and(|word| word & (1 << (h % 64)) != 0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn copy_from(&mut self, other: &Bits) {
        self.0.clear();
        self.0.extend_from_slice(&other.0);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Holder> + '_ {
        self.0.iter().enumerate().flat_map(|(i, &word)| Ones(word).map(move |bit| (i * 64) as Holder + bit))
    }

    /// Keeps only what `other` has too, and calls `gone` for each member that leaves.
    pub(super) fn intersect(&mut self, other: &Bits, mut gone: impl FnMut(Holder)) {
        for (i, word) in self.0.iter_mut().enumerate() {
            let theirs = other.0.get(i).copied().unwrap_or(0);
            Ones(*word & !theirs).for_each(|bit| gone((i * 64) as Holder + bit));
            *word &= theirs;
        }
    }
}

struct Ones(u64);

impl Iterator for Ones {
    type Item = Holder;

    fn next(&mut self) -> Option<Holder> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as Holder;
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_come_and_go_over_word_borders() {
        let mut set = Bits::default();
        for h in [0, 63, 64, 200, 65_535] {
            set.insert(h);
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63, 64, 200, 65_535]);
        set.remove(65_535);
        assert!(!set.contains(65_535) && set.contains(200));
        let mut other = Bits::default();
        other.insert(64);
        let mut gone = Vec::new();
        set.intersect(&other, |h| gone.push(h));
        assert_eq!(gone, [0, 63, 200]);
        assert_eq!(set.iter().collect::<Vec<_>>(), [64]);
        set.remove(64);
        assert!(set.is_empty());
    }
}
