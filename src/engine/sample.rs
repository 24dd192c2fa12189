//! What one metrics page said.

/// A histogram's or a summary's two totals since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sum {
    /// Total of the values (seconds, tokens).
    pub sum: Option<f64>,
    /// How many values.
    pub count: Option<f64>,
}

/// LoRA adapters at work. vLLM names them only while requests for them run or wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lora {
    /// Adapters that fit at once.
    pub max: Option<u64>,
    /// Adapters with a running request.
    pub running: Vec<String>,
    /// Adapters with a waiting request.
    pub waiting: Vec<String>,
}

/// One reading of one replica. `None` is unknown: the series wasn't there, or not readable. Engines with several ranks
/// (data parallel) are one replica: counts are summed over ranks, shares averaged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Requests waiting in the engine.
    pub waiting: Option<f64>,
    /// Requests in the engine's batch.
    pub running: Option<f64>,
    /// Share of the KV cache in use, 0..1.
    pub kv_usage: Option<f64>,
    /// Tokens in a KV block.
    pub block_size: Option<u64>,
    /// KV capacity in tokens, all ranks together.
    pub kv_tokens: Option<u64>,
    /// Seconds of prefill of finished requests.
    pub prefill_time: Sum,
    /// Tokens that prefill computed (cached ones left out), of finished requests.
    pub prefill_tokens: Sum,
    /// Seconds waited in the engine before prefill, of finished requests.
    pub queue_time: Sum,
    /// Seconds from the first token to the last, of finished requests.
    pub decode_time: Sum,
    /// Seconds between two tokens of a request: what a step takes.
    pub inter_token: Sum,
    /// Output tokens since the process began.
    pub generation_tokens: Option<f64>,
    /// Prompt tokens since the process began, cached ones included.
    pub prompt_tokens: Option<f64>,
    /// Prompt tokens looked up in the prefix cache.
    pub cache_queries: Option<f64>,
    /// Prompt tokens found there.
    pub cache_hits: Option<f64>,
    /// When the process began, in Unix seconds; another value is another life.
    pub started: Option<f64>,
    /// Is any rank asleep, its weights or caches given up?
    pub sleeping: Option<bool>,
    /// LoRA adapters, if the engine has any.
    pub lora: Option<Lora>,
    /// Lines whose name was wanted and whose value couldn't be read.
    pub skipped: u32,
}

impl Sample {
    /// Was anything at all understood? A page of another engine, or an error page, gives nothing.
    pub fn is_empty(&self) -> bool {
        Sample { skipped: 0, ..self.clone() } == Sample::default()
    }
}
