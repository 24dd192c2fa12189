//! The radix index: which holder has which prefix.
//!
//! A node is a run of chained block hashes. Who has the whole run is a bit set; who has only part of it is listed
//! beside it, so a popular run isn't cut up by those who lag behind. Beneath each node's holders lie *holds*: what one
//! holder has of one run, in that holder's order of recency.
//!
//! Costs, in the number of runs on a path (about one for each place where known prompts part): a match one map
//! look-up and one `and` of bit sets a run; a write the same and a list move. Blocks are only copied, never visited
//! one by one, except for the ghost sample. Memory: 8 bytes a block plus about 110 a run (map included), plus about 80
//! for each run that a holder has; 20–39 a block more where single blocks are removed (`exact_removal`).

use super::super::ids::{Holder, RequestId};
use super::super::time::Time;
use super::evict::Why;
use super::follow::Settling;
use super::ghost::Ghosts;
use super::hold::NIL;
use super::lru::{Holds, Member};
use super::node::Nodes;
use super::speculation::Speculations;
use std::collections::VecDeque;

/// Bounds of an index.
#[derive(Clone, Debug)]
pub struct IndexConfig {
    /// Distinct blocks over all holders. The oldest leaf of the holder with most blocks makes room.
    pub max_blocks: usize,
    /// Holders are numbers below this.
    pub max_holders: u16,
    /// One block in so many is watched for its return after eviction.
    pub ghost_sample: u32,
    /// Live speculations; beyond that the one placed first is taken back.
    pub max_speculations: usize,
    /// Keep the place of every block from the start, for [`PrefixIndex::remove`]. Otherwise the first removal builds
    /// that table, visiting every block.
    pub exact_removal: bool,
}

impl Default for IndexConfig {
    fn default() -> Self {
        IndexConfig {
            max_blocks: 4_000_000,
            max_holders: 1024,
            ghost_sample: 64,
            max_speculations: 65_536,
            exact_removal: false,
        }
    }
}

/// Size and history of an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStats {
    /// Distinct blocks.
    pub distinct_blocks: u64,
    /// Blocks over all holders, without generated output.
    pub held_blocks: u64,
    /// Runs in the tree.
    pub nodes: usize,
    /// Pairs of a holder and a run, and stretches of generated output.
    pub holds: usize,
    /// Heap bytes, estimated from the capacities of the tables.
    pub bytes: usize,
    /// Live speculations.
    pub speculations: usize,
    /// When the oldest of them was placed: one that is never settled shows here.
    pub oldest_speculation: Option<Time>,
    /// Speculations taken back because there were too many.
    pub speculations_dropped: u64,
    /// Blocks dropped because a holder's capacity was used up.
    pub evicted_total: u64,
    /// Blocks dropped because the index's own bound was reached: engines may still have them.
    pub forgotten_total: u64,
}

/// How a holder's cache stands, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Blocks that fit before something is evicted; `None` if the capacity is unknown.
    pub room: Option<u64>,
    /// Distinct blocks of prompts in flight, which can't be evicted; `None` = not known.
    pub pinned: Option<u64>,
}

/// Who holds which prefix. See the module.
pub struct PrefixIndex {
    pub(super) cfg: IndexConfig,
    pub(super) nodes: Nodes,
    pub(super) holds: Holds,
    pub(super) specs: Speculations,
    pub(super) ghosts: Ghosts,
    /// The path of the write in progress, root first; kept for its memory.
    pub(super) path: Vec<u32>,
    /// Requests whose prefill is done and whose events haven't come yet.
    pub(super) settling: VecDeque<Settling>,
    pub(super) dropped: u64,
    pub(super) evicted: u64,
    pub(super) forgotten: u64,
}

impl PrefixIndex {
    /// An empty index without holders.
    pub fn new(cfg: IndexConfig) -> Self {
        let mut nodes = Nodes::default();
        if cfg.exact_removal {
            nodes.keep_places();
        }
        let mut index = PrefixIndex {
            ghosts: Ghosts::new(cfg.ghost_sample),
            cfg,
            nodes,
            holds: Holds::default(),
            specs: Speculations::default(),
            path: Vec::new(),
            settling: VecDeque::new(),
            dropped: 0,
            evicted: 0,
            forgotten: 0,
        };
        index.measure_fleet();
        index
    }

    /// A holder appears, empty, with room for `capacity_blocks` (`None`: only the index's own bound). One that is
    /// there already gets the new capacity. False if the number is out of range; whatever concerns a holder that
    /// hasn't joined is ignored.
    pub fn join(&mut self, h: Holder, capacity_blocks: Option<u64>) -> bool {
        if h >= self.cfg.max_holders {
            return false;
        }
        if self.holds.members.len() <= usize::from(h) {
            self.holds.members.resize(usize::from(h) + 1, Member::default());
        }
        self.holds.member_mut(h).joined = true;
        self.set_capacity(h, capacity_blocks);
        true
    }

    /// A holder is gone, and all that was believed of it. Costs a step for each run it has.
    pub fn leave(&mut self, h: Holder) {
        if self.holds.member(h).is_some() {
            self.clear(h);
            *self.holds.member_mut(h) = Member::default();
            self.measure_fleet();
        }
    }

