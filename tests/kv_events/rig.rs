//! A router that follows the KV events of simulated replicas, and what both sides say of the caches.

use homing::config::{Config, EventsSpec, ReplicaSpec, Seconds};
use homing::core::prefix::{Matches, Root, TokenChain};
use homing::core::{Outcome, ReplicaId};
use homing::discovery::{Discovery, EVERY};
use homing::observe::{Loud, Metrics};
use homing::router::{Ask, ReplicaView, Router, TokenPrompt};
use homing::sim::http::{Faults, KvEvents, KvFaults, Mock, MockConfig};
use homing::sim::text::Prompt;
use homing::watch::Watch;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) const BLOCK: u32 = 16;

/// The threads that watch; dropped in order.
pub(crate) struct Rig {
    pub(crate) router: Arc<Router>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) loud: Loud,
    _parts: (Watch, Discovery),
}

/// A replica that publishes; its cache is small, so that there is something to remove.
pub(crate) fn small(kv_tokens: u64) -> MockConfig {
    let mut config =
        MockConfig { kv_events: Some(KvEvents::default()), mean_output: 24, ..MockConfig::default() };
    config.profile.kv_tokens = kv_tokens;
    config.profile.t0 = 0.0005;
    config
}

pub(crate) fn spec(mock: &Mock) -> ReplicaSpec {
    let (events, replay) = mock.kv_endpoints().unwrap();
    let events =
        EventsSpec { replay: Some(format!("tcp://{replay}")), ..EventsSpec::at(format!("tcp://{events}")) };
    ReplicaSpec { events: Some(events), ..ReplicaSpec::new(mock.url()) }
}

impl Rig {
    pub(crate) fn new(replicas: Vec<ReplicaSpec>) -> Rig {
        let mut config = Config { replicas, ..Config::default() };
        config.health.interval = Seconds::from_millis(50);
        config.poll.interval = Seconds::from_millis(50);
        let router = Router::new(&config, 1);
        let metrics = Arc::new(Metrics::new());
        let loud = Loud::new(metrics.clone());
        let discovery = Discovery::start(&config, router.clone(), &loud, EVERY).unwrap();
        let watch = Watch::start(&config, router.clone(), metrics.clone(), loud.clone()).unwrap();
        Rig { router, metrics, loud, _parts: (watch, discovery) }
    }

    pub(crate) fn view(&self, at: usize) -> ReplicaView {
        self.router.replicas()[at].clone()
    }

    /// Tokens of this prompt that the replica is believed to have.
    pub(crate) fn believed(&self, replica: ReplicaId, prompt: &Prompt, salt: Option<&str>) -> u32 {
        let keys = Root { model: "mock", lora: None, cache_salt: salt };
        let mut chain = TokenChain::new(self.router.chain_seed(), BLOCK, &keys);
        chain.extend(&prompt.ids());
        let mut out = Matches::new();
        self.router.with_exact(|index| index.matches(chain.hashes(), &mut out));
        out.get(replica.slot) * BLOCK
    }

    /// Waits until what is believed of the replica is what it has, for all of these prompts.
    pub(crate) async fn agrees(&self, at: usize, mock: &Mock, prompts: &[String]) {
        self.agrees_within(at, mock, prompts, Duration::from_secs(20)).await;
    }

    pub(crate) async fn agrees_within(&self, at: usize, mock: &Mock, prompts: &[String], limit: Duration) {
        let mut last = None;
        let equal = until(limit, || {
            let replica = self.view(at).replica;
            last = prompts.iter().find_map(|text| {
                let prompt = Prompt::plain(text);
                let (has, believed) =
                    (mock.cached(&prompt, "mock", None), self.believed(replica, &prompt, None));
                (has != believed).then_some((has, believed))
            });
            last.is_none()
        });
        assert!(equal.await, "has and is believed to have: {last:?}; {:?}", self.view(at).events);
    }

    pub(crate) async fn source(&self, at: usize, source: &str) {
        let there = until(Duration::from_secs(20), || {
            self.router.replicas().get(at).is_some_and(|v| v.source == source)
        });
        assert!(there.await, "{:?}", self.view(at));
    }

    /// What a door would ask for this prompt.
    pub(crate) fn ask(&self, text: &str) -> Ask {
        let ids = Prompt::plain(text).ids();
        let keys = Root { model: "mock", lora: None, cache_salt: None };
        let mut chain = TokenChain::new(self.router.chain_seed(), BLOCK, &keys);
        chain.extend(&ids);
        let tokens = TokenPrompt {
            head: chain.head().0,
            tokens: u32::try_from(ids.len()).unwrap(),
            block: BLOCK,
            chain: chain.into_hashes().into(),
        };
        Ask { choices: 1, generates: true, streams: true, tokens: Some(tokens), ..Ask::default() }
    }

    /// A request with this prompt, through the router: placed, sent, ended, as the proxy does it.
    pub(crate) async fn through(&self, mocks: &[&Mock], text: &str) -> (u32, u32) {
        let ask = self.ask(text);
        let mut reservation = self.router.place(&ask).await.ok().unwrap();
        let port = reservation.endpoint().unwrap().port;
        let mock = mocks.iter().find(|mock| mock.addr().port() == port).unwrap();
        let report = reservation.endpoint().unwrap().wants_report();
        let usage = complete(mock.addr(), text, report).await;
        reservation.first_token();
        let predicted = reservation.predicted_cached();
        reservation.finish(Outcome {
            prompt_tokens: Some(usage.0),
            cached_tokens: Some(usage.1),
            output_tokens: Some(usage.2),
        });
        (predicted, usage.1)
    }
}

pub(crate) async fn until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let end = tokio::time::Instant::now() + limit;
    while !done() {
        if tokio::time::Instant::now() > end {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    true
}

/// A completion; prompt, cached and output tokens, as the answer's usage says.
pub(crate) async fn complete(at: SocketAddr, text: &str, report: bool) -> (u32, u32, u32) {
    let mut body = json!({"model": "mock", "prompt": text, "max_tokens": 8});
    if report {
        body["vllm_xargs"] = json!({"kv_cache_report_mode": "full"});
    }
    let body = body.to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let value: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    let n = |value: &Value| u32::try_from(value.as_u64().unwrap_or_default()).unwrap();
    let usage = &value["usage"];
    (
        n(&usage["prompt_tokens"]),
        n(&usage["prompt_tokens_details"]["cached_tokens"]),
        n(&usage["completion_tokens"]),
    )
}

/// Prompts of conversations that share beginnings.
pub(crate) fn prompts(n: usize, seed: u64) -> Vec<String> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..n)
        .map(|_| {
            let mut text = format!("System prompt number {}. ", rng.u32(0..3)).repeat(8);
            for _ in 0..rng.usize(1..6) {
                text += &format!("Then somebody said {} and so on. ", rng.u32(0..4)).repeat(3);
            }
            text
        })
        .collect()
}

pub(crate) async fn load(mock: &Mock, prompts: &[String]) {
    for prompt in prompts {
        complete(mock.addr(), prompt, false).await;
    }
}

pub(crate) fn faults(mock: &Mock, kv: KvFaults) {
    mock.set_faults(Faults { kv, ..Faults::default() });
}

/// Posts a completion; the answer isn't looked at.
pub(crate) async fn post(at: SocketAddr, body: &str) {
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await.unwrap();
    stream.read_to_string(&mut String::new()).await.unwrap();
}
