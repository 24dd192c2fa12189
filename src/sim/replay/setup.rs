//! How a trace is replayed: fleet, load, objectives, and what isn't perfect.

use super::measure::Slo;
use crate::sim::engine::Profile;

/// Sessions at once for each replica at speed-up 1, for closed loops.
pub const SESSIONS_PER_REPLICA: f64 = 20.0;

/// Seconds between two looks at the metrics pages, for policies that don't say.
pub const POLL: f64 = 1.0;

/// One replay's conditions.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The engines. Their block size is the trace's.
    pub profile: Profile,
    /// How many there are.
    pub replicas: usize,
    /// Load. Open loop: times are divided by it. Closed loop: the number of sessions at once is multiplied by it, and
    /// think times stay as they are (a hurried user would change what a session is).
    pub speedup: f64,
    /// Sessions at once on the whole fleet at speed-up 1; for closed loops.
    pub sessions: f64,
    /// The first sessions of a closed loop begin evenly over so many seconds: all at once would measure only that burst.
    pub ramp: f64,
    /// Objectives.
    pub slo: Slo,
    /// Seconds between two looks at the metrics pages; 0 = before each placement, `None` = as each policy's project
    /// does, else [`POLL`].
    pub poll: Option<f64>,
    /// Policies hear of output every so many tokens; 0 = never.
    pub stride: u32,
    /// Routers that share the traffic (requests go round) and nothing else.
    pub routers: usize,
    /// Seed of what is random: which events are lost.
    pub seed: u64,
    /// What isn't perfect.
    pub trouble: Trouble,
}

impl Setup {
    /// A fleet of `replicas` engines at speed-up 1, one router, nothing wrong.
    pub fn new(profile: Profile, replicas: usize) -> Self {
        Setup {
            profile,
            replicas: replicas.max(1),
            speedup: 1.0,
            sessions: SESSIONS_PER_REPLICA * replicas.max(1) as f64,
            ramp: 60.0,
            slo: Slo::default(),
            poll: None,
            stride: 32,
            routers: 1,
            seed: 1,
            trouble: Trouble::default(),
        }
    }
}

/// A replica that restarts with an empty cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Restart {
    /// When, in seconds. What it has in flight is sent elsewhere, except answers under way, which are lost.
    pub at: f64,
    /// Which.
    pub replica: usize,
    /// Seconds until it is back.
    pub down: f64,
}

/// Imperfections.
#[derive(Clone, Debug, PartialEq)]
pub struct Trouble {
    /// Seconds until routers with exact knowledge hear that blocks were stored. They hear of removals at once.
    pub event_delay: f64,
    /// Share of the events that never come, 0..=1: one event tells of what one request had computed.
    pub event_loss: f64,
    /// Replicas whose steps take this many times as long (their caches are as large as the others').
    pub slow: Vec<(usize, f64)>,
    /// Routers are told this many times the true cache capacity.
    pub capacity: f64,
    /// Restarts.
    pub restarts: Vec<Restart>,
}

impl Default for Trouble {
    fn default() -> Self {
        Trouble { event_delay: 0.0, event_loss: 0.0, slow: Vec::new(), capacity: 1.0, restarts: Vec::new() }
    }
}

impl Trouble {
    /// Do cache events come late or not at all?
    pub(super) fn blurs_events(&self) -> bool {
        self.event_delay > 0.0 || self.event_loss > 0.0
    }
}