    /// Changes a capacity. A lower one trims at once, up to a fixed number of runs; the rest goes with the next
    /// writes for this holder, so that no call holds the lock for long.
    pub fn set_capacity(&mut self, h: Holder, blocks: Option<u64>) {
        if self.holds.member(h).is_some() {
            self.holds.member_mut(h).capacity = blocks;
            self.measure_fleet();
            self.fit(h);
        }
    }

    /// The ghost list is as long as the fleet's caches; one of unknown size counts as the index's bound. Several
    /// times that bound is the most: the list must stay in proportion to the index.
    fn measure_fleet(&mut self) {
        let bound = self.cfg.max_blocks as u64;
        let joined = self.holds.members.iter().filter(|member| member.joined);
        let fleet = joined.fold(0u64, |sum, m| sum.saturating_add(m.capacity.unwrap_or(bound)));
        self.ghosts.set_fleet(fleet.min(bound.saturating_mul(4)));
    }

    /// Forgets all that `h` holds, live speculations too: its cache was reset, or it restarted.
    pub fn clear(&mut self, h: Holder) {
        while let Some(id) = self.holds.member(h).map(|m| m.oldest).filter(|&id| id != NIL) {
            let node = self.holds.get(id).node;
            if node == NIL {
                self.drop_tail(id);
                continue;
            }
            self.specs.remove_all(&mut self.holds, id);
            let hold = self.holds.get_mut(id);
            hold.through = 0;
            hold.speculated = 0;
            hold.deny(0, u32::MAX);
            self.refresh(id);
            self.settle(node);
        }
    }

    /// Blocks that `h` is believed to have, generated output included.
    pub fn held(&self, h: Holder) -> u64 {
        self.holds.member(h).map_or(0, |member| member.held + member.tails)
    }

    /// What `h` can take before something is evicted, and what can't be.
    pub fn space(&self, h: Holder) -> Space {
        let Some(member) = self.holds.member(h) else { return Space::default() };
        Space {
            room: member.capacity.map(|capacity| capacity.saturating_sub(member.held + member.tails)),
            pinned: Some(member.pinned),
        }
    }

    /// Share of evicted blocks that were asked for again lately, from 0 to 1.
    pub fn reuse(&self) -> f64 {
        self.ghosts.reuse()
    }

    /// Seconds since the entry of `h` that will be evicted next was used; `None` if it has none.
    pub fn eviction_age(&self, h: Holder, now: Time) -> Option<f64> {
        let oldest = self.holds.member(h)?.oldest;
        (oldest != NIL).then(|| now.since(self.holds.get(oldest).used))
    }

    /// When what `h` has of `chain` was last used, as far down as it has it.
    pub fn last_used(&self, chain: &[u64], h: Holder) -> Option<Time> {
        let mut path = Vec::new();
        self.descend(chain, &mut path);
        let deepest = path.iter().rev().find_map(|&node| self.nodes.get(node).hold_of(h))?;
        Some(self.holds.get(deepest).used)
    }

    /// Blocks that `h` has and that were used after `since`, output included: what would have to be evicted before
    /// anything that was used then. Costs a step for each run.
    pub fn held_since(&self, h: Holder, since: Time) -> u64 {
        let Some(member) = self.holds.member(h) else { return 0 };
        let (mut id, mut blocks) = (member.newest, 0);
        while id != NIL && self.holds.get(id).used > since {
            let hold = self.holds.get(id);
            blocks += u64::from(if hold.node == NIL { hold.confirmed } else { hold.count });
            id = hold.older;
        }
        blocks
    }

    /// Sizes. Visits every run to estimate the bytes: for a metric, not for each request.
    pub fn stats(&self) -> IndexStats {
        IndexStats {
            distinct_blocks: self.nodes.blocks,
            held_blocks: self.holds.members.iter().map(|member| member.held).sum(),
            nodes: self.nodes.live(),
            holds: self.holds.live(),
            bytes: self.nodes.bytes() + self.holds.bytes() + self.specs.bytes() + self.ghosts.bytes(),
            speculations: self.specs.len(),
            oldest_speculation: self.specs.oldest().map(|s| s.since),
            speculations_dropped: self.dropped,
            evicted_total: self.evicted,
            forgotten_total: self.forgotten,
        }
    }

    /// Removes exactly one block from what is confirmed of `h`, wherever in its run: the engine says that it is gone.
    /// A live speculation over it stays, since its prefill will bring the block back. False if `h` didn't have it.
    pub fn remove(&mut self, h: Holder, block: u64) -> bool {
        self.nodes.keep_places();
        let Some(&node) = self.nodes.places.as_ref().and_then(|places| places.get(&block)) else {
            return false;
        };
        let run = &self.nodes.get(node).run;
        // Engines give up a prompt's end first.
        let (Some(at), Some(id)) =
            (run.iter().rposition(|&hash| hash == block), self.nodes.get(node).hold_of(h))
        else {
            return false;
        };
        let at = at as u32;
        if !self.holds.get(id).confirms(at) {
            return false;
        }
        self.holds.get_mut(id).deny(at, at + 1);
        self.note_eviction(block, Why::Capacity);
        self.refresh(id);
        self.settle(node);
        true
    }

    /// Makes sure that a request has no live speculation.
    pub(super) fn forget_request(&mut self, id: RequestId) {
        if self.specs.contains(id) {
            self.rollback(id);
        }
    }
}
