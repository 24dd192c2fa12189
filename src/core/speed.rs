//! How long a step, and a prefill, takes: the shape that a pool of equal engines shares, and its prior.
//!
//! A step of a continuous-batching engine costs `t0` to launch, `a` a prefill token, `q` a pair of tokens that attend to
//! each other, `d` a sequence that decodes and `e` a token of context that it reads. The named profiles are measured
//! figures of common fleets; they only have to be near enough to start from, since [`super::learn`] corrects them.

/// Times of an engine, in seconds and tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// `t0` of a decode step: seconds that it takes whatever it does.
    pub step: f64,
    /// `t0` of a step that prefills. Equal to `step` in the named profiles, but learned apart: what is measured of
    /// decoding must not bend what is measured of prefills.
    pub launch: f64,
    /// `a`: seconds a token of prefill.
    pub token: f64,
    /// `q`: seconds a pair of tokens attending to each other in prefill.
    pub pair: f64,
    /// `d`: seconds a decoding sequence adds to a step.
    pub sequence: f64,
    /// `e`: seconds a token of resident context adds to a step.
    pub context: f64,
    /// `B`: tokens that a step computes at most.
    pub step_tokens: u32,
    /// Sequences that decode at once at most.
    pub batch: u32,
}

impl Shape {
    /// A 32B dense model on two current data-centre cards.
    pub const DENSE_32B: Shape = Shape {
        step: 0.014,
        launch: 0.014,
        token: 4.7e-5,
        pair: 2.1e-9,
        sequence: 3e-5,
        context: 5.5e-8,
        step_tokens: 8192,
        batch: 256,
    };
    /// A large mixture of experts.
    pub const MOE: Shape = Shape {
        step: 0.018,
        launch: 0.018,
        token: 2.4e-5,
        pair: 4e-10,
        sequence: 4e-5,
        context: 8e-9,
        step_tokens: 16_384,
        batch: 256,
    };
    /// 8,000 tokens a second of prefill and no attention term: the plain engine of published simulations.
    pub const PLAIN_8K: Shape = Shape {
        step: 0.008,
        launch: 0.008,
        token: 1.25e-4,
        pair: 0.0,
        sequence: 6e-5,
        context: 1.5e-8,
        step_tokens: 8192,
        batch: 256,
    };

    /// The profile of that name: `dense-32b`, `moe` or `plain-8k`.
    pub fn named(name: &str) -> Option<Shape> {
        match name {
            "dense-32b" => Some(Self::DENSE_32B),
            "moe" => Some(Self::MOE),
            "plain-8k" => Some(Self::PLAIN_8K),
            _ => None,
        }
    }

    /// Steps that a prefill of `uncached` tokens takes, at least one.
    pub fn chunks(&self, uncached: f64) -> f64 {
        (uncached / f64::from(self.step_tokens.max(1))).ceil().max(1.0)
    }

    /// Token-equivalents of a prefill: its uncached tokens plus its attention, in units of `a`.
    pub fn work(&self, uncached: f64, cached: f64) -> f64 {
        let pairs = uncached * cached + uncached * uncached / 2.0;
        if self.token > 0.0 { uncached + pairs * self.pair / self.token } else { uncached }
    }

    /// Seconds of prefill for `uncached` tokens behind `cached` ones, alone on the engine.
    pub fn prefill(&self, uncached: f64, cached: f64) -> f64 {
        self.token * self.work(uncached, cached) + self.launch * self.chunks(uncached)
    }

    /// Seconds of one decode step with `sequences` running over `context` tokens in all.
    pub fn decode_step(&self, sequences: f64, context: f64) -> f64 {
        self.step + self.sequence * sequences + self.context * context
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefill_by_hand() {
        let s = Shape::PLAIN_8K;
        assert!((s.prefill(8192.0, 0.0) - (8192.0 * 1.25e-4 + 0.008)).abs() < 1e-12);
        assert!((s.prefill(8193.0, 0.0) - (8193.0 * 1.25e-4 + 0.016)).abs() < 1e-12);
        let d = Shape::DENSE_32B;
        let want = 4.7e-5 * 100.0 + 2.1e-9 * (100.0 * 1000.0 + 5000.0) + 0.014;
        assert!((d.prefill(100.0, 1000.0) - want).abs() < 1e-12);
        assert!((d.decode_step(10.0, 1e5) - (0.014 + 3e-4 + 5.5e-3)).abs() < 1e-12);
    }

    #[test]
    fn a_fully_cached_prompt_still_takes_a_step() {
        assert_eq!(Shape::MOE.prefill(0.0, 5000.0), 0.018);
        assert_eq!(Shape::named("moe"), Some(Shape::MOE));
        assert_eq!(Shape::named("abacus"), None);
    }
}
