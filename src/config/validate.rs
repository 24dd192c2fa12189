//! What types can't say: values that contradict each other, or that will surprise.
//!
//! All problems are told at once, each with the path of its key. An error stops the start (or keeps the old configuration
//! on reload); a warning is printed and logged.

use super::events::EventsSpec;
use super::schema::{Config, ReplicaSpec};
use super::secret::Secret;
use super::units::Seconds;
use http::Uri;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The configuration can't be used.
    Error,
    /// It can, but probably isn't what was meant.
    Warning,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// How bad.
    pub severity: Severity,
    /// Path of the key, like `replicas[0].url`; empty for the whole file.
    pub path: String,
    /// What is wrong, and what to do.
    pub message: String,
}

impl Problem {
    pub(super) fn error(path: impl Into<String>, message: impl Into<String>) -> Self {
        Problem { severity: Severity::Error, path: path.into(), message: message.into() }
    }

    fn warning(path: impl Into<String>, message: impl Into<String>) -> Self {
        Problem { severity: Severity::Warning, path: path.into(), message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        match self.path.as_str() {
            "" => write!(f, "{kind}: {}", self.message),
            path => write!(f, "{kind}: {path}: {}", self.message),
        }
    }
}

/// All that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// In the order of the file's sections.
    pub problems: Vec<Problem>,
}

impl Report {
    /// Is anything in the way of using this configuration?
    pub fn has_errors(&self) -> bool {
        self.problems.iter().any(|p| p.severity == Severity::Error)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, p) in self.problems.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{p}")?;
        }
        Ok(())
    }
}

/// A system prompt with tools has about this many tokens in the field; an index that can't keep one such prefix is useless.
const LONG_PREFIX_TOKENS: f64 = 9_000.0;
/// uvicorn, the HTTP server of vLLM, closes idle connections after this time.
const UVICORN_KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Below this the polls of a fleet cost cores, and the engines' front ends slow down.
const FAST_POLL: Duration = Duration::from_millis(200);
/// Headers that belong to a connection, or that the router itself sets.
const OWN_HEADERS: [&str; 8] =
    ["connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"];

impl Config {
    /// Everything that is wrong or odd, at once.
    pub fn validate(&self) -> Report {
        let mut c = Check::default();
        self.check_doors(&mut c);
        super::extproc::check(self, &mut c);
        let found = self.replica_file.is_some() || self.kubernetes.is_some() || !self.dns.names.is_empty();
        if self.replicas.is_empty() && !found {
            c.error(
                "replicas",
                "there are none: list some, name a `replica_file`, or use `kubernetes` or `dns`",
            );
        }
        super::discovery::check(self.kubernetes.as_ref(), &self.dns, &mut c);
        c.replicas(&self.replicas, "replicas");
        c.at_least("replica_defaults.max_in_flight", self.replica_defaults.max_in_flight, 1);
        c.at_least("replica_defaults.kv_tokens", self.replica_defaults.kv_tokens, 1);
        c.events(self.replica_defaults.events.as_ref(), "replica_defaults");
        self.check_speed(&mut c);
        self.check_index(&mut c);
        super::tokenizer::check(&self.tokenizer, &mut c);
        self.check_limits(&mut c);
        c.between("lanes.pending", Some(self.lanes.pending.secs()), 0.0, 60.0);
        c.between("lanes.aging", Some(self.lanes.aging), 0.0, 100.0);
        c.at_least("lanes.per_replica", Some(self.lanes.per_replica), 1);
        self.check_time(&mut c);
        if let Err(e) = log_level(&self.log.level) {
            c.error("log.level", e);
        }
        if self.log.block_key_file.is_some() && !self.log.blocks {
            c.warning("log.block_key_file", "has no effect: `log.blocks` is false");
        }
        c.between("workers", self.workers.map(|w| w as f64), 1.0, 1024.0);
        Report { problems: c.problems }
    }

    fn check_doors(&self, c: &mut Check) {
        if let Some(admin) = self.admin
            && !admin.ip().is_loopback()
            && self.admin_token_file.is_none()
        {
            c.error(
                "admin",
                format!("{admin} is not loopback: set `admin_token_file`, or listen on 127.0.0.1"),
            );
        }
        let picker = &self.extproc;
        let proxy = (picker.listen.is_none() || !picker.alone).then_some(self.listen);
        let doors = [
            ("listen", proxy),
            ("metrics", Some(self.metrics)),
            ("admin", self.admin),
            ("extproc.listen", picker.listen),
            ("extproc.health", picker.listen.and(picker.health)),
        ];
        for (i, (name, door)) in doors.iter().enumerate() {
            for (other, taken) in &doors[..i] {
                let (Some(a), Some(b)) = (door, taken) else { continue };
                let same_ip = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
                // Port 0 asks the system for any free one.
                if a.port() != 0 && a.port() == b.port() && same_ip {
                    c.error(name, format!("{a} is taken by `{other}`"));
                }
            }
        }
    }

