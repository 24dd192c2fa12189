//! The replicas as the admin port and the metrics show them.

use super::Router;
use super::cached::CachedTokens;
use super::kv::KvView;
use super::members::{Known, ModelInfo};
use crate::core::ReplicaId;
use serde::Serialize;

/// One replica as the admin port and the metrics show it.
#[derive(Clone, Debug, Serialize)]
pub struct ReplicaView {
    /// Its name.
    pub name: String,
    /// Its URL.
    pub url: String,
    /// Slot and life, as `slot.life`.
    pub id: String,
    /// The same, for code.
    #[serde(skip)]
    pub replica: ReplicaId,
    /// Its state.
    pub state: &'static str,
    /// Draining?
    pub draining: bool,
    /// Models served; none while unknown.
    pub models: Option<Vec<String>>,
    /// Longest context in tokens.
    pub max_model_len: Option<u32>,
    /// Requests in flight through this router.
    pub in_flight: u32,
    /// Requests that wait for it in its lane.
    pub in_lane: u32,
    /// Requests in flight at most, set or learned.
    pub cap: Option<u32>,
    /// Running and waiting in the engine, by its own page, if that is fresh.
    pub running: Option<u32>,
    /// See `running`.
    pub waiting: Option<u32>,
    /// Share of its cache pinned.
    pub kv_usage: Option<f64>,
    /// Tokens that its cache holds.
    pub kv_capacity_tokens: Option<u64>,
    /// Blocks that the index believes it holds: of the token chain where events are followed, else of the text chain.
    pub index_blocks: u64,
    /// What says what its cache holds: `events`, `events_partial` (something from before is missing) or `estimate`.
    pub source: &'static str,
    /// Cached tokens, predicted and found.
    pub cached_tokens: CachedTokens,
    /// Its events, by rank; empty if none are configured.
    pub events: Vec<KvView>,
    /// Seconds of prefill queued.
    pub queued_prefill_s: f64,
    /// Learned: seconds a token of prefill.
    pub prefill_s_per_token: f64,
    /// Learned: seconds of a decode step at its present load.
    pub step_s: f64,
    /// Seconds that its failures are priced at.
    pub trouble_s: f64,
}

impl Router {
    /// All replicas, for the admin port and the metrics.
    pub fn replicas(&self) -> Vec<ReplicaView> {
        let now = self.now();
        let members = self.members.lock();
        let fleet = self.fleet.lock();
        let index = self.index.read();
        let slots = self.slots.load();
        let endpoint = |id| slots.get(id);
        let (shape, _) = fleet.speeds();
        let view = |known: &Known| {
            let r = fleet.get(known.id)?;
            let polled = r.ledger.polled(now).unwrap_or_default();
            let (prefill, decode) = (r.pace.prefill, r.pace.decode);
            let names = |list: &Vec<ModelInfo>| list.iter().map(|m| m.id.to_string()).collect();
            Some(ReplicaView {
                name: known.member.spec.label().to_owned(),
                url: known.member.spec.url.clone(),
                id: format!("{}.{}", known.id.slot, known.id.life),
                replica: known.id,
                state: r.health.state().label(),
                draining: r.draining,
                models: known.member.spec.models.clone().or_else(|| known.models.as_ref().map(names)),
                max_model_len: r.facts.max_model_len,
                in_flight: r.ledger.in_flight(),
                in_lane: u32::try_from(fleet.in_lane(known.id)).unwrap_or(u32::MAX),
                cap: r.cap(now),
                running: polled.running,
                waiting: polled.waiting,
                kv_usage: polled.kv_usage,
                kv_capacity_tokens: r.facts.capacity,
                index_blocks: if known.kv.is_empty() {
                    index.held(known.id.slot)
                } else {
                    self.exact_blocks(known.id.slot)
                },
                source: KvView::source_of(known.kv.values()),
                cached_tokens: endpoint(known.id).map(|e| e.cached.totals()).unwrap_or_default(),
                events: known.kv.values().map(|slot| slot.get()).collect(),
                queued_prefill_s: r.ledger.wait(now),
                prefill_s_per_token: shape.token * prefill,
                step_s: shape.decode_step(r.ledger.sequences(now), r.ledger.context(now)) * decode,
                trouble_s: r.trouble(now),
            })
        };
        members.by_id.values().filter_map(view).collect()
    }
}
