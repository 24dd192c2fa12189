//! Quantiles of times in bounded memory.

/// Buckets grow by 2%, from 10 µs to about 1,000 s: a quantile is within 1% of the true one.
const GROWTH: f64 = 1.02;
const LEAST: f64 = 1e-5;
const BUCKETS: usize = 931;

/// A histogram of seconds.
#[derive(Clone)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum: f64,
}

/// Mean and quantiles, seconds; all 0 while nothing was observed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quantiles {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: vec![0; BUCKETS], count: 0, sum: 0.0 }
    }
}

impl Histogram {
    /// Count one time.
    pub fn observe(&mut self, seconds: f64) {
        let bucket = (seconds.max(LEAST) / LEAST).ln() / GROWTH.ln();
        self.counts[(bucket as usize).min(BUCKETS - 1)] += 1;
        self.count += 1;
        self.sum += seconds;
    }

    /// How many were observed.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The time that a share `q` of all stays within.
    pub fn quantile(&self, q: f64) -> f64 {
        let rank = (q * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (i, n) in self.counts.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return LEAST * GROWTH.powf(i as f64 + 0.5);
            }
        }
        0.0
    }

    /// Mean and quantiles.
    pub fn quantiles(&self) -> Quantiles {
        if self.count == 0 {
            return Quantiles::default();
        }
        Quantiles {
            mean: self.sum / self.count as f64,
            p50: self.quantile(0.5),
            p90: self.quantile(0.9),
            p99: self.quantile(0.99),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_close() {
        let mut h = Histogram::default();
        assert_eq!(h.quantiles(), Quantiles::default());
        (1..=1000).for_each(|ms| h.observe(f64::from(ms) * 1e-3));
        let q = h.quantiles();
        assert!((q.mean - 0.5005).abs() < 1e-9);
        for (got, want) in [(q.p50, 0.5), (q.p90, 0.9), (q.p99, 0.99)] {
            assert!((got / want - 1.0).abs() < 0.011, "{got} is not {want}");
        }
        h.observe(1e9);
        h.observe(0.0);
        assert_eq!(h.count(), 1002);
    }
}
