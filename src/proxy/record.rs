//! What is known of one request, told once when it ends, whichever way it ends.
//!
//! The record travels with the request: handler, then the answer's body. Dropped without an ending it means that the
//! client has left, because nobody but the client's connection drops a request before its end.

use super::headers::EXPLAIN;
use super::io::{Client, InFlight};
use super::request_id;
use super::steer;
use super::watch::Watch;
use super::worker::Worker;
use crate::observe::{AccessLine, Blocks, Metrics, ModelMetrics, ReplicaMetrics, now_unix};
use crate::openai::{ErrorShape, Kind, Problem, Source, Usage};
use crate::router::{Ask, Reservation};
use bytes::Bytes;
use hyper::Request;
use hyper::header::{HeaderMap, HeaderValue};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A whole answer with a status below 400.
    Ok,
    /// The replica refused the request (4xx): the client has to change it.
    Refused,
    /// The replica answered with an error, by status or inside a whole answer.
    ReplicaError,
    /// The replica broke off in the middle of its answer.
    CutOff,
    /// A stream fell silent.
    Timeout,
    /// The client took nothing of its answer for too long.
    Stalled,
    /// The router said no.
    Problem(Kind),
}

impl Ending {
    /// Outcome and reason, as metrics and the access log name them.
    pub fn labels(self) -> (&'static str, &'static str) {
        match self {
            Ending::Ok => ("ok", "ok"),
            Ending::Refused => ("client_error", "replica_4xx"),
            Ending::ReplicaError => ("failed", "replica_error"),
            Ending::CutOff => ("failed", "cut_off"),
            Ending::Timeout => ("failed", "stream_idle"),
            Ending::Stalled => ("cancelled", "client_stalled"),
            Ending::Problem(kind @ (Kind::NoCapacity | Kind::NotReady | Kind::Quota | Kind::Deadline)) => {
                ("rejected", kind.as_label())
            }
            Ending::Problem(kind) => match Problem::new(kind, "").source {
                Source::Client => ("client_error", kind.as_label()),
                Source::Router | Source::Replica => ("failed", kind.as_label()),
            },
        }
    }
}

/// What is known of one request.
pub(super) struct Record {
    pub(super) worker: Rc<Worker>,
    in_flight: InFlight,
    started: Instant,
    ending: Option<Ending>,
    /// Kept from the client or made here.
    pub(super) request_id: HeaderValue,
    /// In whose shape errors are told.
    pub(super) errors: ErrorShape,
    /// Which endpoint of the API; a fixed set of names.
    pub(super) route: &'static str,
    /// Is it one of those that generate?
    pub(super) generates: bool,
    /// Does the client speak HTTP/1?
    pub(super) http1: bool,
    /// Is the client told how its request was placed?
    pub(super) explain: bool,
    /// The model asked for, if there is one of that name.
    pub(super) model: Option<String>,
    pub(super) streamed: bool,
    pub(super) status: u16,
    pub(super) attempts: u32,
    pub(super) bytes_in: u64,
    bytes_out: u64,
    blocks: Vec<u64>,
    replica: Option<Arc<str>>,
    waited: Duration,
    decided: Duration,
    prompt_tokens: u32,
    predicted_cached: u32,
    usage: Option<Usage>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    tokens: u32,
}

impl Record {
    pub(super) fn new<B>(worker: Rc<Worker>, in_flight: InFlight, request: &Request<B>) -> Box<Self> {
        Box::new(Record {
            worker,
            in_flight,
            started: Instant::now(),
            ending: None,
            request_id: request_id::of(request.headers()),
            errors: ErrorShape::OpenAi,
            route: "other",
            generates: false,
            http1: request.version() < http::Version::HTTP_2,
            explain: request.headers().get(EXPLAIN).is_some_and(|v| v == "1"),
            model: None,
            streamed: false,
            status: 0,
            attempts: 0,
            bytes_in: 0,
            bytes_out: 0,
            blocks: Vec::new(),
            replica: None,
            waited: Duration::ZERO,
            decided: Duration::ZERO,
            prompt_tokens: 0,
            predicted_cached: 0,
            usage: None,
            first_token: None,
            last_token: None,
            tokens: 0,
        })
    }

    /// What the prompt is made of, if that is to be logged.
    pub(super) fn prompt(&mut self, chain: &[u64]) {
        let settings = self.worker.shared.settings();
        if let Some(key) = &settings.block_key {
            self.blocks = key.identities(chain, settings.block_tokens);
        }
    }

    /// Enters into `ask` what the headers say of priority and tenant.
    pub(super) fn steer(&self, headers: &HeaderMap, ask: &mut Ask) {
        let shared = &self.worker.shared;
        steer::steer(headers, shared.settings().trust_headers, shared.router.chain_seed(), ask);
    }

    /// The request was placed (again).
    pub(super) fn placed(&mut self, reservation: &Reservation) {
        self.attempts += 1;
        self.replica = reservation.endpoint().map(|e| e.name.clone());
        self.waited += reservation.waited();
        self.decided += reservation.decision_time();
        self.prompt_tokens = reservation.prompt_tokens();
        self.predicted_cached = reservation.predicted_cached();
    }

    /// It waited in the router and wasn't placed.
    pub(super) fn waited_in_vain(&mut self, waited: Duration) {
        self.waited += waited;
        self.worker.shared.metrics.queue.observe(waited.as_secs_f64());
    }

