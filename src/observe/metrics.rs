//! Every metric of the router.
//!
//! Families are fields, so a misspelt name doesn't compile. What a request needs is behind two handles: [`ModelMetrics`]
//! and [`ReplicaMetrics`], fetched once and kept.

use super::access::now_unix;
use super::cap::LabelCap;
use super::cells::{Counter, Gauge, Histogram};
use super::family::Family;
use super::process;
use parking_lot::Mutex;
use std::sync::Arc;

/// The content type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Models with series of their own; further ones share `other`.
const MAX_MODELS: usize = 200;
/// Replicas with series of their own.
const MAX_REPLICAS: usize = 1024;

/// Seconds to a first token: a cached prompt on an idle GPU takes 10 ms, a queue at overload minutes.
const FIRST_TOKEN: &[f64] = &[
    0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
/// Seconds between tokens.
const INTER_TOKEN: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5,
];
/// Seconds of a whole request: from a health probe to half an hour of reasoning.
const REQUEST: &[f64] = &[
    0.01, 0.04, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68, 655.36,
    1310.72,
];
/// Seconds in the router's queue.
const QUEUE: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Seconds of a choice: microseconds, unless something is wrong.
const DECISION: &[f64] =
    &[1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 3e-5, 5e-5, 7.5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 5e-3, 1e-2, 0.1];
/// Tokens of a prompt or an answer: powers of four.
const TOKENS: &[f64] =
    &[1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0];

/// The handles of one model.
#[derive(Debug)]
pub struct ModelMetrics {
    label: String,
    ok: Counter,
    /// Seconds from arrival to the first token.
    pub ttft: Histogram,
    /// Seconds from arrival to the end.
    pub request: Histogram,
    prompt_tokens: Counter,
    output_tokens: Counter,
    prompt_usage: Histogram,
    output_usage: Histogram,
}

impl ModelMetrics {
    /// The label: the model's name, or `other`.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// A request's tokens, as the engine's usage said.
    pub fn usage(&self, prompt: u32, output: u32) {
        self.prompt_tokens.add(u64::from(prompt));
        self.output_tokens.add(u64::from(output));
        self.prompt_usage.observe(f64::from(prompt));
        self.output_usage.observe(f64::from(output));
    }
}

