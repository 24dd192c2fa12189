//! Blocks that are missing in the middle of what a holder has of a run.

/// A bitmap over the blocks of one run; a set bit is a missing block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Holes(Vec<u64>);

impl Holes {
    pub(super) fn contains(&self, i: u32) -> bool {
        self.0.get(i as usize / 64).is_some_and(|word| word & (1 << (i % 64)) != 0)
    }

    pub(super) fn insert(&mut self, i: u32) {
        let word = i as usize / 64;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (i % 64);
    }

    pub(super) fn remove(&mut self, i: u32) {
        if let Some(word) = self.0.get_mut(i as usize / 64) {
            *word &= !(1 << (i % 64));
        }
    }

    /// Fills all holes in front of `n`.
    pub(super) fn fill_before(&mut self, n: u32) {
        let word = n as usize / 64;
        let whole = word.min(self.0.len());
        self.0[..whole].fill(0);
        if let Some(partial) = self.0.get_mut(word) {
            *partial &= u64::MAX << (n % 64);
        }
    }

    /// Forgets holes at `n` and after.
    pub(super) fn truncate(&mut self, n: u32) {
        let word = n as usize / 64;
        if let Some(partial) = self.0.get_mut(word) {
            *partial &= !(u64::MAX << (n % 64));
            self.0.truncate(word + 1);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    /// The first hole at `n` or after.
    pub(super) fn first_from(&self, n: u32) -> Option<u32> {
        let start = n as usize / 64;
        let mut mask = u64::MAX << (n % 64);
        for (i, &word) in self.0.iter().enumerate().skip(start) {
            if word & mask != 0 {
                return Some(i as u32 * 64 + (word & mask).trailing_zeros());
            }
            mask = u64::MAX;
        }
        None
    }

    /// Holes at `n` and after.
    pub(super) fn count_from(&self, n: u32) -> u32 {
        let start = n as usize / 64;
        let mut mask = u64::MAX << (n % 64);
        let mut count = 0;
        for &word in self.0.iter().skip(start) {
            count += (word & mask).count_ones();
            mask = u64::MAX;
        }
        count
    }

    /// Splits at `k`: keeps the holes in front, returns those behind, counted from `k`.
    pub(super) fn split_off(&mut self, k: u32) -> Holes {
        let mut behind = Holes::default();
        let mut at = k;
        while let Some(i) = self.first_from(at) {
            behind.insert(i - k);
            at = i + 1;
        }
        self.truncate(k);
        behind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_list_of_bools() {
        let holes_at = [0u32, 3, 63, 64, 65, 127, 128, 190];
        for n in [0u32, 1, 3, 4, 63, 64, 65, 127, 128, 191, 192, 300] {
            let make = || {
                let mut holes = Holes::default();
                holes_at.iter().for_each(|&i| holes.insert(i));
                holes
            };
            let all = |holes: &Holes| (0..400).filter(|&i| holes.contains(i)).collect::<Vec<u32>>();
            let before: Vec<u32> = holes_at.iter().copied().filter(|&i| i < n).collect();
            let after: Vec<u32> = holes_at.iter().copied().filter(|&i| i >= n).collect();
            assert_eq!(make().first_from(n), after.first().copied());
            assert_eq!(make().count_from(n) as usize, after.len());
            let mut filled = make();
            filled.fill_before(n);
            assert_eq!(all(&filled), after);
            let mut cut = make();
            cut.truncate(n);
            assert_eq!(all(&cut), before);
            let mut front = make();
            let behind = front.split_off(n);
            assert_eq!(all(&front), before);
            assert_eq!(all(&behind), after.iter().map(|i| i - n).collect::<Vec<_>>());
        }
    }
}
