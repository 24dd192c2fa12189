//! The root of the configuration, and the replicas.

use super::discovery::{Dns, Kubernetes};
use super::events::EventsSpec;
use super::extproc::ExtProc;
use super::lanes::Lanes;
use super::resume::{Hedge, Resume};
use super::secret::Secret;
use super::sections::{Drain, Health, Index, Limits, Log, Poll, Price, Queue, Retry, Timeouts};
use super::snapshot::Snapshot;
use super::speed::Speed;
use super::tokenizer::Tokenizer;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// Everything that can be configured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where clients come in.
    pub listen: SocketAddr,
    /// Health and metrics, for probes and Prometheus.
    pub metrics: SocketAddr,
    /// Admin: explain, drain, the running configuration. Null: none.
    pub admin: Option<SocketAddr>,
    /// File with the bearer token that the admin port asks for; needed when it isn't on loopback.
    pub admin_token_file: Option<PathBuf>,
    /// The token itself, as read from the file.
    #[serde(skip_deserializing)]
    #[schemars(skip)]
    pub admin_token: Option<Secret>,
    /// The endpoint picker for gateways built on Envoy.
    pub extproc: ExtProc,
    /// The replicas.
    pub replicas: Vec<ReplicaSpec>,
    /// A YAML or JSON file with a list of replicas, watched: they join and leave as it changes.
    pub replica_file: Option<PathBuf>,
    /// Replicas found in a Kubernetes cluster; null: none.
    pub kubernetes: Option<Kubernetes>,
    /// Replicas found in DNS.
    pub dns: Dns,
    /// What holds for each replica that doesn't say otherwise.
    pub replica_defaults: ReplicaDefaults,
    /// The speeds assumed before anything was measured.
    pub speed: Speed,
    /// Weights of the price of a placement.
    pub price: Price,
    /// The index of who holds which prefix.
    pub index: Index,
    /// Token ids of prompts, for exact prefixes.
    pub tokenizer: Tokenizer,
    /// Requests that wait for room.
    pub queue: Queue,
    /// In which order they wait, and where.
    pub lanes: Lanes,
    /// What clients may send, and how slowly.
    pub limits: Limits,
    /// How long to wait for a replica.
    pub timeouts: Timeouts,
    /// Trying another replica.
    pub retry: Retry,
    /// Continuing a stream on another replica when its own dies.
    pub resume: Resume,
    /// Asking a second replica when the first is slow to begin.
    pub hedge: Hedge,
    /// Asking replicas whether they live.
    pub health: Health,
    /// Reading the replicas' metrics.
    pub poll: Poll,
    /// Stopping without cutting anybody off.
    pub drain: Drain,
    /// The logs.
    pub log: Log,
    /// What outlives the process.
    pub snapshot: Snapshot,
    /// Threads that move bytes; null: as many as cores.
    pub workers: Option<usize>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: (Ipv4Addr::UNSPECIFIED, 8080).into(),
            metrics: (Ipv4Addr::UNSPECIFIED, 9090).into(),
            admin: Some((Ipv4Addr::LOCALHOST, 9091).into()),
            admin_token_file: None,
            admin_token: None,
            extproc: ExtProc::default(),
            replicas: Vec::new(),
            replica_file: None,
            kubernetes: None,
            dns: Dns::default(),
            replica_defaults: ReplicaDefaults::default(),
            speed: Speed::default(),
            price: Price::default(),
            index: Index::default(),
            tokenizer: Tokenizer::default(),
            queue: Queue::default(),
            lanes: Lanes::default(),
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            retry: Retry::default(),
            resume: Resume::default(),
            hedge: Hedge::default(),
            health: Health::default(),
            poll: Poll::default(),
            drain: Drain::default(),
            log: Log::default(),
            snapshot: Snapshot::default(),
            workers: None,
        }
    }
}

/// Which model server a replica runs: decides how its metrics are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// Told by the names on its metrics page.
    #[default]
    Auto,
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM's own server (`trtllm-serve`).
    Trtllm,
    /// llama.cpp's server.
    Llamacpp,
}

