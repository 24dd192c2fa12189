//! Runs of blocks whose beginning we haven't seen: we joined late, or an event was lost.
//!
//! Our hash of a block needs the one before it, so such a run waits with its ids until that is known. The oldest go
//! when there are too many.

use super::super::hash::ByBlock;
use super::event::Stored;
use std::collections::VecDeque;

/// Runs in waiting, by the block that they wait for.
#[derive(Debug)]
pub(super) struct Orphans {
    waiting: ByBlock<Vec<Stored>>,
    /// Blocks in waiting runs, each with the removals that came meanwhile.
    members: ByBlock<u16>,
    order: VecDeque<u64>,
    tokens: usize,
    /// Most tokens that are kept.
    most: usize,
}

impl Orphans {
    pub(super) fn new(most: usize) -> Self {
        Orphans {
            waiting: ByBlock::default(),
            members: ByBlock::default(),
            order: VecDeque::new(),
            tokens: 0,
            most,
        }
    }

    /// Blocks in waiting.
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// Keeps a run until `parent` is known. Returns how many blocks had to be given up for it.
    pub(super) fn keep(&mut self, parent: u64, run: Stored) -> usize {
        let mut given_up = 0;
        while self.tokens + run.tokens.len() > self.most {
            let Some(oldest) = self.order.pop_front() else { return given_up + run.hashes.len() };
            for (run, _) in self.take(oldest) {
                given_up += run.hashes.len();
            }
        }
        self.tokens += run.tokens.len();
        for &hash in &run.hashes {
            self.members.entry(hash).or_default();
        }
        self.waiting.entry(parent).or_default().push(run);
        self.order.push_back(parent);
        if self.order.len() > 64 + 4 * self.waiting.len() {
            let waiting = &self.waiting;
            self.order.retain(|parent| waiting.contains_key(parent));
        }
        given_up
    }

    /// The runs that wait for `parent`, each with the blocks that were removed meanwhile (one entry a removal).
    pub(super) fn take(&mut self, parent: u64) -> Vec<(Stored, Vec<u64>)> {
        let Some(runs) = self.waiting.remove(&parent) else { return Vec::new() };
        runs.into_iter()
            .map(|run| {
                self.tokens -= run.tokens.len();
                let mut gone = Vec::new();
                for &hash in &run.hashes {
                    let times = self.members.remove(&hash).unwrap_or(0);
                    gone.extend(std::iter::repeat_n(hash, times.into()));
                }
                (run, gone)
            })
            .collect()
    }

    /// A copy of this block is gone. False if it isn't in waiting.
    pub(super) fn removed(&mut self, hash: u64) -> bool {
        match self.members.get_mut(&hash) {
            Some(times) => {
                *times = times.saturating_add(1);
                true
            }
            None => false,
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Orphans::new(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(hash: u64) -> Stored {
        Stored { hashes: vec![hash], tokens: vec![0; 10], block: 10, ..Stored::default() }
    }

    #[test]
    fn bounded_by_tokens_and_the_oldest_goes() {
        let mut orphans = Orphans::new(100);
        for n in 0..30 {
            let given_up = orphans.keep(1000 + n, run(n));
            assert_eq!(given_up, usize::from(n >= 10));
        }
        assert_eq!(orphans.len(), 10);
        assert!(orphans.take(1019).is_empty() && !orphans.removed(19));
        assert!(orphans.removed(29) && orphans.removed(29));
        let taken = orphans.take(1029);
        assert_eq!((taken.len(), &taken[0].1), (1, &vec![29, 29]));
        for n in 0..1000 {
            orphans.keep(5000 + n, run(n));
            orphans.take(5000 + n);
        }
        assert!(orphans.order.len() < 200, "{}", orphans.order.len());
        let huge = Stored { tokens: vec![0; 101], ..run(1) };
        assert_eq!(orphans.keep(1, huge), 10 - 1 + 1);
        orphans.clear();
        assert_eq!((orphans.len(), orphans.tokens), (0, 0));
    }
}
