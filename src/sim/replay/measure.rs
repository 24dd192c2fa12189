//! What a replay measures.

use crate::sim::histogram::Quantiles;

/// What a request must keep to count as served well.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    /// Most seconds to the first token.
    pub ttft: f64,
    /// Most mean seconds between tokens after the first.
    pub tpot: f64,
}

impl Default for Slo {
    fn default() -> Self {
        Slo { ttft: 5.0, tpot: 0.1 }
    }
}

/// One request that ended.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Served {
    /// Seconds from arrival to first token.
    pub ttft: f64,
    /// Mean seconds a token after the first; `None` for answers of one token.
    pub tpot: Option<f64>,
    /// Seconds from arrival to last token.
    pub e2e: f64,
    /// Which stage of the workload it belongs to.
    pub stage: usize,
    /// Tokens of the answer.
    pub output_tokens: u32,
}

/// The requests of one stage.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageMeasures {
    /// Its name.
    pub name: String,
    /// Its requests, those that failed included.
    pub requests: u64,
    /// Seconds from its beginning until its last request ended.
    pub seconds: f64,
    /// Tokens generated a second.
    pub output_rate: f64,
    /// Time to first token, seconds.
    pub ttft: Quantiles,
    /// Time a token after the first, seconds.
    pub tpot: Quantiles,
    /// Share of its requests inside the objectives, 0..=1.
    pub in_slo: f64,
}

/// In-flight requests of each replica, sampled evenly over the replay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Seconds between two samples.
    pub every: f64,
    /// For each sample one number a replica.
    pub loads: Vec<Vec<u32>>,
}

/// How one replay went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measures {
    /// Requests, those that failed included.
    pub requests: u64,
    /// Requests without a whole answer: refused by an engine, or lost with a replica mid-stream. Never inside the SLO.
    pub failed: u64,
    /// Share of prompt tokens found in caches, 0..=1.
    pub cached_share: f64,
    /// The share that one infinite cache would have reached.
    pub infinite_bound: f64,
    /// The share that one least-recently-used cache of the fleet's whole capacity would have reached.
    pub pooled_bound: f64,
    /// Time to first token, seconds.
    pub ttft: Quantiles,
    /// Mean time a token after the first of a request, seconds.
    pub tpot: Quantiles,
    /// Arrival to last token, seconds.
    pub e2e: Quantiles,
    /// Share of requests inside the objectives, 0..=1.
    pub in_slo: f64,
    /// Tokens computed (prompt tokens that weren't cached, and generated ones) on the busiest replica over the mean of
    /// all replicas; 1 is even.
    pub balance: f64,
    /// Prompt tokens computed, in all.
    pub prefill_tokens: u64,
    /// Tokens generated, in all.
    pub output_tokens: u64,
    /// Seconds until the last request ended.
    pub seconds: f64,
    /// The stages, if the workload has several.
    pub stages: Vec<StageMeasures>,
    /// Load over time.
    pub timeline: Timeline,
}

impl Measures {
    /// Cached share over what one infinite cache reaches, 1 if that is nothing.
    pub fn infinite_share(&self) -> f64 {
        over(self.cached_share, self.infinite_bound)
    }

    /// Cached share over what one pooled cache reaches, 1 if that is nothing.
    pub fn pooled_share(&self) -> f64 {
        over(self.cached_share, self.pooled_bound)
    }

    /// Seconds of all replicas together.
    pub fn gpu_seconds(&self, replicas: usize) -> f64 {
        self.seconds * replicas as f64
    }
}

fn over(share: f64, bound: f64) -> f64 {
    if bound > 0.0 { share / bound } else { 1.0 }
}

/// Exact mean and quantiles (nearest rank); all 0 without values.
pub fn quantiles(mut values: Vec<f64>) -> Quantiles {
    if values.is_empty() {
        return Quantiles::default();
    }
    values.sort_by(f64::total_cmp);
    let n = values.len();
    let at = |q: f64| values[((q * n as f64).ceil() as usize).clamp(1, n) - 1];
    Quantiles { mean: values.iter().sum::<f64>() / n as f64, p50: at(0.5), p90: at(0.9), p99: at(0.99) }
}

/// Share of `requests` that are inside the objectives.
pub fn in_slo<'a>(served: impl Iterator<Item = &'a Served>, requests: u64, slo: Slo) -> f64 {
    let good = |s: &&Served| s.ttft <= slo.ttft && s.tpot.is_none_or(|t| t <= slo.tpot);
    served.filter(good).count() as f64 / requests.max(1) as f64
}

/// Busiest over mean; 1 without any load.
pub fn balance(computed: &[u64]) -> f64 {
    let sum: u64 = computed.iter().sum();
    let most = computed.iter().max().copied().unwrap_or(0);
    if sum == 0 { 1.0 } else { most as f64 * computed.len() as f64 / sum as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact() {
        let q = quantiles((1..=200).rev().map(f64::from).collect());
        assert_eq!((q.mean, q.p50, q.p90, q.p99), (100.5, 100.0, 180.0, 198.0));
        let one = quantiles(vec![3.0]);
        assert_eq!((one.p50, one.p99), (3.0, 3.0));
        assert_eq!(quantiles(Vec::new()), Quantiles::default());
    }

    #[test]
    fn objectives_count_both_times_and_what_failed() {
        let served = |ttft, tpot| Served { ttft, tpot, ..Served::default() };
        let all =
            [served(5.0, Some(0.1)), served(5.1, Some(0.01)), served(1.0, Some(0.11)), served(1.0, None)];
        // One more failed.
        assert_eq!(in_slo(all.iter(), 5, Slo::default()), 0.4);
    }

    #[test]
    fn balance_by_hand() {
        assert_eq!(balance(&[30, 10, 20, 20]), 1.5);
        assert_eq!(balance(&[0, 0]), 1.0);
    }
}
