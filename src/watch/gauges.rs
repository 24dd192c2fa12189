//! The router's figures as metrics, once a second.

use crate::core::ReplicaId;
use crate::observe::{Metrics, ReplicaMetrics};
use crate::router::{Found, ReplicaView, Router};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long the series of a model stay after the last replica that served it: a rolling update shouldn't set its
/// counters back.
const KEPT: Duration = Duration::from_secs(600);

/// Writes the gauges.
pub(super) struct Gauges {
    metrics: Arc<Metrics>,
    /// Models that are or were served, and when that was last so.
    models: HashMap<Arc<str>, Instant>,
    /// What was added to counters last time.
    counted: HashMap<ReplicaId, Counted>,
}

/// Totals of one replica.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    predicted: u64,
    actual: u64,
    events: u64,
    gaps: u64,
    skipped: u64,
}

impl Counted {
    fn of(view: &ReplicaView) -> Self {
        let mut all = Counted {
            predicted: view.cached_tokens.predicted,
            actual: view.cached_tokens.actual,
            ..Counted::default()
        };
        for e in &view.events {
            all.events += e.events;
            all.gaps += e.gaps;
            all.skipped += e.unreadable + e.unknown + e.refused + e.repeated;
        }
        all
    }
}

impl Gauges {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Gauges { metrics, models: HashMap::new(), counted: HashMap::new() }
    }

    pub(super) fn update(&mut self, router: &Router, now: Instant) {
        let views = router.replicas();
        self.counted.retain(|id, _| views.iter().any(|view| view.replica == *id));
        for view in views {
            let m = self.metrics.replica(&view.name);
            m.in_flight.set(f64::from(view.in_flight));
            m.in_lane.set(f64::from(view.in_lane));
            m.up.set(f64::from(u8::from(view.state == "ready" && !view.draining)));
            m.prefill_seconds_per_token.set(view.prefill_s_per_token);
            m.step_seconds.set(view.step_s);
            m.waiting.set_known(view.waiting.map(f64::from));
            m.kv_usage.set_known(view.kv_usage);
            self.events(&m, &view);
            self.metrics.set_state(&m, view.state);
        }
        let (_, waiting) = router.load();
        self.metrics.queue_length.set(waiting as f64);
        let index = router.index_stats();
        self.metrics.index_blocks.set(index.distinct_blocks as f64);
        self.metrics.index_bytes.set(index.bytes as f64);
        self.metrics.index_speculations.set(index.speculations as f64);
        self.forget_models(router, now);
    }

    /// What says what its cache holds, and how that goes.
    fn events(&mut self, m: &ReplicaMetrics, view: &ReplicaView) {
        self.metrics.set_source(m, view.source);
        let before = self.counted.entry(view.replica).or_default();
        let now = Counted::of(view);
        if view.cached_tokens.from == Found::Counters {
            // Answers that say it are counted as they end.
            m.predicted_cached.add(now.predicted.saturating_sub(before.predicted));
            m.actual_cached.add(now.actual.saturating_sub(before.actual));
        }
        let lags = view.events.iter().filter_map(|e| e.lag_s);
        m.event_lag
            .set_known(lags.fold(None, |most: Option<f64>, lag| Some(most.map_or(lag, |m| m.max(lag)))));
        m.events.add(now.events.saturating_sub(before.events));
        m.event_gaps.add(now.gaps.saturating_sub(before.gaps));
        m.events_skipped.add(now.skipped.saturating_sub(before.skipped));
        *before = now;
    }

    fn forget_models(&mut self, router: &Router, now: Instant) {
        for name in router.model_names().iter() {
            match self.models.get_mut(name) {
                Some(seen) => *seen = now,
                None => {
                    self.models.insert(name.clone(), now);
                }
            }
        }
        self.models.retain(|name, seen| {
            let kept = now - *seen < KEPT;
            if !kept {
                self.metrics.model_gone(name);
            }
            kept
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, ReplicaSpec};
    use crate::router::{Member, ModelInfo, Page};

    #[test]
    fn unknown_stays_unknown_and_models_go_after_a_while() {
        let router = Router::new(&Config::default(), 1);
        let id = router.join(Member::new(ReplicaSpec::new("http://a:1")).unwrap()).unwrap();
        let metrics = Arc::new(Metrics::new());
        let mut gauges = Gauges::new(metrics.clone());
        let start = Instant::now();
        gauges.update(&router, start);
        let page = metrics.render();
        assert!(page.contains("homing_replica_up{replica=\"a:1\"} 0\n"), "{page}");
        assert!(page.contains("homing_replica_state{replica=\"a:1\",state=\"starting\"} 1\n"));
        assert!(!page.contains("homing_replica_waiting{"), "nothing was polled");
        router.page(id, Page { waiting: Some(3), ..Page::default() });
        router.models(id, vec![ModelInfo { id: "m".into(), parent: None, max_model_len: None }]);
        gauges.update(&router, start);
        metrics.model(Some("m")).usage(1, 1);
        let page = metrics.render();
        assert!(page.contains("homing_replica_waiting{replica=\"a:1\"} 3\n"));
        router.page(id, Page::default());
        router.leave(id);
        gauges.update(&router, start + KEPT / 2);
        assert!(metrics.render().contains("model=\"m\""));
        gauges.update(&router, start + KEPT);
        assert!(!metrics.render().contains("model=\"m\""));
    }
}
