//! What the proxy reads of the configuration, resolved once so that no request looks anything up.

use super::budget::Budget;
use super::read_body::BodyLimits;
use crate::config::Config;
use crate::observe::BlockKey;
use arc_swap::{ArcSwap, Guard};
use std::num::NonZero;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

/// A client's connection may lie idle this long. Longer than the 60 s after which common load balancers close theirs,
/// so that it is they who close first.
const CLIENT_IDLE: Duration = Duration::from_secs(75);
/// Request bodies held in memory at once, all of them together; more wait.
const BODIES: usize = 1 << 30;

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
    /// Time to send it.
    pub body_timeout: Duration,
    /// Bodies in memory at once, in bytes.
    pub bodies: usize,
    /// Time a large body waits for memory.
    pub patience: Duration,
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
            body_timeout: config.limits.body_timeout.get(),
            bodies: BODIES,
            patience: config.queue.timeout.get(),
            client_idle: CLIENT_IDLE,
            connect: config.timeouts.connect.get(),
            first_byte: config.timeouts.first_byte.map(|s| s.get()),
            stream_idle: config.timeouts.stream_idle.get(),
            pool_idle: config.timeouts.pool_idle.get(),
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
        BodyLimits::new(self.body_bytes, self.body_timeout, self.patience, self.bodies)
    }
}

/// The settings of a running proxy, and what is made of them. Requests read them when they need them, so that a change
/// holds for all that begins after it; connections, queues and counters live on.
#[derive(Clone)]
pub struct LiveSettings(Arc<Inner>);

struct Inner {
    settings: ArcSwap<Settings>,
    limits: ArcSwap<BodyLimits>,
    budget: Budget,
}

impl std::fmt::Debug for LiveSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LiveSettings({:?})", self.settings())
    }
}

impl LiveSettings {
    pub(super) fn new(settings: Settings) -> Self {
        LiveSettings(Arc::new(Inner {
            budget: Budget::new(settings.retry_share, settings.retry_floor),
            limits: ArcSwap::from_pointee(settings.body_limits()),
            settings: ArcSwap::from_pointee(settings),
        }))
    }

    /// What holds now.
    pub fn settings(&self) -> Guard<Arc<Settings>> {
        self.0.settings.load()
    }

    /// From now on these hold. The number of workers and what keys the block identities stay as they are: threads
    /// aren't moved, and identities of one run are to be comparable.
    pub fn set(&self, mut settings: Settings) {
        {
            let now = self.settings();
            settings.workers = now.workers;
            settings.block_key = now.block_key.clone();
            settings.block_tokens = now.block_tokens;
        }
        self.0.budget.set(settings.retry_share, settings.retry_floor);
        let limits =
            self.0.limits.load().changed(settings.body_bytes, settings.body_timeout, settings.patience);
        self.0.limits.store(Arc::new(limits));
        self.0.settings.store(Arc::new(settings));
    }

    /// For one body: kept while it is read.
    pub(super) fn limits(&self) -> Arc<BodyLimits> {
        self.0.limits.load_full()
    }

    pub(super) fn budget(&self) -> &Budget {
        &self.0.budget
    }
}