    fn check_speed(&self, c: &mut Check) {
        let s = &self.speed;
        for (key, value) in [("t0", s.t0), ("a", s.a), ("q", s.q), ("d", s.d), ("e", s.e)] {
            // A second for one token, or for one step: slower than anything that is worth routing to.
            c.between(&format!("speed.{key}"), value, 0.0, 10.0);
        }
        if s.a == Some(0.0) {
            c.error("speed.a", "must be more than 0: no prefill is free");
        }
        c.at_least("speed.batched_tokens", s.batched_tokens, 1);
        let p = &self.price;
        for (key, value) in [("harm", p.harm), ("decode", p.decode)] {
            c.between(&format!("price.{key}"), Some(value), 0.0, 100.0);
        }
        c.between("price.tie", Some(p.tie), 0.0, 1.0);
    }

    fn check_index(&self, c: &mut Check) {
        let i = &self.index;
        c.between("index.block_bytes", Some(f64::from(i.block_bytes)), 16.0, 65_536.0);
        c.at_least("index.max_blocks", Some(i.max_blocks), 1);
        c.between("index.tokens_per_byte", Some(i.tokens_per_byte), 0.001, 4.0);
        let needed = (LONG_PREFIX_TOKENS / i.tokens_per_byte / f64::from(i.block_bytes.max(1))).ceil();
        if i.max_blocks > 0 && (i.max_blocks as f64) < needed {
            c.warning(
                "index.max_blocks",
                format!(
                    "{} blocks can't keep one prefix of 9,000 tokens, which takes {needed}",
                    i.max_blocks
                ),
            );
        }
    }

    fn check_limits(&self, c: &mut Check) {
        let l = &self.limits;
        c.between("limits.header_bytes", Some(l.header_bytes.get() as f64), 1024.0, 16_777_216.0);
        c.at_least("limits.body_bytes", Some(l.body_bytes.get()), 1024);
        c.at_least("limits.connections", Some(l.connections), 1);
        c.at_least("limits.h2_streams", Some(l.h2_streams), 1);
        c.at_least("limits.scan_bytes", Some(l.scan_bytes.get()), 1024);
        c.at_least("limits.bodies_bytes", Some(l.bodies_bytes.get()), 1 << 20);
        let m = &self.resume;
        c.at_least("resume.max_bytes", Some(m.max_bytes.get()), 1024);
        c.at_least("resume.total_bytes", Some(m.total_bytes.get()), m.max_bytes.get());
        c.between("hedge.quantile", self.hedge.quantile, 0.5, 0.999);
        c.between("hedge.budget", Some(self.hedge.budget), 0.0, 1.0);
        let r = &self.retry;
        c.between("retry.budget", Some(r.budget), 0.0, 1.0);
        c.between("retry.attempts", Some(f64::from(r.attempts)), 1.0, 10.0);
        c.between("health.suspect_after", Some(f64::from(self.health.suspect_after)), 1.0, 1000.0);
        c.between("health.recover_after", Some(f64::from(self.health.recover_after)), 1.0, 1000.0);
    }

    fn check_time(&self, c: &mut Check) {
        let positive = [
            ("limits.header_timeout", self.limits.header_timeout),
            ("limits.body_timeout", self.limits.body_timeout),
            ("limits.body_idle", self.limits.body_idle),
            ("limits.stall_timeout", self.limits.stall_timeout),
            ("limits.client_idle", self.limits.client_idle),
            ("resume.within", self.resume.within),
            ("timeouts.connect", self.timeouts.connect),
            ("timeouts.stream_idle", self.timeouts.stream_idle),
            ("health.interval", self.health.interval),
            ("health.timeout", self.health.timeout),
            ("poll.interval", self.poll.interval),
            ("poll.timeout", self.poll.timeout),
            ("snapshot.every", self.snapshot.every),
        ];
        for (path, span) in positive {
            c.positive(path, span);
        }
        if self.timeouts.first_byte.is_some_and(|t| t.get().is_zero()) {
            c.error("timeouts.first_byte", "must be more than 0; null means no limit");
        }
        if self.timeouts.pool_idle.get() >= UVICORN_KEEP_ALIVE {
            c.warning(
                "timeouts.pool_idle",
                "vLLM closes idle connections after 5 s: stay below, or requests race with it",
            );
        }
        for (path, span) in [("poll.interval", self.poll.interval), ("health.interval", self.health.interval)]
        {
            if !span.get().is_zero() && span.get() < FAST_POLL {
                c.warning(path, format!("{span} slows the engines' front ends; about 1s is enough"));
            }
        }
        if self.queue.max > 0 && self.queue.timeout.get().is_zero() {
            c.warning("queue.timeout", "0 means that nobody waits; say so with `queue.max: 0`");
        }
    }
}

