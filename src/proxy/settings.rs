//! What the proxy reads of the configuration, resolved once so that no request looks anything up.

use super::read_body::BodyLimits;
use crate::config::{Config, Hedge, Resume};
use crate::observe::BlockKey;
use std::num::NonZero;
use std::thread::available_parallelism;
use std::time::Duration;

/// The proxy's own view of the configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Threads that serve.
    pub workers: usize,
    /// Client connections open at once.
    pub connections: usize,
    /// Streams on one HTTP/2 connection.
    pub h2_streams: u32,
    /// Most bytes of a request's head.
    pub header_bytes: usize,
    /// Time to send a head.
    pub header_timeout: Duration,
    /// Most bytes of a body that is read into memory.
    pub body_bytes: usize,
    /// Longer ones are decided on their first part.
    pub scan_bytes: usize,
    /// Time to send it.
    pub body_timeout: Duration,
    /// Time without a byte of it.
    pub body_idle: Duration,
    /// Bodies in memory at once, in bytes.
    pub bodies: usize,
    /// Time a large body waits for memory.
    pub patience: Duration,
    /// Time in which a client takes nothing of its answer.
    pub stall: Duration,
    /// Idle time of a client's connection.
    pub client_idle: Duration,
    /// Time to connect to a replica.
    pub connect: Duration,
    /// Time to the first byte of an answer, if limited.
    pub first_byte: Option<Duration>,
    /// Time between two pieces of a stream.
    pub stream_idle: Duration,
    /// Idle time of a connection to a replica.
    pub pool_idle: Duration,
    /// Continuing broken streams.
    pub resume: Resume,
    /// Asking a second replica in time.
    pub hedge: Hedge,
    /// Attempts for one request, the first included.
    pub attempts: u32,
    /// Retries as a share of requests.
    pub retry_share: f64,
    /// Retries a second that are always allowed.
    pub retry_floor: u32,
    /// Cap of a replica's `Retry-After`.
    pub max_retry_after: Duration,
    /// Time for what is in flight to end.
    pub drain_grace: Duration,
    /// With it the access log also says which blocks of 512 tokens a prompt is made of. Random where the configuration
    /// asks for them: whoever has a key file puts the key here.
    pub block_key: Option<BlockKey>,
    /// Tokens in a block of the chain, about.
    pub block_tokens: f64,
}

impl Settings {
    /// Resolves the defaults that depend on the machine.
    pub fn new(config: &Config) -> Self {
        Settings {
            workers: config.workers.unwrap_or_else(|| available_parallelism().map_or(1, NonZero::get)),
            connections: config.limits.connections as usize,
            h2_streams: config.limits.h2_streams,
            header_bytes: config.limits.header_bytes.as_usize().max(8192),
            header_timeout: config.limits.header_timeout.get(),
            body_bytes: config.limits.body_bytes.as_usize(),
            scan_bytes: config.limits.scan_bytes.as_usize(),
            body_timeout: config.limits.body_timeout.get(),
            body_idle: config.limits.body_idle.get(),
            bodies: config.limits.bodies_bytes.as_usize(),
            patience: config.queue.timeout.get(),
            stall: config.limits.stall_timeout.get(),
            client_idle: config.limits.client_idle.get(),
            connect: config.timeouts.connect.get(),
            first_byte: config.timeouts.first_byte.map(|s| s.get()),
            stream_idle: config.timeouts.stream_idle.get(),
            pool_idle: config.timeouts.pool_idle.get(),
            resume: config.resume.clone(),
            hedge: config.hedge.clone(),
            attempts: config.retry.attempts.max(1),
            retry_share: config.retry.budget,
            retry_floor: config.retry.min_per_second,
            max_retry_after: config.retry.max_retry_after.get(),
            drain_grace: config.drain.grace.get(),
            block_key: config.log.blocks.then(BlockKey::random),
            block_tokens: f64::from(config.index.block_bytes) * config.index.tokens_per_byte,
        }
    }

    pub(super) fn body_limits(&self) -> BodyLimits {
        BodyLimits {
            bytes: self.body_bytes,
            scan: self.scan_bytes,
            within: self.body_timeout,
            silence: self.body_idle,
            patience: self.patience,
            store: BodyLimits::store(self.body_bytes, self.scan_bytes, self.bodies),
        }
    }
}
