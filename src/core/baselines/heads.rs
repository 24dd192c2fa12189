//! Where a prompt's own text begins, behind what all prompts share.

use super::lru::Lru;
use smallvec::SmallVec;

/// Different blocks that follow one from which it ends what is shared: a conversation goes on in one way or in a few.
const FORKS: usize = 16;
/// Blocks remembered.
const REMEMBERED: usize = 1 << 16;

/// Learns the shared head of the traffic: a system prompt that at least half of the requests begin with. It ends at
/// the first block that is followed by many different ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Heads {
    firsts: Lru<u64>,
    seen: u64,
    after: Lru<SmallVec<[u64; 1]>>,
}

impl Heads {
    /// The first block of `chain` that is its own; `None` if it has none.
    pub(super) fn own(&mut self, chain: &[u64]) -> Option<u64> {
        let &first = chain.first()?;
        self.seen += 1;
        let begins = self.firsts.touch(first);
        *begins += 1;
        let shared = *begins * 2 >= self.seen;
        self.firsts.shrink(REMEMBERED);
        if !shared {
            return Some(first);
        }
        let mut own = None;
        for pair in chain.windows(2) {
            let after = self.after.touch(pair[0]);
            if after.len() < FORKS && !after.contains(&pair[1]) {
                after.push(pair[1]);
            }
            if after.len() >= FORKS {
                own = Some(pair[1]);
                break;
            }
        }
        self.after.shrink(REMEMBERED);
        // Nothing forks yet: the head itself. One that is all head has nothing of its own.
        own.or_else(|| (chain.len() > 1).then_some(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_share_is_no_key() {
        let mut h = Heads::default();
        // A system prompt of three blocks, and conversations behind it.
        for id in 0..16 {
            let want = if id < 15 { 1 } else { 115 };
            assert_eq!(h.own(&[1, 2, 3, 100 + id, 200 + id]), Some(want), "known from the 16th on");
        }
        for id in 0..100 {
            assert_eq!(h.own(&[1, 2, 3, 100 + id, 200 + id]), Some(100 + id));
            assert_eq!(h.own(&[1, 2, 3, 100 + id, 200 + id, 300 + id]), Some(100 + id), "the next turn");
        }
        assert_eq!((h.own(&[1]), h.own(&[])), (None, None));
    }

    #[test]
    fn documents_that_many_ask_about_stay_keys() {
        let mut h = Heads::default();
        for id in 0..300 {
            let doc = 1 + id % 10;
            let key = h.own(&[doc, doc + 20, 1000 + id]);
            assert!(id < 20 || key == Some(doc), "{id}: {key:?}");
        }
    }
}