/// The handles of one replica.
#[derive(Debug)]
pub struct ReplicaMetrics {
    label: String,
    /// Prompt tokens that the router believed cached there.
    pub predicted_cached: Counter,
    /// Prompt tokens that the engine said were cached there.
    pub actual_cached: Counter,
    /// Requests in flight, by the router's ledger.
    pub in_flight: Gauge,
    /// Requests that wait for it in the router.
    pub in_lane: Gauge,
    /// 1 if it takes requests.
    pub up: Gauge,
    /// Learned seconds of prefill for each uncached token.
    pub prefill_seconds_per_token: Gauge,
    /// Learned seconds of a step.
    pub step_seconds: Gauge,
    /// Requests waiting in the engine, as last polled.
    pub waiting: Gauge,
    /// Share of the KV cache in use, as last polled.
    pub kv_usage: Gauge,
    /// Seconds that the last batch of KV events took to come.
    pub event_lag: Gauge,
    /// KV events taken in.
    pub events: Counter,
    /// Times that a batch of them was missing.
    pub event_gaps: Counter,
    /// Messages, events and blocks of which no use could be made.
    pub events_skipped: Counter,
    state: Mutex<Option<(&'static str, Gauge)>>,
    source: Mutex<Option<(&'static str, Gauge)>>,
    /// False for replicas beyond the cap: a gauge that several share would say nothing.
    exported: bool,
}

impl ReplicaMetrics {
    /// The label: the replica's name, or `other`.
    pub fn label(&self) -> &str {
        &self.label
    }
}

macro_rules! metrics {
    ($($field:ident: $cell:ty = $name:literal, $labels:expr, $make:expr, $help:literal;)*) => {
        #[derive(Debug)]
        struct Families { $($field: Family<$cell>,)* }

        impl Families {
            fn new() -> Self {
                Families { $($field: Family::new($name, $help, $labels, $make),)* }
            }

            fn print(&self, out: &mut String) {
                $(self.$field.print(out);)*
            }

            fn remove(&self, label: &str, value: &str) {
                $(self.$field.remove(label, value);)*
            }

            #[cfg(test)]
            fn series(&self) -> usize {
                [$(self.$field.len(),)*].iter().sum()
            }
        }
    };
}

metrics! {
    build_info: Gauge = "homing_build_info", &["version"], Gauge::default, "Always 1; the label says which build.";
    requests: Counter = "homing_requests_total", &["model", "code", "reason"], Counter::default,
        "Requests by status and reason.";
    ttft: Histogram = "homing_ttft_seconds", &["model"], || Histogram::new(FIRST_TOKEN),
        "Seconds from arrival to the first token.";
    request: Histogram = "homing_request_seconds", &["model"], || Histogram::new(REQUEST),
        "Seconds from arrival to the end.";
    inter_token: Histogram = "homing_inter_token_seconds", &[], || Histogram::new(INTER_TOKEN),
        "Seconds between two chunks of a stream.";
    queue: Histogram = "homing_queue_seconds", &[], || Histogram::new(QUEUE), "Seconds waited in the router.";
    queue_length: Gauge = "homing_queue_length", &[], Gauge::default, "Requests waiting in the router.";
    decision: Histogram = "homing_decision_seconds", &[], || Histogram::new(DECISION), "Seconds that a choice took.";
    prompt_tokens: Counter = "homing_prompt_tokens_total", &["model"], Counter::default, "Prompt tokens.";
    output_tokens: Counter = "homing_output_tokens_total", &["model"], Counter::default, "Output tokens.";
    predicted_cached: Counter = "homing_predicted_cached_tokens_total", &["replica"], Counter::default,
        "Prompt tokens believed cached where they were sent.";
    actual_cached: Counter = "homing_actual_cached_tokens_total", &["replica"], Counter::default,
        "Prompt tokens that the engine said were cached.";
    in_flight: Gauge = "homing_replica_in_flight", &["replica"], Gauge::default, "Requests in flight.";
    in_lane: Gauge = "homing_replica_lane_length", &["replica"], Gauge::default,
        "Requests that wait in the router for this replica.";
    up: Gauge = "homing_replica_up", &["replica"], Gauge::default, "1 if the replica takes requests.";
    state: Gauge = "homing_replica_state", &["replica", "state"], Gauge::default, "1 for the state it is in.";
    prefill: Gauge = "homing_replica_prefill_seconds_per_token", &["replica"], Gauge::default,
        "Learned seconds of prefill for each uncached token.";
    step: Gauge = "homing_replica_step_seconds", &["replica"], Gauge::default, "Learned seconds of a step.";
    waiting: Gauge = "homing_replica_waiting", &["replica"], Gauge::default, "Requests waiting in the engine.";
    kv_usage: Gauge = "homing_replica_kv_usage", &["replica"], Gauge::default, "Share of the KV cache in use.";
    source: Gauge = "homing_replica_cache_source", &["replica", "source"], Gauge::default,
        "1 for what says what its cache holds: events, events_partial, estimate.";
    event_lag: Gauge = "homing_kv_event_lag_seconds", &["replica"], Gauge::default,
        "Seconds that the last batch of KV events took to come.";
    events: Counter = "homing_kv_events_total", &["replica"], Counter::default, "KV events taken in.";
    event_gaps: Counter = "homing_kv_event_gaps_total", &["replica"], Counter::default,
        "Times that a batch of KV events was missing.";
    events_skipped: Counter = "homing_kv_events_skipped_total", &["replica"], Counter::default,
        "Messages, events and blocks of which no use could be made.";
    index_blocks: Gauge = "homing_index_blocks", &[], Gauge::default, "Blocks in the prefix index.";
    index_bytes: Gauge = "homing_index_bytes", &[], Gauge::default, "Memory of the prefix index.";
    index_speculations: Gauge = "homing_index_speculations", &[], Gauge::default,
        "Placements whose prefill hasn't been confirmed yet.";
    shed: Counter = "homing_shed_total", &["reason"], Counter::default,
        "Requests refused because too many waited, or too long.";
    tokenized: Counter = "homing_tokenized_total", &["outcome"], Counter::default,
        "Prompts of models with a tokenizer: exact, or why they were followed as text.";
    retries: Counter = "homing_retries_total", &["reason"], Counter::default, "Attempts after the first.";
    resumes: Counter = "homing_resumes_total", &["outcome"], Counter::default,
        "Streams whose replica died, by what became of them.";
    hedges: Counter = "homing_hedges_total", &["outcome"], Counter::default,
        "Second requests because the first was slow to begin, by who answered first.";
    budget_exhausted: Counter = "homing_retry_budget_exhausted_total", &[], Counter::default,
        "Retries that the budget forbade.";
    degraded: Gauge = "homing_degraded", &["replica", "what"], Gauge::default, "1 while degraded.";
    config_reloads: Counter = "homing_config_reloads_total", &["outcome"], Counter::default,
        "Reloads of the configuration, by what came of them.";
    snapshots: Counter = "homing_snapshots_total", &["outcome"], Counter::default,
        "Snapshots of the index, by what came of them.";
    log_dropped: Counter = "homing_log_dropped_total", &[], Counter::default, "Access log lines not written.";
    token_usage: Histogram = "gen_ai_client_token_usage", &["gen_ai_request_model", "gen_ai_token_type"],
        || Histogram::new(TOKENS), "Tokens of a request.";
}

/// The registry.
#[derive(Debug)]
pub struct Metrics {
    families: Families,
    models: LabelCap<ModelMetrics>,
    replicas: LabelCap<ReplicaMetrics>,
    started_unix: f64,
    /// Seconds between two chunks of a stream.
    pub inter_token: Histogram,
    /// Seconds waited in the router.
    pub queue: Histogram,
    /// Requests waiting in the router.
    pub queue_length: Gauge,
    /// Seconds that a choice took.
    pub decision: Histogram,
    /// Blocks in the prefix index; set before a scrape.
    pub index_blocks: Gauge,
    /// Memory of the prefix index in bytes; set before a scrape.
    pub index_bytes: Gauge,
    /// Placements whose prefill hasn't been confirmed yet; set before a scrape.
    pub index_speculations: Gauge,
    /// Retries that the budget forbade.
    pub budget_exhausted: Counter,
    /// Access log lines not written.
    pub log_dropped: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// An empty registry; the process counts as started now.
    pub fn new() -> Self {
        let families = Families::new();
        families.build_info.get(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        Metrics {
            models: LabelCap::new(MAX_MODELS),
            replicas: LabelCap::new(MAX_REPLICAS),
            started_unix: now_unix(),
            inter_token: families.inter_token.get(&[]),
            queue: families.queue.get(&[]),
            queue_length: families.queue_length.get(&[]),
            decision: families.decision.get(&[]),
            index_blocks: families.index_blocks.get(&[]),
            index_bytes: families.index_bytes.get(&[]),
            index_speculations: families.index_speculations.get(&[]),
            budget_exhausted: families.budget_exhausted.get(&[]),
            log_dropped: families.log_dropped.get(&[]),
            families,
        }
    }

    /// The handles of a model that some replica serves; `None` for requests without one, or with a made-up one.
    pub fn model(&self, name: Option<&str>) -> Arc<ModelMetrics> {
        let f = &self.families;
        self.models.get(name.unwrap_or("unknown"), |label| ModelMetrics {
            label: label.to_owned(),
            ok: f.requests.get(&[label, "200", "ok"]),
            ttft: f.ttft.get(&[label]),
            request: f.request.get(&[label]),
            prompt_tokens: f.prompt_tokens.get(&[label]),
            output_tokens: f.output_tokens.get(&[label]),
            prompt_usage: f.token_usage.get(&[label, "input"]),
            output_usage: f.token_usage.get(&[label, "output"]),
        })
    }

    /// Counts a request that ended with `code` (0: the client left first) for `reason`, `ok` if all went well.
    pub fn finished(&self, model: &ModelMetrics, code: u16, reason: &'static str) {
        if code == 200 && reason == "ok" {
            return model.ok.inc();
        }
        // A replica may answer with any number; only those that HTTP has become labels.
        let code =
            if code == 0 || (100..600).contains(&code) { code.to_string() } else { super::OTHER.to_owned() };
        self.families.requests.get(&[&model.label, &code, reason]).inc();
    }

    /// Counts a request that was refused because too many wait, or because it waited too long.
    pub fn shed(&self, reason: &'static str) {
        self.families.shed.get(&[reason]).inc();
    }

    /// Counts a prompt of a model with a tokenizer: `exact`, or why not.
    pub fn tokenized(&self, outcome: &'static str) {
        self.families.tokenized.get(&[outcome]).inc();
    }

    /// Counts an attempt after the first one.
    pub fn retried(&self, reason: &'static str) {
        self.families.retries.get(&[reason]).inc();
    }

    /// Counts a stream whose replica died: `continued`, `ended` (nothing was missing but its end), `diverged`
    /// (the other replica said something else than what had been sent already) or `lost`.
    pub fn resumed(&self, outcome: &'static str) {
        self.families.resumes.get(&[outcome]).inc();
    }

    /// Counts a second request: `won`, `lost`, or `no_budget` for one that wasn't sent.
    pub fn hedged(&self, outcome: &'static str) {
        self.families.hedges.get(&[outcome]).inc();
    }

    /// Counts a reload of the configuration.
    pub fn reloaded(&self, outcome: &'static str) {
        self.families.config_reloads.get(&[outcome]).inc();
    }

    /// Counts a snapshot: `written`, `failed`, `restored` or `refused`.
    pub fn snapshot(&self, outcome: &'static str) {
        self.families.snapshots.get(&[outcome]).inc();
    }

    /// The handles of a replica.
    pub fn replica(&self, name: &str) -> Arc<ReplicaMetrics> {
        self.replicas.get(name, |label| {
            let exported = label == name;
            let gauge =
                |family: &Family<Gauge>| if exported { family.get(&[label]) } else { family.detached() };
            let f = &self.families;
            ReplicaMetrics {
                label: label.to_owned(),
                predicted_cached: f.predicted_cached.get(&[label]),
                actual_cached: f.actual_cached.get(&[label]),
                in_flight: gauge(&f.in_flight),
                in_lane: gauge(&f.in_lane),
                up: gauge(&f.up),
                prefill_seconds_per_token: gauge(&f.prefill),
                step_seconds: gauge(&f.step),
                waiting: gauge(&f.waiting),
                kv_usage: gauge(&f.kv_usage),
                event_lag: gauge(&f.event_lag),
                events: f.events.get(&[label]),
                event_gaps: f.event_gaps.get(&[label]),
                events_skipped: f.events_skipped.get(&[label]),
                source: Mutex::new(None),
                state: Mutex::new(None),
                exported,
            }
        })
    }

    /// The replica is in `state` now: that series says 1, the one of the state before 0.
    pub fn set_state(&self, replica: &ReplicaMetrics, state: &'static str) {
        Self::set_label(replica, &replica.state, &self.families.state, state);
    }

    /// What its cache holds is known from `source` now.
    pub fn set_source(&self, replica: &ReplicaMetrics, source: &'static str) {
        Self::set_label(replica, &replica.source, &self.families.source, source);
    }

    fn set_label(
        replica: &ReplicaMetrics,
        current: &Mutex<Option<(&'static str, Gauge)>>,
        family: &Family<Gauge>,
        value: &'static str,
    ) {
        if !replica.exported {
            return;
        }
        let mut current = current.lock();
        match &*current {
            Some((old, _)) if *old == value => return,
            Some((_, gauge)) => gauge.set(0.0),
            None => {}
        }
        let gauge = family.get(&[&replica.label, value]);
        gauge.set(1.0);
        *current = Some((value, gauge));
    }

    /// The gauge of a degradation of a replica, or (with an empty name) of the router. Not exported until it is set.
    pub(super) fn degraded(&self, replica: &str, what: &'static str) -> Gauge {
        let exported = replica.is_empty() || self.replica(replica).exported;
        if exported {
            self.families.degraded.get(&[replica, what])
        } else {
            self.families.degraded.detached()
        }
    }

    /// The replica left: its series go. Handles still held stay usable, unseen. To be called before another life under
    /// the same name asks for its handles.
    pub fn replica_gone(&self, name: &str) {
        if self.replicas.remove(name) {
            self.families.remove("replica", name);
        }
    }

    /// No replica serves the model any more: its series go.
    pub fn model_gone(&self, name: &str) {
        if self.models.remove(name) {
            self.families.remove("model", name);
            self.families.remove("gen_ai_request_model", name);
        }
    }

    /// The page for Prometheus.
    pub fn render(&self) -> String {
        let mut out = String::with_capacity(16 << 10);
        self.families.print(&mut out);
        // OpenTelemetry's names for what is already there: the same cells, printed a second time.
        let model = &["gen_ai_request_model"];
        self.families.ttft.print_as(&mut out, "gen_ai_server_time_to_first_token_seconds", model);
        self.families.request.print_as(&mut out, "gen_ai_server_request_duration_seconds", model);
        process::print(&mut out, self.started_unix);
        out
    }
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
