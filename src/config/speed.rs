//! The speeds assumed before anything was measured.
//!
//! Only the start: speeds are learned online for each replica, and a prior that is wrong by a factor of two costs little.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A named prior. The figures are those of the simulated engines of the same names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// A dense model of about 32 billion weights on one large GPU.
    #[default]
    #[serde(rename = "dense-32b")]
    Dense32b,
    /// A mixture-of-experts model: cheap prefill, slower steps.
    Moe,
    /// Prefill linear in tokens, without an attention term: small contexts.
    #[serde(rename = "plain-8k")]
    Plain8k,
}

/// A prior as numbers. A step of n running requests with C context tokens takes t0 + d·n + e·C seconds; u uncached
/// tokens behind c cached ones take a·u + q·(u·c + u²/2) + t0·⌈u/batched_tokens⌉ seconds of prefill.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SpeedPrior {
    /// Seconds of a step whatever it does.
    pub t0: f64,
    /// Seconds of prefill for each uncached token.
    pub a: f64,
    /// Seconds of attention for each pair of (uncached token, token before it).
    pub q: f64,
    /// Seconds a step for each running request.
    pub d: f64,
    /// Seconds a step for each token of context of the running requests.
    pub e: f64,
    /// Token budget of one step (vLLM: `max_num_batched_tokens`).
    pub batched_tokens: u32,
}

impl Profile {
    /// The figures behind the name.
    pub const fn prior(self) -> SpeedPrior {
        match self {
            Profile::Dense32b => {
                SpeedPrior { t0: 0.014, a: 4.7e-5, q: 2.1e-9, d: 3e-5, e: 5.5e-8, batched_tokens: 8192 }
            }
            Profile::Moe => {
                SpeedPrior { t0: 0.018, a: 2.4e-5, q: 4e-10, d: 4e-5, e: 8e-9, batched_tokens: 16_384 }
            }
            Profile::Plain8k => {
                SpeedPrior { t0: 0.008, a: 1.25e-4, q: 0.0, d: 6e-5, e: 1.5e-8, batched_tokens: 8192 }
            }
        }
    }
}

/// The prior of the fleet: a profile, and single figures that replace the profile's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Speed {
    /// The named profile to start from.
    pub profile: Profile,
    /// Seconds of a step whatever it does.
    pub t0: Option<f64>,
    /// Seconds of prefill for each uncached token.
    pub a: Option<f64>,
    /// Seconds of attention for each pair of (uncached token, token before it); 0 is allowed.
    pub q: Option<f64>,
    /// Seconds a step for each running request.
    pub d: Option<f64>,
    /// Seconds a step for each token of context of the running requests.
    pub e: Option<f64>,
    /// Token budget of one step (vLLM: max_num_batched_tokens).
    pub batched_tokens: Option<u32>,
}

impl Speed {
    /// `profile` (the own one if `None`) with this section's single figures on top.
    pub fn prior(&self, profile: Option<Profile>) -> SpeedPrior {
        let p = profile.unwrap_or(self.profile).prior();
        SpeedPrior {
            t0: self.t0.unwrap_or(p.t0),
            a: self.a.unwrap_or(p.a),
            q: self.q.unwrap_or(p.q),
            d: self.d.unwrap_or(p.d),
            e: self.e.unwrap_or(p.e),
            batched_tokens: self.batched_tokens.unwrap_or(p.batched_tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_figures_replace_the_profiles() {
        let s = Speed { a: Some(1e-4), ..Speed::default() };
        assert_eq!(s.prior(None).a, 1e-4);
        assert_eq!(s.prior(None).t0, Profile::Dense32b.prior().t0);
        assert_eq!(s.prior(Some(Profile::Moe)).t0, Profile::Moe.prior().t0);
    }

    #[test]
    fn names_are_the_simulators() {
        for (name, p) in
            [("dense-32b", Profile::Dense32b), ("moe", Profile::Moe), ("plain-8k", Profile::Plain8k)]
        {
            assert_eq!(serde_json::from_value::<Profile>(name.into()).unwrap(), p);
        }
    }
}
