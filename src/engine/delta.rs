//! What happened between two readings of the same replica.
//!
//! The engine's own counters separate what a client's TTFT mixes: waiting, prefill, steps. Their means over the last
//! second or so are what speeds are learned from.

use super::sample::{Sample, Sum};

/// Means over the requests that finished between two readings. A field is `None` when nothing happened, or isn't told.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Delta {
    /// Requests that finished.
    pub requests: Option<f64>,
    /// Seconds of prefill, total.
    pub prefill_seconds: Option<f64>,
    /// Tokens that prefill computed, total.
    pub prefill_tokens: Option<f64>,
    /// Seconds of prefill for each computed token.
    pub prefill_seconds_per_token: Option<f64>,
    /// Seconds a request waited in the engine.
    pub queue_seconds: Option<f64>,
    /// Seconds a request decoded.
    pub decode_seconds: Option<f64>,
    /// Seconds between two tokens of a request: what a step took.
    pub step_seconds: Option<f64>,
    /// Output tokens made.
    pub generation_tokens: Option<f64>,
    /// Prompt tokens taken in, cached ones included.
    pub prompt_tokens: Option<f64>,
    /// Prompt tokens that were found in the prefix cache.
    pub cache_hits: Option<f64>,
    /// Share of looked-up prompt tokens that were in the prefix cache, 0..1.
    pub hit_share: Option<f64>,
}

impl Delta {
    /// From an earlier reading to a later one. `None` if the process restarted in between: its counters began anew.
    pub fn between(before: &Sample, after: &Sample) -> Option<Delta> {
        if restarted(before, after) {
            return None;
        }
        let (seconds, requests) = grown(before.prefill_time, after.prefill_time);
        let (tokens, _) = grown(before.prefill_tokens, after.prefill_tokens);
        let mean = |b: Sum, a: Sum| {
            let (sum, count) = grown(b, a);
            ratio(sum, count)
        };
        Some(Delta {
            requests,
            prefill_seconds: seconds,
            prefill_tokens: tokens,
            prefill_seconds_per_token: ratio(seconds, tokens),
            queue_seconds: mean(before.queue_time, after.queue_time),
            decode_seconds: mean(before.decode_time, after.decode_time),
            step_seconds: mean(before.inter_token, after.inter_token),
            generation_tokens: rise(before.generation_tokens, after.generation_tokens),
            prompt_tokens: rise(before.prompt_tokens, after.prompt_tokens),
            cache_hits: change(before.cache_hits, after.cache_hits),
            hit_share: ratio(
                change(before.cache_hits, after.cache_hits),
                rise(before.cache_queries, after.cache_queries),
            ),
        })
    }
}

/// Did another process answer the second time? Told by its start time, else by a counter that went backwards.
fn restarted(before: &Sample, after: &Sample) -> bool {
    if let (Some(b), Some(a)) = (before.started, after.started) {
        // The same value is printed each time; half a second allows for servers that compute it anew.
        return (b - a).abs() > 0.5;
    }
    let fell = |b: Option<f64>, a: Option<f64>| matches!((b, a), (Some(b), Some(a)) if a < b);
    fell(before.prompt_tokens, after.prompt_tokens)
        || fell(before.generation_tokens, after.generation_tokens)
        || fell(before.prefill_time.count, after.prefill_time.count)
}

/// How much a counter rose, which may be not at all; `None` if it fell, or isn't known.
fn change(before: Option<f64>, after: Option<f64>) -> Option<f64> {
    Some(after? - before?).filter(|d| *d >= 0.0)
}

/// How much a counter rose; `None` if it didn't, or isn't known.
fn rise(before: Option<f64>, after: Option<f64>) -> Option<f64> {
    change(before, after).filter(|d| *d > 0.0)
}

fn grown(before: Sum, after: Sum) -> (Option<f64>, Option<f64>) {
    let count = rise(before.count, after.count);
    // A sum may stay where it is while the count rises: requests that waited for nothing.
    let sum = count.and_then(|_| change(before.sum, after.sum));
    (sum, count)
}

fn ratio(sum: Option<f64>, count: Option<f64>) -> Option<f64> {
    let (sum, count) = (sum?, count?);
    (count > 0.0).then_some(sum / count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Engine, scan};

    const IDLE: &[u8] = include_bytes!("../../tests/fixtures/vllm-0.32/metrics_idle.txt");
    const LOADED: &[u8] = include_bytes!("../../tests/fixtures/vllm-0.32/metrics_after_load.txt");

    /// Two real pages, the first after two short requests, the second after 52; as if of one life.
    fn pages() -> (Sample, Sample) {
        let (mut before, after) = (scan(IDLE, Engine::Vllm), scan(LOADED, Engine::Vllm));
        before.started = after.started;
        (before, after)
    }

    #[test]
    fn means_of_a_real_load() {
        let (before, after) = pages();
        let d = Delta::between(&before, &after).unwrap();
        let near = |a: Option<f64>, b: f64| assert!((a.unwrap() - b).abs() < 1e-12, "{a:?} {b}");
        assert_eq!(d.requests, Some(50.0));
        assert_eq!(d.prefill_tokens, Some(22_544.0));
        near(d.prefill_seconds_per_token, (24.466325576999225 - 0.023313361999953486) / 22_544.0);
        near(d.step_seconds, (2.4849741800001084 - 0.033194066999953975) / 101.0);
        near(d.queue_seconds, (0.0015028700011043838 - 0.00006464900002356444) / 50.0);
        near(d.hit_share, 40_960.0 / 63_504.0);
    }

    #[test]
    fn when_nothing_happened_nothing_is_known() {
        let (_, after) = pages();
        assert_eq!(
            Delta::between(&after, &after),
            Some(Delta { cache_hits: Some(0.0), ..Delta::default() }),
            "but that nothing was found is"
        );
        assert_eq!(Delta::between(&Sample::default(), &after), Some(Delta::default()));
    }

    #[test]
    fn a_restart_is_no_delta() {
        let (before, mut after) = pages();
        assert!(Delta::between(&before, &after).is_some());
        after.started = after.started.map(|s| s + 60.0);
        assert_eq!(Delta::between(&before, &after), None);
        // Without a start time, counters that fall tell it.
        let (mut before, mut after) = pages();
        (before.started, after.started) = (None, None);
        assert_eq!(Delta::between(&after, &before), None);
        assert!(Delta::between(&before, &after).is_some());
    }

    #[test]
    fn requests_that_waited_for_nothing_waited_zero_seconds() {
        let (before, mut after) = pages();
        after.queue_time.sum = before.queue_time.sum;
        assert_eq!(Delta::between(&before, &after).unwrap().queue_seconds, Some(0.0));
    }

    #[test]
    fn lookups_without_a_hit_are_a_share_of_zero() {
        let (before, mut after) = pages();
        after.cache_hits = before.cache_hits;
        assert_eq!(Delta::between(&before, &after).unwrap().hit_share, Some(0.0));
        after.cache_hits = None;
        assert_eq!(Delta::between(&before, &after).unwrap().hit_share, None);
    }
}
