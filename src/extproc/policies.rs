//! What names in headers and bodies stand for: objectives are priorities, and some models have another name behind.
//!
//! From the configuration, and from whoever watches the cluster's own objects: [`Feed`] takes both, the cluster's word over
//! the file's.

use arc_swap::ArcSwap;
use std::collections::HashMap;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// A model behind a name, and its share of the requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The model that the replica is asked for.
    pub model: String,
    /// Its weight among the targets of the same name.
    pub weight: u32,
}

/// What names stand for at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    /// Priorities of objectives; below zero: shed first.
    pub objectives: HashMap<String, i32>,
    /// Models behind names.
    pub rewrites: HashMap<String, Vec<Target>>,
}

impl Policies {
    /// The priority of an objective; 0 for one that isn't known.
    pub fn priority(&self, objective: &str) -> i32 {
        self.objectives.get(objective).copied().unwrap_or(0)
    }

    /// The model behind `name` for the request of that id: the same one for the same id.
    pub fn target(&self, name: &str, request_id: &str) -> Option<&str> {
        let targets = self.rewrites.get(name)?;
        let sum: u64 = targets.iter().map(|t| u64::from(t.weight)).sum();
        let mut at = xxh3_64(request_id.as_bytes()).checked_rem(sum)?;
        for target in targets {
            let weight = u64::from(target.weight);
            if at < weight {
                return Some(&target.model);
            }
            at -= weight;
        }
        None
    }

    /// These, and those of `other` where it says something else.
    #[must_use]
    pub fn under(&self, other: &Policies) -> Policies {
        let mut both = self.clone();
        both.objectives.extend(other.objectives.iter().map(|(k, v)| (k.clone(), *v)));
        both.rewrites.extend(other.rewrites.iter().map(|(k, v)| (k.clone(), v.clone())));
        both
    }
}

/// Where policies come in; clones share them.
#[derive(Clone, Debug)]
pub struct Feed {
    file: Arc<Policies>,
    now: Arc<ArcSwap<Policies>>,
}

impl Feed {
    /// Those of the configuration.
    pub fn new(file: Policies) -> Self {
        Feed { now: Arc::new(ArcSwap::from_pointee(file.clone())), file: Arc::new(file) }
    }

    /// The cluster's objects, all of them, as they are now.
    pub fn cluster(&self, policies: &Policies) {
        self.now.store(Arc::new(self.file.under(policies)));
    }

    /// As they are now.
    pub fn get(&self) -> Arc<Policies> {
        self.now.load_full()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policies(objective: &[(&str, i32)], rewrite: &[(&str, &[(&str, u32)])]) -> Policies {
        let target = |&(model, weight): &(&str, u32)| Target { model: model.into(), weight };
        Policies {
            objectives: objective.iter().map(|&(k, v)| (k.into(), v)).collect(),
            rewrites: rewrite.iter().map(|&(k, t)| (k.into(), t.iter().map(target).collect())).collect(),
        }
    }

    #[test]
    fn weights_are_shares_and_an_id_stays_where_it_is() {
        let p =
            policies(&[("batch", -1)], &[("food", &[("food-v1", 9), ("food-v2", 1)]), ("none", &[("x", 0)])]);
        assert_eq!((p.priority("batch"), p.priority("?")), (-1, 0));
        let second = (0..1000).filter(|n| p.target("food", &n.to_string()) == Some("food-v2")).count();
        assert!((50..150).contains(&second), "{second} of 1,000 for a tenth");
        assert_eq!(p.target("food", "a"), p.target("food", "a"));
        assert_eq!((p.target("none", "a"), p.target("other", "a")), (None, None));
    }

    #[test]
    fn the_cluster_wins_and_what_it_takes_back_is_the_files_again() {
        let feed = Feed::new(policies(&[("a", 1), ("b", 2)], &[]));
        feed.cluster(&policies(&[("a", 5)], &[("m", &[("n", 1)])]));
        assert_eq!((feed.get().priority("a"), feed.get().priority("b")), (5, 2));
        assert_eq!(feed.get().target("m", ""), Some("n"));
        feed.cluster(&Policies::default());
        assert_eq!(feed.get().priority("a"), 1);
        assert_eq!(feed.get().target("m", ""), None);
    }
}
