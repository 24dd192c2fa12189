//! What a request that ended teaches: of its model's traffic, of its replica's speed, of the pool's shape.

use super::fleet::{Booked, Fleet, Outcome};
use super::ids::ReplicaId;
use super::learn::median;
use super::replica::Medians;
use super::time::Time;

/// Seconds of prefill at which a sample counts half.
const SMALL: f64 = 0.01;
/// Share of a stream's time that must be left, less other prompts, for it to say something about a step.
const MOSTLY_OWN: f64 = 0.5;
/// Output tokens from which a stream's mean gap says something about a step.
const LONG_ENOUGH: u32 = 8;
/// Every so many finished requests the medians are taken anew (a sort over all replicas).
const MEDIANS_EVERY: u32 = 16;

impl Fleet {
    /// Takes in how `b` went.
    pub(super) fn learn(&mut self, now: Time, b: &Booked, outcome: &Outcome) {
        if let Some(stats) = b.model.and_then(|m| self.models.get_mut(&m)) {
            if let (Some(bytes), Some(tokens)) = (b.bytes, outcome.prompt_tokens) {
                stats.saw_prompt(bytes, tokens);
            }
            if let Some(tokens) = outcome.output_tokens {
                stats.saw_output(f64::from(tokens) / f64::from(b.choices.max(1)));
            }
        }
        let shape = *self.fit.shape();
        let medians = self.medians;
        if let Some(first) = b.first
            && let Some(r) = self.get_mut(b.replica)
        {
            let tokens = outcome.output_tokens.unwrap_or(0);
            if b.choices == 1 && tokens >= LONG_ENOUGH {
                // Prompts of others that were computed meanwhile held it up: that is no slowness of decoding, and taken
                // for it would drive everybody away from where there is much to compute.
                let whole = now.since(first);
                let own = whole - (r.ledger.prefilled() - b.prefilled);
                let step_now =
                    shape.decode_step(r.ledger.sequences(now) + 1.0, r.ledger.context(now) + b.prompt);
                let share = own / whole.max(1e-9);
                if share >= MOSTLY_OWN {
                    r.decode.observe(now, own / f64::from(tokens - 1), (b.step + step_now) / 2.0, share);
                }
            }
            if b.clean {
                let prompt = outcome.prompt_tokens.map_or(b.prompt, f64::from);
                let cached = outcome.cached_tokens.map_or(b.cached, f64::from).min(prompt - 1.0).max(0.0);
                let ttft = first.since(b.placed);
                let own = (ttft - b.disturbance * r.pace.decode).max(0.3 * ttft);
                let expected = shape.prefill(prompt - cached, cached);
                // Small prefills measure the network and the scheduler as much as the engine.
                let weight = expected / (expected + SMALL);
                let relative = r.pace.prefill / medians.prefill.exp();
                r.prefill.observe(now, own, expected, weight);
                self.fit.observe(own / relative, prompt - cached, cached, weight);
            }
            self.repace(now, b.replica);
        }
        self.finishes += 1;
        if self.finishes.is_multiple_of(MEDIANS_EVERY) {
            self.take_medians(now);
        }
    }

    fn repace(&mut self, now: Time, id: ReplicaId) {
        let medians = self.medians;
        if let Some(r) = self.get_mut(id) {
            r.repace(now, medians);
        }
    }

    pub(super) fn take_medians(&mut self, now: Time) {
        let ups = || self.replicas.iter().flatten().filter(|r| !r.left);
        self.medians = Medians {
            prefill: median(ups().map(|r| &r.prefill), &mut self.scratch),
            decode: median(ups().map(|r| &r.decode), &mut self.scratch),
        };
        let medians = self.medians;
        self.replicas.iter_mut().flatten().for_each(|r| r.repace(now, medians));
    }
}
