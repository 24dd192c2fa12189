//! One pass over a metrics page.

use super::names::{Engine, Field};
use super::page::{self, Labels, labels_and_value, unescape};
use super::sample::{Lora, Sample};

/// Reads the page of `engine`. Never fails: what can't be read is unknown (and counted, if its name was wanted).
/// A page cut off at any byte gives what came before the cut, save for the line that was cut: half a number reads like a number, so
/// the last line counts only with its line end.
pub fn scan(page: &[u8], engine: Engine) -> Sample {
    let page = &page[..memchr::memrchr(b'\n', page).map_or(0, |at| at + 1)];
    let mut scan = Scan::default();
    let own = engine.prefix();
    page::lines(page, |line| {
        if line.starts_with(own) || line.starts_with(b"process_start_time_seconds") {
            let (name, rest) = page::name(line);
            if let Some(field) = engine.field(name) {
                scan.line(field, rest);
            }
        }
    });
    scan.finish()
}

/// Most adapters taken from one label: engines hold dozens at once.
const MAX_ADAPTERS: usize = 1024;

#[derive(Default)]
struct Scan<'a> {
    sample: Sample,
    /// Ranks that told their share of KV in use.
    kv_ranks: u32,
    /// Some rank's capacity couldn't be read: then the sum isn't known either.
    capacity_unknown: bool,
    blocks: Option<f64>,
    lora: Option<(f64, Labels<'a>)>,
}

impl<'a> Scan<'a> {
    fn line(&mut self, field: Field, rest: &'a [u8]) {
        let Some((labels, value)) = labels_and_value(rest).filter(|(_, v)| v.is_finite()) else {
            self.sample.skipped += 1;
            return;
        };
        let s = &mut self.sample;
        match field {
            Field::Waiting => add(&mut s.waiting, value),
            Field::Running => add(&mut s.running, value),
            Field::KvUsage => {
                self.kv_ranks += 1;
                add(&mut s.kv_usage, value);
            }
            Field::CacheConfig(size, blocks) => self.cache_config(labels, size, blocks),
            Field::BlockSize => s.block_size = whole(value),
            Field::Blocks => add(&mut self.blocks, value),
            Field::PrefillTimeSum => add(&mut s.prefill_time.sum, value),
            Field::PrefillTimeCount => add(&mut s.prefill_time.count, value),
            Field::PrefillTokensSum => add(&mut s.prefill_tokens.sum, value),
            Field::PrefillTokensCount => add(&mut s.prefill_tokens.count, value),
            Field::QueueTimeSum => add(&mut s.queue_time.sum, value),
            Field::QueueTimeCount => add(&mut s.queue_time.count, value),
            Field::DecodeTimeSum => add(&mut s.decode_time.sum, value),
            Field::DecodeTimeCount => add(&mut s.decode_time.count, value),
            Field::InterTokenSum => add(&mut s.inter_token.sum, value),
            Field::InterTokenCount => add(&mut s.inter_token.count, value),
            Field::GenerationTokens => add(&mut s.generation_tokens, value),
            Field::PromptTokens => add(&mut s.prompt_tokens, value),
            Field::CacheQueries => add(&mut s.cache_queries, value),
            Field::CacheHits => add(&mut s.cache_hits, value),
            Field::Started => s.started = Some(value),
            Field::SleepState => {
                let asleep = value > 0.0 && labels.get(b"sleep_state").is_some_and(|state| state != b"awake");
                s.sleeping = Some(s.sleeping.unwrap_or(false) || asleep);
            }
            // One series for each combination of adapters there ever was; its value is the time it was true.
            Field::Lora => {
                if self.lora.is_none_or(|(time, _)| value >= time) {
                    self.lora = Some((value, labels));
                }
            }
        }
    }

    fn cache_config(&mut self, labels: Labels<'a>, size: &[u8], blocks: &[u8]) {
        let block_size = labels.number(size);
        // Newer vLLM tells the capacity in tokens: for models with several kinds of attention it isn't the product.
        let told = labels.number(b"kv_cache_size_tokens");
        let product = || block_size?.checked_mul(labels.number(blocks)?);
        self.sample.block_size = self.sample.block_size.or(block_size);
        match told.or_else(product).filter(|tokens| *tokens > 0) {
            Some(tokens) => {
                let sum = self.sample.kv_tokens.unwrap_or(0).saturating_add(tokens);
                self.sample.kv_tokens = Some(sum);
            }
            None => self.capacity_unknown = true,
        }
    }

    fn finish(mut self) -> Sample {
        if let Some(sum) = self.sample.kv_usage {
            self.sample.kv_usage = Some(sum / f64::from(self.kv_ranks.max(1)));
        }
        if let (Some(size), Some(blocks)) = (self.sample.block_size, self.blocks.and_then(whole)) {
            self.sample.kv_tokens = size.checked_mul(blocks).filter(|tokens| *tokens > 0);
        }
        if self.capacity_unknown {
            self.sample.kv_tokens = None;
        }
        self.sample.lora = self.lora.map(|(_, labels)| Lora {
            max: labels.number(b"max_lora"),
            running: adapters(labels.get(b"running_lora_adapters")),
            waiting: adapters(labels.get(b"waiting_lora_adapters")),
        });
        self.sample
    }
}

fn add(to: &mut Option<f64>, value: f64) {
    *to = Some(to.unwrap_or(0.0) + value);
}

fn whole(value: f64) -> Option<u64> {
    // 2^53: above it floats skip whole numbers.
    (0.0..=9_007_199_254_740_992.0).contains(&value).then_some(value as u64)
}

fn adapters(label: Option<&[u8]>) -> Vec<String> {
    let names = label.unwrap_or_default().split(|b| *b == b',').map(<[u8]>::trim_ascii);
    names.filter(|n| !n.is_empty()).take(MAX_ADAPTERS).map(unescape).collect()
}

#[cfg(test)]
#[path = "scan_tests.rs"]
mod tests;
