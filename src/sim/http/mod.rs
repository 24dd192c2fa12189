//! A server that looks like vLLM from outside and runs the engine model inside, on a real clock.
//!
//! [`Mock::start`] puts one on the present runtime. It speaks chat, completions, responses and messages, streamed or
//! not, and vLLM's side calls and metrics; its faults can be switched while it runs, from Rust or by
//! `POST /mock/faults`. A prompt is cut into tokens of four bytes, and answers are pseudo words (see
//! [`text`](crate::sim::text)), so no model or tokenizer is needed and every server answers the same.

mod answer;
mod body;
mod conn;
mod error;
mod faults;
mod generate;
mod kv_events;
mod metrics;
mod reply;
mod serve;
mod state;
mod station;
#[cfg(test)]
mod tests;

pub use faults::{Faults, KvFaults};
pub use kv_events::KvEvents;

use crate::sim::engine::{Counters, Engine, Profile};
use bytes::Bytes;
use conn::{Control, Phase};
use serde::Serialize;
use state::State;
use station::Station;
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A LoRA adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// Name under which requests ask for it.
    pub name: String,
    /// The model that it adapts.
    pub parent: String,
}

/// How a simulated server is set up.
#[derive(Clone, Debug)]
pub struct MockConfig {
    /// Names of the model; the first labels the metrics.
    pub models: Vec<String>,
    /// Adapters that requests can ask for as well.
    pub adapters: Vec<Adapter>,
    /// Speed and size.
    pub profile: Profile,
    /// Longest prompt and answer together, tokens.
    pub max_model_len: u32,
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// If set, `/v1` wants it as a bearer token.
    pub api_key: Option<String>,
    /// Servers with the same seed give the same answers.
    pub seed: u64,
    /// Mean length of an answer that isn't cut by its limit, tokens.
    pub mean_output: u32,
    /// Does `usage` tell the cached tokens? On vLLM that is a flag.
    pub prompt_tokens_details: bool,
    /// Time from start until the server can serve.
    pub startup: Duration,
    /// Where it publishes KV events, if it does.
    pub kv_events: Option<KvEvents>,
    /// Until then: refuse connections as vLLM does (true), or accept them and answer 503.
    pub refuse_while_starting: bool,
}

impl Default for MockConfig {
    fn default() -> Self {
        MockConfig {
            models: vec!["mock".to_owned()],
            adapters: Vec::new(),
            profile: Profile {
                t0: 0.002,
                a: 1e-5,
                q: 0.0,
                d: 0.0,
                e: 0.0,
                max_batched_tokens: 8192,
                kv_tokens: 1 << 18,
                max_batch: 256,
                block_tokens: 16,
                startup: 0.0,
            },
            max_model_len: 32_768,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            api_key: None,
            seed: 0,
            mean_output: 64,
            prompt_tokens_details: true,
            startup: Duration::ZERO,
            kv_events: None,
            refuse_while_starting: false,
        }
    }
}

impl MockConfig {
    /// The defaults with another profile, and its start-up time.
    pub fn with_profile(profile: Profile) -> Self {
        let startup = Duration::try_from_secs_f64(profile.startup).unwrap_or_default();
        MockConfig { profile, startup, ..MockConfig::default() }
    }

    /// A server that takes no time: for load tests of what stands in front of it.
    pub fn instant() -> Self {
        MockConfig {
            max_model_len: 1 << 20,
            ..Profile::named("instant").map_or_else(Self::default, Self::with_profile)
        }
    }
}

/// What a server has seen, and what it does now.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MockStats {
    /// Requests to `/v1/…` (without `/v1/models`), `/tokenize` and `/score`.
    pub requests: u64,
    /// The same by path.
    pub by_path: BTreeMap<String, u64>,
    /// Requests in the engine's batch.
    pub running: u32,
    /// Requests that wait for it.
    pub waiting: u32,
    /// Requests that the engine has ended.
    pub finished: u64,
    /// Requests cancelled in the engine, because their client left.
    pub aborted: u64,
    /// Requests that were never fully answered: those, and the ones that faults held or reset.
    pub abandoned: u64,
    /// Prompt tokens of all admitted requests.
    pub prompt_tokens: u64,
    /// Those of them that were cached.
    pub cached_tokens: u64,
    /// Connections since the start.
    pub connections_accepted: u64,
    /// Connections open now.
    pub connections_open: u64,
    /// The last request.
    pub last: Option<LastRequest>,
}

