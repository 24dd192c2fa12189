//! From what is there and what is wanted to who joins and who leaves.
//!
//! A replica is its address and base path. When its specification changes (another key, another cap), the new one joins
//! beside the old one, and the old one leaves once the new one serves: a change of all keys at once, or a key that
//! turns out to be wrong, leaves no moment without replicas. An address that was given to another server is another matter: the
//! old life of it is gone, and leaves at once. Nothing is remembered between two calls but whom the caller itself drained or
//! holds: that two of the same address are there tells what is under way.

use super::board::Standing;
use crate::config::ReplicaSpec;
use crate::router::Member;
use std::collections::HashMap;

/// A replica that is in the fleet.
#[derive(Clone, Debug)]
pub struct Present<K> {
    /// How the caller tells it from others.
    pub id: K,
    /// Its address, see [`Member::key`].
    pub key: u64,
    /// As what it joined.
    pub spec: ReplicaSpec,
    /// Which incarnation of the address, see [`Member::incarnation`].
    pub incarnation: u64,
    /// Can it serve?
    pub ready: bool,
    /// Was it told to take nothing new?
    pub draining: bool,
    /// Was it the caller of this who told it? What an operator drained stays drained.
    pub drained_here: bool,
    /// Is it held as not ready?
    pub held: bool,
}

/// A replica that is wanted.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// As what.
    pub member: Member,
    /// What its source says of its state.
    pub standing: Standing,
}

/// A replica that joins.
#[derive(Clone, Debug)]
pub struct Entrant {
    /// As what.
    pub member: Member,
    /// It takes the place of one that was drained, and inherits that.
    pub draining: bool,
    /// What its source says of its state.
    pub standing: Standing,
}

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan<K> {
    /// These leave first: their addresses belong to others by now.
    pub ghosts: Vec<K>,
    /// Then these join.
    pub joins: Vec<Entrant>,
    /// Then these leave.
    pub leaves: Vec<K>,
    /// These are drained (true), or no longer (false).
    pub drains: Vec<(K, bool)>,
    /// These are held (true), or no longer (false).
    pub holds: Vec<(K, bool)>,
    /// Wanted, and there already.
    pub unchanged: usize,
    /// Old lives that stay until the new life of the same address serves.
    pub waiting: usize,
}

/// Compares. `wanted` has each address once.
pub fn plan<K: Copy>(present: &[Present<K>], wanted: &[Wanted]) -> Plan<K> {
    let mut plan = Plan {
        ghosts: Vec::new(),
        joins: Vec::new(),
        leaves: Vec::new(),
        drains: Vec::new(),
        holds: Vec::new(),
        unchanged: 0,
        waiting: 0,
    };
    // A thousand replicas are a million pairs, and a cluster changes each second.
    let by_key: HashMap<u64, &Wanted> = wanted.iter().map(|w| (w.member.key(), w)).collect();
    let mut lives: HashMap<u64, Vec<&Present<K>>> = HashMap::with_capacity(wanted.len());
    for p in present {
        match by_key.get(&p.key) {
            None => plan.leaves.push(p.id),
            Some(w) if w.member.incarnation != p.incarnation => plan.ghosts.push(p.id),
            Some(_) => lives.entry(p.key).or_default().push(p),
        }
    }
    for Wanted { member, standing } in wanted {
        let same = || lives.get(&member.key()).into_iter().flatten().copied();
        let stale = || same().filter(|p| p.spec != member.spec);
        match same().find(|p| p.spec == member.spec) {
            Some(fresh) => {
                plan.unchanged += 1;
                plan.stand(fresh, *standing);
                for old in stale() {
                    // One that doesn't serve either isn't waited for: it has nothing to lose.
                    if fresh.ready || fresh.draining || !old.ready {
                        plan.leaves.push(old.id);
                    } else {
                        plan.waiting += 1;
                    }
                }
            }
            None => {
                // What an operator drained stays drained under its new specification.
                let draining = stale().any(|p| p.draining && !p.drained_here);
                plan.joins.push(Entrant { member: member.clone(), draining, standing: *standing });
                plan.waiting += stale().count();
            }
        }
    }
    plan
}

