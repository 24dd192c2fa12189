//! From a file to a checked configuration.
//!
//! YAML → tree → variables → unknown keys → types → overrides → files of secrets → validation. Each step gathers what it
//! finds, so that one run of `homing check` shows everything that can be known by then.

use super::schema::{Config, ReplicaSpec};
use super::secret::Secret;
use super::sections::{AccessTarget, LogFormat};
use super::validate::{Problem, Report};
use super::{keys, validate, vars};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// What flags and `HOMING_…` variables say; it wins over the file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `listen`.
    pub listen: Option<SocketAddr>,
    /// `extproc.listen`.
    pub extproc: Option<SocketAddr>,
    /// `extproc.health`.
    pub extproc_health: Option<SocketAddr>,
    /// `extproc.plaintext`: a flag can only switch it on.
    pub extproc_plaintext: bool,
    /// `extproc.alone`: a flag can only switch it on.
    pub extproc_alone: bool,
    /// `metrics`.
    pub metrics: Option<SocketAddr>,
    /// `admin`.
    pub admin: Option<SocketAddr>,
    /// `admin_token_file`.
    pub admin_token_file: Option<PathBuf>,
    /// URLs of replicas. If there are any, they replace the file's `replicas`.
    pub replicas: Vec<String>,
    /// `replica_file`.
    pub replica_file: Option<PathBuf>,
    /// `replica_defaults.api_key_file`.
    pub api_key_file: Option<PathBuf>,
    /// `log.level`.
    pub log_level: Option<String>,
    /// `log.format`.
    pub log_format: Option<LogFormat>,
    /// `log.access`.
    pub log_access: Option<AccessTarget>,
    /// `log.blocks`: a flag can only switch it on.
    pub log_blocks: bool,
    /// `workers`.
    pub workers: Option<usize>,
}

/// Why a configuration can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file can't be read.
    #[error("{path}: {source}")]
    Io {
        /// Which one.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// It isn't YAML.
    #[error("{0}")]
    Syntax(String),
    /// It is, but it says something wrong; at least one problem is an error.
    #[error("{0}")]
    Invalid(Report),
}

/// Reads, merges and checks the configuration; the report holds the warnings. Without a path: overrides over defaults.
pub fn load(path: Option<&Path>, overrides: &Overrides) -> Result<(Config, Report), ConfigError> {
    let text = match path {
        Some(path) => std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Io { path: path.display().to_string(), source })?,
        None => String::new(),
    };
    parse(&text, overrides, &|name| std::env::var(name).ok())
}

