//! What cache events have told a router so far, when they come late or get lost.
//!
//! An engine tells of blocks as they are stored. A lost event leaves a hole: those blocks stay unknown until they were
//! evicted and stored again.

use super::workload::Ask;
use crate::sim::engine::HashTable;

/// One router's picture of all caches.
#[derive(Debug)]
pub(super) struct View {
    known: Vec<HashTable<()>>,
    /// Lives of the replicas: an event from before a restart tells nothing of the cache after it.
    lives: Vec<u32>,
}

impl View {
    pub(super) fn new(replicas: usize) -> Self {
        View { known: (0..replicas).map(|_| HashTable::default()).collect(), lives: vec![0; replicas] }
    }

    /// Which life of the replica is this?
    pub(super) fn life(&self, replica: usize) -> u32 {
        self.lives[replica]
    }

    /// An event arrives: the replica stored the blocks of a prompt from number `from` on.
    pub(super) fn stored(&mut self, replica: usize, life: u32, ask: &Ask, from: usize) {
        if self.lives[replica] == life {
            self.known[replica].extend(ask.chain.iter().skip(from).map(|&h| (h, ())));
        }
    }

    /// Leading blocks of `chain` that the replica holds (`held`) and is known to hold.
    pub(super) fn sees(&mut self, replica: usize, chain: &[u64], held: u32) -> u32 {
        let known = &mut self.known[replica];
        // The first block that isn't held was removed, if it ever was there; removals are told at once.
        if let Some(gone) = chain.get(held as usize) {
            known.remove(gone);
        }
        chain.iter().take(held as usize).take_while(|h| known.contains_key(h)).count() as u32
    }

    /// The replica restarted.
    pub(super) fn forget(&mut self, replica: usize) {
        self.known[replica].clear();
        self.lives[replica] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_lost_and_stale_news() {
        let ask = Ask { chain: [1, 2, 3].into(), prompt_tokens: 30, output_tokens: 1, session: None };
        let mut view = View::new(2);
        assert_eq!(view.sees(0, &ask.chain, 3), 0, "nothing was told yet");
        view.stored(0, 0, &ask, 1);
        assert_eq!(view.sees(0, &ask.chain, 3), 0, "the first block's event is missing");
        view.stored(0, 0, &ask, 0);
        assert_eq!((view.sees(0, &ask.chain, 3), view.sees(1, &ask.chain, 3)), (3, 0));
        assert_eq!(view.sees(0, &ask.chain, 2), 2, "block 3 is gone");
        assert_eq!(view.sees(0, &ask.chain, 3), 2, "and once stored again it has to be told again");
        view.forget(0);
        view.stored(0, 0, &ask, 0);
        assert_eq!(view.sees(0, &ask.chain, 3), 0, "an event of the life before");
        assert_eq!(view.life(0), 1);
    }
}
