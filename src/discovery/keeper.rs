//! Holds the fleet to what the sources say.

use super::file::{Look, ReplicaFile};
use super::plan::{Present, plan};
use crate::config::{Config, ReplicaDefaults, ReplicaSpec};
use crate::observe::{Flag, Loud};
use crate::router::{Member, Router};
use std::collections::HashSet;
use std::sync::Arc;

/// The sources, what they said, and the router that follows them.
pub(super) struct Keeper {
    router: Arc<Router>,
    defaults: ReplicaDefaults,
    file: Option<ReplicaFile>,
    /// Of the configuration.
    fixed: Vec<ReplicaSpec>,
    /// Of the file, as of its last good state.
    listed: Vec<ReplicaSpec>,
    wanted: Vec<Member>,
    /// Why some that are listed aren't wanted.
    refused: Vec<String>,
    /// Have the sources been read at all?
    begun: bool,
    /// Is the fleet as it should be, as of the last look?
    settled: bool,
    /// The file can't be used.
    unusable: Flag,
    /// Replicas are listed that can't join.
    left_out: Flag,
}

impl Keeper {
    pub(super) fn new(config: &Config, router: Arc<Router>, loud: &Loud) -> Self {
        Keeper {
            router,
            defaults: config.replica_defaults.clone(),
            file: config.replica_file.clone().map(ReplicaFile::new),
            fixed: config.replicas.clone(),
            listed: Vec::new(),
            wanted: Vec::new(),
            refused: Vec::new(),
            begun: false,
            settled: false,
            unusable: loud.flag("replica_file", ""),
            left_out: loud.flag("replicas_left_out", ""),
        }
    }

    /// Is there nothing to look at? No file, and the fleet is as the sources want it.
    pub(super) fn idle(&self) -> bool {
        self.settled && self.file.is_none()
    }

    /// Follows the sources of that configuration from now on.
    pub(super) fn reconfigure(&mut self, config: &Config) {
        self.defaults = config.replica_defaults.clone();
        self.fixed.clone_from(&config.replicas);
        let path = self.file.as_ref().map(ReplicaFile::path);
        if path != config.replica_file.as_deref() {
            self.file = config.replica_file.clone().map(ReplicaFile::new);
            self.listed.clear();
            self.unusable.clear();
        }
        self.begun = false;
        self.look();
    }

    /// Looks at the sources, and brings the fleet nearer to what they say.
    pub(super) fn look(&mut self) {
        let first = !std::mem::replace(&mut self.begun, true);
        let mut changed = first;
        match self.file.as_mut().map_or(Look::Same, |f| f.look(first)) {
            Look::Same => {}
            Look::List(list) => {
                changed |= self.listed != list;
                self.listed = list;
                self.unusable.clear();
            }
            Look::Refused(why) => {
                let kept = self.listed.len();
                self.unusable.raise_for(&format!("{why}; the {kept} replicas that it listed before stay"));
            }
        }
        if changed {
            self.choose();
        }
        if changed || !self.settled {
            self.apply();
        }
    }

    /// Who is wanted: each address and each name once, those of the configuration first.
    fn choose(&mut self) {
        let (mut keys, mut names) = (HashSet::new(), HashSet::new());
        let mut refused = Vec::new();
        self.wanted.clear();
        for spec in self.fixed.iter().chain(&self.listed) {
            let name = spec.label().to_owned();
            match Member::new(spec.clone().with_defaults(&self.defaults)) {
                Err(why) => refused.push(why),
                Ok(m) if !keys.insert(m.key()) => refused.push(format!("{} is listed twice", spec.url)),
                Ok(_) if !names.insert(name.clone()) => refused.push(format!("two are named {name}")),
                Ok(m) => self.wanted.push(m),
            }
        }
        self.refused = refused;
    }

    fn apply(&mut self) {
        let views = self.router.replicas();
        let present: Vec<_> = views
            .iter()
            .filter_map(|v| {
                let member = self.router.member(v.replica)?;
                let (ready, draining) = (v.state == "ready", v.draining);
                Some(Present { id: v.replica, key: member.key(), spec: member.spec, ready, draining })
            })
            .collect();
        let plan = plan(&present, &self.wanted);
        let mut left_out = self.refused.clone();
        for entrant in plan.joins {
            let (name, url) = (entrant.member.spec.label().to_owned(), entrant.member.spec.url.clone());
            match self.router.join(entrant.member) {
                Ok(id) => {
                    tracing::info!(replica = name, url, "joined");
                    if entrant.draining {
                        self.router.drain(id, true);
                    }
                }
                Err(why) => left_out.push(format!("{name}: {why}")),
            }
        }
        // Those that couldn't join are tried again: there may be room later.
        self.settled = plan.waiting == 0 && left_out.len() == self.refused.len();
        if left_out.is_empty() {
            self.left_out.clear();
        } else {
            self.left_out.raise_for(&left_out.join("; "));
        }
        for id in plan.leaves {
            let name = views.iter().find(|v| v.replica == id).map_or("", |v| v.name.as_str());
            tracing::info!(replica = name, "leaves; what it is doing goes on");
            self.router.leave(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::Metrics;

    fn keeper(fixed: &[&str]) -> (Keeper, Arc<Router>, Loud) {
        let config =
            Config { replicas: fixed.iter().map(|u| ReplicaSpec::new(*u)).collect(), ..Config::default() };
        let router = Router::new(&config, 1);
        let loud = Loud::new(Arc::new(Metrics::new()));
        (Keeper::new(&config, router.clone(), &loud), router, loud)
    }

    fn names(router: &Router) -> Vec<String> {
        let mut names: Vec<String> = router.replicas().into_iter().map(|v| v.name).collect();
        names.sort();
        names
    }

    #[test]
    fn the_configured_ones_join() {
        let (mut k, router, loud) = keeper(&["http://a:1", "http://b:1/x"]);
        k.look();
        assert!(k.settled && loud.degradations().is_empty());
        assert_eq!(names(&router), ["a:1", "b:1/x"]);
        k.look();
        assert_eq!(names(&router).len(), 2);
    }

    #[test]
    fn doubles_and_bad_ones_are_left_out_loudly() {
        let (mut k, router, loud) = keeper(&["http://a:1"]);
        k.listed = vec![
            ReplicaSpec::new("http://a:1/"),
            ReplicaSpec { name: Some("a:1".into()), ..ReplicaSpec::new("http://b:1") },
            ReplicaSpec::new("ftp://c"),
        ];
        k.look();
        assert_eq!(names(&router), ["a:1"]);
        let list = loud.degradations();
        assert_eq!(list.len(), 1);
        for part in ["listed twice", "two are named a:1", "ftp://c"] {
            assert!(list[0].detail.contains(part), "{}", list[0].detail);
        }
    }
}
