//! What all requests to one simulated server share.

use super::conn::Control;
use super::faults::Switch;
use super::kv_events::Publisher;
use super::station::Station;
use super::{LastRequest, MockConfig, MockStats};
use crate::sim::text::Prompt;
use bytes::Bytes;
use hyper::http::request::Parts;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// Stored answers of the responses API.
const RESPONSES: usize = 256;

pub(super) struct State {
    pub(super) config: MockConfig,
    pub(super) station: Arc<Station>,
    pub(super) publisher: Option<Arc<Publisher>>,
    pub(super) faults: Switch,
    pub(super) stats: Tally,
    pub(super) control: watch::Sender<Control>,
    pub(super) ready_at: Instant,
    /// Unix time, seconds.
    pub(super) started: f64,
    responses: Mutex<VecDeque<(String, Prompt)>>,
    /// Adapters of the requests under way, with their number.
    adapters: Mutex<BTreeMap<String, u32>>,
    number: AtomicU64,
}

impl State {
    pub(super) fn new(
        config: MockConfig,
        station: Arc<Station>,
        publisher: Option<Arc<Publisher>>,
        control: watch::Sender<Control>,
    ) -> Self {
        State {
            ready_at: Instant::now() + config.startup,
            config,
            station,
            publisher,
            faults: Switch::default(),
            stats: Tally::default(),
            control,
            started: unix_now(),
            responses: Mutex::default(),
            adapters: Mutex::default(),
            number: AtomicU64::new(1),
        }
    }

    /// An id that no other request of this server has.
    pub(super) fn request_id(&self) -> String {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        format!("{:08x}{number:08x}", (self.started * 1e6) as u64 as u32)
    }

    pub(super) fn remember(&self, id: String, conversation: Prompt) {
        let mut responses = self.responses.lock();
        if responses.len() >= RESPONSES {
            responses.pop_front();
        }
        responses.push_back((id, conversation));
    }

    pub(super) fn recall(&self, id: &str) -> Option<Prompt> {
        self.responses.lock().iter().find(|(known, _)| known == id).map(|(_, prompt)| prompt.clone())
    }

    pub(super) fn adapters(&self) -> Vec<String> {
        self.adapters.lock().keys().cloned().collect()
    }
}

/// Unix time in seconds.
pub(super) fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// A request that isn't answered yet. If it never is, its client has left (or the connection was reset).
pub(super) struct Pending {
    state: Arc<State>,
    adapter: Option<String>,
    answered: bool,
}

impl Pending {
    pub(super) fn new(state: &Arc<State>, model: &str) -> Self {
        let adapter = state.config.adapters.iter().find(|a| a.name == model).map(|a| a.name.clone());
        if let Some(name) = &adapter {
            *state.adapters.lock().entry(name.clone()).or_default() += 1;
        }
        Pending { state: Arc::clone(state), adapter, answered: false }
    }

    pub(super) fn done(&mut self) {
        self.answered = true;
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.answered {
            self.state.stats.abandoned.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(name) = &self.adapter {
            let mut adapters = self.state.adapters.lock();
            match adapters.get_mut(name) {
                Some(n) if *n > 1 => *n -= 1,
                _ => drop(adapters.remove(name)),
            }
        }
    }
}

/// Counts of requests and connections.
#[derive(Default)]
pub(super) struct Tally {
    accepted: AtomicU64,
    closed: AtomicU64,
    abandoned: AtomicU64,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    requests: u64,
    by_path: BTreeMap<&'static str, u64>,
    last: Option<(Parts, Bytes)>,
}

impl Tally {
    pub(super) fn opened(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn closed(&self) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }

    /// Note a request of the engine. `path` is one of the server's own, so the table is bounded.
    pub(super) fn seen(&self, path: &'static str, parts: Parts, body: Bytes) {
        let mut seen = self.seen.lock();
        seen.requests += 1;
        *seen.by_path.entry(path).or_default() += 1;
        seen.last = Some((parts, body));
    }

    pub(super) fn last_body(&self) -> Bytes {
        self.seen.lock().last.as_ref().map(|(_, body)| body.clone()).unwrap_or_default()
    }

    pub(super) fn report(&self, state: &State) -> MockStats {
        let counters = state.station.counters();
        let seen = self.seen.lock();
        let last = seen.last.as_ref().map(|(parts, body)| LastRequest {
            method: parts.method.to_string(),
            path: parts.uri.to_string(),
            headers: parts
                .headers
                .iter()
                .map(|(k, v)| (k.to_string(), String::from_utf8_lossy(v.as_bytes()).into_owned()))
                .collect(),
            body_bytes: body.len(),
        });
        let accepted = self.accepted.load(Ordering::Relaxed);
        MockStats {
            requests: seen.requests,
            by_path: seen.by_path.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect(),
            running: counters.running,
            waiting: counters.waiting,
            finished: counters.stopped + counters.length,
            aborted: counters.aborted,
            abandoned: self.abandoned.load(Ordering::Relaxed),
            prompt_tokens: counters.cache_queries,
            cached_tokens: counters.cache_hits,
            connections_accepted: accepted,
            connections_open: accepted.saturating_sub(self.closed.load(Ordering::Relaxed)),
            last,
        }
    }
}
