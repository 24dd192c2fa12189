//! What is known of one replica, and a round at it.

use super::Pace;
use super::client::{Client, Failure};
use super::flags::Flags;
use super::reading::Reader;
use super::rhythm::Beat;
use crate::core::ReplicaId;
use crate::core::health::Probe;
use crate::engine;
use crate::observe::Loud;
use crate::router::{Endpoint, Member, ModelInfo, Page, Router};
use http::StatusCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Looks at one life of one replica.
pub(super) struct Eye {
    id: ReplicaId,
    name: Arc<str>,
    router: Arc<Router>,
    client: Client,
    reader: Reader,
    flags: Flags,
    pace: Pace,
    health: Beat,
    poll: Beat,
    models: Beat,
    /// Was its health good at the last look?
    well: bool,
    /// What that look saw.
    seen: Option<Probe>,
    asleep: Option<bool>,
    /// Has its list of models been read?
    listed: bool,
    /// Pause after the next failure to read it.
    patience: Duration,
    /// The configuration says what it serves, and how much its cache holds.
    told: (bool, bool),
}

/// Pause after the first failure to read the models; doubles until it is the regular one.
const RETRY: Duration = Duration::from_secs(1);

impl Eye {
    /// Opens it: the first round is due at once. `epoch` is when the watch began.
    pub(super) fn new(
        endpoint: Arc<Endpoint>,
        member: &Member,
        router: Arc<Router>,
        loud: &Loud,
        pace: Pace,
        epoch: Instant,
    ) -> Self {
        let (key, now, name) = (member.key(), Instant::now(), endpoint.name.clone());
        let beat = |every| Beat::new(every, key, epoch, now);
        Eye {
            id: endpoint.id,
            router,
            reader: Reader::new(member.spec.engine.unwrap_or_default()),
            flags: Flags::new(loud, &name),
            name,
            client: Client::new(endpoint),
            pace,
            health: beat(pace.health),
            poll: beat(pace.poll),
            models: beat(pace.models),
            well: false,
            seen: None,
            asleep: None,
            listed: false,
            patience: RETRY,
            told: (member.spec.models.is_some(), member.spec.kv_tokens.is_some()),
        }
    }

    /// Looks until it is dropped.
    pub(super) async fn watch(mut self) {
        loop {
            sleep_until(self.next()).await;
            self.round().await;
        }
    }

    fn next(&self) -> Instant {
        let health = self.health.next();
        // Of one that is unwell nothing but its health is asked.
        if self.well { health.min(self.poll.next()).min(self.models.next()) } else { health }
    }

    /// Does what is due. Health is told last: a replica that has just come up gets its first request when it is known
    /// what it serves and that it is awake.
    async fn round(&mut self) {
        let now = Instant::now();
        let probed = self.health.due(now);
        if probed && !self.check(now).await {
            return;
        }
        let slept = self.asleep;
        if self.poll.due(now) {
            self.read_metrics(now).await;
        }
        if self.models.due(now) {
            self.read_models(now).await;
        }
        if probed || self.asleep != slept {
            self.tell(if self.asleep == Some(true) { Probe::Asleep } else { Probe::Ok }, "");
        }
    }

    /// Is its health good? If not, that is told, and what its page said holds no longer.
    async fn check(&mut self, now: Instant) -> bool {
        let (probe, why) = match self.client.get("/health", self.pace.health_timeout).await {
            Ok(status) if status.is_success() => {
                if !self.well {
                    // In this very round: what was known before may be of another process.
                    self.poll.hurry(now, Duration::ZERO);
                    self.models.hurry(now, Duration::ZERO);
                }
                self.well = true;
                return true;
            }
            Ok(status) => (Probe::NotReady, http_status(status)),
            Err(failure) => (Probe::Unreachable, failure.to_string()),
        };
        self.well = false;
        self.asleep = None;
        self.router.page(self.id, Page::default());
        self.tell(probe, &why);
        false
    }

    fn tell(&mut self, probe: Probe, why: &str) {
        if self.seen.replace(probe) != Some(probe) && !why.is_empty() {
            tracing::info!(replica = &*self.name, "health: {why}");
        }
        self.router.probe(self.id, probe);
    }

    async fn read_metrics(&mut self, now: Instant) {
        let answer = self.client.get("/metrics", self.pace.poll_timeout).await;
        let reading = ok(answer).and_then(|()| self.reader.read(self.client.body()));
        match reading {
            Ok(reading) => {
                self.asleep = reading.asleep;
                self.flags.page(self.told.1 || reading.page.capacity.is_some());
                if reading.page.restarted {
                    self.models.hurry(now, Duration::ZERO);
                }
                self.router.page(self.id, reading.page);
                if let Some(lora) = &reading.lora {
                    let slots = lora.max.and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
                    let active = lora.waiting.iter().chain(&lora.running).map(String::as_str);
                    self.router.adapters(self.id, slots, active);
                }
            }
            Err(why) => {
                // It may have woken unseen: then its health is what is left to go by.
                if self.flags.no_page(&why) {
                    self.asleep = None;
                }
                self.router.page(self.id, Page::default());
            }
        }
    }

    async fn read_models(&mut self, now: Instant) {
        let answer = self.client.get("/v1/models", self.pace.poll_timeout).await;
        let list =
            ok(answer).and_then(|()| engine::models(self.client.body()).map_err(|_| "no list".to_owned()));
        match list {
            Ok(list) => {
                self.listed = true;
                self.patience = RETRY;
                self.flags.models();
                let info = |m: engine::ModelEntry| ModelInfo {
                    id: m.id.into(),
                    parent: m.parent.map(Into::into),
                    max_model_len: m.max_model_len,
                };
                self.router.models(self.id, list.into_iter().map(info).collect());
            }
            Err(why) => {
                self.models.hurry(now, self.patience);
                self.patience = (self.patience * 2).min(self.pace.models);
                if !self.told.0 {
                    self.flags.no_models(&why, self.listed);
                }
            }
        }
    }
}

fn ok(answer: Result<StatusCode, Failure>) -> Result<(), String> {
    match answer {
        Ok(StatusCode::OK) => Ok(()),
        Ok(status) => Err(http_status(status)),
        Err(failure) => Err(failure.to_string()),
    }
}

fn http_status(status: StatusCode) -> String {
    format!("HTTP {}", status.as_u16())
}
