//! From two metrics pages to what the router is told.
//!
//! What a page doesn't say stays unknown. A page that didn't come is a page that says nothing.

use crate::config::EngineKind;
use crate::engine::{Delta, Engine, Lora, Sample, detect, scan};
use crate::router::Page;

/// Reads the pages of one replica.
#[derive(Debug)]
pub(super) struct Reader {
    told: Option<Engine>,
    engine: Option<Engine>,
    before: Option<Sample>,
}

/// What a page said.
#[derive(Debug)]
pub(super) struct Reading {
    /// For the router.
    pub(super) page: Page,
    /// Is the engine asleep? `None`: it isn't told.
    pub(super) asleep: Option<bool>,
    /// Its LoRA adapters, if it has any.
    pub(super) lora: Option<Lora>,
}

impl Reader {
    /// For a replica of this kind.
    pub(super) fn new(kind: EngineKind) -> Self {
        let told = match kind {
            EngineKind::Auto => None,
            EngineKind::Vllm => Some(Engine::Vllm),
            EngineKind::Sglang => Some(Engine::Sglang),
            EngineKind::Trtllm => Some(Engine::Trtllm),
            EngineKind::Llamacpp => Some(Engine::Llamacpp),
        };
        Reader { told, engine: told, before: None }
    }

    /// Reads a page.
    ///
    /// # Errors
    /// Nothing on it is known; the message says what was looked for.
    pub(super) fn read(&mut self, text: &[u8]) -> Result<Reading, String> {
        // Another server may have come to the same address: what was found out is found out anew when it doesn't fit.
        let engine = match self.engine.or_else(|| detect(text)) {
            Some(engine) => engine,
            None => return Err("the page has no series of an engine that is known".into()),
        };
        let sample = scan(text, engine);
        let blank = Sample { started: None, skipped: 0, ..sample.clone() };
        if blank.is_empty() {
            self.engine = self.told;
            return Err(format!("the page has none of the series of {}", engine.as_str()));
        }
        self.engine = Some(engine);
        let reading =
            Reading { page: self.page(&sample), asleep: sample.sleeping, lora: sample.lora.clone() };
        self.before = Some(sample);
        Ok(reading)
    }

    fn page(&self, now: &Sample) -> Page {
        let delta = self.before.as_ref().map(|before| Delta::between(before, now));
        let restarted = matches!(delta, Some(None));
        let prefills = delta.flatten().and_then(|d| {
            let (n, seconds, tokens) = (d.requests?, d.prefill_seconds?, d.prefill_tokens?);
            Some((n, seconds / n, tokens / n))
        });
        Page {
            running: now.running.map(count),
            waiting: now.waiting.map(count),
            kv_usage: now.kv_usage.filter(|u| u.is_finite()),
            capacity: now.kv_tokens,
            prefills,
            cache_hits: delta.as_ref().and_then(|d| d.as_ref()?.cache_hits).map(|hits| hits as u64),
            reports: self.engine == Some(Engine::Vllm),
            restarted,
        }
    }
}

/// A gauge that counts things; casting takes care of negative and of huge ones.
fn count(v: f64) -> u32 {
    v as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: &[u8] = include_bytes!("../../tests/fixtures/vllm-0.32/metrics_idle.txt");
    const LOADED: &[u8] = include_bytes!("../../tests/fixtures/vllm-0.32/metrics_after_load.txt");

    #[test]
    fn a_real_page_of_vllm() {
        let mut reader = Reader::new(EngineKind::Auto);
        let first = reader.read(IDLE).unwrap();
        assert_eq!((first.page.running, first.page.waiting), (Some(0), Some(0)));
        assert!(first.page.capacity.is_some_and(|c| c > 0));
        assert!(first.page.kv_usage.is_some());
        assert_eq!((first.page.prefills, first.page.restarted), (None, false));
        assert_eq!(first.asleep, Some(false));
        // Of the same process the second page would tell means; these two are of two processes.
        assert!(reader.read(LOADED).unwrap().page.restarted);
        let again = reader.read(LOADED).unwrap().page;
        assert_eq!((again.prefills, again.restarted), (None, false));
    }

    #[test]
    fn means_are_of_one_prefill() {
        let page = |n: u32, seconds: f64, tokens: u32| {
            format!(
                "vllm:request_prefill_time_seconds_sum {seconds}\nvllm:request_prefill_time_seconds_count {n}\n\
                 vllm:request_prefill_kv_computed_tokens_sum {tokens}\n\
                 vllm:request_prefill_kv_computed_tokens_count {n}\n"
            )
        };
        let mut reader = Reader::new(EngineKind::Vllm);
        reader.read(page(10, 2.0, 1000).as_bytes()).unwrap();
        let (n, seconds, tokens) =
            reader.read(page(14, 4.0, 3000).as_bytes()).unwrap().page.prefills.unwrap();
        assert_eq!((n, seconds, tokens), (4.0, 0.5, 500.0));
    }

    #[test]
    fn what_is_not_on_the_page_is_unknown() {
        let mut reader = Reader::new(EngineKind::Auto);
        let reading = reader.read(b"vllm:num_requests_running 3\n").unwrap();
        assert_eq!(reading.page, Page { running: Some(3), reports: true, ..Page::default() });
        assert_eq!(reading.asleep, None);
        for page in [&b""[..], b"<html>", b"go_goroutines 4\n", b"process_start_time_seconds 5\n"] {
            assert!(reader.read(page).is_err());
            assert!(Reader::new(EngineKind::Sglang).read(page).is_err());
        }
    }

    #[test]
    fn another_engine_at_the_same_address_is_found_out() {
        let mut reader = Reader::new(EngineKind::Auto);
        reader.read(b"vllm:num_requests_running 3\n").unwrap();
        assert!(reader.read(b"sglang:num_running_reqs 2\n").is_err());
        assert_eq!(reader.read(b"sglang:num_running_reqs 2\n").unwrap().page.running, Some(2));
    }
}
