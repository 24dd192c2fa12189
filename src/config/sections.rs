//! The smaller sections of the configuration, each with its defaults and their reasons.

use super::units::{Seconds, Size};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Weights of the price of a placement. The price is in seconds; these say how much other people's seconds count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Price {
    /// How much a second counts by which my prefill holds up the requests in flight there.
    pub harm: f64,
    /// How much a second counts by which I make decoding slower, mine and theirs.
    pub decode: f64,
    /// Prices within this share of the cheapest are a tie (0.01 = 1%).
    pub tie: f64,
}

impl Default for Price {
    fn default() -> Self {
        Price { harm: 0.3, decode: 0.3, tie: 0.01 }
    }
}

/// The index of who holds which prefix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Index {
    /// Bytes of prompt text in one block. Smaller blocks match more exactly and cost more memory.
    pub block_bytes: u32,
    /// Most blocks kept, all replicas together: bounds the memory (about 100 bytes a block).
    pub max_blocks: u64,
    /// Seed of the block hashes; null: random. Set it to the same number on all routers of a fleet whose decisions or
    /// logs are to agree, and keep it private: who knows it can craft prompts that collide.
    pub seed: Option<u64>,
    /// Tokens a byte of text makes, until it has been learned from the engines' usage.
    pub tokens_per_byte: f64,
}

impl Default for Index {
    fn default() -> Self {
        Index { block_bytes: 256, max_blocks: 2_000_000, seed: None, tokens_per_byte: 0.25 }
    }
}

/// Requests that wait for room.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Queue {
    /// Most requests waiting at once, in all lanes and in line; further ones are answered with 503 and Retry-After. From half
    /// of it on some are refused already, more and more, the lowest priority first. 0: nobody waits.
    pub max: u32,
    /// Longest wait; then 504.
    pub timeout: Seconds,
}

impl Default for Queue {
    fn default() -> Self {
        Queue { max: 16_384, timeout: Seconds::from_secs(60) }
    }
}

/// What clients may send, and how slowly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Most bytes of request headers.
    pub header_bytes: Size,
    /// Most bytes of a request body; larger ones get 413.
    pub body_bytes: Size,
    /// Time to send the headers.
    pub header_timeout: Seconds,
    /// Bodies longer than this aren't read into memory: the first part decides where they go, the rest is passed through
    /// as it comes. Such a request can't be tried a second time.
    pub scan_bytes: Size,
    /// Most bytes of bodies in memory at once, all of them together. Further ones wait (`queue.timeout`), then get 503.
    pub bodies_bytes: Size,
    /// Time to send the body.
    pub body_timeout: Seconds,
    /// Time without a byte of a body that isn't complete.
    pub body_idle: Seconds,
    /// Time in which a client takes nothing of an answer that waits for it; then the request is given up. Longer than a
    /// phone needs to change networks, far shorter than the quarter of an hour after which TCP gives up.
    pub stall_timeout: Seconds,
    /// Idle time of a client's connection. Longer than the 60 s after which common load balancers close theirs, so that
    /// it is they who close first.
    pub client_idle: Seconds,
    /// Most client connections open at once.
    pub connections: u32,
    /// Most concurrent streams on one HTTP/2 connection.
    pub h2_streams: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            header_bytes: Size::bytes(64 << 10),
            body_bytes: Size::bytes(64 << 20),
            header_timeout: Seconds::from_secs(10),
            scan_bytes: Size::bytes(32 << 20),
            bodies_bytes: Size::bytes(1 << 30),
            body_timeout: Seconds::from_secs(60),
            body_idle: Seconds::from_secs(15),
            stall_timeout: Seconds::from_secs(60),
            client_idle: Seconds::from_secs(75),
            connections: 20_000,
            h2_streams: 256,
        }
    }
}

/// How long to wait for a replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Timeouts {
    /// To connect.
    pub connect: Seconds,
    /// For the first byte of the answer; null: no limit. An answer that isn't streamed comes as a whole, after
    /// minutes perhaps, so a limit here is a limit on those.
    pub first_byte: Option<Seconds>,
    /// Between two chunks of a stream.
    pub stream_idle: Seconds,
    /// How long an unused connection to a replica is kept. Shorter than the replica's own limit (uvicorn, which vLLM
    /// uses, closes after 5 s), or requests race with the close.
    pub pool_idle: Seconds,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            connect: Seconds::from_secs(2),
            first_byte: None,
            stream_idle: Seconds::from_secs(300),
            pool_idle: Seconds::from_secs(4),
        }
    }
}

