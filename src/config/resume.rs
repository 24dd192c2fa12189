//! Continuing broken streams, and asking a second replica in time.

use super::units::{Seconds, Size};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Continuing a stream on another replica when its own dies. Off unless asked for: it costs the engines a few bytes
/// with each token, and the router some memory for each stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Resume {
    /// Continue broken streams.
    pub enabled: bool,
    /// Only those of these models; null: of all.
    pub models: Option<Vec<String>>,
    /// Most bytes remembered of one stream: four for each token of prompt and answer. A longer one goes on, but can't be
    /// continued any more.
    pub max_bytes: Size,
    /// Most bytes remembered of all streams together.
    pub total_bytes: Size,
    /// How long a replica that can continue is looked for; then the stream ends with an error event.
    pub within: Seconds,
}

impl Default for Resume {
    fn default() -> Self {
        Resume {
            enabled: false,
            models: None,
            // 262,144 tokens: the longest contexts in common use.
            max_bytes: Size::bytes(1 << 20),
            total_bytes: Size::bytes(256 << 20),
            within: Seconds::from_secs(30),
        }
    }
}

impl Resume {
    /// Is a stream of `model` to be continued?
    pub fn covers(&self, model: Option<&str>) -> bool {
        let listed = |list: &Vec<String>| model.is_some_and(|m| list.iter().any(|l| l == m));
        self.enabled && self.models.as_ref().is_none_or(listed)
    }
}

/// Asking a second replica when the first is slow to begin. The first to answer wins, the other is given up. Off unless
/// one of the delays is set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Hedge {
    /// Ask a second one after this long.
    pub after: Option<Seconds>,
    /// Or after as long as this share of first tokens took (0.95: one in twenty is asked for twice), by the router's own
    /// measure of the last minutes. With both set, the longer one.
    pub quantile: Option<f64>,
    /// Second requests, as a share of requests.
    pub budget: f64,
}

impl Default for Hedge {
    fn default() -> Self {
        Hedge { after: None, quantile: None, budget: 0.05 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_narrow_it_down() {
        let on = Resume { enabled: true, ..Resume::default() };
        assert!(!Resume::default().covers(Some("a")));
        assert!(on.covers(Some("a")) && on.covers(None));
        let some = Resume { models: Some(vec!["a".into()]), ..on };
        assert!(some.covers(Some("a")) && !some.covers(Some("b")) && !some.covers(None));
    }
}
