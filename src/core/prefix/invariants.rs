//! What must be true of an index between any two calls.

use super::super::ids::Holder;
use super::hold::NIL;
use super::index::PrefixIndex;
use std::collections::{HashMap, HashSet};

impl PrefixIndex {
    /// Panics, naming what is wrong, if the tables don't agree with each other. Visits everything: for tests and
    /// simulations.
    pub fn check_invariants(&self) {
        self.check_nodes();
        self.check_lists();
        self.check_speculations();
        self.ghosts.check();
        assert!(self.nodes.blocks <= self.cfg.max_blocks as u64, "more distinct blocks than the bound");
        assert!(self.specs.len() <= self.cfg.max_speculations, "more speculations than the bound");
    }

    fn check_nodes(&self) {
        let live = || self.nodes.slab.iter().enumerate().filter(|(_, node)| !node.run.is_empty());
        // Chained hashes are; only colliding ones, which an outsider's events may bring, share a place.
        let hashes: HashSet<u64> = live().flat_map(|(_, node)| node.run.iter().copied()).collect();
        let unique = hashes.len() as u64 == self.nodes.blocks;
        let mut kids: HashMap<u32, (u32, u32)> = HashMap::new();
        let mut blocks = 0;
        for (id, node) in live() {
            let id = id as u32;
            blocks += node.run.len() as u64;
            assert_eq!(self.nodes.heads.get(&node.run[0]), Some(&id), "a run isn't found by its first hash");
            if node.parent != NIL {
                assert!(!self.nodes.get(node.parent).run.is_empty(), "a node under a free one");
                let (count, xor) = kids.entry(node.parent).or_default();
                *count += 1;
                *xor ^= id;
            }
            if let Some(places) = &self.nodes.places
                && unique
            {
                assert!(
                    node.run.iter().all(|hash| places.get(hash) == Some(&id)),
                    "a block's place is wrong"
                );
            }
            assert!(node.refs.windows(2).all(|r| r[0].holder < r[1].holder), "holders out of order");
            for r in &node.refs {
                let hold = self.holds.get(r.hold);
                assert_eq!((hold.node, hold.holder), (id, r.holder), "a node's hold points elsewhere");
                assert_eq!(r.lead, hold.lead(), "a cut-off isn't what the hold says");
                assert_eq!(
                    node.full.contains(r.holder),
                    r.lead == node.len(),
                    "the set of whole holders is wrong"
                );
                assert!(hold.extent() <= node.len(), "a hold is longer than its run");
            }
            let full = node.full.iter().all(|h| node.refs.iter().any(|r| r.holder == h));
            assert!(full, "a whole holder without a hold");
            if node.kids == 0 {
                let extent = node.refs.iter().map(|r| self.holds.get(r.hold).extent()).max();
                assert_eq!(extent, Some(node.len()), "a leaf is longer than what anyone holds of it");
            }
        }
        for (id, node) in live() {
            let counted = kids.get(&(id as u32)).copied().unwrap_or_default();
            assert_eq!((node.kids, node.kid_xor), counted, "children are miscounted");
        }
        assert_eq!(blocks, self.nodes.blocks, "distinct blocks are miscounted");
        assert_eq!(live().count(), self.nodes.live(), "nodes are miscounted");
        assert_eq!(live().count(), self.nodes.heads.len(), "heads are left behind");
        if let Some(places) = &self.nodes.places
            && unique
        {
            assert_eq!(places.len() as u64, blocks, "places are left behind");
        }
    }

    fn check_lists(&self) {
        let mut entries = 0;
        for (h, member) in self.holds.members.iter().enumerate() {
            let (mut held, mut pinned, mut tails) = (0, 0, 0);
            let mut seen = HashSet::new();
            let (mut newer, mut id) = (NIL, member.newest);
            while id != NIL {
                let hold = self.holds.get(id);
                assert_eq!(hold.holder, h as Holder, "a hold in another holder's list");
                assert_eq!(hold.newer, newer, "a list is broken");
                entries += 1;
                if hold.node == NIL {
                    assert!(hold.confirmed > 0, "an empty stretch of output");
                    tails += u64::from(hold.confirmed);
                    if hold.tail != NIL {
                        assert_eq!(self.holds.get(hold.tail).tail, id, "output and its leaf disagree");
                    }
                } else {
                    self.check_hold(id);
                    held += u64::from(hold.count);
                    pinned += u64::from(hold.speculated);
                    seen.insert(hold.node);
                    let parent = self.nodes.get(hold.node).parent;
                    let above =
                        (parent != NIL).then(|| self.nodes.get(parent).hold_of(h as Holder)).flatten();
                    let older_than_above = above.is_none() || seen.contains(&parent);
                    assert!(older_than_above, "a hold is newer than what the holder has of the run above");
                }
                newer = id;
                id = hold.older;
            }
            assert_eq!(member.oldest, newer, "a list's end is wrong");
            let sums = (member.held, member.pinned, member.tails);
            assert_eq!(sums, (held, pinned, tails), "a holder's sum is wrong");
            assert!(member.joined || member.newest == NIL, "holds of a holder that has left");
        }
        assert_eq!(entries, self.holds.live(), "holds outside any list");
    }

    fn check_hold(&self, id: u32) {
        let hold = self.holds.get(id);
        assert!(hold.count > 0, "an empty hold");
        assert_eq!(hold.count, hold.measure(), "a hold is booked wrongly");
        assert!(hold.confirmed == 0 || hold.confirms(hold.confirmed - 1), "a hold ends with a hole");
        let node = self.nodes.get(hold.node);
        assert_eq!(node.hold_of(hold.holder), Some(id), "a hold that its node doesn't know");
        let ends = self.specs.of(hold).map(|s| s.end).max().unwrap_or(0);
        let covered = if hold.through > 0 { node.len() } else { ends };
        assert_eq!(hold.speculated, covered, "speculated blocks aren't what the speculations cover");
        if hold.tail != NIL {
            assert_eq!(self.holds.get(hold.tail).tail, id, "a leaf and its output disagree");
        }
    }

    fn check_speculations(&self) {
        let mut through: HashMap<u32, u32> = HashMap::new();
        let mut count = 0;
        for s in self.specs.iter() {
            count += 1;
            let hold = self.holds.get(s.hold);
            assert!(
                self.specs.of(hold).any(|other| other.id == s.id),
                "a speculation outside its hold's list"
            );
            assert!(
                s.end > 0 && s.end <= self.nodes.get(hold.node).len(),
                "a speculation ends outside its run"
            );
            let mut node = self.nodes.get(hold.node).parent;
            while node != NIL {
                let above = self.nodes.get(node).hold_of(hold.holder);
                assert!(above.is_some(), "a speculation passes a run that its holder hasn't");
                *through.entry(above.unwrap_or(NIL)).or_default() += 1;
                node = self.nodes.get(node).parent;
            }
        }
        assert_eq!(count, self.specs.len(), "speculations are miscounted");
        let booked: u64 = self.holds.slab.iter().map(|hold| u64::from(hold.through)).sum();
        let counted: u64 = through.values().map(|&n| u64::from(n)).sum();
        assert_eq!(booked, counted, "passing speculations are miscounted");
        for (id, n) in through {
            assert_eq!(self.holds.get(id).through, n, "passing speculations are miscounted at a hold");
        }
    }
}
