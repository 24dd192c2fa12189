//! Each holder's order of recency over its holds: an intrusive list through one slab.
//!
//! A path is touched from its leaf to its root, so the root ends up newest. Whatever a holder has of a run is
//! therefore older than what it has of the runs above it, and the oldest hold is always a leaf of what it has.

use super::super::ids::Holder;
use super::hold::{Hold, NIL};

/// One holder: the ends of its list and what it adds up to.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) joined: bool,
    /// Blocks that fit; `None` if only the index's own bound counts.
    pub(super) capacity: Option<u64>,
    pub(super) newest: u32,
    pub(super) oldest: u32,
    /// Blocks held of runs.
    pub(super) held: u64,
    /// Of these, blocks of requests in flight: an engine can't evict them.
    pub(super) pinned: u64,
    /// Blocks of anonymous output.
    pub(super) tails: u64,
    /// Do its engine's events say what it has? Then nothing is evicted by estimate.
    pub(super) exact: bool,
    /// Prefills in a row of which no event told.
    pub(super) unanswered: u32,
}

impl Default for Member {
    fn default() -> Self {
        Member {
            joined: false,
            capacity: None,
            newest: NIL,
            oldest: NIL,
            held: 0,
            pinned: 0,
            tails: 0,
            exact: false,
            unanswered: 0,
        }
    }
}

/// All holds, and the members whose lists thread through them.
#[derive(Default)]
pub(super) struct Holds {
    pub(super) slab: Vec<Hold>,
    free: Vec<u32>,
    pub(super) members: Vec<Member>,
}

impl Holds {
    pub(super) fn get(&self, id: u32) -> &Hold {
        &self.slab[id as usize]
    }

    pub(super) fn get_mut(&mut self, id: u32) -> &mut Hold {
        &mut self.slab[id as usize]
    }

    pub(super) fn member(&self, h: Holder) -> Option<&Member> {
        self.members.get(usize::from(h)).filter(|member| member.joined)
    }

    pub(super) fn member_mut(&mut self, h: Holder) -> &mut Member {
        &mut self.members[usize::from(h)]
    }

    /// Live entries, anonymous stretches included.
    pub(super) fn live(&self) -> usize {
        self.slab.len() - self.free.len()
    }

    /// Adds a hold to the slab, in no list yet.
    pub(super) fn alloc(&mut self, hold: Hold) -> u32 {
        match self.free.pop() {
            Some(id) => {
                self.slab[id as usize] = hold;
                id
            }
            None => {
                self.slab.push(hold);
                (self.slab.len() - 1) as u32
            }
        }
    }

    /// Takes a hold out of its list and of the slab.
    pub(super) fn release(&mut self, id: u32) {
        self.unlink(id);
        let hold = self.get_mut(id);
        hold.holes = None;
        hold.node = NIL;
        hold.through = 0;
        self.free.push(id);
    }

    pub(super) fn link_newest(&mut self, id: u32) {
        let h = self.get(id).holder;
        let next = std::mem::replace(&mut self.member_mut(h).newest, id);
        let hold = self.get_mut(id);
        hold.newer = NIL;
        hold.older = next;
        self.set_newer(next, h, id);
    }

    /// Links `id` as the neighbour of `at` on its newer side.
    pub(super) fn link_newer_than(&mut self, id: u32, at: u32) {
        let (h, newer) = (self.get(at).holder, self.get(at).newer);
        let hold = self.get_mut(id);
        hold.newer = newer;
        hold.older = at;
        self.get_mut(at).newer = id;
        self.set_older(newer, h, id);
    }

    /// Links `id` as the neighbour of `at` on its older side.
    pub(super) fn link_older_than(&mut self, id: u32, at: u32) {
        let (h, older) = (self.get(at).holder, self.get(at).older);
        let hold = self.get_mut(id);
        hold.newer = at;
        hold.older = older;
        self.get_mut(at).older = id;
        self.set_newer(older, h, id);
    }

    pub(super) fn move_newest(&mut self, id: u32) {
        if self.get(id).newer != NIL {
            self.unlink(id);
            self.link_newest(id);
        }
    }

    fn unlink(&mut self, id: u32) {
        let hold = self.get(id);
        let (h, newer, older) = (hold.holder, hold.newer, hold.older);
        self.set_older(newer, h, older);
        self.set_newer(older, h, newer);
    }

    /// `older` becomes what follows `of`, or the newest if `of` is no entry.
    fn set_older(&mut self, of: u32, h: Holder, older: u32) {
        match of {
            NIL => self.member_mut(h).newest = older,
            of => self.get_mut(of).older = older,
        }
    }

    fn set_newer(&mut self, of: u32, h: Holder, newer: u32) {
        match of {
            NIL => self.member_mut(h).oldest = newer,
            of => self.get_mut(of).newer = newer,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.slab.capacity() * std::mem::size_of::<Hold>()
            + self.free.capacity() * 4
            + self.members.capacity() * std::mem::size_of::<Member>()
    }
}
