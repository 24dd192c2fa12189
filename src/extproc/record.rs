//! What is told of a request when its stream has ended: metrics and a line of the access log, as the proxy does.

use super::exchange::Facts;
use super::session::Shared;
use crate::observe::{AccessLine, now_unix};
use crate::openai::Shape;
use crate::proxy::Ending;
use crate::router::Reservation;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is noted while it goes on.
pub(super) struct Record {
    started: Instant,
    replica: Option<Arc<str>>,
    waited: Duration,
    decided: Duration,
    prompt_tokens: u32,
    predicted_cached: u32,
    attempts: u32,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

impl Record {
    pub(super) fn new() -> Self {
        Record {
            started: Instant::now(),
            replica: None,
            waited: Duration::ZERO,
            decided: Duration::ZERO,
            prompt_tokens: 0,
            predicted_cached: 0,
            attempts: 0,
            first_token: None,
            last_token: None,
        }
    }

    /// When the stream began.
    pub(super) fn started(&self) -> Instant {
        self.started
    }

    /// It was placed, or found to have gone elsewhere.
    pub(super) fn placed(&mut self, reservation: &Reservation) {
        self.attempts += 1;
        self.replica = reservation.endpoint().map(|e| e.name.clone());
        self.waited = reservation.waited();
        self.decided = reservation.decision_time();
        self.prompt_tokens = reservation.prompt_tokens();
        self.predicted_cached = reservation.predicted_cached();
    }

    pub(super) fn first_token(&mut self) {
        self.first_token.get_or_insert_with(Instant::now);
    }

    pub(super) fn token(&mut self, shared: &Shared) {
        let now = Instant::now();
        if let Some(last) = self.last_token.replace(now) {
            shared.metrics.inter_token.observe(now.duration_since(last).as_secs_f64());
        }
    }

    /// The end. `unseen`: the request goes on, out of sight.
    pub(super) fn end(&self, facts: &Facts<'_>, unseen: bool, shared: &Shared) {
        let (outcome, reason) = labels(facts, unseen);
        let total = self.started.elapsed();
        // Only names that exist may become labels.
        let known = facts.model.filter(|name| shared.router.knows_model(name));
        let metrics = &shared.metrics;
        let model = metrics.model(known);
        metrics.finished(&model, facts.status, reason);
        if let Some(name) = &self.replica {
            model.request.observe(total.as_secs_f64());
            metrics.queue.observe(self.waited.as_secs_f64());
            metrics.decision.observe(self.decided.as_secs_f64());
            if let Some(first) = self.first_token {
                model.ttft.observe(first.duration_since(self.started).as_secs_f64());
            }
            if let Some(usage) = facts.usage {
                model.usage(usage.prompt_tokens, usage.completion_tokens);
                if let Some(cached) = usage.cached_tokens {
                    let replica = metrics.replica(name);
                    replica.predicted_cached.add(self.predicted_cached.into());
                    replica.actual_cached.add(cached.into());
                }
            }
        }
        if shared.access.is_on() {
            let known = known.map(|_| model.label().into());
            shared.access.log(Box::new(self.line(facts, known, total, outcome, reason)));
        }
    }

    fn line(
        &self,
        facts: &Facts<'_>,
        model: Option<Arc<str>>,
        total: Duration,
        outcome: &'static str,
        reason: &'static str,
    ) -> AccessLine {
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        let placed = self.replica.is_some();
        AccessLine {
            ts: now_unix() - total.as_secs_f64(),
            id: facts.id.to_owned(),
            model,
            shape: match facts.shape {
                Some(Shape::Chat) => "chat",
                Some(Shape::Completions) => "completions",
                Some(Shape::Responses) => "responses",
                Some(Shape::Messages) => "messages",
                None => "other",
            },
            stream: facts.stream,
            replica: self.replica.clone(),
            status: facts.status,
            outcome,
            reason,
            prompt_tokens: facts.usage.map(|u| u.prompt_tokens).or(placed.then_some(self.prompt_tokens)),
            predicted_cached: placed.then_some(self.predicted_cached),
            actual_cached: facts.usage.and_then(|u| u.cached_tokens),
            output_tokens: facts
                .usage
                .map(|u| u.completion_tokens)
                .or((facts.tokens > 0).then_some(facts.tokens)),
            queue_ms: ms(self.waited),
            decision_us: ms(self.decided) * 1e3,
            ttft_ms: self.first_token.map(|t| ms(t.duration_since(self.started))),
            total_ms: ms(total),
            attempts: self.attempts,
            bytes_in: facts.bytes.0,
            bytes_out: facts.bytes.1,
            blocks: None,
        }
    }
}

/// Outcome and reason, as the proxy names them.
fn labels(facts: &Facts<'_>, unseen: bool) -> (&'static str, &'static str) {
    if let Some(kind) = facts.refused {
        return Ending::Problem(kind).labels();
    }
    match facts.status {
        400..500 => Ending::Refused.labels(),
        500.. => Ending::ReplicaError.labels(),
        _ if facts.error => Ending::ReplicaError.labels(),
        _ if facts.whole => Ending::Ok.labels(),
        _ if unseen => ("ok", "unseen"),
        _ => ("cancelled", "client_gone"),
    }
}
