//! A metrics page with vLLM's names.

use std::fmt::Write;

/// What a replica tells about itself.
pub(crate) struct Facts {
    pub(crate) running: usize,
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) answered: u64,
    pub(crate) kv_blocks: u64,
}

/// Tokens in a KV block, vLLM's default.
pub(crate) const BLOCK_TOKENS: u64 = 16;

const HISTOGRAMS: [&str; 20] = [
    "request_prompt_tokens",
    "request_generation_tokens",
    "iteration_tokens_total",
    "request_max_num_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prefill_kv_computed_tokens",
    "kv_block_lifetime_seconds",
    "kv_block_idle_before_evict_seconds",
    "kv_block_reuse_gap_seconds",
    "tool_call_seconds",
    "spec_decode_acceptance_length",
];

/// The page. `full` adds what a real server sends beside what a router needs, about 55 KB in all; else about 2 KB.
pub(crate) fn render(facts: &Facts, full: bool) -> String {
    let mut page = String::with_capacity(60 << 10);
    let label = r#"engine="0",model_name="bench""#;
    // Writing to a String can't fail.
    let mut one = |name: &str, kind: &str, extra: &str, value: f64| {
        let _ = writeln!(
            page,
            "# HELP vllm:{name} What {name} says.\n# TYPE vllm:{name} {kind}\nvllm:{name}{{{label}{extra}}} {value:?}"
        );
    };
    one("num_requests_running", "gauge", "", facts.running as f64);
    one("num_requests_waiting", "gauge", "", 0.0);
    one("kv_cache_usage_perc", "gauge", "", 0.01);
    one("engine_sleep_state", "gauge", r#",sleep_state="awake""#, 1.0);
    one("prefix_cache_queries_total", "counter", "", facts.prompt_tokens as f64);
    one("prefix_cache_hits_total", "counter", "", facts.cached_tokens as f64);
    one("num_preemptions_total", "counter", "", 0.0);
    one("prompt_tokens_total", "counter", "", facts.prompt_tokens as f64);
    one("generation_tokens_total", "counter", "", facts.answered as f64 * 64.0);
    one("request_success_total", "counter", r#",finished_reason="stop""#, facts.answered as f64);
    let _ = writeln!(
        page,
        "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n# TYPE vllm:cache_config_info gauge\n\
         vllm:cache_config_info{{block_size=\"{BLOCK_TOKENS}\",cache_dtype=\"auto\",enable_prefix_caching=\"True\",engine=\"0\",num_gpu_blocks=\"{}\"}} 1.0",
        facts.kv_blocks
    );
    if full {
        for name in HISTOGRAMS {
            histogram(&mut page, name, label, facts.answered);
        }
    }
    page
}

fn histogram(page: &mut String, name: &str, label: &str, count: u64) {
    let _ = writeln!(
        page,
        "# HELP vllm:{name} Histogram of {name} over all requests of this engine.\n# TYPE vllm:{name} histogram"
    );
    let mut bound = 0.001;
    for bucket in 0..26 {
        let below = if bucket < 12 { 0 } else { count };
        let _ = writeln!(
            page,
            "vllm:{name}_bucket{{engine=\"0\",le=\"{bound:?}\",model_name=\"bench\"}} {below}.0"
        );
        bound = (bound * 2000.0_f64).round() / 1000.0;
    }
    let _ = writeln!(page, "vllm:{name}_bucket{{engine=\"0\",le=\"+Inf\",model_name=\"bench\"}} {count}.0");
    let _ = writeln!(
        page,
        "vllm:{name}_count{{{label}}} {count}.0\nvllm:{name}_sum{{{label}}} {:?}",
        count as f64 * 0.25
    );
    let _ = writeln!(
        page,
        "# HELP vllm:{name}_created Histogram of {name}\n# TYPE vllm:{name}_created gauge\nvllm:{name}_created{{{label}}} 1.7e+09"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let facts = Facts { running: 3, prompt_tokens: 10, cached_tokens: 5, answered: 1, kv_blocks: 100 };
        let (small, full) = (render(&facts, false), render(&facts, true));
        assert!(
            small.len() < 4 << 10
                && small.contains("vllm:num_requests_running{engine=\"0\",model_name=\"bench\"} 3.0\n")
        );
        assert!((50 << 10..60 << 10).contains(&full.len()), "{}", full.len());
    }
}