/// [`load`] from text, with the environment as a function.
pub fn parse(
    text: &str,
    overrides: &Overrides,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(Config, Report), ConfigError> {
    let mut problems = Vec::new();
    let tree = match tree(text)? {
        Value::Null => Value::Object(serde_json::Map::new()),
        tree => tree,
    };
    let mut config: Config = typed(tree, &schema_json(), env, &mut problems)?;
    overrides.apply(&mut config);
    secrets(&mut config, &mut problems);
    problems.extend(config.validate().problems);
    let report = Report { problems };
    if report.has_errors() { Err(ConfigError::Invalid(report)) } else { Ok((config, report)) }
}

/// A list of replicas from the text of a replica file (YAML or JSON), checked, with its secrets read. An empty text is
/// an empty list: a writer may have truncated the file before writing it, so callers decide what that means.
pub fn parse_replicas(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<ReplicaSpec>, ConfigError> {
    let mut problems = Vec::new();
    let tree = match tree(text)? {
        Value::Null => Value::Array(Vec::new()),
        tree => tree,
    };
    let schema = schemars::schema_for!(Vec<ReplicaSpec>).to_value();
    let mut list: Vec<ReplicaSpec> = typed(tree, &schema, env, &mut problems)?;
    for (i, r) in list.iter_mut().enumerate() {
        replica_key(r, &format!("[{i}]"), &mut problems);
    }
    problems.extend(validate::replicas(&list, "").problems);
    let report = Report { problems };
    if report.has_errors() { Err(ConfigError::Invalid(report)) } else { Ok(list) }
}

/// The JSON schema of the configuration file.
pub fn schema_json() -> Value {
    schemars::schema_for!(Config).to_value()
}

fn tree(text: &str) -> Result<Value, ConfigError> {
    let options = serde_saphyr::options! {
        // YAML 1.2: `off` is a word (`log.access: off`), not false.
        strict_booleans: true,
        // A snippet of the file around a syntax error could show a key.
        with_snippet: false,
    };
    if text.trim().is_empty() {
        return Ok(Value::Null);
    }
    serde_saphyr::from_str_with_options(text, options).map_err(|e| ConfigError::Syntax(e.to_string()))
}

/// Gives the tree its type. Stops when keys are unknown or variables missing: what follows would only repeat it.
fn typed<T: DeserializeOwned>(
    mut tree: Value,
    schema: &Value,
    env: &dyn Fn(&str) -> Option<String>,
    problems: &mut Vec<Problem>,
) -> Result<T, ConfigError> {
    let mut untyped = vars::substitute(&mut tree, env, problems);
    keys::unknown(&tree, schema, problems);
    if !problems.is_empty() {
        return Err(ConfigError::Invalid(Report { problems: std::mem::take(problems) }));
    }
    loop {
        match serde_path_to_error::deserialize(&tree) {
            Ok(value) => return Ok(value),
            Err(e) => {
                let path = e.path().to_string();
                if !reread(&mut tree, &path, &mut untyped) {
                    let path = if path == "." { String::new() } else { path };
                    let report = Report { problems: vec![Problem::error(path, e.inner().to_string())] };
                    return Err(ConfigError::Invalid(report));
                }
            }
        }
    }
}

/// A value that came from a variable is text at first. Where a number or a switch is wanted, it is read as YAML, once:
/// so `workers: ${N}` works, and a key of digits only stays a key.
fn reread(tree: &mut Value, path: &str, untyped: &mut BTreeSet<String>) -> bool {
    if !untyped.remove(path) {
        return false;
    }
    let pointer = format!("/{}", path.replace(['.', '['], "/").replace(']', ""));
    let Some(value) = tree.pointer_mut(&pointer) else { return false };
    let Some(scalar) = value.as_str().and_then(|s| self::tree(s).ok()) else { return false };
    if scalar.is_array() || scalar.is_object() || scalar.is_string() {
        return false;
    }
    *value = scalar;
    true
}

impl Overrides {
    fn apply(&self, c: &mut Config) {
        fn set<T: Clone>(to: &mut T, from: Option<&T>) {
            if let Some(value) = from {
                *to = value.clone();
            }
        }
        set(&mut c.listen, self.listen.as_ref());
        set(&mut c.metrics, self.metrics.as_ref());
        set(&mut c.log.level, self.log_level.as_ref());
        set(&mut c.log.format, self.log_format.as_ref());
        set(&mut c.log.access, self.log_access.as_ref());
        c.admin = self.admin.or(c.admin);
        c.extproc.listen = self.extproc.or(c.extproc.listen);
        c.extproc.health = self.extproc_health.or(c.extproc.health);
        c.extproc.plaintext |= self.extproc_plaintext;
        c.extproc.alone |= self.extproc_alone;
        c.workers = self.workers.or(c.workers);
        c.log.blocks |= self.log_blocks;
        for (to, from) in [
            (&mut c.admin_token_file, &self.admin_token_file),
            (&mut c.replica_file, &self.replica_file),
            (&mut c.replica_defaults.api_key_file, &self.api_key_file),
        ] {
            if from.is_some() {
                to.clone_from(from);
            }
        }
        if !self.replicas.is_empty() {
            c.replicas = self.replicas.iter().map(ReplicaSpec::new).collect();
        }
    }
}

fn secrets(c: &mut Config, problems: &mut Vec<Problem>) {
    if let Some(file) = &c.admin_token_file {
        c.admin_token = secret(file, "admin_token_file", problems);
    }
    if let Some(file) = &c.replica_defaults.api_key_file {
        c.replica_defaults.api_key = secret(file, "replica_defaults.api_key_file", problems);
    }
    for (i, r) in c.replicas.iter_mut().enumerate() {
        replica_key(r, &format!("replicas[{i}]"), problems);
    }
}

fn replica_key(r: &mut ReplicaSpec, path: &str, problems: &mut Vec<Problem>) {
    if let Some(file) = &r.api_key_file {
        let path = format!("{path}.api_key_file");
        if r.api_key.is_some() {
            problems.push(Problem::error(path, "`api_key` is set as well: keep one of them"));
        } else {
            r.api_key = secret(file, &path, problems);
        }
    } else if let Some(key) = &r.api_key
        && let Err(e) = sendable(key.expose())
    {
        problems.push(Problem::error(format!("{path}.api_key"), e));
    }
}

/// Reads a secret; white space around it (editors end files with a newline) isn't part of it.
fn secret(file: &Path, path: &str, problems: &mut Vec<Problem>) -> Option<Secret> {
    // A key is short; whoever names a log file or a device by mistake gets an error, not a full memory.
    const MAX: u64 = 64 << 10;
    let mut text = String::new();
    let read = std::fs::File::open(file).and_then(|f| f.take(MAX).read_to_string(&mut text));
    let result = match read {
        Ok(_) => sendable(text.trim()),
        Err(e) => Err(e.to_string()),
    };
    match result {
        Ok(()) => Some(Secret::new(text.trim())),
        Err(e) => {
            problems.push(Problem::error(path, format!("{}: {e}", file.display())));
            None
        }
    }
}

fn sendable(key: &str) -> Result<(), String> {
    if key.is_empty() {
        return Err("is empty".into());
    }
    http::HeaderValue::from_str(key).map(|_| ()).map_err(|_| "holds bytes that a header can't".into())
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
