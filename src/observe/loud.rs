//! Degradations are loud: a metric that stays up while they last, and one log line when they begin and one when they end.
//! Never one line a request.

use super::cells::Gauge;
use super::metrics::Metrics;
use parking_lot::Mutex;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Hands out flags and knows which of them are raised. `homing_degraded{replica,what}` is their metric.
#[derive(Clone, Debug)]
pub struct Loud {
    metrics: Arc<Metrics>,
    raised: Arc<Mutex<Vec<Degradation>>>,
}

/// A degradation that lasts, for the admin port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Degradation {
    /// Name of the replica; empty for the router itself.
    pub replica: String,
    /// The word or two of the label.
    pub what: &'static str,
    /// What was told when it began.
    pub detail: String,
}

/// One thing that can be degraded, of one replica or (with an empty name) of the router. Asking and setting what is
/// already so costs one atomic read.
#[derive(Debug)]
pub struct Flag {
    what: &'static str,
    replica: String,
    on: AtomicBool,
    gauge: Gauge,
    raised: Arc<Mutex<Vec<Degradation>>>,
}

impl Loud {
    /// Flags that show in `metrics`.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Loud { metrics, raised: Arc::default() }
    }

    /// What is degraded now, in the order in which it began.
    pub fn degradations(&self) -> Vec<Degradation> {
        self.raised.lock().clone()
    }

    /// A flag, not raised. `what` is a word or two for the label, like `metrics_stale`.
    pub fn flag(&self, what: &'static str, replica: &str) -> Flag {
        Flag {
            what,
            replica: replica.to_owned(),
            on: AtomicBool::new(false),
            gauge: self.metrics.degraded(replica, what),
            raised: self.raised.clone(),
        }
    }
}

impl Flag {
    /// The degradation is there; `detail` is asked only if that is news. Tells whether it was.
    pub fn raise<D: std::fmt::Display>(&self, detail: impl FnOnce() -> D) -> bool {
        let news = !self.on.load(Relaxed) && !self.on.swap(true, Relaxed);
        if news {
            self.gauge.set(1.0);
            let detail = detail().to_string();
            self.raised.lock().push(Degradation {
                replica: self.replica.clone(),
                what: self.what,
                detail: detail.clone(),
            });
            tracing::warn!(replica = %self.replica, what = self.what, "degraded: {detail}");
        }
        news
    }

    /// It is over. Tells whether that is news.
    pub fn clear(&self) -> bool {
        let news = self.on.load(Relaxed) && self.on.swap(false, Relaxed);
        if news {
            self.gauge.set(0.0);
            self.forget();
            tracing::info!(replica = %self.replica, what = self.what, "recovered");
        }
        news
    }

    /// Is it degraded now?
    pub fn is_raised(&self) -> bool {
        self.on.load(Relaxed)
    }

    fn forget(&self) {
        let mut raised = self.raised.lock();
        if let Some(at) = raised.iter().position(|d| d.what == self.what && d.replica == self.replica) {
            raised.remove(at);
        }
    }
}

/// A replica that left, or a part that stopped, isn't degraded any more.
impl Drop for Flag {
    fn drop(&mut self) {
        if self.is_raised() {
            self.gauge.set(0.0);
            self.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_are_told() {
        let metrics = Arc::new(Metrics::new());
        metrics.replica("a");
        let loud = Loud::new(metrics.clone());
        let flag = loud.flag("metrics_stale", "a");
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
        flag.raise(|| "again");
        metrics.replica_gone("a");
        assert!(!metrics.render().contains(series));
    }

    #[test]
    fn what_lasts_is_listed_and_goes_with_its_flag() {
        let loud = Loud::new(Arc::new(Metrics::new()));
        let (a, router) = (loud.flag("metrics_stale", "a"), loud.flag("replica_file", ""));
        assert!(loud.degradations().is_empty());
        a.raise(|| "no answer");
        router.raise(|| "gone");
        a.raise(|| "told once only");
        let list = loud.degradations();
        assert_eq!(
            (list[0].replica.as_str(), list[0].what, list[0].detail.as_str()),
            ("a", "metrics_stale", "no answer")
        );
        assert_eq!(list.len(), 2);
        router.clear();
        drop(a);
        assert!(loud.degradations().is_empty());
    }
}
