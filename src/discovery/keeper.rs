//! Holds the fleet to what the sources say.

use super::board::{Board, Listing, Standing};
use super::file::{Look, ReplicaFile};
use super::plan::{Present, Wanted, plan};
use crate::config::{Config, ReplicaDefaults, ReplicaSpec};
use crate::core::ReplicaId;
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
    /// Where other sources post what they found.
    board: Board,
    /// What they had posted at the last look.
    found: Vec<Listing>,
    wanted: Vec<Wanted>,
    /// Lives that were drained, and held, because a source said so.
    told: Told,
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

#[derive(Default)]
struct Told {
    drained: HashSet<ReplicaId>,
    held: HashSet<ReplicaId>,
}

impl Keeper {
    pub(super) fn new(config: &Config, router: Arc<Router>, loud: &Loud, board: Board) -> Self {
        Keeper {
            router,
            defaults: config.replica_defaults.clone(),
            file: config.replica_file.clone().map(ReplicaFile::new),
            fixed: config.replicas.clone(),
            listed: Vec::new(),
            board,
            found: Vec::new(),
            wanted: Vec::new(),
            told: Told::default(),
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
        let found = self.board.read();
        if found != self.found {
            self.found = found;
            changed = true;
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
        let listed = self.fixed.iter().chain(&self.listed).cloned().map(Listing::new);
        for Listing { spec, incarnation, standing } in listed.chain(self.found.iter().cloned()) {
            let (name, url) = (spec.label().to_owned(), spec.url.clone());
            match Member::new(spec.with_defaults(&self.defaults)) {
                Err(why) => refused.push(why),
                Ok(m) if !keys.insert(m.key()) => refused.push(format!("{url} is listed twice")),
                Ok(_) if !names.insert(name.clone()) => refused.push(format!("two are named {name}")),
                Ok(mut member) => {
                    member.incarnation = incarnation;
                    self.wanted.push(Wanted { member, standing });
                }
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
                Some(Present {
                    id: v.replica,
                    key: member.key(),
                    incarnation: member.incarnation,
                    spec: member.spec,
                    ready: v.state == "ready",
                    draining: v.draining,
                    drained_here: self.told.drained.contains(&v.replica),
                    held: self.told.held.contains(&v.replica),
                })
            })
            .collect();
        let plan = plan(&present, &self.wanted);
        let name = |id| views.iter().find(|v| v.replica == id).map_or("", |v| v.name.as_str());
        for id in plan.ghosts {
            tracing::info!(replica = name(id), "leaves: its address belongs to another server now");
            self.router.leave(id);
        }
        let mut left_out = self.refused.clone();
        for entrant in plan.joins {
            let (name, url) = (entrant.member.spec.label().to_owned(), entrant.member.spec.url.clone());
            match self.router.join(entrant.member) {
                Ok(id) => {
                    tracing::info!(replica = name, url, "joined");
                    if entrant.draining {
                        self.router.drain(id, true);
                    }
                    // At once: its first health page may come any moment.
                    match entrant.standing {
                        Standing::Held => self.hold(id, true),
                        Standing::Drains if !entrant.draining => self.drain(id, true),
                        Standing::Drains | Standing::Serves => {}
                    }
                }
                Err(why) => left_out.push(format!("{name}: {why}")),
            }
        }
        for (id, on) in plan.drains {
            tracing::info!(replica = name(id), draining = on, "as its source says");
            self.drain(id, on);
        }
        for (id, on) in plan.holds {
            tracing::info!(replica = name(id), ready = !on, "as its source says");
            self.hold(id, on);
        }
        // Those that couldn't join are tried again: there may be room later.
        self.settled = plan.waiting == 0 && left_out.len() == self.refused.len();
        if left_out.is_empty() {
            self.left_out.clear();
        } else {
            self.left_out.raise_for(&left_out.join("; "));
        }
        for id in plan.leaves {
            tracing::info!(replica = name(id), "leaves; what it is doing goes on");
            self.router.leave(id);
        }
        // Those that have left are forgotten here, too.
        let lives: HashSet<_> = self.router.endpoints().iter().map(|e| e.id).collect();
        self.told.drained.retain(|life| lives.contains(life));
        self.told.held.retain(|life| lives.contains(life));
    }

    fn drain(&mut self, id: ReplicaId, on: bool) {
        self.router.drain(id, on);
        note(&mut self.told.drained, id, on);
    }

    fn hold(&mut self, id: ReplicaId, on: bool) {
        self.router.hold(id, on);
        note(&mut self.told.held, id, on);
    }
}

fn note(set: &mut HashSet<ReplicaId>, life: ReplicaId, on: bool) {
    if on {
        set.insert(life);
    } else {
        set.remove(&life);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::health::Probe;
    use crate::observe::Metrics;

    fn keeper(fixed: &[&str]) -> (Keeper, Arc<Router>, Loud) {
        let config =
            Config { replicas: fixed.iter().map(|u| ReplicaSpec::new(*u)).collect(), ..Config::default() };
        let router = Router::new(&config, 1);
        let loud = Loud::new(Arc::new(Metrics::new()));
        let board = Board::new(|| {});
        (Keeper::new(&config, router.clone(), &loud, board), router, loud)
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

    fn found(url: &str, incarnation: u64, standing: Standing) -> Listing {
        Listing { spec: ReplicaSpec::new(url), incarnation, standing }
    }

    #[test]
    fn what_sources_post_joins_drains_and_leaves() {
        let (mut k, router, _loud) = keeper(&["http://a:1"]);
        let board = k.board.clone();
        board.post(3, vec![found("http://b:1", 1, Standing::Drains), found("http://c:1", 2, Standing::Held)]);
        k.look();
        assert_eq!(names(&router), ["a:1", "b:1", "c:1"]);
        let draining = |router: &Router| {
            router.replicas().into_iter().filter(|v| v.draining).map(|v| v.name).collect::<Vec<_>>()
        };
        assert_eq!(draining(&router), ["b:1"]);
        let id = |name: &str| router.replicas().into_iter().find(|v| v.name == name).unwrap().replica;
        let (a, c) = (id("a:1"), id("c:1"));
        for replica in [a, c] {
            router.probe(replica, Probe::Ok);
        }
        let state = |id| router.replicas().into_iter().find(|v| v.replica == id).unwrap().state;
        assert_eq!((state(a), state(c)), ("ready", "starting"), "held by its source");
        router.drain(a, true);
        board.post(
            3,
            vec![found("http://b:1", 1, Standing::Serves), found("http://c:1", 2, Standing::Serves)],
        );
        k.look();
        router.probe(c, Probe::Ok);
        assert_eq!((draining(&router), state(c)), (vec!["a:1".to_owned()], "ready"));
        board.post(3, vec![found("http://c:1", 9, Standing::Serves)]);
        k.look();
        assert_eq!(names(&router), ["a:1", "c:1"]);
        assert_ne!(id("c:1"), c, "another server at the same address is another life");
        assert!(k.told.drained.is_empty() && k.told.held.is_empty());
    }
}
