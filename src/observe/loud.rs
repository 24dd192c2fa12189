//! Degradations are loud: a metric that stays up while they last, and one log line when they begin and one when they end.
//! Never one line a request.

use super::cells::Gauge;
use super::metrics::Metrics;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Hands out flags. `homing_degraded{replica,what}` is their metric.
#[derive(Clone, Debug)]
pub struct Loud {
    metrics: Arc<Metrics>,
}

/// One thing that can be degraded, of one replica or (with an empty name) of the router. Asking and setting what is
/// already so costs one atomic read.
#[derive(Debug)]
pub struct Flag {
    what: &'static str,
    replica: String,
    on: AtomicBool,
    gauge: Gauge,
}

impl Loud {
    /// Flags that show in `metrics`.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Loud { metrics }
    }

    /// A flag, not raised. `what` is a word or two for the label, like `metrics_stale`.
    pub fn flag(&self, what: &'static str, replica: &str) -> Flag {
        Flag {
            what,
            replica: replica.to_owned(),
            on: AtomicBool::new(false),
            gauge: self.metrics.degraded(replica, what),
        }
    }
}

impl Flag {
    /// The degradation is there; `detail` is asked only if that is news. Tells whether it was.
    pub fn raise<D: std::fmt::Display>(&self, detail: impl FnOnce() -> D) -> bool {
        let news = !self.on.load(Relaxed) && !self.on.swap(true, Relaxed);
        if news {
            self.gauge.set(1.0);
            let detail = detail();
            tracing::warn!(replica = %self.replica, what = self.what, "degraded: {detail}");
        }
        news
    }

    /// It is over. Tells whether that is news.
    pub fn clear(&self) -> bool {
        let news = self.on.load(Relaxed) && self.on.swap(false, Relaxed);
        if news {
            self.gauge.set(0.0);
            tracing::info!(replica = %self.replica, what = self.what, "recovered");
        }
        news
    }

    /// Is it degraded now?
    pub fn is_raised(&self) -> bool {
        self.on.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_are_told() {
        let metrics = Arc::new(Metrics::new());
        metrics.replica("a");
        let flag = Loud::new(metrics.clone()).flag("metrics_stale", "a");
        let series = "homing_degraded{replica=\"a\",what=\"metrics_stale\"}";
        assert!(!metrics.render().contains(series), "a flag that was never raised is no series");
        assert!(!flag.clear());
        let asked = std::cell::Cell::new(0);
        let detail = || {
            asked.set(asked.get() + 1);
            "no answer"
        };
        assert!(flag.raise(detail));
        for _ in 0..1000 {
            assert!(!flag.raise(detail));
        }
        assert_eq!(asked.get(), 1);
        assert!(metrics.render().contains(&format!("{series} 1\n")));
        assert!(flag.clear() && !flag.clear() && !flag.is_raised());
        assert!(metrics.render().contains(&format!("{series} 0\n")));
        metrics.replica_gone("a");
        assert!(!metrics.render().contains(series));
    }
}
