//! From what is there and what is wanted to who joins and who leaves.
//!
//! A replica is its address and base path. When its specification changes (another key, another cap), the new one joins
//! beside the old one, and the old one leaves once the new one serves: a change of all keys at once, or a key that
//! turns out to be wrong, leaves no moment without replicas. Nothing is remembered between two calls: that two of the
//! same address are there tells what is under way.

use crate::config::ReplicaSpec;
use crate::router::Member;

/// A replica that is in the fleet.
#[derive(Clone, Debug)]
pub struct Present<K> {
    /// How the caller tells it from others.
    pub id: K,
    /// Its address, see [`Member::key`].
    pub key: u64,
    /// As what it joined.
    pub spec: ReplicaSpec,
    /// Can it serve?
    pub ready: bool,
    /// Was it told to take nothing new?
    pub draining: bool,
}

/// A replica that joins.
#[derive(Clone, Debug)]
pub struct Entrant {
    /// As what.
    pub member: Member,
    /// It takes the place of one that was drained, and inherits that.
    pub draining: bool,
}

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan<K> {
    /// These join first.
    pub joins: Vec<Entrant>,
    /// Then these leave.
    pub leaves: Vec<K>,
    /// Wanted, and there already.
    pub unchanged: usize,
    /// Old lives that stay until the new life of the same address serves.
    pub waiting: usize,
}

/// Compares. `wanted` has each address once.
pub fn plan<K: Copy>(present: &[Present<K>], wanted: &[Member]) -> Plan<K> {
    let mut plan = Plan { joins: Vec::new(), leaves: Vec::new(), unchanged: 0, waiting: 0 };
    let is_wanted = |p: &Present<K>| wanted.iter().any(|w| w.key() == p.key);
    plan.leaves.extend(present.iter().filter(|p| !is_wanted(p)).map(|p| p.id));
    for member in wanted {
        let same = || present.iter().filter(|p| p.key == member.key());
        let stale = || same().filter(|p| p.spec != member.spec);
        match same().find(|p| p.spec == member.spec) {
            Some(fresh) => {
                plan.unchanged += 1;
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
                let draining = stale().any(|p| p.draining);
                plan.joins.push(Entrant { member: member.clone(), draining });
                plan.waiting += stale().count();
            }
        }
    }
    plan
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
        Present { id, key: member(spec.clone()).key(), spec, ready, draining: false }
    }

    fn joined(plan: &Plan<u32>) -> Vec<&str> {
        plan.joins.iter().map(|e| e.member.spec.url.as_str()).collect()
    }

    #[test]
    fn new_ones_join_and_those_no_longer_wanted_leave() {
        let present = [there(1, spec("http://a:1"), true), there(2, spec("http://b:1"), false)];
        let p = plan(&present, &[member(spec("http://a:1")), member(spec("http://c:1"))]);
        assert_eq!((joined(&p), p.leaves.as_slice(), p.unchanged), (vec!["http://c:1"], &[2][..], 1));
        let p = plan(&present, &[]);
        assert_eq!((joined(&p).len(), p.leaves), (0, vec![1, 2]));
    }

    #[test]
    fn the_same_twice_changes_nothing() {
        let present = [there(1, keyed("http://a:1/x"), true)];
        let p = plan(&present, &[member(keyed("http://a:1/x"))]);
        assert_eq!((p.joins.len(), p.leaves.len(), p.unchanged, p.waiting), (0, 0, 1, 0));
    }

    #[test]
    fn the_base_path_is_part_of_the_address() {
        let present = [there(1, spec("http://a:1/x"), true)];
        let p = plan(&present, &[member(spec("http://a:1/x")), member(spec("http://a:1/y"))]);
        assert_eq!((joined(&p), p.unchanged), (vec!["http://a:1/y"], 1));
    }

    #[test]
    fn a_changed_one_leaves_only_when_its_successor_serves() {
        let wanted = [member(keyed("http://a:1"))];
        let old = there(1, spec("http://a:1"), true);
        let p = plan(std::slice::from_ref(&old), &wanted);
        assert_eq!((p.joins.len(), p.leaves.len(), p.waiting), (1, 0, 1));
        let p = plan(&[old.clone(), there(2, keyed("http://a:1"), false)], &wanted);
        assert_eq!((p.joins.len(), p.leaves.len(), p.waiting), (0, 0, 1));
        let p = plan(&[old.clone(), there(2, keyed("http://a:1"), true)], &wanted);
        assert_eq!((p.joins.len(), p.leaves.as_slice(), p.waiting), (0, &[1][..], 0));
        // Back to the old one before the change was through: the successor that never served leaves.
        let p = plan(&[old, there(2, keyed("http://a:1"), false)], &[member(spec("http://a:1"))]);
        assert_eq!((p.joins.len(), p.leaves, p.unchanged), (0, vec![2], 1));
    }

    #[test]
    fn one_that_does_not_serve_is_replaced_at_once_and_a_drained_one_stays_drained() {
        let wanted = [member(keyed("http://a:1"))];
        let down = there(1, spec("http://a:1"), false);
        let p = plan(&[down.clone(), there(2, keyed("http://a:1"), false)], &wanted);
        assert_eq!(p.leaves, [1]);
        let drained = Present { draining: true, ready: true, ..down };
        assert!(plan(std::slice::from_ref(&drained), &wanted).joins[0].draining);
        let heir = Present { draining: true, ..there(2, keyed("http://a:1"), false) };
        assert_eq!(plan(&[drained, heir], &wanted).leaves, [1]);
    }
}