/// Trying another replica, before the first byte of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    /// Retries allowed, as a share of requests.
    pub budget: f64,
    /// Retries a second that are allowed whatever the share.
    pub min_per_second: u32,
    /// Most attempts for one request, the first included. 1: never retry.
    pub attempts: u32,
    /// A replica's Retry-After counts up to this.
    pub max_retry_after: Seconds,
}

impl Default for Retry {
    fn default() -> Self {
        Retry { budget: 0.2, min_per_second: 10, attempts: 3, max_retry_after: Seconds::from_secs(30) }
    }
}

/// Asking replicas whether they live.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Health {
    /// Time between two probes of a replica.
    pub interval: Seconds,
    /// Time a probe may take.
    pub timeout: Seconds,
    /// Failures in a row that make a replica a suspect, which gets probes only.
    pub suspect_after: u32,
    /// Successes in a row that make it ready again.
    pub recover_after: u32,
    /// How long a new or recovered replica gets a growing share instead of a full one.
    pub slow_start: Seconds,
}

impl Default for Health {
    fn default() -> Self {
        Health {
            interval: Seconds::from_secs(1),
            timeout: Seconds::from_secs(2),
            suspect_after: 3,
            recover_after: 2,
            slow_start: Seconds::from_secs(30),
        }
    }
}

/// Reading the replicas' metrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Poll {
    /// Time between two reads of one replica. The router's own ledger is what it routes by; a shorter interval mostly
    /// costs the engines' front ends time.
    pub interval: Seconds,
    /// Time a read may take; an older value counts as unknown.
    pub timeout: Seconds,
}

impl Default for Poll {
    fn default() -> Self {
        Poll { interval: Seconds::from_secs(1), timeout: Seconds::from_secs(2) }
    }
}

/// Stopping without cutting anybody off. In Kubernetes let terminationGracePeriodSeconds be more than the sum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Drain {
    /// After SIGTERM: how long new requests are still served while readiness already fails, so that load balancers
    /// have time to notice.
    pub delay: Seconds,
    /// After that: how long the requests in flight may take to end.
    pub grace: Seconds,
}

impl Default for Drain {
    fn default() -> Self {
        Drain { delay: Seconds::from_secs(5), grace: Seconds::from_secs(60) }
    }
}

/// Form of the log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    #[default]
    Text,
}

/// Where the access log goes: `stdout`, `stderr`, `off`, or the path of a file (appended to).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "String", into = "String")]
#[schemars(with = "String")]
pub enum AccessTarget {
    /// No access log.
    Off,
    /// Standard output.
    #[default]
    Stdout,
    /// Standard error.
    Stderr,
    /// A file.
    File(PathBuf),
}

impl From<String> for AccessTarget {
    fn from(s: String) -> Self {
        match s.as_str() {
            "off" => AccessTarget::Off,
            "stdout" => AccessTarget::Stdout,
            "stderr" => AccessTarget::Stderr,
            _ => AccessTarget::File(s.into()),
        }
    }
}

impl From<AccessTarget> for String {
    fn from(t: AccessTarget) -> Self {
        match t {
            AccessTarget::Off => "off".into(),
            AccessTarget::Stdout => "stdout".into(),
            AccessTarget::Stderr => "stderr".into(),
            AccessTarget::File(path) => path.to_string_lossy().into_owned(),
        }
    }
}

/// The logs. Neither of them ever holds text of a prompt or an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Of the program's own log, on standard error: `info`, or directives like `warn,homing=debug`.
    pub level: String,
    /// Form of the program's own log.
    pub format: LogFormat,
    /// Where the access log goes, one JSON line a request: stdout, stderr, off, or a file's path.
    pub access: AccessTarget,
    /// Add lengths and keyed block identities to the access log: what `homing replay` reads.
    pub blocks: bool,
    /// File with the key of those identities; without it the key is random, and two runs can't be compared.
    pub block_key_file: Option<PathBuf>,
}

impl Default for Log {
    fn default() -> Self {
        Log {
            level: "info".into(),
            format: LogFormat::default(),
            access: AccessTarget::default(),
            blocks: false,
            block_key_file: None,
        }
    }
}
