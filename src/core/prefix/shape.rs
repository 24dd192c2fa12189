//! Keeping the tree in shape: paths made, runs split where chains part, and joined and freed when nothing needs them.

use super::super::ids::Holder;
use super::super::time::Time;
use super::hold::{Hold, NIL};
use super::index::PrefixIndex;
use super::node::common;

impl PrefixIndex {
    /// Walks `chain` down the tree, to the nodes in `path`. Returns how many blocks of the last one belong to it, and
    /// how many blocks of the chain were found.
    pub(super) fn descend(&self, chain: &[u64], path: &mut Vec<u32>) -> (u32, usize) {
        path.clear();
        let (mut parent, mut depth, mut end) = (NIL, 0, 0);
        while let Some(id) = chain.get(depth).and_then(|&hash| self.nodes.child(parent, hash)) {
            let run = &self.nodes.get(id).run;
            let shared = common(run, &chain[depth..]);
            path.push(id);
            end = shared as u32;
            depth += shared;
            if shared < run.len() {
                break;
            }
            parent = id;
        }
        (end, depth)
    }

    /// Makes the whole of `chain` a path of the tree for `h`, whose nodes it leaves in `path`. Returns how many
    /// blocks of the last run belong to the chain.
    ///
    /// A hash that starts a run elsewhere can't be part of this path (a chained hash has one place only): at such a
    /// collision the path ends.
    pub(super) fn ensure(&mut self, chain: &[u64], h: Holder, path: &mut Vec<u32>) -> u32 {
        let (end, depth) = self.descend(chain, path);
        let rest = &chain[depth..];
        let Some(&first) = rest.first() else { return end };
        let mut parent = NIL;
        if let Some(last) = path.last_mut() {
            let run = &self.nodes.get(*last).run;
            if (end as usize) < run.len() {
                if self.nodes.heads.contains_key(&run[end as usize]) || self.nodes.heads.contains_key(&first)
                {
                    return end;
                }
                *last = self.split(*last, end);
            } else if self.nodes.heads.contains_key(&first) {
                return end;
            } else {
                let node = self.nodes.get(*last);
                // A conversation goes on where it has been: its run grows, and stays one run however many turns.
                if node.kids == 0 && node.refs.len() == 1 && node.refs[0].holder == h {
                    self.nodes.extend(*last, rest);
                    return self.nodes.get(*last).len();
                }
            }
            parent = *last;
        } else if self.nodes.heads.contains_key(&first) {
            return 0;
        }
        path.push(self.nodes.add(parent, rest));
        rest.len() as u32
    }

    /// Cuts a run at `k`, and each hold of it: confirmed blocks, holes and speculations. Returns the new upper node.
    /// The upper part of a hold becomes the lower one's next newer neighbour, as a touch would leave them.
    pub(super) fn split(&mut self, lower: u32, k: u32) -> u32 {
        let upper = self.nodes.split(lower, k as usize);
        let refs = self.nodes.get(lower).refs.clone();
        for r in refs {
            let hold = self.holds.get_mut(r.hold);
            let (confirmed, holes) = hold.split_confirmed(k);
            let (used, speculated) = (hold.used, hold.speculated);
            hold.speculated = speculated.saturating_sub(k);
            let mut front = Hold::new(upper, r.holder, used);
            front.confirmed = confirmed;
            front.holes = holes;
            front.tidy();
            front.speculated = speculated.min(k);
            let front_id = self.holds.alloc(front);
            self.holds.link_newer_than(front_id, r.hold);
            self.specs.transfer(&mut self.holds, r.hold, front_id, |end| (end <= k).then_some(end));
            self.specs.shift(&self.holds, r.hold, -(k as i32));
            let below = self.specs.of(self.holds.get(r.hold)).count() as u32 + self.holds.get(r.hold).through;
            self.holds.get_mut(front_id).through = below;
            if self.holds.get(r.hold).extent() == 0 {
                self.give_tail(r.hold, front_id);
            }
            self.refresh(front_id);
            self.refresh(r.hold);
        }
        upper
    }