impl<K: Copy> Plan<K> {
    fn stand(&mut self, p: &Present<K>, standing: Standing) {
        let drains = standing == Standing::Drains;
        if drains && !p.draining {
            self.drains.push((p.id, true));
        } else if !drains && p.drained_here {
            self.drains.push((p.id, false));
        }
        let held = standing == Standing::Held;
        if held != p.held {
            self.holds.push((p.id, held));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;

    fn spec(url: &str) -> ReplicaSpec {
        ReplicaSpec::new(url)
    }

    fn keyed(url: &str) -> ReplicaSpec {
        ReplicaSpec { api_key: Some(Secret::new("k")), ..spec(url) }
    }

    fn member(spec: ReplicaSpec) -> Member {
        Member::new(spec).unwrap()
    }

    fn there(id: u32, spec: ReplicaSpec, ready: bool) -> Present<u32> {
        let key = member(spec.clone()).key();
        Present { id, key, spec, incarnation: 0, ready, draining: false, drained_here: false, held: false }
    }

    fn wish(spec: ReplicaSpec) -> Wanted {
        Wanted { member: member(spec), standing: Standing::Serves }
    }

    fn joined(plan: &Plan<u32>) -> Vec<&str> {
        plan.joins.iter().map(|e| e.member.spec.url.as_str()).collect()
    }

    #[test]
    fn new_ones_join_and_those_no_longer_wanted_leave() {
        let present = [there(1, spec("http://a:1"), true), there(2, spec("http://b:1"), false)];
        let p = plan(&present, &[wish(spec("http://a:1")), wish(spec("http://c:1"))]);
        assert_eq!((joined(&p), p.leaves.as_slice(), p.unchanged), (vec!["http://c:1"], &[2][..], 1));
        let p = plan(&present, &[]);
        assert_eq!((joined(&p).len(), p.leaves), (0, vec![1, 2]));
    }

    #[test]
    fn the_same_twice_changes_nothing() {
        let present = [there(1, keyed("http://a:1/x"), true)];
        let p = plan(&present, &[wish(keyed("http://a:1/x"))]);
        assert_eq!((p.joins.len(), p.leaves.len(), p.unchanged, p.waiting), (0, 0, 1, 0));
    }

    #[test]
    fn the_base_path_is_part_of_the_address() {
        let present = [there(1, spec("http://a:1/x"), true)];
        let p = plan(&present, &[wish(spec("http://a:1/x")), wish(spec("http://a:1/y"))]);
        assert_eq!((joined(&p), p.unchanged), (vec!["http://a:1/y"], 1));
    }

    #[test]
    fn a_changed_one_leaves_only_when_its_successor_serves() {
        let wanted = [wish(keyed("http://a:1"))];
        let old = there(1, spec("http://a:1"), true);
        let p = plan(std::slice::from_ref(&old), &wanted);
        assert_eq!((p.joins.len(), p.leaves.len(), p.waiting), (1, 0, 1));
        let p = plan(&[old.clone(), there(2, keyed("http://a:1"), false)], &wanted);
        assert_eq!((p.joins.len(), p.leaves.len(), p.waiting), (0, 0, 1));
        let p = plan(&[old.clone(), there(2, keyed("http://a:1"), true)], &wanted);
        assert_eq!((p.joins.len(), p.leaves.as_slice(), p.waiting), (0, &[1][..], 0));
        // Back to the old one before the change was through: the successor that never served leaves.
        let p = plan(&[old, there(2, keyed("http://a:1"), false)], &[wish(spec("http://a:1"))]);
        assert_eq!((p.joins.len(), p.leaves, p.unchanged), (0, vec![2], 1));
    }

    #[test]
    fn one_that_does_not_serve_is_replaced_at_once_and_a_drained_one_stays_drained() {
        let wanted = [wish(keyed("http://a:1"))];
        let down = there(1, spec("http://a:1"), false);
        let p = plan(&[down.clone(), there(2, keyed("http://a:1"), false)], &wanted);
        assert_eq!(p.leaves, [1]);
        let drained = Present { draining: true, ready: true, ..down };
        assert!(plan(std::slice::from_ref(&drained), &wanted).joins[0].draining);
        let heir = Present { draining: true, ..there(2, keyed("http://a:1"), false) };
        assert_eq!(plan(&[drained, heir], &wanted).leaves, [1]);
    }

    #[test]
    fn an_address_that_another_server_has_got_is_another_life_at_once() {
        let old = there(1, spec("http://a:1"), true);
        let mut new = wish(spec("http://a:1"));
        new.member.incarnation = 7;
        let p = plan(std::slice::from_ref(&old), &[new.clone()]);
        assert_eq!(
            (p.ghosts.as_slice(), joined(&p), p.leaves.len(), p.waiting),
            (&[1][..], vec!["http://a:1"], 0, 0)
        );
        // A drain of the old server says nothing of the new one.
        let drained = Present { draining: true, ..old };
        assert!(!plan(std::slice::from_ref(&drained), &[new.clone()]).joins[0].draining);
        let there = Present { id: 2, incarnation: 7, draining: false, ..drained };
        let p = plan(&[there], &[new]);
        assert_eq!((p.ghosts.len(), p.joins.len(), p.unchanged), (0, 0, 1));
    }

    #[test]
    fn standing_is_followed_and_an_operators_drain_is_left_alone() {
        let wanted = |standing| [Wanted { member: member(spec("http://a:1")), standing }];
        let p = there(1, spec("http://a:1"), true);
        let one = |p: &Present<u32>, s| plan(std::slice::from_ref(p), &wanted(s));
        assert_eq!(one(&p, Standing::Drains).drains, [(1, true)]);
        assert_eq!(one(&p, Standing::Held).holds, [(1, true)]);
        let ours = Present { draining: true, drained_here: true, held: true, ..p.clone() };
        let back = one(&ours, Standing::Serves);
        assert_eq!((back.drains, back.holds), (vec![(1, false)], vec![(1, false)]));
        let theirs = Present { draining: true, ..p.clone() };
        assert!(
            one(&theirs, Standing::Serves).drains.is_empty()
                && one(&theirs, Standing::Drains).drains.is_empty()
        );
        assert_eq!(one(&p, Standing::Serves).drains.len() + one(&p, Standing::Serves).holds.len(), 0);
    }
}
