//! Percentiles of samples.

/// Samples in one unit, kept whole: some millions at most.
#[derive(Default)]
pub(crate) struct Samples(Vec<u32>);

impl Samples {
    pub(crate) fn add(&mut self, value: u64) {
        self.0.push(u32::try_from(value).unwrap_or(u32::MAX));
    }

    /// The percentiles asked for (0–100), 0 when there are no samples. The nearest rank, so always a value that was measured.
    pub(crate) fn percentiles<const N: usize>(&mut self, wanted: [f64; N]) -> [u32; N] {
        self.0.sort_unstable();
        wanted.map(|p| {
            let rank = (p / 100.0 * self.0.len() as f64).ceil() as usize;
            self.0.get(rank.clamp(1, self.0.len().max(1)) - 1).copied().unwrap_or(0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_rank() {
        let mut samples = Samples::default();
        assert_eq!(samples.percentiles([50.0]), [0]);
        for value in (1..=200).rev() {
            samples.add(value);
        }
        assert_eq!(samples.percentiles([0.0, 50.0, 99.0, 100.0]), [1, 100, 198, 200]);
    }
}
