//! What of a new configuration can hold at once, and what only a restart brings about.
//!
//! [`adopt`] makes the configuration that holds from now on out of the running one and the wanted one. What it takes over
//! is what can change while the router runs; everything else keeps its running value and is told by name, so a key
//! that nobody thought of here is never silently ignored.

use super::schema::Config;
use super::vars::join;
use serde_json::Value;

/// What a reload comes to.
#[derive(Clone, Debug)]
pub struct Adoption {
    /// What holds from now on.
    pub config: Config,
    /// Paths of the keys that hold new values now.
    pub changed: Vec<String>,
    /// Paths of the keys whose new values need a restart.
    pub restart: Vec<String>,
}

/// Takes over of `wanted` what can change while the router runs.
pub fn adopt(running: &Config, wanted: &Config) -> Adoption {
    let now = wanted.clone();
    let config = Config {
        listen: now.listen,
        metrics: now.metrics,
        // The port can move; one that wasn't there, or shall go, needs a restart.
        admin: running.admin.and(now.admin).or(running.admin),
        admin_token_file: now.admin_token_file,
        admin_token: now.admin_token,
        replicas: now.replicas,
        replica_file: now.replica_file,
        replica_defaults: now.replica_defaults,
        price: now.price,
        queue: now.queue,
        lanes: now.lanes,
        // What is in the store can't be taken out of it.
        limits: super::Limits {
            bodies_bytes: now.limits.bodies_bytes.max(running.limits.bodies_bytes),
            ..now.limits
        },
        timeouts: now.timeouts,
        retry: now.retry,
        resume: now.resume,
        hedge: now.hedge,
        health: now.health,
        poll: now.poll,
        drain: now.drain,
        log: super::Log { level: now.log.level, ..running.log.clone() },
        ..running.clone()
    };
    Adoption { changed: differences(running, &config), restart: differences(&config, wanted), config }
}

/// Paths at which two configurations say different things.
fn differences(a: &Config, b: &Config) -> Vec<String> {
    let tree = |c: &Config| serde_json::to_value(c).unwrap_or_default();
    let mut paths = Vec::new();
    compare(&tree(a), &tree(b), "", &mut paths);
    // Secrets print alike, so trees don't tell them apart.
    let hidden = [
        ("admin_token_file", a.admin_token != b.admin_token),
        ("replica_defaults.api_key_file", a.replica_defaults.api_key != b.replica_defaults.api_key),
        ("replicas", a.replicas != b.replicas),
    ];
    for (path, differs) in hidden {
        if differs && !paths.iter().any(|p| p == path) {
            paths.push(path.to_owned());
        }
    }
    paths
}

/// Lists are told as a whole: which of two replicas is the third one now says nothing.
fn compare(a: &Value, b: &Value, path: &str, out: &mut Vec<String>) {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|k| !a.contains_key(*k))) {
                let none = Value::Null;
                compare(a.get(key).unwrap_or(&none), b.get(key).unwrap_or(&none), &join(path, key), out);
            }
        }
        (a, b) if a != b => out.push(path.to_owned()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ReplicaSpec, Seconds, Secret};
    use super::*;

    #[test]
    fn what_can_change_changes_and_the_rest_is_named() {
        let running = Config::default();
        let mut wanted = Config::default();
        wanted.timeouts.connect = Seconds::from_secs(9);
        wanted.replicas = vec![ReplicaSpec::new("http://a")];
        wanted.index.block_bytes = 128;
        wanted.workers = Some(3);
        wanted.admin = None;
        wanted.log.level = "debug".into();
        wanted.log.blocks = true;
        let adopted = adopt(&running, &wanted);
        let mut changed = adopted.changed;
        changed.sort();
        assert_eq!(changed, ["log.level", "replicas", "timeouts.connect"]);
        let mut restart = adopted.restart;
        restart.sort();
        assert_eq!(restart, ["admin", "index.block_bytes", "log.blocks", "workers"]);
        assert_eq!(adopted.config.timeouts.connect, Seconds::from_secs(9));
        assert_eq!(adopted.config.index.block_bytes, 256, "the running one");
    }

    #[test]
    fn a_secret_that_changed_is_seen() {
        let key = |k: &str| ReplicaSpec { api_key: Some(Secret::new(k)), ..ReplicaSpec::new("http://a") };
        let a = Config { replicas: vec![key("1")], ..Config::default() };
        let b = Config { replicas: vec![key("2")], admin_token: Some(Secret::new("t")), ..Config::default() };
        let adopted = adopt(&a, &b);
        assert!(adopted.changed.contains(&"replicas".to_owned()), "{:?}", adopted.changed);
        assert!(adopted.restart.is_empty() && adopted.config == b);
    }

    #[test]
    fn the_same_again_is_nothing_new() {
        let adopted = adopt(&Config::default(), &Config::default());
        assert!(adopted.changed.is_empty() && adopted.restart.is_empty());
    }

    /// Whatever key a configuration has: a new value of it is either adopted or named.
    #[test]
    fn no_key_is_silently_ignored() {
        let running = Config::default();
        let tree = serde_json::to_value(&running).unwrap();
        for section in tree.as_object().unwrap().keys() {
            let mut changed = tree.clone();
            if !nudge(&mut changed[section]) {
                continue;
            }
            let Ok(wanted) = serde_json::from_value::<Config>(changed) else { continue };
            let adopted = adopt(&running, &wanted);
            assert!(
                !adopted.changed.is_empty() || !adopted.restart.is_empty(),
                "{section} has a new value that nobody tells of"
            );
        }
    }

    /// Changes the first number or switch in a tree.
    fn nudge(value: &mut Value) -> bool {
        match value {
            Value::Number(n) => {
                *value = serde_json::json!(n.as_f64().unwrap_or(0.0) as u64 + 1);
                true
            }
            Value::Bool(b) => {
                *b = !*b;
                true
            }
            Value::Object(map) => map.values_mut().any(nudge),
            _ => false,
        }
    }
}
