//! The tree: runs of block hashes in an arena, found by their first hash.
//!
//! A chained hash names one place of one prompt, so one map from a run's first hash to its node serves as the child
//! table of every node.

use super::super::ids::Holder;
use super::bits::Bits;
use super::hash::{ByBlock, map_bytes};
use super::hold::NIL;
use smallvec::SmallVec;

/// A holder of a run: the leading blocks it has without a gap, and where the rest of what we know is.
#[derive(Clone, Copy, Debug)]
pub(super) struct HolderRef {
    pub(super) hold: u32,
    pub(super) lead: u32,
    pub(super) holder: Holder,
}

#[derive(Default)]
pub(super) struct Node {
    /// Block hashes; empty only in free nodes.
    pub(super) run: Vec<u64>,
    pub(super) parent: u32,
    /// Number of children, and the exclusive or of their ids: an only child needs no list to be found.
    pub(super) kids: u32,
    pub(super) kid_xor: u32,
    /// Holders of the whole run.
    pub(super) full: Bits,
    /// All holders, in order.
    pub(super) refs: SmallVec<[HolderRef; 1]>,
}

impl Node {
    pub(super) fn len(&self) -> u32 {
        self.run.len() as u32
    }

    pub(super) fn hold_of(&self, h: Holder) -> Option<u32> {
        let at = self.refs.binary_search_by_key(&h, |r| r.holder).ok()?;
        Some(self.refs[at].hold)
    }

    pub(super) fn lead_of(&self, h: Holder) -> u32 {
        match self.refs.binary_search_by_key(&h, |r| r.holder) {
            Ok(at) => self.refs[at].lead,
            Err(_) => 0,
        }
    }

    pub(super) fn set_ref(&mut self, holder: Holder, hold: u32, lead: u32) {
        let new = HolderRef { hold, lead, holder };
        match self.refs.binary_search_by_key(&holder, |r| r.holder) {
            Ok(at) => self.refs[at] = new,
            Err(at) => self.refs.insert(at, new),
        }
        if lead == self.len() {
            self.full.insert(holder);
        } else {
            self.full.remove(holder);
        }
    }

    pub(super) fn remove_ref(&mut self, holder: Holder) {
        if let Ok(at) = self.refs.binary_search_by_key(&holder, |r| r.holder) {
            self.refs.remove(at);
        }
        self.full.remove(holder);
    }
}

/// Leading blocks that a run and a chain share, given that the first is shared. Since equality at one place implies
/// equality before it, the last place answers in the common case, and bisection in the others.
pub(super) fn common(run: &[u64], chain: &[u64]) -> usize {
    let n = run.len().min(chain.len());
    if n == 0 || run[n - 1] == chain[n - 1] {
        return n;
    }
    let (mut same, mut differs) = (0, n - 1);
    while differs - same > 1 {
        let middle = usize::midpoint(same, differs);
        if run[middle] == chain[middle] {
            same = middle;
        } else {
            differs = middle;
        }
    }
    differs
}

#[derive(Default)]
pub(super) struct Nodes {
    pub(super) slab: Vec<Node>,
    free: Vec<u32>,
    pub(super) heads: ByBlock<u32>,
    /// From every block to its node; kept only where single blocks are removed, since it costs 20 to 39 bytes a block.
    pub(super) places: Option<ByBlock<u32>>,
    /// Distinct blocks: the length of all runs.
    pub(super) blocks: u64,
    run_bytes: usize,
}

impl Nodes {
    pub(super) fn get(&self, id: u32) -> &Node {
        &self.slab[id as usize]
    }

    pub(super) fn get_mut(&mut self, id: u32) -> &mut Node {
        &mut self.slab[id as usize]
    }

    pub(super) fn live(&self) -> usize {
        self.slab.len() - self.free.len()
    }

    /// The child of `parent` (`NIL`: a root) whose run starts with `hash`.
    pub(super) fn child(&self, parent: u32, hash: u64) -> Option<u32> {
        self.heads.get(&hash).copied().filter(|&id| self.get(id).parent == parent)
    }

    /// A new node with this run under `parent`. The first hash must not start another run.
    pub(super) fn add(&mut self, parent: u32, run: &[u64]) -> u32 {
        let node = Node { run: run.to_vec(), parent, ..Node::default() };
        self.run_bytes += node.run.capacity() * 8;
        self.blocks += run.len() as u64;
        let id = match self.free.pop() {
            Some(id) => {
                self.slab[id as usize] = node;
                id
            }
            None => {
                self.slab.push(node);
                (self.slab.len() - 1) as u32
            }
        };
        self.heads.insert(run[0], id);
        self.locate(id, 0);
        self.link_kid(parent, id, 1);
        id
    }

