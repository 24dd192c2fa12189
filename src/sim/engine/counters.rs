//! What the engine counts, under the meaning that vLLM's metrics give it.

/// Sum and count of a histogram; the buckets are nobody's business here.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sum {
    /// Sum of the observed values.
    pub sum: f64,
    /// How many there were.
    pub count: u64,
}

impl Sum {
    /// Count one value.
    pub fn observe(&mut self, value: f64) {
        self.add(value, 1);
    }

    /// Count `count` values that are `sum` together.
    pub fn add(&mut self, sum: f64, count: u64) {
        self.sum += sum;
        self.count += count;
    }

    /// Mean of the values, 0 if there were none.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum / self.count as f64 }
    }
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The model had nothing more to say.
    Stop,
    /// The output reached the limit that the request set.
    Length,
    /// The client left.
    Abort,
}

/// Gauges of now and counters since the start. Times in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    /// Requests in the batch.
    pub running: u32,
    /// Requests that wait to get into it.
    pub waiting: u32,
    /// Blocks that running requests refer to.
    pub blocks_used: u32,
    /// Blocks that hold content nobody refers to.
    pub blocks_cached: u32,
    /// Blocks in all.
    pub blocks_total: u32,
    /// Prompt tokens asked for in the prefix cache (once a request).
    pub cache_queries: u64,
    /// Prompt tokens found there.
    pub cache_hits: u64,
    /// Prompt tokens of requests whose prefill is done, cached ones included.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generation_tokens: u64,
    /// Requests thrown out of the batch for want of blocks.
    pub preemptions: u64,
    /// Requests that ended by themselves.
    pub stopped: u64,
    /// Requests that ended at their limit of tokens.
    pub length: u64,
    /// Requests whose client left.
    pub aborted: u64,
    /// Tokens computed a step.
    pub iteration_tokens: Sum,
    /// Arrival to first token.
    pub ttft: Sum,
    /// Arrival to last token.
    pub e2e: Sum,
    /// Arrival to admission.
    pub queue_time: Sum,
    /// Admission to first token.
    pub prefill_time: Sum,
    /// First to last token.
    pub decode_time: Sum,
    /// Admission to last token.
    pub inference_time: Sum,
    /// Between two tokens of one sequence.
    pub inter_token: Sum,
    /// Mean time a token after the first, a request.
    pub per_output_token: Sum,
    /// Prompt tokens a request had computed, that is, not cached.
    pub prefill_computed: Sum,
    /// Prompt length a request.
    pub request_prompt: Sum,
    /// Output length a request.
    pub request_generation: Sum,
}

impl Counters {
    /// Share of the KV blocks in use, 0..=1.
    pub fn kv_usage(&self) -> f64 {
        f64::from(self.blocks_used) / f64::from(self.blocks_total.max(1))
    }

    /// Share of prompt tokens found in the cache, 0..=1.
    pub fn cached_share(&self) -> f64 {
        self.cache_hits as f64 / self.cache_queries.max(1) as f64
    }
}
