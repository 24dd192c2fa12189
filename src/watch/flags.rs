//! What can be degraded of one replica, and when that is worth telling.

use crate::observe::{Flag, Loud};

/// Pages in a row that must be missing before it is told: one lost page is nothing.
const MISSING_AFTER: u32 = 3;

/// The flags of one replica.
pub(super) struct Flags {
    metrics: Flag,
    models: Flag,
    capacity: Flag,
    missing: u32,
}

impl Flags {
    pub(super) fn new(loud: &Loud, replica: &str) -> Self {
        Flags {
            metrics: loud.flag("metrics_missing", replica),
            models: loud.flag("models_unknown", replica),
            capacity: loud.flag("capacity_unknown", replica),
            missing: 0,
        }
    }

    /// A page came. `capacity`: is it known how much the cache holds?
    pub(super) fn page(&mut self, capacity: bool) {
        self.missing = 0;
        self.metrics.clear();
        if capacity {
            self.capacity.clear();
        } else {
            self.capacity.raise(|| {
                "neither the metrics page nor the configuration (`kv_tokens`) says how much the cache holds; \
                 what leaves it goes unnoticed"
            });
        }
    }

    /// No page came, or nothing on it was understood. True once it has been so often that nothing it said holds.
    pub(super) fn no_page(&mut self, why: &str) -> bool {
        self.missing = self.missing.saturating_add(1);
        if self.missing < MISSING_AFTER {
            return false;
        }
        let n = self.missing;
        self.metrics.raise(|| format!("no metrics page {n} times in a row ({why}); its load is unknown"));
        true
    }

    /// The list of models came.
    pub(super) fn models(&self) {
        self.models.clear();
    }

    /// It didn't. `ever`: did it before?
    pub(super) fn no_models(&self, why: &str, ever: bool) {
        let then = if ever { "the last list holds" } else { "it is taken to serve every model" };
        self.models.raise(|| format!("`/v1/models` failed ({why}); {then}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::Metrics;
    use std::sync::Arc;

    #[test]
    fn three_missing_pages_are_told_once_and_over_with_the_first_good_one() {
        let loud = Loud::new(Arc::new(Metrics::new()));
        let mut flags = Flags::new(&loud, "a");
        assert!(!flags.no_page("x") && !flags.no_page("x"));
        assert!(loud.degradations().is_empty());
        assert!(flags.no_page("HTTP 404") && flags.no_page("y"));
        let list = loud.degradations();
        assert_eq!((list.len(), list[0].what), (1, "metrics_missing"));
        assert!(list[0].detail.contains("HTTP 404"));
        flags.page(true);
        assert!(loud.degradations().is_empty());
        flags.page(false);
        assert_eq!(loud.degradations()[0].what, "capacity_unknown");
        flags.page(true);
        flags.no_models("x", false);
        assert!(loud.degradations()[0].detail.contains("every model"));
        drop(flags);
        assert!(loud.degradations().is_empty());
    }
}
