//! Where replicas publish what their KV caches hold.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// KV events of a replica. With them (and the model's tokenizer) it is known, not estimated, what its cache holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventsSpec {
    /// Where the engine publishes: `tcp://{host}:5557`. `{host}` and `{port}` are the replica's own.
    pub endpoint: String,
    /// Where it answers for what it has published before (vLLM: `replay_endpoint`). Without it a router that starts
    /// later than the engine, or loses a message, has to learn from answers what it missed.
    #[serde(default)]
    pub replay: Option<String>,
    /// Only messages whose topic begins with this; empty: all. `{host}` and `{port}` as above.
    #[serde(default)]
    pub topic: String,
    /// The engine connects to `endpoint`, and the router listens there. vLLM does that when its endpoint names a host
    /// instead of `*`.
    #[serde(default)]
    pub bind: bool,
    /// Data-parallel ranks behind this replica, each with a publisher of its own.
    #[serde(default = "one_u32")]
    pub ranks: u32,
    /// Ports from one rank's endpoints to the next one's.
    #[serde(default = "one_u16")]
    pub rank_stride: u16,
    /// While something is missing: ask vLLM with one request in eight to announce again what it finds cached
    /// (`vllm_xargs: {"kv_cache_report_mode": "full"}` is added to the body). Only where `engine` is `vllm`, or is found
    /// to be.
    #[serde(default = "yes")]
    pub reports: bool,
}

fn one_u32() -> u32 {
    1
}

fn one_u16() -> u16 {
    1
}

fn yes() -> bool {
    true
}

impl EventsSpec {
    /// Events at one endpoint, defaults for the rest.
    pub fn at(endpoint: impl Into<String>) -> Self {
        EventsSpec {
            endpoint: endpoint.into(),
            replay: None,
            topic: String::new(),
            bind: false,
            ranks: 1,
            rank_stride: 1,
            reports: true,
        }
    }

    /// What is wrong with it: the key, and why.
    pub fn problems(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        let mut check = |key, text: &str| {
            let filled = text.replace("{host}", "host").replace("{port}", "1");
            let port = filled.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
            if !filled.starts_with("tcp://") || port.is_none() || filled.len() < 9 {
                found.push((key, format!("{text:?} isn't an endpoint: write tcp://{{host}}:5557")));
            } else if port == Some(0) {
                found.push((key, format!("{text:?} has no port: give the engine a fixed one")));
            }
        };
        check("endpoint", &self.endpoint);
        if let Some(replay) = &self.replay {
            check("replay", replay);
        }
        if !(1..=64).contains(&self.ranks) {
            found.push(("ranks", format!("{} ranks: from 1 to 64", self.ranks)));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_checked() {
        let of = |text: &str| EventsSpec::at(text).problems().len();
        assert_eq!((of("tcp://{host}:5557"), of("tcp://*:5557"), of("tcp://[::1]:{port}")), (0, 0, 0));
        assert_eq!((of("{host}:5557"), of("tcp://{host}"), of("tcp://*:0")), (1, 1, 1));
        assert_eq!(EventsSpec { ranks: 0, ..EventsSpec::at("tcp://a:1") }.problems()[0].0, "ranks");
    }
}
