//! The fleets of a comparison: how many replicas of which engine.

use crate::cli::Failure;
use crate::sim::engine::Profile;
use serde::Deserialize;
use std::path::Path;

/// Replicas that are all alike.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fleet {
    /// What the engine is called.
    pub(super) engine: String,
    pub(super) replicas: usize,
    pub(super) profile: Profile,
    /// How it differs from the first fleet, as it was said.
    pub(super) what_if: Option<String>,
}

impl Fleet {
    /// This fleet with something changed: `replicas=6`, `kv=2,speed=0.5`, `engine=moe`.
    ///
    /// # Errors
    /// When a key isn't known or a value is out of range.
    pub(super) fn what_if(&self, what: &str) -> Result<Fleet, Failure> {
        let mut fleet = Fleet { what_if: Some(what.to_owned()), ..self.clone() };
        for part in what.split(',') {
            let wrong = || format!("--what-if {part}: write replicas=6, engine=moe, kv=2 or speed=0.5");
            let (key, value) = part.split_once('=').ok_or_else(wrong)?;
            let factor = || value.parse::<f64>().ok().filter(|f| (1e-3..=1e3).contains(f)).ok_or_else(wrong);
            let p = &mut fleet.profile;
            match key {
                "replicas" => fleet.replicas = value.parse().map_err(|_| wrong())?,
                "engine" => {
                    *p = engine(value)?;
                    fleet.engine = value.to_owned();
                }
                "kv" => p.kv_tokens = (p.kv_tokens as f64 * factor()?) as u64,
                "speed" => {
                    let f = factor()?;
                    for seconds in [&mut p.t0, &mut p.a, &mut p.q, &mut p.d, &mut p.e] {
                        *seconds /= f;
                    }
                }
                _ => return Err(wrong().into()),
            }
        }
        Ok(fleet)
    }

    /// What it is called in tables.
    pub(super) fn label(&self) -> String {
        let what = self.what_if.as_ref().map_or(String::new(), |w| format!(" (what if {w})"));
        format!("{} replicas of {}{what}", self.replicas, self.engine)
    }
}

/// An engine in a file: a named one with some values replaced.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EngineFile {
    base: Option<String>,
    t0: Option<f64>,
    a: Option<f64>,
    q: Option<f64>,
    d: Option<f64>,
    e: Option<f64>,
    max_batched_tokens: Option<u32>,
    kv_tokens: Option<u64>,
    max_batch: Option<u32>,
}

pub(super) fn engine(name: &str) -> Result<Profile, Failure> {
    if let Some(profile) = Profile::named(name) {
        return Ok(profile);
    }
    let path = Path::new(name);
    if !path.exists() {
        return Err(format!("no engine {name:?}; there are {}, or a file", Profile::NAMES.join(", ")).into());
    }
    let text = std::fs::read_to_string(path).map_err(|e| format!("{name}: {e}"))?;
    engine_of(&text).map_err(|e| format!("{name}: {e}").into())
}

fn engine_of(text: &str) -> Result<Profile, Failure> {
    let file: EngineFile = serde_json::from_str(text)?;
    let base = file.base.as_deref().unwrap_or("dense-32b");
    let p = Profile::named(base).ok_or_else(|| {
        format!("no engine {base:?} to start from; there are {}", Profile::NAMES.join(", "))
    })?;
    let speeds = [file.t0, file.a, file.q, file.d, file.e];
    if speeds.iter().flatten().any(|v| !(0.0..1e6).contains(v)) {
        return Err("speeds are seconds, 0 or more".into());
    }
    Ok(Profile {
        t0: file.t0.unwrap_or(p.t0),
        a: file.a.unwrap_or(p.a),
        q: file.q.unwrap_or(p.q),
        d: file.d.unwrap_or(p.d),
        e: file.e.unwrap_or(p.e),
        max_batched_tokens: file.max_batched_tokens.unwrap_or(p.max_batched_tokens).max(1),
        kv_tokens: file.kv_tokens.unwrap_or(p.kv_tokens),
        max_batch: file.max_batch.unwrap_or(p.max_batch).max(1),
        ..p
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_what_if_changes_what_it_names() {
        let fleet = Fleet {
            engine: "dense-32b".into(),
            replicas: 8,
            profile: Profile::named("dense-32b").unwrap(),
            what_if: None,
        };
        let p = &fleet.profile;
        let half = fleet.what_if("replicas=6,speed=0.5,kv=2").unwrap();
        assert_eq!((half.replicas, half.profile.kv_tokens), (6, 2 * p.kv_tokens));
        assert_eq!((half.profile.t0, half.profile.e), (2.0 * p.t0, 2.0 * p.e));
        assert_eq!(half.label(), "6 replicas of dense-32b (what if replicas=6,speed=0.5,kv=2)");
        assert_eq!(fleet.what_if("engine=moe").unwrap().profile, Profile::named("moe").unwrap());
        for bad in ["replicas", "replicas=x", "speed=0", "kv=nan", "gpu=2", "engine=nonesuch"] {
            assert!(fleet.what_if(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_engine_file_changes_a_named_engine() {
        let p = engine_of(r#"{"base": "moe", "kv_tokens": 307328, "t0": 0.02}"#).unwrap();
        assert_eq!((p.kv_tokens, p.t0, p.a), (307_328, 0.02, Profile::named("moe").unwrap().a));
        assert_eq!(engine_of("{}").unwrap(), Profile::named("dense-32b").unwrap());
        for bad in [r#"{"base": "x"}"#, r#"{"tokens": 1}"#, r#"{"a": -1}"#] {
            assert!(engine_of(bad).is_err(), "{bad}");
        }
    }
}
