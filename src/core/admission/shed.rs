//! Refusing some before everything is full: the lowest band first, and never all at once.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Share of arrivals that are refused (or make a request of a lower band be refused) when `filled` of a bound is taken.
/// Zero up to `from`, then rising as a square to one at the bound: gentle at first, and no step anywhere.
pub(in crate::core) fn share(filled: f64, from: f64) -> f64 {
    if filled >= 1.0 {
        return 1.0;
    }
    let over = ((filled - from) / (1.0 - from).max(1e-9)).max(0.0);
    (over * over).min(1.0)
}

/// A number in 0..1 that is that request's alone: randomness from a seed, the same in each run.
pub(in crate::core) fn dice(seed: u64, id: u64) -> f64 {
    (xxh3_64_with_seed(&id.to_le_bytes(), seed) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rises_from_nothing_to_all_without_a_step() {
        assert_eq!((share(0.0, 0.5), share(0.5, 0.5), share(1.0, 0.5)), (0.0, 0.0, 1.0));
        let steps: Vec<f64> = (0..=1000).map(|i| share(f64::from(i) / 1000.0, 0.5)).collect();
        assert!(steps.windows(2).all(|w| w[1] >= w[0] && w[1] - w[0] < 0.01));
        assert_eq!(share(0.3, 1.0), 0.0);
    }

    #[test]
    fn dice_are_even_and_repeat_with_their_seed() {
        let sum: f64 = (0..10_000).map(|i| dice(7, i)).sum();
        assert!((sum / 10_000.0 - 0.5).abs() < 0.02);
        assert_eq!(dice(7, 3), dice(7, 3));
        assert_ne!(dice(7, 3), dice(8, 3));
    }
}