/// Is `level` a level or a list of `target=level` directives?
fn log_level(level: &str) -> Result<(), String> {
    let known = |l: &str| {
        ["off", "error", "warn", "info", "debug", "trace"].iter().any(|k| k.eq_ignore_ascii_case(l))
    };
    for part in level.split(',') {
        let last = part.rsplit('=').next().unwrap_or_default().trim();
        if !known(last) {
            return Err(format!("`{last}` is not off, error, warn, info, debug or trace"));
        }
    }
    Ok(())
}

/// What is wrong with a list of replicas, `at` being the path of the list.
pub(super) fn replicas(list: &[ReplicaSpec], at: &str) -> Report {
    let mut c = Check::default();
    c.replicas(list, at);
    Report { problems: c.problems }
}

#[derive(Default)]
pub(super) struct Check {
    problems: Vec<Problem>,
}

impl Check {
    pub(super) fn error(&mut self, path: &str, message: impl Into<String>) {
        self.problems.push(Problem::error(path, message));
    }

    pub(super) fn warning(&mut self, path: &str, message: impl Into<String>) {
        self.problems.push(Problem::warning(path, message));
    }

    pub(super) fn positive(&mut self, path: &str, span: Seconds) {
        if span.get().is_zero() {
            self.error(path, "must be more than 0");
        }
    }

    pub(super) fn between(&mut self, path: &str, value: Option<f64>, low: f64, high: f64) {
        if let Some(v) = value
            && !(low..=high).contains(&v)
        {
            self.error(path, format!("{v} is not between {low} and {high}"));
        }
    }

    pub(super) fn at_least<T: PartialOrd + fmt::Display>(&mut self, path: &str, value: Option<T>, low: T) {
        if let Some(v) = value
            && v < low
        {
            self.error(path, format!("{v} is less than {low}"));
        }
    }

    fn replicas(&mut self, list: &[ReplicaSpec], at: &str) {
        let (mut urls, mut names) = (BTreeSet::new(), BTreeSet::new());
        for (i, r) in list.iter().enumerate() {
            let path = format!("{at}[{i}]");
            if let Err(e) = check_url(&r.url) {
                self.error(&format!("{path}.url"), e);
            }
            if !urls.insert(r.url.trim_end_matches('/')) {
                self.error(&format!("{path}.url"), format!("{} is listed twice", r.url));
            } else if !names.insert(r.label()) {
                self.error(
                    &format!("{path}.name"),
                    format!("`{}` is the name of another replica", r.label()),
                );
            }
            if r.label().is_empty() || r.label().len() > 128 || r.label().contains(char::is_control) {
                self.error(&format!("{path}.name"), "must be 1 to 128 bytes without control characters");
            }
            if r.api_key.is_some() && r.headers.keys().any(|h| h.eq_ignore_ascii_case("authorization")) {
                self.error(&format!("{path}.headers"), "`authorization` is already set by the API key");
            }
            self.at_least(&format!("{path}.max_in_flight"), r.max_in_flight, 1);
            self.at_least(&format!("{path}.kv_tokens"), r.kv_tokens, 1);
            if r.models.as_ref().is_some_and(Vec::is_empty) {
                self.error(&format!("{path}.models"), "is empty; null means as `/v1/models` says");
            }
            self.headers(&r.headers, &path);
            self.events(r.events.as_ref(), &path);
        }
    }

    fn events(&mut self, events: Option<&EventsSpec>, path: &str) {
        for (key, problem) in events.map(EventsSpec::problems).unwrap_or_default() {
            self.error(&format!("{path}.events.{key}"), problem);
        }
    }

    fn headers(&mut self, headers: &BTreeMap<String, Secret>, path: &str) {
        for (name, value) in headers {
            let at = format!("{path}.headers.{name}");
            if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
                self.error(&at, "is not the name of a header");
            } else if OWN_HEADERS.iter().any(|own| own.eq_ignore_ascii_case(name)) {
                self.error(&at, "belongs to the connection and can't be set");
            }
            if http::HeaderValue::from_str(value.expose()).is_err() {
                self.error(&at, "has a value that can't be sent in a header");
            }
        }
    }
}