/// One replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicaSpec {
    /// Base URL, `http://host:port`, with a path before `/v1` if it has one.
    pub url: String,
    /// Name in metrics and logs; by default the URL without its scheme.
    #[serde(default)]
    pub name: Option<String>,
    /// Key sent as `Authorization: Bearer`, with requests and polls.
    #[serde(default)]
    pub api_key: Option<Secret>,
    /// File with that key.
    #[serde(default)]
    pub api_key_file: Option<PathBuf>,
    /// Most requests in flight; null: learned.
    #[serde(default)]
    pub max_in_flight: Option<u32>,
    /// Which model server it is.
    #[serde(default)]
    pub engine: Option<EngineKind>,
    /// KV capacity in tokens; null: as its metrics say.
    #[serde(default)]
    pub kv_tokens: Option<u64>,
    /// Models served; null: as its `/v1/models` says.
    #[serde(default)]
    pub models: Option<Vec<String>>,
    /// Where it publishes KV events; null: nowhere that the router should listen.
    #[serde(default)]
    pub events: Option<EventsSpec>,
    /// Headers added to each request and poll. Values are never printed.
    #[serde(default)]
    pub headers: BTreeMap<String, Secret>,
}

/// What holds for each replica that doesn't say otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ReplicaDefaults {
    /// File with the key sent as `Authorization: Bearer`.
    pub api_key_file: Option<PathBuf>,
    /// The key itself, as read from the file.
    #[serde(skip_deserializing)]
    #[schemars(skip)]
    pub api_key: Option<Secret>,
    /// Most requests in flight; null: learned.
    pub max_in_flight: Option<u32>,
    /// KV capacity in tokens; null: as the metrics say.
    pub kv_tokens: Option<u64>,
    /// Which model server they are.
    pub engine: EngineKind,
    /// Where they publish KV events; null: nowhere that the router should listen.
    pub events: Option<EventsSpec>,
}

impl ReplicaSpec {
    /// A replica of which only the URL is known.
    pub fn new(url: impl Into<String>) -> Self {
        ReplicaSpec {
            url: url.into(),
            name: None,
            api_key: None,
            api_key_file: None,
            max_in_flight: None,
            engine: None,
            kv_tokens: None,
            models: None,
            events: None,
            headers: BTreeMap::new(),
        }
    }

    /// Name in metrics and logs: the given one, or the URL without its scheme and trailing slash.
    pub fn label(&self) -> &str {
        match &self.name {
            Some(name) => name,
            None => {
                self.url.split_once("://").map_or(self.url.as_str(), |(_, rest)| rest).trim_end_matches('/')
            }
        }
    }

    /// This replica with the gaps filled from `defaults`. Discovery calls it on each replica it finds.
    #[must_use]
    pub fn with_defaults(mut self, defaults: &ReplicaDefaults) -> Self {
        self.api_key = self.api_key.or_else(|| defaults.api_key.clone());
        self.max_in_flight = self.max_in_flight.or(defaults.max_in_flight);
        self.kv_tokens = self.kv_tokens.or(defaults.kv_tokens);
        self.engine = self.engine.or(Some(defaults.engine));
        self.events = self.events.or_else(|| defaults.events.clone());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_is_named_after_its_url() {
        assert_eq!(ReplicaSpec::new("http://10.0.0.1:8000/base/").label(), "10.0.0.1:8000/base");
        let named = ReplicaSpec { name: Some("a".into()), ..ReplicaSpec::new("http://x") };
        assert_eq!(named.label(), "a");
    }

    #[test]
    fn defaults_fill_only_the_gaps() {
        let defaults = ReplicaDefaults {
            api_key: Some(Secret::new("k")),
            max_in_flight: Some(8),
            engine: EngineKind::Vllm,
            ..ReplicaDefaults::default()
        };
        let r =
            ReplicaSpec { max_in_flight: Some(2), ..ReplicaSpec::new("http://x") }.with_defaults(&defaults);
        assert_eq!(r.max_in_flight, Some(2));
        assert_eq!(r.api_key, Some(Secret::new("k")));
        assert_eq!(r.engine, Some(EngineKind::Vllm));
    }
}
