//! A task for each member of the fleet, and the housekeeping.

use super::Pace;
use super::eye::Eye;
use super::gauges::Gauges;
use crate::core::ReplicaId;
use crate::observe::{Loud, Metrics};
use crate::router::{Endpoint, Router};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

/// Longest time until one that joined is looked at. The look at the list of members costs next to nothing.
const SWEEP: Duration = Duration::from_millis(250);
/// Time between two housekeepings.
const TICK: Duration = Duration::from_secs(1);

struct Watched {
    endpoint: Arc<Endpoint>,
    task: JoinHandle<()>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn beats(pace: Pace) -> Interval {
    let mut beats = interval(SWEEP.min(pace.health).max(Duration::from_millis(1)));
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beats
}

/// Looks at the fleet until it is dropped.
pub(super) async fn run(
    mut asked: watch::Receiver<Pace>,
    router: Arc<Router>,
    metrics: Arc<Metrics>,
    loud: Loud,
) {
    let epoch = Instant::now();
    let mut fleet: HashMap<ReplicaId, Watched> = HashMap::new();
    let mut gauges = Gauges::new(metrics.clone());
    let mut ticked: Option<Instant> = None;
    let mut pace = *asked.borrow_and_update();
    let mut sweeps = beats(pace);
    loop {
        let now = sweeps.tick().await;
        if asked.has_changed().unwrap_or(false) {
            // Everybody is watched anew, at the new pace; what the router knows of them stays.
            pace = *asked.borrow_and_update();
            sweeps = beats(pace);
            fleet.clear();
        }
        let members = router.endpoints();
        let ids: HashSet<ReplicaId> = members.iter().map(|e| e.id).collect();
        let names: HashSet<&str> = members.iter().map(|e| &*e.name).collect();
        fleet.retain(|id, watched| {
            let stays = ids.contains(id);
            // The series of a name go with its last life.
            if !stays && !names.contains(&*watched.endpoint.name) {
                metrics.replica_gone(&watched.endpoint.name);
            }
            if stays && watched.task.is_finished() {
                tracing::error!(
                    replica = &*watched.endpoint.name,
                    "its watcher broke down and is begun anew"
                );
            }
            stays && !watched.task.is_finished()
        });
        for endpoint in members {
            if fleet.contains_key(&endpoint.id) {
                continue;
            }
            // None: it has left in this very moment.
            let Some(member) = router.member(endpoint.id) else { continue };
            let eye = Eye::new(endpoint.clone(), &member, router.clone(), &loud, pace, epoch);
            let task = tokio::spawn(eye.watch());
            fleet.insert(endpoint.id, Watched { endpoint, task });
        }
        if ticked.is_none_or(|t| now - t >= TICK) {
            ticked = Some(now);
            router.tick();
            gauges.update(&router, now);
        }
    }
}