/// Is it a name that a host, a Kubernetes object or a DNS entry can have?
pub(super) fn valid_host(name: &str) -> bool {
    let label = |l: &str| {
        (1..=63).contains(&l.len()) && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    name.len() <= 253 && name.split('.').all(label)
}

fn check_url(url: &str) -> Result<(), String> {
    let uri: Uri = url.parse().map_err(|e| format!("`{url}` is not a URL: {e}"))?;
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => return Err("TLS towards replicas is not supported: use http://".into()),
        _ => return Err(format!("`{url}` must begin with http://")),
    }
    let authority = uri.authority().ok_or("has no host")?;
    if authority.as_str().contains('@') {
        return Err("has a user name in it: use `api_key_file` or `headers`".into());
    }
    let port = authority.as_str().rsplit_once(':').map(|(_, port)| port).filter(|port| !port.ends_with(']'));
    if port.is_some_and(|port| !port.parse::<u16>().is_ok_and(|p| p > 0)) {
        return Err("has no valid port: 1 to 65535".into());
    }
    if authority.host().is_empty() {
        return Err("has no host".into());
    }
    if uri.query().is_some() {
        return Err("has a query, which a base URL can't have".into());
    }
    if uri.path().trim_end_matches('/').ends_with("/v1") {
        return Err("ends with /v1: leave it out, the router adds the request's own path".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ReplicaSpec;

    fn good() -> Config {
        Config { replicas: vec![ReplicaSpec::new("http://10.0.0.1:8000/base")], ..Config::default() }
    }

    fn found(c: &Config, path: &str) -> Option<Severity> {
        c.validate().problems.iter().find(|p| p.path == path).map(|p| p.severity)
    }

    #[test]
    fn the_defaults_with_one_replica_are_clean() {
        assert_eq!(good().validate(), Report::default());
    }

    #[test]
    fn all_problems_come_at_once_with_their_paths() {
        let mut c = good();
        c.admin = "0.0.0.0:9091".parse().ok();
        c.price.harm = f64::NAN;
        c.retry.attempts = 0;
        c.replicas.push(ReplicaSpec::new("ftp://x"));
        c.poll.timeout = Seconds::default();
        c.log.level = "loud".into();
        for path in ["admin", "price.harm", "retry.attempts", "replicas[1].url", "poll.timeout", "log.level"]
        {
            assert_eq!(found(&c, path), Some(Severity::Error), "{path}: {}", c.validate());
        }
        assert!(c.validate().has_errors());
    }

    /// A shared prefix of 9,000 tokens that the index can't keep must not go unnoticed.
    #[test]
    fn an_index_too_small_for_a_long_prefix_warns() {
        let mut c = good();
        c.index.max_blocks = 141;
        assert_eq!(found(&c, "index.max_blocks"), None);
        c.index.max_blocks = 140;
        assert_eq!(found(&c, "index.max_blocks"), Some(Severity::Warning));
        assert!(!c.validate().has_errors());
    }

    #[test]
    fn keeping_connections_longer_than_the_replica_does_warns() {
        let mut c = good();
        c.timeouts.pool_idle = Seconds::from_secs(5);
        assert_eq!(found(&c, "timeouts.pool_idle"), Some(Severity::Warning));
    }

    #[test]
    fn two_doors_cannot_share_an_address() {
        let mut c = good();
        c.metrics = "127.0.0.1:8080".parse().unwrap();
        assert_eq!(found(&c, "metrics"), Some(Severity::Error));
        c.listen = "127.0.0.1:0".parse().unwrap();
        c.metrics = "127.0.0.1:0".parse().unwrap();
        assert_eq!(found(&c, "metrics"), None);
    }

    #[test]
    fn replica_urls() {
        for url in [
            "http://a",
            "http://a:8000/",
            "http://[::1]:8000/base/path",
            "http://svc.ns.svc.cluster.local:80",
        ] {
            assert_eq!(check_url(url), Ok(()), "{url}");
        }
        for url in [
            "a:8000",
            "https://a",
            "http://u:p@a",
            "http://a?x=1",
            "http://a/v1",
            "http://",
            "",
            "http://a b",
            "http://a:99999",
            "http://a:0",
            "http://[::1]:x",
        ] {
            assert!(check_url(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_replica_listed_twice_is_an_error() {
        let mut c = good();
        c.replicas.push(ReplicaSpec::new("http://10.0.0.1:8000/base/"));
        assert_eq!(found(&c, "replicas[1].url"), Some(Severity::Error));
        c.replicas[1] =
            ReplicaSpec { name: Some("10.0.0.1:8000/base".into()), ..ReplicaSpec::new("http://b") };
        assert_eq!(found(&c, "replicas[1].name"), Some(Severity::Error));
    }
}
