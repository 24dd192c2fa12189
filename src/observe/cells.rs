//! Counter, gauge and histogram: handles to shared atomics.
//!
//! Cloning a handle gives the same cell. A write is one atomic operation (a histogram: two), without a lock; a reader
//! may see a histogram between the two, which scrapes bear.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts up.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// The count so far.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A value that goes up and down, or is unknown. Unknown is the start, and is not exported: a missing value must not look
/// like zero.
#[derive(Clone, Debug)]
pub struct Gauge(Arc<AtomicU64>);

impl Default for Gauge {
    fn default() -> Self {
        Gauge(Arc::new(AtomicU64::new(f64::NAN.to_bits())))
    }
}

impl Gauge {
    /// The value is `v`; NaN is unknown.
    pub fn set(&self, v: f64) {
        self.0.store(v.to_bits(), Relaxed);
    }

    /// The value is `v`, or unknown.
    pub fn set_known(&self, v: Option<f64>) {
        self.set(v.unwrap_or(f64::NAN));
    }

    /// Adds `v`, which may be negative; unknown counts as zero.
    pub fn add(&self, v: f64) {
        let sum = |bits| {
            let old = f64::from_bits(bits);
            Some((if old.is_nan() { v } else { old + v }).to_bits())
        };
        // The closure always gives a value, so the update can't fail.
        let _ = self.0.fetch_update(Relaxed, Relaxed, sum);
    }

    /// The value, if known.
    pub fn get(&self) -> Option<f64> {
        Some(f64::from_bits(self.0.load(Relaxed))).filter(|v| !v.is_nan())
    }
}

/// How often values fell into which bucket, and their sum.
#[derive(Clone, Debug)]
pub struct Histogram(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Upper bounds, rising, each inclusive; one more bucket takes the rest.
    bounds: &'static [f64],
    buckets: Box<[AtomicU64]>,
    /// In billionths of the unit: integers can be added atomically. It wraps after 18 billion seconds or tokens, which
    /// a scraper takes for a restart.
    sum: AtomicU64,
}

const SUM_SCALE: f64 = 1e9;

impl Histogram {
    /// An empty one with these upper bounds, which must rise.
    pub fn new(bounds: &'static [f64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram(Arc::new(Inner { bounds, buckets, sum: AtomicU64::new(0) }))
    }

    /// Takes in a value. Negative ones count as zero (two clocks may disagree), NaN not at all.
    pub fn observe(&self, v: f64) {
        if v.is_nan() {
            return;
        }
        let v = v.max(0.0);
        let at = self.0.bounds.partition_point(|b| *b < v);
        if let Some(bucket) = self.0.buckets.get(at) {
            bucket.fetch_add(1, Relaxed);
        }
        self.0.sum.fetch_add((v * SUM_SCALE) as u64, Relaxed);
    }

    /// Upper bounds and cumulative counts, the last for infinity.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let bounds = self.0.bounds.iter().copied().chain(std::iter::once(f64::INFINITY));
        bounds.zip(&self.0.buckets).scan(0, |total, (bound, bucket)| {
            *total += bucket.load(Relaxed);
            Some((bound, *total))
        })
    }

    /// How many values.
    pub fn count(&self) -> u64 {
        self.0.buckets.iter().map(|b| b.load(Relaxed)).sum()
    }

    /// Their sum.
    pub fn sum(&self) -> f64 {
        self.0.sum.load(Relaxed) as f64 / SUM_SCALE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_inclusive_and_the_rest_has_a_bucket() {
        let h = Histogram::new(&[0.1, 1.0]);
        for v in [-5.0, 0.1, 0.2, 1.0, 7.0, f64::NAN] {
            h.observe(v);
        }
        assert_eq!(h.cumulative().collect::<Vec<_>>(), [(0.1, 2), (1.0, 4), (f64::INFINITY, 5)]);
        assert_eq!(h.count(), 5);
        assert!((h.sum() - 8.3).abs() < 1e-6);
    }

    #[test]
    fn a_gauge_is_unknown_until_it_is_set() {
        let g = Gauge::default();
        assert_eq!(g.get(), None);
        g.add(2.0);
        g.clone().add(-0.5);
        assert_eq!(g.get(), Some(1.5));
        g.set_known(None);
        assert_eq!(g.get(), None);
    }

    #[test]
    fn threads_lose_nothing() {
        let (c, g, h) = (Counter::default(), Gauge::default(), Histogram::new(&[1.0]));
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..1000 {
                        c.inc();
                        g.add(1.0);
                        h.observe(0.5);
                    }
                });
            }
        });
        assert_eq!((c.get(), g.get(), h.count()), (4000, Some(4000.0), 4000));
    }
}
