//! A new configuration while the router runs.
//!
//! Everything that can fail is done before anything is changed: the file is read and checked, the log's directives are
//! parsed, new listeners are bound. Then each part takes over its share with one store. A configuration that fails
//! anywhere changes nothing and is told where it was asked for, in the log, in a metric and on the admin port.

use super::Source;
use crate::config::{Config, adopt};
use crate::control::{Doors, Reload, ReloadOutcome, ReloadReport};
use crate::discovery::Discovery;
use crate::door::{self, Door};
use crate::observe::{Flag, LogHandle, Metrics, now_unix};
use crate::proxy::LiveSettings;
use crate::router::Router;
use crate::watch::Watch;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

/// How long a reload waits for the list of replicas to be followed: a replica file may lie on a network that hangs.
const PATIENCE: Duration = Duration::from_secs(3);

/// What takes over a new configuration.
pub(super) struct Parts {
    pub(super) router: Arc<Router>,
    pub(super) live: Option<LiveSettings>,
    pub(super) data: Option<Door>,
    pub(super) doors: Doors,
    pub(super) watch: Arc<Watch>,
    pub(super) found: Arc<Discovery>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) log: Option<LogHandle>,
    pub(super) refused: Flag,
}

/// Reads configurations and hands them to the parts, one at a time.
pub(super) struct Reloader {
    source: Arc<Source>,
    current: Arc<ArcSwap<Config>>,
    parts: Parts,
    /// Held while one is under way.
    last: Mutex<Option<ReloadReport>>,
}

/// Listeners that are bound and not yet used: the port's door, and what it moves to.
type Moves<'a> = Vec<(&'a Door, TcpListener)>;

impl Reloader {
    pub(super) fn new(source: Arc<Source>, current: Arc<ArcSwap<Config>>, parts: Parts) -> Self {
        Reloader { source, current, parts, last: Mutex::new(None) }
    }

    /// What holds now.
    pub(super) fn current(&self) -> Arc<Config> {
        self.current.load_full()
    }

    fn attempt(&self, report: &mut ReloadReport) -> Result<(), String> {
        let (wanted, odd) = (self.source)().map_err(|e| e.to_string())?;
        let running = self.current.load_full();
        let adopted = adopt(&running, &wanted);
        report.warnings = odd.problems.iter().map(ToString::to_string).collect();
        report.restart_needed = adopted.restart;
        if adopted.changed.is_empty() {
            return Ok(());
        }
        let new = adopted.config;
        let settings = super::settings(&new).map_err(|e| e.to_string())?;
        let moves = self.bind(&running, &new)?;
        if let Some(log) = self.parts.log.as_ref().filter(|_| new.log.level != running.log.level) {
            log.set_level(&new.log.level)?;
        }
        for (door, listener) in moves {
            door.move_to(listener).map_err(|e| format!("a new listener can't be used: {e}"))?;
        }
        if let Some(live) = &self.parts.live {
            live.set(settings);
        }
        self.parts.router.reconfigure(&new);
        self.parts.watch.reconfigure(&new);
        // The doors ask this one for the token: it is there before a new listener could let anybody in.
        self.current.store(Arc::new(new.clone()));
        self.parts.found.reconfigure(&new, PATIENCE);
        report.changed = adopted.changed;
        report.outcome = ReloadOutcome::Applied;
        Ok(())
    }

    /// Binds the addresses that changed.
    fn bind(&self, running: &Config, new: &Config) -> Result<Moves<'_>, String> {
        let mut moves = Vec::new();
        let mut change = |what: &str, door, from: Option<SocketAddr>, to: Option<SocketAddr>| match (door, to)
        {
            (Some(door), Some(at)) if from != to => {
                let listener = door::bind(at).map_err(|e| format!("{what} port {at}: {e}"))?;
                moves.push((door, listener));
                Ok::<_, String>(())
            }
            _ => Ok(()),
        };
        change("data", self.parts.data.as_ref(), Some(running.listen), Some(new.listen))?;
        change("metrics", Some(&self.parts.doors.metrics), Some(running.metrics), Some(new.metrics))?;
        change("admin", self.parts.doors.admin.as_ref(), running.admin, new.admin)?;
        Ok(moves)
    }

    fn tell(&self, report: &ReloadReport) {
        self.parts.metrics.reloaded(report.outcome.label());
        let by = report.by;
        for warning in &report.warnings {
            tracing::warn!("{warning}");
        }
        match (&report.reason, report.outcome) {
            (Some(why), _) => {
                tracing::error!(by, "the new configuration is refused, the old one stays: {why}");
                self.parts.refused.raise_for(&format!("the new configuration is refused: {why}"));
            }
            (None, outcome) => {
                self.parts.refused.clear();
                let changed = report.changed.join(", ");
                if outcome == ReloadOutcome::Applied {
                    tracing::info!(by, changed, "reloaded");
                }
            }
        }
        if !report.restart_needed.is_empty() {
            let keys = report.restart_needed.join(", ");
            tracing::warn!(by, keys, "these take effect at the next restart only");
        }
    }
}

impl Reload for Reloader {
    fn reload(&self, by: &'static str) -> ReloadReport {
        let mut last = self.last.lock();
        let mut report = ReloadReport {
            outcome: ReloadOutcome::Unchanged,
            by,
            at: now_unix() as u64,
            changed: Vec::new(),
            restart_needed: Vec::new(),
            warnings: Vec::new(),
            reason: None,
        };
        if let Err(why) = self.attempt(&mut report) {
            report.outcome = ReloadOutcome::Refused;
            report.reason = Some(why);
        }
        self.tell(&report);
        *last = Some(report.clone());
        report
    }

    fn last(&self) -> Option<ReloadReport> {
        self.last.lock().clone()
    }
}
