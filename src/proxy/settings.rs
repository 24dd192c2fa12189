//! What the proxy reads of the configuration, resolved once so that no request looks anything up.

use super::budget::Budget;
use super::read_body::{BodyLimits, Limits};
use crate::config::{Config, Hedge, Resume};
use crate::observe::BlockKey;
use arc_swap::{ArcSwap, Guard};
use std::num::NonZero;
use std::sync::Arc;
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
    /// Time that a large body waits for memory, and a request for its turn.
    pub patience: Duration,
    /// Are priority and tenant taken from the headers?
    pub trust_headers: bool,
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
            trust_headers: config.lanes.trust_headers,
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

    fn body_limits(&self) -> Limits {
        Limits {
            bytes: self.body_bytes,
            scan: self.scan_bytes,
            within: self.body_timeout,
            silence: self.body_idle,
            patience: self.patience,
        }
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
    hedges: Budget,
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
            hedges: Budget::new(settings.hedge.budget, 0),
            limits: ArcSwap::from_pointee(BodyLimits::new(settings.body_limits(), settings.bodies)),
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
        self.0.hedges.set(settings.hedge.budget, 0);
        let limits = self.0.limits.load().changed(settings.body_limits(), settings.bodies);
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

    /// Of second requests.
    pub(super) fn hedges(&self) -> &Budget {
        &self.0.hedges
    }
}
