//! What is known of the cluster: events in, the replicas, objectives and rewrites out. No clock and no sockets.

use super::objects::{Meta, ModelRewrite, Objective, Pod, Pool, Watched};
use super::pods::{self, Ports};
use crate::discovery::board::Listing;
use crate::router::objectives::{Objectives, Rewrite, Rewrites};
use std::collections::BTreeMap;
use std::time::Duration;

/// Most objects of one kind that are kept; four times as many pods as the fleet can hold replicas.
pub(super) const MAX_OBJECTS: usize = 4096;

/// What changed of one kind.
#[derive(Clone, Debug)]
pub(super) enum Change<T> {
    /// This is all there is: what isn't in it is gone.
    All(Vec<T>),
    /// This one is new, or another than it was.
    Put(T),
    /// This one is gone.
    Gone(T),
}

/// Objects of one kind, by name.
#[derive(Clone, Debug)]
struct Store<T>(BTreeMap<String, T>);

impl<T: Watched> Store<T> {
    fn new() -> Self {
        Store(BTreeMap::new())
    }

    fn take(&mut self, change: Change<T>) {
        match change {
            Change::All(list) => {
                self.0.clear();
                for object in list {
                    self.put(object);
                }
            }
            Change::Put(object) => self.put(object),
            Change::Gone(object) => {
                // A new one of the same name may have come before the old one's end was told.
                let meta = object.meta();
                if self.0.get(&meta.name).is_some_and(|known| known.meta().uid == meta.uid) {
                    self.0.remove(&meta.name);
                }
            }
        }
    }

    fn put(&mut self, object: T) {
        let name = object.meta().name.clone();
        if self.0.len() < MAX_OBJECTS || self.0.contains_key(&name) {
            self.0.insert(name, object);
        }
    }
}

/// Which pods are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) labels: BTreeMap<String, String>,
    pub(super) ports: Vec<u16>,
}

impl Wish {
    /// The labels as the API wants them in a query.
    pub(super) fn selector(&self) -> String {
        let parts: Vec<String> = self.labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        parts.join(",")
    }
}

/// Is the pool there?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    /// Nothing was heard yet.
    Unknown,
    There,
    /// Since this time the API server has said that there is none.
    Missing(Duration),
}

/// The cluster as far as it concerns the router.
#[derive(Clone, Debug)]
pub(super) struct Cluster {
    pool: Option<String>,
    presence: Presence,
    /// As the configuration or the pool says; the last one that was known while the pool is missing.
    wish: Option<Wish>,
    pods: Store<Pod>,
    objectives: Store<Objective>,
    rewrites: Store<ModelRewrite>,
    grace: Duration,
}

impl Cluster {
    /// One in which the pool `name` says which pods are meant. Once it is deleted, its pods stay for `grace`.
    pub(super) fn of_pool(name: String, grace: Duration) -> Self {
        Cluster {
            pool: Some(name),
            presence: Presence::Unknown,
            wish: None,
            pods: Store::new(),
            objectives: Store::new(),
            rewrites: Store::new(),
            grace,
        }
    }

    /// One in which these labels and ports say it.
    pub(super) fn of_labels(wish: Wish) -> Self {
        let unnamed = Cluster::of_pool(String::new(), Duration::ZERO);
        Cluster { pool: None, presence: Presence::There, wish: Some(wish), ..unnamed }
    }

    /// Which pods to watch; `None` while no pool has been seen.
    pub(super) fn wish(&self) -> Option<&Wish> {
        self.wish.as_ref()
    }

    /// Does the API server say that there is no pool of that name?
    pub(super) fn pool_missing(&self) -> bool {
        matches!(self.presence, Presence::Missing(_))
    }

    /// Takes in what changed of the pool; `now` is any clock that only goes forward.
    pub(super) fn pools(&mut self, now: Duration, change: Change<Pool>) {
        let mine = |p: &Pool| Some(&p.metadata.name) == self.pool.as_ref();
        let found = match change {
            Change::All(list) => list.into_iter().find(mine),
            Change::Put(pool) if mine(&pool) => Some(pool),
            Change::Gone(pool) if mine(&pool) => None,
            Change::Put(_) | Change::Gone(_) => return,
        };
        let Some(pool) = found else {
            if !self.pool_missing() {
                self.presence = Presence::Missing(now);
            }
            return;
        };
        self.presence = Presence::There;
        let ports = pool.spec.target_ports.iter().map(|p| p.number).filter(|p| *p > 0).collect();
        self.wish = Some(Wish { labels: pool.spec.selector.match_labels, ports });
    }

    /// Takes in what changed of the pods.
    pub(super) fn pods(&mut self, change: Change<Pod>) {
        self.pods.take(change);
    }

    /// Takes in what changed of the objectives.
    pub(super) fn objectives(&mut self, change: Change<Objective>) {
        self.objectives.take(change);
    }

    /// Takes in what changed of the rewrites.
    pub(super) fn rewrites(&mut self, change: Change<ModelRewrite>) {
        self.rewrites.take(change);
    }

    /// When the replicas of a missing pool go, if there is one.
    pub(super) fn deadline(&self) -> Option<Duration> {
        match self.presence {
            Presence::Missing(since) => Some(since + self.grace),
            _ => None,
        }
    }

    /// The replicas as of `now`, in a stable order.
    pub(super) fn listings(&self, now: Duration) -> Vec<Listing> {
        let Some(wish) = &self.wish else { return Vec::new() };
        // An empty selector selects nothing, as in a pool; never all pods of a namespace.
        if wish.labels.is_empty() || self.deadline().is_some_and(|at| now >= at) {
            return Vec::new();
        }
        pods::listings(self.pods.0.values(), &Ports::new(&wish.ports))
    }

    /// The priorities.
    pub(super) fn table(&self) -> Objectives {
        let mine = self.objectives.0.values().filter(|o| self.is_pool(&o.spec.pool_ref.name));
        // Without a priority it is the one of requests without an objective.
        Objectives::new(mine.map(|o| (o.metadata.name.clone(), o.spec.priority.unwrap_or(0))))
    }

    /// The rules for model names: the oldest object first, in it the first rule first.
    pub(super) fn rules(&self) -> Rewrites {
        let mut mine: Vec<&ModelRewrite> =
            self.rewrites.0.values().filter(|r| self.is_pool(&r.spec.pool_ref.name)).collect();
        let age = |m: &Meta| (m.creation_timestamp.clone().unwrap_or_default(), m.name.clone());
        mine.sort_by_key(|r| age(&r.metadata));
        Rewrites::new(mine.into_iter().flat_map(|r| &r.spec.rules).filter_map(|rule| {
            let models: Vec<String> =
                rule.matches.iter().filter_map(|m| m.model.as_ref()).map(|m| m.value.clone()).collect();
            let targets = rule.targets.iter().map(|t| (t.model_rewrite.clone(), t.weight.unwrap_or(1)));
            // Matches that say nothing that is understood here don't make it a rule for everything.
            (rule.matches.is_empty() || !models.is_empty())
                .then(|| Rewrite { models, targets: targets.filter(|t| !t.0.is_empty()).collect() })
        }))
    }

    fn is_pool(&self, name: &str) -> bool {
        self.pool.as_deref() == Some(name)
    }
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