/// A request as it came in.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LastRequest {
    /// Its method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Header lines in order; names are lower case.
    pub headers: Vec<(String, String)>,
    /// Length of the body.
    pub body_bytes: usize,
}

impl LastRequest {
    /// The first header of that (lower-case) name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str())
    }
}

/// A running server. Dropping it kills it.
pub struct Mock {
    addr: SocketAddr,
    state: Arc<State>,
    tasks: Vec<JoinHandle<()>>,
}

impl Mock {
    /// Start a server on the present runtime. Its address is taken when this returns, also if it refuses connections
    /// for a while.
    ///
    /// # Errors
    /// When the address can't be bound.
    pub async fn start(config: MockConfig) -> io::Result<Mock> {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(config.listen),
            socket2::Type::STREAM,
            Some(socket2::Protocol::TCP),
        )?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&config.listen.into())?;
        let addr =
            socket.local_addr()?.as_socket().ok_or_else(|| io::Error::other("not an internet address"))?;
        let wait = if config.refuse_while_starting { config.startup } else { Duration::ZERO };
        let publisher = match &config.kv_events {
            Some(events) => Some(kv_events::Publisher::start(events, config.profile.block_tokens).await?),
            None => None,
        };
        let station = Station::new(Engine::new(config.profile.clone()), publisher.clone());
        let (control, _) = watch::channel(Control { phase: Phase::Serve, close_idle_after: None });
        let state = Arc::new(State::new(config, Arc::clone(&station), publisher, control));
        // A bound socket that doesn't listen refuses connections.
        if wait.is_zero() {
            socket.listen(4096)?;
        }
        let accepting = {
            let state = Arc::clone(&state);
            async move {
                if !wait.is_zero() {
                    tokio::time::sleep(wait).await;
                    if socket.listen(4096).is_err() {
                        return;
                    }
                }
                if let Ok(listener) = tokio::net::TcpListener::from_std(socket.into()) {
                    conn::accept(listener, state).await;
                }
            }
        };
        let tasks = vec![tokio::spawn(accepting), tokio::spawn(station.run())];
        Ok(Mock { addr, state, tasks })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its base URL, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// The faults of now.
    pub fn faults(&self) -> Faults {
        self.state.faults.get()
    }

    /// Set all faults; `Faults::default()` makes it healthy.
    pub fn set_faults(&self, faults: Faults) {
        serve::set_faults(&self.state, faults);
    }

    /// What it has seen.
    pub fn stats(&self) -> MockStats {
        self.state.stats.report(&self.state)
    }

    /// The engine's counters.
    pub fn counters(&self) -> Counters {
        self.state.station.counters()
    }

    /// Body of the last request, byte for byte.
    pub fn last_body(&self) -> Bytes {
        self.state.stats.last_body()
    }

    /// Where its KV events are published, and where it answers for earlier ones.
    pub fn kv_endpoints(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.state.publisher.as_ref().map(|publisher| publisher.endpoints())
    }

    /// Tokens of this prompt that its cache holds now.
    pub fn cached(&self, prompt: &crate::sim::text::Prompt, model: &str, salt: Option<&str>) -> u32 {
        let block = self.state.config.profile.block_tokens;
        let chain = prompt.chain(crate::sim::text::root(model, salt), "", block);
        self.state.station.with(|_, engine| engine.holds(&chain))
    }

    /// Lose all cached content.
    pub fn clear_cache(&self) {
        self.state.station.with(|now, engine| engine.clear_cache(now));
    }

    /// Die: all connections are reset and the port is closed.
    pub fn kill(&self) {
        self.end(Phase::Kill);
        if let Some(publisher) = &self.state.publisher {
            publisher.stop();
        }
        // The listening socket goes with its task.
        if let Some(accepting) = self.tasks.first() {
            accepting.abort();
        }
    }

    /// End in good order: answer what has begun (for up to `grace`), accept nothing new.
    pub async fn stop(&self, grace: Duration) {
        self.end(Phase::Drain);
        let deadline = tokio::time::Instant::now() + grace;
        while self.stats().connections_open > 0 && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.kill();
    }

    /// Run until the task is cancelled: for a process that is nothing but this server.
    pub async fn wait(&self) {
        std::future::pending::<()>().await;
    }

    fn end(&self, phase: Phase) {
        self.state.control.send_modify(|control| control.phase = phase);
    }
}

impl Drop for Mock {
    fn drop(&mut self) {
        self.kill();
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
