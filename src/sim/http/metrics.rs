//! `/metrics`, under vLLM's names.

use super::MockConfig;
use crate::sim::engine::{Counters, Profile, Sum};
use std::fmt::{Arguments, Write};

/// A page in Prometheus's text format.
struct Page {
    text: String,
    labels: String,
}

impl Page {
    fn line(&mut self, line: Arguments<'_>) {
        let written = self.text.write_fmt(line);
        debug_assert!(written.is_ok(), "a string takes everything");
        self.text.push('\n');
    }

    fn head(&mut self, name: &str, kind: &str) {
        self.line(format_args!("# HELP {name} Simulated."));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn gauge(&mut self, name: &str, value: f64) {
        self.head(name, "gauge");
        self.value(name, "", value);
    }

    fn counter(&mut self, name: &str, value: u64) {
        self.head(name, "counter");
        self.value(name, "", value as f64);
    }

    fn value(&mut self, name: &str, more: &str, value: f64) {
        let labels = self.labels.clone();
        self.line(format_args!("{name}{{{labels}{more}}} {value:?}"));
    }

    fn histogram(&mut self, name: &str, sum: Sum) {
        self.head(name, "histogram");
        self.value(&format!("{name}_bucket"), ",le=\"+Inf\"", sum.count as f64);
        self.value(&format!("{name}_count"), "", sum.count as f64);
        self.value(&format!("{name}_sum"), "", sum.sum);
    }
}

/// What the page tells beside the counters.
pub(super) struct Facts<'a> {
    pub(super) config: &'a MockConfig,
    pub(super) asleep: bool,
    /// Unix time of the start, seconds.
    pub(super) started: f64,
    /// Unix time of now, seconds.
    pub(super) now: f64,
    /// Adapters of requests that run, and of those that wait.
    pub(super) adapters: Vec<String>,
}

/// The page of a server without an engine.
pub(super) fn empty(started: f64) -> String {
    let mut page = Page { text: String::new(), labels: String::new() };
    page.head("process_start_time_seconds", "gauge");
    page.line(format_args!("process_start_time_seconds {started:?}"));
    page.text
}

/// The whole page.
pub(super) fn page(c: &Counters, profile: &Profile, facts: &Facts<'_>) -> String {
    let model = facts.config.models.first().map_or("", String::as_str);
    let model = model.replace('\\', "\\\\").replace('"', "\\\"");
    let mut page =
        Page { text: empty(facts.started), labels: format!("engine=\"0\",model_name=\"{model}\"") };
    page.gauge("vllm:num_requests_running", f64::from(c.running));
    page.gauge("vllm:num_requests_waiting", f64::from(c.waiting));
    page.head("vllm:engine_sleep_state", "gauge");
    for (state, on) in [("awake", !facts.asleep), ("weights_offloaded", facts.asleep), ("discard_all", false)]
    {
        page.value("vllm:engine_sleep_state", &format!(",sleep_state=\"{state}\""), f64::from(u8::from(on)));
    }
    page.gauge("vllm:kv_cache_usage_perc", c.kv_usage());
    page.counter("vllm:prefix_cache_queries_total", c.cache_queries);
    page.counter("vllm:prefix_cache_hits_total", c.cache_hits);
    page.counter("vllm:num_preemptions_total", c.preemptions);
    page.counter("vllm:prompt_tokens_total", c.prompt_tokens);
    page.counter("vllm:generation_tokens_total", c.generation_tokens);
    page.head("vllm:request_success_total", "counter");
    for (reason, n) in [("stop", c.stopped), ("length", c.length), ("abort", c.aborted), ("error", 0)] {
        page.value("vllm:request_success_total", &format!(",finished_reason=\"{reason}\""), n as f64);
    }
    page.histogram("vllm:request_prompt_tokens", c.request_prompt);
    page.histogram("vllm:request_generation_tokens", c.request_generation);
    page.histogram("vllm:iteration_tokens_total", c.iteration_tokens);
    page.histogram("vllm:time_to_first_token_seconds", c.ttft);
    page.histogram("vllm:inter_token_latency_seconds", c.inter_token);
    page.histogram("vllm:request_time_per_output_token_seconds", c.per_output_token);
    page.histogram("vllm:e2e_request_latency_seconds", c.e2e);
    page.histogram("vllm:request_queue_time_seconds", c.queue_time);
    page.histogram("vllm:request_inference_time_seconds", c.inference_time);
    page.histogram("vllm:request_prefill_time_seconds", c.prefill_time);
    page.histogram("vllm:request_decode_time_seconds", c.decode_time);
    page.histogram("vllm:request_prefill_kv_computed_tokens", c.prefill_computed);
    page.head("vllm:cache_config_info", "gauge");
    let (block, blocks) = (profile.block_tokens, c.blocks_total);
    page.line(format_args!(
        "vllm:cache_config_info{{block_size=\"{block}\",enable_prefix_caching=\"True\",engine=\"0\",num_gpu_blocks=\"{blocks}\"}} 1.0"
    ));
    if !facts.config.adapters.is_empty() {
        page.head("vllm:lora_requests_info", "gauge");
        let (max, running, now) = (facts.config.adapters.len(), facts.adapters.join(","), facts.now);
        page.line(format_args!(
            "vllm:lora_requests_info{{max_lora=\"{max}\",running_lora_adapters=\"{running}\",waiting_lora_adapters=\"\"}} {now:?}"
        ));
    }
    page.text
}