    /// Lengthens a run at its end.
    pub(super) fn extend(&mut self, id: u32, more: &[u64]) {
        let node = &mut self.slab[id as usize];
        let old = node.run.len();
        self.run_bytes -= node.run.capacity() * 8;
        node.run.reserve_exact(more.len());
        node.run.extend_from_slice(more);
        self.run_bytes += node.run.capacity() * 8;
        self.blocks += more.len() as u64;
        self.locate(id, old);
    }

    /// Cuts a run to `len` blocks; with none left, the node is gone.
    pub(super) fn shorten(&mut self, id: u32, len: u32) {
        let node = &mut self.slab[id as usize];
        let cut = node.run.len() - len as usize;
        self.blocks -= cut as u64;
        self.run_bytes -= node.run.capacity() * 8;
        if let Some(places) = &mut self.places {
            for hash in &node.run[len as usize..] {
                // Two places of one hash can only be a collision; then the later one is kept.
                if places.get(hash) == Some(&id) {
                    places.remove(hash);
                }
            }
        }
        if len == 0 {
            let (first, parent) = (node.run[0], node.parent);
            *node = Node::default();
            self.heads.remove(&first);
            self.free.push(id);
            self.link_kid(parent, id, -1);
            return;
        }
        node.run.truncate(len as usize);
        if node.run.capacity() > 2 * node.run.len() {
            node.run.shrink_to_fit();
        }
        self.run_bytes += node.run.capacity() * 8;
    }

    /// Cuts a run in two at `k`: a new node above takes the front, `id` keeps the rest and its children. The holders
    /// are the caller's business.
    pub(super) fn split(&mut self, id: u32, k: usize) -> u32 {
        let node = &mut self.slab[id as usize];
        self.run_bytes -= node.run.capacity() * 8;
        let behind = node.run.split_off(k);
        let front = std::mem::replace(&mut node.run, behind);
        self.run_bytes += node.run.capacity() * 8;
        self.blocks -= front.len() as u64;
        let (parent, first_behind) = (node.parent, node.run[0]);
        self.link_kid(parent, id, -1);
        let upper = self.add(parent, &front);
        self.heads.insert(first_behind, id);
        self.get_mut(id).parent = upper;
        self.link_kid(upper, id, 1);
        upper
    }

    /// The reverse: `upper`'s run moves in front of that of its only child `id`, and `upper` is gone.
    pub(super) fn merge(&mut self, upper: u32, id: u32) {
        let mut run = std::mem::take(&mut self.get_mut(upper).run);
        let parent = self.get(upper).parent;
        let behind = std::mem::take(&mut self.get_mut(id).run);
        self.run_bytes -= (run.capacity() + behind.capacity()) * 8;
        let moved = run.len();
        run.reserve_exact(behind.len());
        run.extend_from_slice(&behind);
        self.run_bytes += run.capacity() * 8;
        self.heads.remove(&behind[0]);
        self.heads.insert(run[0], id);
        if let Some(places) = &mut self.places {
            places.extend(run[..moved].iter().map(|&hash| (hash, id)));
        }
        self.link_kid(parent, upper, -1);
        *self.get_mut(upper) = Node::default();
        self.free.push(upper);
        let node = self.get_mut(id);
        node.run = run;
        node.parent = parent;
        self.link_kid(parent, id, 1);
    }

    fn link_kid(&mut self, parent: u32, kid: u32, by: i32) {
        if parent != NIL {
            let node = self.get_mut(parent);
            node.kids = node.kids.wrapping_add_signed(by);
            node.kid_xor ^= kid;
        }
    }

    fn locate(&mut self, id: u32, from: usize) {
        if let Some(places) = &mut self.places {
            places.extend(self.slab[id as usize].run[from..].iter().map(|&hash| (hash, id)));
        }
    }

    /// Starts keeping the place of every block.
    pub(super) fn keep_places(&mut self) {
        if self.places.is_none() {
            let nodes = self.slab.iter().enumerate();
            let all = nodes.flat_map(|(id, node)| node.run.iter().map(move |&hash| (hash, id as u32)));
            self.places = Some(all.collect());
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let spilled = |node: &Node| {
            if node.refs.spilled() { node.refs.capacity() * std::mem::size_of::<HolderRef>() } else { 0 }
        };
        self.slab.capacity() * std::mem::size_of::<Node>()
            + self.slab.iter().map(spilled).sum::<usize>()
            + self.free.capacity() * 4
            + self.run_bytes
            + map_bytes(self.heads.capacity(), 16)
            + self.places.as_ref().map_or(0, |places| map_bytes(places.capacity(), 16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_finds_every_divergence() {
        let run: Vec<u64> = (0..50).collect();
        for at in 1..=50 {
            let mut chain = run.clone();
            chain.iter_mut().skip(at).for_each(|hash| *hash += 1000);
            assert_eq!(common(&run, &chain), at);
            assert_eq!(common(&run, &chain[..at]), at);
            assert_eq!(common(&run[..at], &chain), at);
        }
    }
}
