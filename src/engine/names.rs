//! The tables: which series of which engine says what.
//!
//! Names as the engines' own sources spell them; vLLM's are tested against pages of a real server.

/// Model servers whose metrics are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM's own server.
    Trtllm,
    /// llama.cpp's server.
    Llamacpp,
}

/// What a series tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Waiting,
    Running,
    KvUsage,
    /// Capacity in the labels of an information series: block size and number of blocks.
    CacheConfig(&'static [u8], &'static [u8]),
    BlockSize,
    Blocks,
    PrefillTimeSum,
    PrefillTimeCount,
    PrefillTokensSum,
    PrefillTokensCount,
    QueueTimeSum,
    QueueTimeCount,
    DecodeTimeSum,
    DecodeTimeCount,
    InterTokenSum,
    InterTokenCount,
    GenerationTokens,
    PromptTokens,
    CacheQueries,
    CacheHits,
    Started,
    SleepState,
    Lora,
}

type Row = (&'static [u8], Field);

/// Prometheus' own name for the start of a process, on pages of all Python servers.
const STARTED: Row = (b"process_start_time_seconds", Field::Started);

const VLLM: &[Row] = &[
    (b"vllm:num_requests_waiting", Field::Waiting),
    (b"vllm:num_requests_running", Field::Running),
    (b"vllm:kv_cache_usage_perc", Field::KvUsage),
    // The same before version 0.10; releases in between had both, with equal values.
    (b"vllm:gpu_cache_usage_perc", Field::KvUsage),
    (b"vllm:cache_config_info", Field::CacheConfig(b"block_size", b"num_gpu_blocks")),
    (b"vllm:request_prefill_time_seconds_sum", Field::PrefillTimeSum),
    (b"vllm:request_prefill_time_seconds_count", Field::PrefillTimeCount),
    (b"vllm:request_prefill_kv_computed_tokens_sum", Field::PrefillTokensSum),
    (b"vllm:request_prefill_kv_computed_tokens_count", Field::PrefillTokensCount),
    (b"vllm:request_queue_time_seconds_sum", Field::QueueTimeSum),
    (b"vllm:request_queue_time_seconds_count", Field::QueueTimeCount),
    (b"vllm:request_decode_time_seconds_sum", Field::DecodeTimeSum),
    (b"vllm:request_decode_time_seconds_count", Field::DecodeTimeCount),
    (b"vllm:inter_token_latency_seconds_sum", Field::InterTokenSum),
    (b"vllm:inter_token_latency_seconds_count", Field::InterTokenCount),
    (b"vllm:generation_tokens_total", Field::GenerationTokens),
    (b"vllm:prompt_tokens_total", Field::PromptTokens),
    (b"vllm:prefix_cache_queries_total", Field::CacheQueries),
    (b"vllm:prefix_cache_hits_total", Field::CacheHits),
    (b"vllm:engine_sleep_state", Field::SleepState),
    (b"vllm:lora_requests_info", Field::Lora),
    STARTED,
];

const SGLANG: &[Row] = &[
    (b"sglang:num_queue_reqs", Field::Waiting),
    (b"sglang:num_running_reqs", Field::Running),
    (b"sglang:token_usage", Field::KvUsage),
    (b"sglang:cache_config_info", Field::CacheConfig(b"page_size", b"num_pages")),
    STARTED,
];

const TRTLLM: &[Row] = &[
    (b"trtllm_num_requests_waiting", Field::Waiting),
    (b"trtllm_num_requests_running", Field::Running),
    (b"trtllm_kv_cache_utilization", Field::KvUsage),
    (b"trtllm_kv_cache_tokens_per_block", Field::BlockSize),
    (b"trtllm_kv_cache_max_blocks", Field::Blocks),
    STARTED,
];

const LLAMACPP: &[Row] = &[
    (b"llamacpp:requests_deferred", Field::Waiting),
    (b"llamacpp:requests_processing", Field::Running),
    (b"llamacpp:kv_cache_usage_ratio", Field::KvUsage),
];

impl Engine {
    /// All of them, for detection and listings.
    pub const ALL: [Engine; 4] = [Engine::Vllm, Engine::Sglang, Engine::Trtllm, Engine::Llamacpp];

    /// What every own series of the engine begins with.
    pub(super) const fn prefix(self) -> &'static [u8] {
        match self {
            Engine::Vllm => b"vllm:",
            Engine::Sglang => b"sglang:",
            Engine::Trtllm => b"trtllm_",
            Engine::Llamacpp => b"llamacpp:",
        }
    }

    const fn table(self) -> &'static [Row] {
        match self {
            Engine::Vllm => VLLM,
            Engine::Sglang => SGLANG,
            Engine::Trtllm => TRTLLM,
            Engine::Llamacpp => LLAMACPP,
        }
    }

    /// What the series `name` tells, if it is wanted.
    pub(super) fn field(self, name: &[u8]) -> Option<Field> {
        // Nine lines in ten are buckets or `_created`: no row ends like that. Lengths are compared before bytes.
        if name.ends_with(b"_bucket") || name.ends_with(b"_created") {
            return None;
        }
        self.table().iter().find(|(row, _)| *row == name).map(|(_, field)| *field)
    }

    /// The name used in the configuration and in labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Engine::Vllm => "vllm",
            Engine::Sglang => "sglang",
            Engine::Trtllm => "trtllm",
            Engine::Llamacpp => "llamacpp",
        }
    }
}

/// Whose page is it? The first series with an engine's prefix tells.
pub fn detect(page: &[u8]) -> Option<Engine> {
    let mut found = None;
    super::page::lines(page, |line| {
        if found.is_none() {
            found = Engine::ALL.into_iter().find(|e| line.starts_with(e.prefix()));
        }
    });
    found
}
