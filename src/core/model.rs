//! What is learned of one model's traffic: tokens a byte of prompt text, and output tokens of an answer.

/// Observations that the starting values count for.
const PRIOR_WEIGHT: f64 = 2.0;
/// Observations remembered.
const MEMORY: f64 = 200.0;
/// Output tokens expected of an answer before any was seen.
const FIRST_OUTPUT: f64 = 200.0;

/// Running statistics of a model.
#[derive(Clone, Debug)]
pub struct ModelStats {
    bytes: f64,
    tokens: f64,
    rows: f64,
    output: f64,
    outputs: f64,
}

impl ModelStats {
    /// Starts from `tokens_per_byte` (about 0.25 for English).
    pub fn new(tokens_per_byte: f64) -> Self {
        // The prior weighs as two prompts of 4 KB.
        let bytes = 4096.0 * PRIOR_WEIGHT;
        ModelStats { bytes, tokens: bytes * tokens_per_byte, rows: 0.0, output: FIRST_OUTPUT, outputs: 0.0 }
    }

    /// As numbers for a snapshot.
    pub fn save(&self) -> [f64; 5] {
        [self.bytes, self.tokens, self.rows, self.output, self.outputs]
    }

    /// From such numbers; `None` if they can't be any.
    pub fn restore(from: &[f64]) -> Option<Self> {
        let &[bytes, tokens, rows, output, outputs] = from else { return None };
        let counts = [rows, outputs].iter().all(|n| (0.0..=MEMORY).contains(n));
        let ratio = bytes > 0.0 && bytes.is_finite() && (1e-4..=16.0).contains(&(tokens / bytes));
        let good = counts && ratio && (0.0..1e9).contains(&output);
        good.then_some(ModelStats { bytes, tokens, rows, output, outputs })
    }

    /// Tokens a byte of prompt text, chat template included.
    pub fn tokens_per_byte(&self) -> f64 {
        self.tokens / self.bytes
    }

    /// Prompts that the estimate rests on.
    pub fn prompts_seen(&self) -> f64 {
        self.rows
    }

    /// Output tokens expected of one choice.
    pub fn expected_output(&self, max_output: Option<u32>) -> f64 {
        max_output.map_or(self.output, |m| self.output.min(f64::from(m))).max(1.0)
    }

    /// A prompt of `bytes` had `tokens` tokens, says the engine.
    pub fn saw_prompt(&mut self, bytes: u64, tokens: u32) {
        // A prompt of a few bytes is all template; its ratio says nothing of the next one.
        if bytes < 64 || tokens == 0 {
            return;
        }
        let keep = 1.0 - 1.0 / MEMORY;
        self.bytes = self.bytes * keep + bytes as f64;
        self.tokens = self.tokens * keep + f64::from(tokens);
        self.rows = (self.rows + 1.0).min(MEMORY);
    }

    /// An answer had `tokens` output tokens a choice.
    pub fn saw_output(&mut self, tokens: f64) {
        self.outputs = (self.outputs + 1.0).min(MEMORY);
        self.output += (tokens - self.output) / (self.outputs + PRIOR_WEIGHT).min(MEMORY / 4.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learns_the_ratio_and_the_length() {
        let mut m = ModelStats::new(0.25);
        assert!((m.tokens_per_byte() - 0.25).abs() < 1e-9);
        for _ in 0..100 {
            m.saw_prompt(10_000, 5_000);
            m.saw_output(50.0);
        }
        assert!((m.tokens_per_byte() - 0.5).abs() < 0.01);
        assert!((m.expected_output(None) - 50.0).abs() < 5.0);
        assert_eq!(m.expected_output(Some(8)), 8.0);
        m.saw_prompt(3, 30);
        assert!((m.tokens_per_byte() - 0.5).abs() < 0.01);
        let again = ModelStats::restore(&m.save()).unwrap();
        assert_eq!(again.tokens_per_byte(), m.tokens_per_byte());
        assert!(ModelStats::restore(&[f64::NAN; 5]).is_none() && ModelStats::restore(&[1.0]).is_none());
    }
}
