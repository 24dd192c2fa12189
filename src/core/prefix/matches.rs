//! How many leading blocks of a chain each holder has.

use super::super::ids::Holder;
use super::bits::Bits;
use super::hold::NIL;
use super::index::PrefixIndex;
use super::node::common;

/// Leading blocks per holder: the answer of [`PrefixIndex::matches`]. Reusable; clearing costs only what was set.
#[derive(Clone, Debug, Default)]
pub struct Matches {
    blocks: Vec<u32>,
    who: Vec<Holder>,
    best: u32,
    at_leaf: bool,
    alive: Bits,
}

impl Matches {
    /// No matches.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets all; keeps the memory.
    pub fn clear(&mut self) {
        for h in self.who.drain(..) {
            self.blocks[usize::from(h)] = 0;
        }
        self.best = 0;
        self.at_leaf = false;
    }

    /// Leading blocks of the chain that `h` has.
    pub fn get(&self, h: Holder) -> u32 {
        self.blocks.get(usize::from(h)).copied().unwrap_or(0)
    }

    /// The same for all holders, by number; those beyond the end have nothing.
    pub fn as_slice(&self) -> &[u32] {
        &self.blocks
    }

    /// Every holder that has at least one, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (Holder, u32)> + '_ {
        self.who.iter().map(|&h| (h, self.get(h)))
    }

    /// The most that any holder has.
    pub fn best(&self) -> u32 {
        self.best
    }

    /// Does the longest match end where no known chain goes on? Then this chain goes on where one had ended, as a
    /// conversation's next turn does; a match that ends at a fork is a prefix that several share.
    pub fn at_leaf(&self) -> bool {
        self.at_leaf
    }

    /// Sets what `h` has; for tests, and for sources other than the index.
    pub fn set(&mut self, h: Holder, blocks: u32) {
        set(&mut self.blocks, &mut self.who, &mut self.best, h, blocks);
    }
}

fn set(blocks: &mut Vec<u32>, who: &mut Vec<Holder>, best: &mut u32, h: Holder, n: u32) {
    let at = usize::from(h);
    if n == 0 && blocks.get(at).is_none_or(|&old| old == 0) {
        return;
    }
    if blocks.len() <= at {
        blocks.resize(at + 1, 0);
    }
    match (std::mem::replace(&mut blocks[at], n), n) {
        (0, _) => who.push(h),
        (_, 0) => who.retain(|&other| other != h),
        _ => {}
    }
    *best = if n >= *best { n } else { who.iter().map(|&h| blocks[usize::from(h)]).max().unwrap_or(0) };
}

/// Records a holder that was not recorded before.
fn record(blocks: &mut Vec<u32>, who: &mut Vec<Holder>, best: &mut u32, h: Holder, n: u32) {
    if n > 0 {
        let at = usize::from(h);
        if blocks.len() <= at {
            blocks.resize(at + 1, 0);
        }
        blocks[at] = n;
        who.push(h);
        *best = (*best).max(n);
    }
}

impl PrefixIndex {
    /// How many leading blocks of `chain` each holder has. Read-only.
    ///
    /// Walks the runs of the chain from the root. A holder is alive while it has each run in whole, which is one
    /// `and` of bit sets a run; what it has of the run where it drops out is looked up once.
    pub fn matches(&self, chain: &[u64], out: &mut Matches) {
        out.clear();
        let Matches { blocks, who, best, at_leaf, alive } = out;
        alive.clear();
        let mut parent = NIL;
        let mut depth = 0;
        let mut leaf = false;
        while let Some(id) = chain.get(depth).and_then(|&hash| self.nodes.child(parent, hash)) {
            let node = self.nodes.get(id);
            let shared = common(&node.run, &chain[depth..]);
            let (base, shared_blocks) = (depth as u32, shared as u32);
            if parent == NIL {
                for r in node.refs.iter().filter(|r| r.lead < node.len()) {
                    record(blocks, who, best, r.holder, r.lead.min(shared_blocks));
                }
                alive.copy_from(&node.full);
            } else {
                alive.intersect(&node.full, |h| {
                    record(blocks, who, best, h, base + node.lead_of(h).min(shared_blocks));
                });
            }
            depth += shared;
            leaf = shared == node.run.len() && node.kids == 0;
            if shared < node.run.len() || alive.is_empty() {
                break;
            }
            parent = id;
        }
        for h in alive.iter() {
            record(blocks, who, best, h, depth as u32);
            // Alive after the last run: it has all of it, and the run has no children.
            *at_leaf = leaf;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_keeps_the_best_and_the_list() {
        let mut matches = Matches::new();
        matches.set(3, 5);
        matches.set(70, 9);
        matches.set(1, 0);
        assert_eq!((matches.best(), matches.get(3), matches.get(1), matches.get(999)), (9, 5, 0, 0));
        matches.set(70, 2);
        assert_eq!(matches.best(), 5);
        matches.set(3, 0);
        assert_eq!(matches.iter().collect::<Vec<_>>(), [(70, 2)]);
        matches.clear();
        assert_eq!((matches.best(), matches.iter().count()), (0, 0));
    }
}
