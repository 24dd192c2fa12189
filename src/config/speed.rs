//! The speeds assumed before anything was measured.
//!
//! Only the start: speeds are learned online for each replica, and a prior that is wrong by a factor of two costs little.

use crate::core::speed::Shape;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A named prior. Its figures are the core's.
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

impl Profile {
    /// The figures behind the name.
    pub const fn shape(self) -> Shape {
        match self {
            Profile::Dense32b => Shape::DENSE_32B,
            Profile::Moe => Shape::MOE,
            Profile::Plain8k => Shape::PLAIN_8K,
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
    /// The profile with this section's single figures on top. `t0` is one figure here: the start of both kinds of step.
    pub fn prior(&self) -> Shape {
        let p = self.profile.shape();
        Shape {
            step: self.t0.unwrap_or(p.step),
            launch: self.t0.unwrap_or(p.launch),
            token: self.a.unwrap_or(p.token),
            pair: self.q.unwrap_or(p.pair),
            sequence: self.d.unwrap_or(p.sequence),
            context: self.e.unwrap_or(p.context),
            step_tokens: self.batched_tokens.unwrap_or(p.step_tokens),
            batch: p.batch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_figures_replace_the_profiles() {
        let s = Speed { a: Some(1e-4), t0: Some(0.5), profile: Profile::Moe, ..Speed::default() };
        assert_eq!(s.prior(), Shape { token: 1e-4, step: 0.5, launch: 0.5, ..Shape::MOE });
        assert_eq!(Speed::default().prior(), Shape::DENSE_32B);
    }

    #[test]
    fn names_are_the_cores() {
        for (name, p) in
            [("dense-32b", Profile::Dense32b), ("moe", Profile::Moe), ("plain-8k", Profile::Plain8k)]
        {
            assert_eq!(serde_json::from_value::<Profile>(name.into()).unwrap(), p);
            assert_eq!(Shape::named(name), Some(p.shape()));
        }
    }
}
