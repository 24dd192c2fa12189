//! Cached tokens of one replica: what was predicted, and what was found.
//!
//! The engine's answer says how many tokens it found (`usage`, if it is set up to). Where it doesn't, its counters of
//! prefix-cache hits say it for all requests together, those of other routers included.

use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Where the found tokens are known from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// Nothing is known yet.
    #[default]
    Unknown,
    /// From the answers.
    Usage,
    /// From the engine's counters.
    Counters,
}

/// Totals of one replica, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CachedTokens {
    /// Predicted for the requests whose outcome is known.
    pub predicted: u64,
    /// Found by the engine.
    pub actual: u64,
    /// How that is known.
    pub from: Found,
}

#[derive(Debug, Default)]
pub(super) struct Cached {
    predicted: AtomicU64,
    predicted_known: AtomicU64,
    actual_known: AtomicU64,
    answers: AtomicU64,
    hits: AtomicU64,
    counted: AtomicU64,
}

impl Cached {
    /// A request has ended for which `predicted` tokens were expected; `actual`, if its answer said.
    pub(super) fn ended(&self, predicted: u32, actual: Option<u32>) {
        self.predicted.fetch_add(predicted.into(), Relaxed);
        if let Some(actual) = actual {
            self.predicted_known.fetch_add(predicted.into(), Relaxed);
            self.actual_known.fetch_add(actual.into(), Relaxed);
            self.answers.fetch_add(1, Relaxed);
        }
    }

    /// The engine's counter has grown by so many tokens.
    pub(super) fn hits(&self, tokens: u64) {
        self.hits.fetch_add(tokens, Relaxed);
        self.counted.fetch_add(1, Relaxed);
    }

    /// The totals.
    pub(super) fn totals(&self) -> CachedTokens {
        if self.answers.load(Relaxed) > 0 {
            let (predicted, actual) = (self.predicted_known.load(Relaxed), self.actual_known.load(Relaxed));
            return CachedTokens { predicted, actual, from: Found::Usage };
        }
        if self.counted.load(Relaxed) > 0 {
            let (predicted, actual) = (self.predicted.load(Relaxed), self.hits.load(Relaxed));
            return CachedTokens { predicted, actual, from: Found::Counters };
        }
        CachedTokens { predicted: self.predicted.load(Relaxed), ..CachedTokens::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_believed_before_counters() {
        let cached = Cached::default();
        cached.ended(100, None);
        assert_eq!(cached.totals(), CachedTokens { predicted: 100, actual: 0, from: Found::Unknown });
        cached.hits(80);
        assert_eq!(cached.totals(), CachedTokens { predicted: 100, actual: 80, from: Found::Counters });
        cached.ended(50, Some(48));
        assert_eq!(cached.totals(), CachedTokens { predicted: 50, actual: 48, from: Found::Usage });
    }
}