    /// So many tokens had been seen at `now`. True for the first time that there were any.
    pub(super) fn token_at(&mut self, now: Instant, tokens: u32) -> bool {
        let first = self.first_token.is_none();
        if first {
            self.first_token = Some(now);
        }
        if tokens > self.tokens {
            if let Some(last) = self.last_token {
                self.worker.shared.metrics.inter_token.observe(now.duration_since(last).as_secs_f64());
            }
            self.tokens = tokens;
            self.last_token = Some(now);
        }
        first
    }

    /// So many bytes of the body were handed to the client's connection.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.bytes_out += bytes as u64;
    }

    /// What the whole answer, or what there is of it, has said.
    pub(super) fn learned(&mut self, watch: &Watch, reservation: Option<&Reservation>) {
        self.usage = watch.usage();
        if self.route == "responses"
            && let (Some(id), Some(reservation)) = (watch.id(), reservation)
        {
            self.worker.shared.router.remember_response(id, reservation.replica());
        }
    }

    /// The answer is whole.
    pub(super) fn whole(&mut self, watch: &Watch, reservation: Option<Reservation>) {
        self.learned(watch, reservation.as_ref());
        if watch.first_token() {
            self.token_at(Instant::now(), watch.tokens());
        }
        self.end(if watch.error() { Ending::ReplicaError } else { Ending::Ok });
        if let Some(reservation) = reservation {
            reservation.finish(watch.outcome());
        }
    }

    /// It has ended. The first ending counts.
    pub(super) fn end(&mut self, ending: Ending) {
        self.ending.get_or_insert(ending);
    }

    /// The request's id, to be shown.
    pub(super) fn id(&self) -> &str {
        self.request_id.to_str().unwrap_or_default()
    }

    /// Where it went, what was expected of the cache there, the tokens of the prompt, and how long it had waited.
    pub(super) fn placement(&self) -> Option<(&str, u32, u32, Duration)> {
        self.replica.as_deref().map(|name| (name, self.predicted_cached, self.prompt_tokens, self.waited))
    }

    /// The client's connection.
    pub(super) fn client(&self) -> &Rc<Client> {
        self.in_flight.client()
    }

    /// Should the client's connection end with this answer?
    pub(super) fn closing(&self) -> bool {
        self.worker.draining() || self.in_flight.closing()
    }

    /// The event that ends a stream whose replica has failed.
    pub(super) fn broken_event(&self, timed_out: bool) -> Bytes {
        let problem = if timed_out {
            let limit = self.worker.shared.settings().stream_idle.as_secs();
            Problem::new(
                Kind::ReplicaTimeout,
                format!("The replica fell silent for {limit} s in the middle of its answer."),
            )
        } else {
            Problem::replica_failed()
        };
        // A blank line first: the replica may have broken off in the middle of an event.
        let mut event = b"\n\n".to_vec();
        event.extend(problem.sse_event(self.errors, self.id()));
        event.into()
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.route == "health" {
            return;
        }
        let (outcome, reason) = self.ending.map_or(("cancelled", "client_gone"), Ending::labels);
        let total = self.started.elapsed();
        let shared = &self.worker.shared;
        let (metrics, access) = (&shared.metrics, &shared.access);
        let model = metrics.model(self.model.as_deref());
        self.count(metrics, &model, total, reason);
        if access.is_on() {
            access.log(Box::new(self.line(&model, total, outcome, reason)));
        }
    }
}

impl Record {
    fn count(&self, metrics: &Metrics, model: &ModelMetrics, total: Duration, reason: &'static str) {
        metrics.finished(model, self.status, reason);
        let Some(name) = &self.replica else { return };
        model.request.observe(total.as_secs_f64());
        metrics.queue.observe(self.waited.as_secs_f64());
        metrics.decision.observe(self.decided.as_secs_f64());
        if let Some(first) = self.first_token {
            model.ttft.observe(first.duration_since(self.started).as_secs_f64());
        }
        if let Some(usage) = self.usage {
            model.usage(usage.prompt_tokens, usage.completion_tokens);
            if let Some(cached) = usage.cached_tokens {
                // Both or neither: their ratio is what is looked at.
                let replica: &ReplicaMetrics = &metrics.replica(name);
                replica.predicted_cached.add(self.predicted_cached.into());
                replica.actual_cached.add(cached.into());
            }
        }
    }

    fn line(
        &self,
        model: &ModelMetrics,
        total: Duration,
        outcome: &'static str,
        reason: &'static str,
    ) -> AccessLine {
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        let placed = self.replica.is_some();
        let shared = &self.worker.shared;
        let prompt_tokens = self.usage.map(|u| u.prompt_tokens).or(placed.then_some(self.prompt_tokens));
        let output_tokens =
            self.usage.map(|u| u.completion_tokens).or((self.tokens > 0).then_some(self.tokens));
        AccessLine {
            ts: now_unix() - total.as_secs_f64(),
            id: self.id().to_owned(),
            model: self.model.as_ref().map(|_| model.label().into()),
            shape: self.route,
            stream: self.streamed,
            replica: self.replica.clone(),
            status: self.status,
            outcome,
            reason,
            prompt_tokens,
            predicted_cached: placed.then_some(self.predicted_cached),
            actual_cached: self.usage.and_then(|u| u.cached_tokens),
            output_tokens,
            queue_ms: ms(self.waited),
            decision_us: ms(self.decided) * 1e3,
            ttft_ms: self.first_token.map(|t| ms(t.duration_since(self.started))),
            total_ms: ms(total),
            attempts: self.attempts,
            bytes_in: self.bytes_in,
            bytes_out: self.bytes_out,
            blocks: shared.settings().block_key.as_ref().map(|_| Blocks {
                input_length: prompt_tokens.unwrap_or(0),
                output_length: output_tokens.unwrap_or(0),
                hash_ids: self.blocks.clone(),
            }),
        }
    }
}