    /// Joins a run with its only child where that loses nothing: the same holders have all of the upper run, and for
    /// each of them both are neighbours in recency. Without this a long-lived prompt would end up in one-block runs.
    fn try_merge(&mut self, upper: u32, lower: u32) -> bool {
        let (up, low) = (self.nodes.get(upper), self.nodes.get(lower));
        if up.kids != 1 || up.refs.is_empty() || up.refs.len() != low.refs.len() {
            return false;
        }
        let alike = up.refs.iter().zip(&low.refs).all(|(u, l)| {
            let (front, behind) = (self.holds.get(u.hold), self.holds.get(l.hold));
            u.holder == l.holder
                && front.older == l.hold
                && front.confirmed == up.len()
                && front.holes.is_none()
                && front.ends == NIL
                && front.tail == NIL
                && behind.holes.is_none()
        });
        if !alike {
            return false;
        }
        let k = up.len();
        let pairs: Vec<(u32, u32)> = up.refs.iter().zip(&low.refs).map(|(u, l)| (u.hold, l.hold)).collect();
        self.nodes.merge(upper, lower);
        for (front, behind) in pairs {
            let hold = self.holds.get(front);
            let (h, count, pinned) = (hold.holder, u64::from(hold.count), u64::from(hold.pinned));
            let member = self.holds.member_mut(h);
            member.held -= count;
            member.pinned -= pinned;
            self.holds.release(front);
            self.specs.shift(&self.holds, behind, k as i32);
            let hold = self.holds.get_mut(behind);
            hold.confirmed += k;
            if hold.speculated > 0 {
                hold.speculated += k;
            }
            self.refresh(behind);
        }
        true
    }

    /// Joins what can be joined along a path.
    pub(super) fn merge_path(&mut self, path: &mut Vec<u32>) {
        for i in (1..path.len()).rev() {
            if self.try_merge(path[i - 1], path[i]) {
                path.remove(i - 1);
            }
        }
    }

    /// Books a hold anew after a change: the holder's sum, and the node's lists. An empty hold is released.
    pub(super) fn refresh(&mut self, id: u32) {
        let hold = self.holds.get_mut(id);
        let (node, h, count, lead) = (hold.node, hold.holder, hold.measure(), hold.lead());
        let before = std::mem::replace(&mut hold.count, count);
        let pinned = hold.speculated;
        let pinned_before = std::mem::replace(&mut hold.pinned, pinned);
        let member = self.holds.member_mut(h);
        member.held = member.held + u64::from(count) - u64::from(before);
        member.pinned = member.pinned + u64::from(pinned) - u64::from(pinned_before);
        if count > 0 {
            self.nodes.get_mut(node).set_ref(h, id, lead);
            return;
        }
        self.nodes.get_mut(node).remove_ref(h);
        match self.holds.get(id).tail {
            NIL => {}
            tail => self.drop_tail(tail),
        }
        self.holds.release(id);
    }

    /// Frees what nobody holds, from `node` upwards: the end of a leaf's run, or all of it.
    pub(super) fn settle(&mut self, mut node: u32) {
        while node != NIL {
            let entry = self.nodes.get(node);
            if entry.run.is_empty() || entry.kids > 0 || !entry.full.is_empty() {
                return;
            }
            let parent = entry.parent;
            let extent = entry.refs.iter().map(|r| self.holds.get(r.hold).extent()).max().unwrap_or(0);
            if extent < entry.len() {
                self.nodes.shorten(node, extent);
            }
            if extent > 0 {
                let entry = self.nodes.get_mut(node);
                for r in entry.refs.clone() {
                    entry.set_ref(r.holder, r.hold, r.lead);
                }
                return;
            }
            node = parent;
        }
    }

    /// The hold of `h` at `node`, made if there is none: empty, to be filled and refreshed by the caller.
    pub(super) fn hold_at(&mut self, node: u32, h: Holder, now: Time) -> u32 {
        if let Some(id) = self.nodes.get(node).hold_of(h) {
            return id;
        }
        let id = self.holds.alloc(Hold::new(node, h, now));
        self.holds.link_newest(id);
        self.nodes.get_mut(node).set_ref(h, id, 0);
        id
    }
}
