//! The policies by name.

use super::Failure;
use crate::core::baselines::{self, Context};
use crate::core::policy::Policy;
use crate::core::speed::Shape;
use crate::sim::replay::{Setup, Workload};

/// The policies that are asked for, each once; `all` stands for all.
///
/// # Errors
/// When there is none of that name.
pub(super) fn chosen(names: &[String]) -> Result<Vec<String>, Failure> {
    let mut out: Vec<String> = Vec::new();
    for name in names {
        let these: Vec<&str> = match name.as_str() {
            "all" => baselines::NAMES.to_vec(),
            name if baselines::NAMES.contains(&name) => vec![name],
            _ => {
                return Err(
                    format!("no policy {name:?}; there are all, {}", baselines::NAMES.join(", ")).into()
                );
            }
        };
        for name in these {
            if !out.iter().any(|o| o == name) {
                out.push(name.to_owned());
            }
        }
    }
    Ok(out)
}

/// One policy of that name for each router. They are told the engine's speeds, times `prior`, and its capacity as the
/// setup distorts it.
pub(super) fn make(name: &str, setup: &Setup, workload: &Workload, prior: f64) -> Vec<Box<dyn Policy>> {
    let p = &setup.profile;
    let context = |router: usize| Context {
        replicas: setup.replicas,
        kv_tokens: (p.kv_tokens as f64 * setup.trouble.capacity) as u64,
        shape: Shape {
            step: p.t0 * prior,
            launch: p.t0 * prior,
            token: p.a * prior,
            pair: p.q * prior,
            sequence: p.d * prior,
            context: p.e * prior,
            step_tokens: p.max_batched_tokens,
            batch: p.max_batch,
        },
        seed: setup.seed.wrapping_add(router as u64),
        block_tokens: workload.block_tokens,
    };
    (0..setup.routers).filter_map(|router| baselines::named(name, &context(router))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_all_and_a_wrong_name_is_told() {
        let names = |list: &[&str]| chosen(&list.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>());
        assert_eq!(names(&["all"]).unwrap(), baselines::NAMES);
        assert_eq!(names(&["round-robin", "homing", "round-robin"]).unwrap(), ["round-robin", "homing"]);
        assert!(names(&["nonesuch"]).unwrap_err().to_string().contains("round-robin"));
    }
}
