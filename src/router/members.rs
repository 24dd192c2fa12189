//! Who is in the fleet, and what discovery and watch learn of them.

use super::endpoint::{Endpoint, Member};
use super::kv::KvSlot;
use super::{Router, names};
use crate::core::adapters::Adapters;
use crate::core::health::{Probe, State};
use crate::core::ledger::Polled;
use crate::core::replica::Facts;
use crate::core::{ModelId, ReplicaId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Members by life, with what the shell remembers of them. Behind one lock that no request takes.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) by_id: BTreeMap<(u16, u32), Known>,
}

#[derive(Debug)]
pub(super) struct Known {
    pub(super) id: ReplicaId,
    pub(super) member: Member,
    pub(super) models: Option<Vec<ModelInfo>>,
    /// Tokens of its cache, as the engine says.
    capacity: Option<u64>,
    /// Blocks that the index was last told.
    blocks: Option<u64>,
    page: Option<Page>,
    /// Statuses of those who follow its events, by rank.
    pub(super) kv: BTreeMap<u32, Arc<KvSlot>>,
    /// Whoever found it says that it isn't ready.
    held: bool,
}

impl Known {
    pub(super) fn rank_blocks(&self, tokens: u64, block: u32) -> u64 {
        let ranks = self.member.spec.events.as_ref().map_or(1, |events| events.ranks.max(1));
        tokens / u64::from(block.max(1)) / u64::from(ranks)
    }

    /// Models that it serves, as far as known; those of the configuration first.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let listed = self.member.spec.models.iter().flatten().map(String::as_str);
        listed.chain(self.models.iter().flatten().map(|m| &*m.id))
    }

    /// Blocks of the token chain that one rank of it holds, if its capacity is known.
    pub(super) fn capacity_blocks(&self, block: u32) -> Option<u64> {
        Some(self.rank_blocks(self.capacity?, block))
    }
}

impl Members {
    pub(super) fn known_mut(&mut self, id: ReplicaId) -> Option<&mut Known> {
        self.by_id.get_mut(&(id.slot, id.life))
    }
}

/// What `/v1/models` says of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelInfo {
    /// Its name.
    pub id: Arc<str>,
    /// For an adapter: the base model.
    pub parent: Option<Arc<str>>,
    /// Longest prompt plus answer, in tokens.
    pub max_model_len: Option<u32>,
}

/// What one reading of a metrics page tells the router.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Page {
    /// Sequences running.
    pub running: Option<u32>,
    /// Requests waiting in the engine.
    pub waiting: Option<u32>,
    /// Share of the cache pinned by running requests.
    pub kv_usage: Option<f64>,
    /// Tokens that the cache holds.
    pub capacity: Option<u64>,
    /// Since the page before: requests prefilled, mean seconds of a prefill, mean tokens computed in it.
    pub prefills: Option<(f64, f64, f64)>,
    /// Prompt tokens found in the prefix cache since the page before.
    pub cache_hits: Option<u64>,
    /// Is it an engine that announces cached blocks again when a request asks for it?
    pub reports: bool,
    /// The engine has restarted since the page before: what it had cached is gone.
    pub restarted: bool,
}

/// All names served, sorted, and the page that lists them.
#[derive(Debug)]
pub(super) struct ModelList {
    names: Arc<[Arc<str>]>,
    /// Of adapters: the model that they adapt.
    parents: BTreeMap<Arc<str>, Arc<str>>,
    /// Longest prompt and answer together, of each.
    contexts: Box<[Option<u32>]>,
    page: bytes::Bytes,
}

impl Default for ModelList {
    fn default() -> Self {
        ModelList {
            names: Arc::from([]),
            parents: BTreeMap::new(),
            contexts: Box::default(),
            page: page_of(&BTreeMap::new()),
        }
    }
}

impl Members {
    /// Each with the text by which a later router knows it again. Of two lives of one address the newer counts.
    pub(super) fn identities(&self) -> Vec<(ReplicaId, String)> {
        let mut newest: BTreeMap<String, &Known> = BTreeMap::new();
        for known in self.by_id.values() {
            newest.insert(known.member.identity(), known);
        }
        newest.into_iter().map(|(name, known)| (known.id, name)).collect()
    }
}

impl Router {
    /// A replica joins.
    ///
    /// # Errors
    /// When the fleet is as large as it can be, or the address can't be used. The message says which.
    pub fn join(&self, member: Member) -> Result<ReplicaId, String> {
        let mut members = self.members.lock();
        let spec = &member.spec;
        let facts = Facts {
            key: member.key(),
            models: spec.models.as_ref().map(|list| self.intern(list.iter().map(|m| Arc::from(m.as_str())))),
            max_model_len: None,
            capacity: spec.kv_tokens,
            max_in_flight: spec.max_in_flight,
        };
        let id = self.fleet.lock().join(facts).ok_or("the fleet is full: 1,024 replicas")?;
        let endpoint = match member.endpoint(id) {
            Ok(e) => Arc::new(e),
            Err(e) => {
                self.fleet.lock().leave(id);
                return Err(e);
            }
        };
        self.index.write().join(id.slot, None);
        self.exact.write().join(id.slot, None);
        // The same address under another specification: it is the same cache.
        let before = members.by_id.values().find(|k| k.member.identity() == member.identity()).map(|k| k.id);
        match before {
            Some(old) => {
                self.index.write().copy(self.now(), old.slot, id.slot);
                self.exact.write().copy(self.now(), old.slot, id.slot);
                self.fleet.lock().inherit(self.now(), old, id);
            }
            None => self.recall(id, &member),
        }
        let mut slots = (**self.slots.load()).clone();
        slots.put(endpoint);
        self.slots.store(Arc::new(slots));
        let known = Known {
            id,
            capacity: spec.kv_tokens,
            models: None,
            blocks: None,
            page: None,
            kv: BTreeMap::new(),
            held: false,
            member,
        };
        members.by_id.insert((id.slot, id.life), known);
        drop(members);
        self.refresh_models();
        Ok(id)
    }

    /// A replica leaves. What it is doing goes on; what was believed of its cache is forgotten.
    pub fn leave(&self, id: ReplicaId) {
        let mut members = self.members.lock();
        if members.by_id.remove(&(id.slot, id.life)).is_none() {
            return;
        }
        self.fleet.lock().leave(id);
        self.index.write().leave(id.slot);
        self.kv_leave(id.slot);
        let mut slots = (**self.slots.load()).clone();
        if let Some(e) = slots.remove(id) {
            e.leaves();
        }
        self.slots.store(Arc::new(slots));
        drop(members);
        self.refresh_models();
        self.wake();
    }

    /// Stops or resumes giving a replica new requests. False if there is none of that id.
    pub fn drain(&self, id: ReplicaId, draining: bool) -> bool {
        let mut fleet = self.fleet.lock();
        fleet.drain(id, draining);
        let known = fleet.get(id).is_some();
        drop(fleet);
        self.wake();
        known
    }

    /// Whoever found a replica says that it isn't ready (or is again). While that lasts its good health pages don't count: one that
    /// never served stays *starting*, so that requests may wait for it, and one that served is out after as many pages as any
    /// that fails its own.
    pub fn hold(&self, id: ReplicaId, held: bool) {
        if let Some(known) = self.members.lock().by_id.get_mut(&(id.slot, id.life)) {
            known.held = held;
        }
    }

    /// A health probe came back.
    pub fn probe(&self, id: ReplicaId, probe: Probe) {
        let held = self.members.lock().by_id.get(&(id.slot, id.life)).is_some_and(|k| k.held);
        let probe = if held && probe == Probe::Ok { Probe::NotReady } else { probe };
        let now = self.now();
        let (changed, state) = {
            let mut fleet = self.fleet.lock();
            (fleet.probe(now, id, probe), fleet.get(id).map(|r| r.health.state()))
        };
        if !changed {
            return;
        }
        let name = self.slots.load().get(id).map_or_else(String::new, |e| e.name.to_string());
        match state {
            Some(State::Ready) => tracing::info!(replica = name, "ready"),
            Some(s) => tracing::warn!(replica = name, state = s.label(), "out of service"),
            None => {}
        }
        self.wake();
    }

    /// A metrics page came.
    pub fn page(&self, id: ReplicaId, page: Page) {
        let now = self.now();
        let polled = Polled { running: page.running, waiting: page.waiting, kv_usage: page.kv_usage };
        {
            let mut fleet = self.fleet.lock();
            fleet.load(now, id, polled);
            if let Some((requests, seconds, computed)) = page.prefills {
                fleet.counters(now, id, requests, seconds, computed);
            }
        }
        let mut members = self.members.lock();
        let Some(known) = members.by_id.get_mut(&(id.slot, id.life)) else { return };
        known.page = Some(page);
        if known.member.spec.kv_tokens.is_none() && page.capacity.is_some() && known.capacity != page.capacity
        {
            known.capacity = page.capacity;
            self.fleet.lock().facts(id, |f| f.capacity = page.capacity);
        }
        if let Some(endpoint) = self.slots.load().get(id) {
            endpoint.told.store(known.capacity.is_some(), Ordering::Relaxed);
            if let Some(hits) = page.cache_hits {
                endpoint.cached.hits(hits);
            }
            endpoint
                .kv
                .set_able(page.reports && known.member.spec.events.as_ref().is_some_and(|e| e.reports));
            if page.restarted {
                endpoint.kv.restarted();
            }
        }
        if page.restarted {
            tracing::warn!(replica = known.member.spec.label(), "restarted: its cache is believed empty");
            self.index.write().clear(id.slot);
            if known.kv.is_empty() {
                self.exact.write().clear(id.slot);
            }
            self.fleet.lock().adapters(id, Adapters::clear);
        }
    }

    /// The page says which LoRA adapters have requests, and how many fit at once.
    pub fn adapters<'a>(&self, id: ReplicaId, slots: usize, active: impl IntoIterator<Item = &'a str>) {
        let active: Vec<ModelId> = {
            let names = self.names.read();
            active.into_iter().filter_map(|name| names.get(name)).collect()
        };
        self.fleet.lock().adapters(id, |a| a.page(slots, active));
    }

    /// The list of models came.
    pub fn models(&self, id: ReplicaId, models: Vec<ModelInfo>) {
        let mut members = self.members.lock();
        let Some(known) = members.by_id.get_mut(&(id.slot, id.life)) else { return };
        if known.models.as_ref() == Some(&models) {
            return;
        }
        let longest = models.iter().filter_map(|m| m.max_model_len).max();
        let adapters = self.intern(models.iter().filter(|m| m.parent.is_some()).map(|m| m.id.clone()));
        let ids = self.intern(models.iter().map(|m| m.id.clone()));
        let told = known.member.spec.models.is_some();
        known.models = Some(models);
        let mut fleet = self.fleet.lock();
        fleet.adapters(id, |a| a.listed(adapters));
        fleet.facts(id, |f| {
            f.max_model_len = longest;
            if !told {
                f.models = Some(ids);
            }
        });
        drop(fleet);
        drop(members);
        self.recall_models();
        self.refresh_models();
        self.wake();
    }

    /// Current members, for those who connect to all of them.
    pub fn endpoints(&self) -> Vec<Arc<Endpoint>> {
        self.slots.load().iter().cloned().collect()
    }

    /// The member of that life, as discovery gave it.
    pub fn member(&self, id: ReplicaId) -> Option<Member> {
        self.members.lock().by_id.get(&(id.slot, id.life)).map(|k| k.member.clone())
    }

    /// Does any replica list that model?
    pub fn knows_model(&self, name: &str) -> bool {
        self.models.load().names.iter().any(|n| **n == *name)
    }

    /// The model that this adapter adapts, if it is one.
    pub(super) fn parent_of(&self, adapter: &str) -> Option<Arc<str>> {
        self.models.load().parents.get(adapter).cloned()
    }

    /// Longest prompt and answer together that `model` takes, in tokens, if that is known. Without a name: the model's
    /// that is served, if it is the only one.
    pub fn context_of(&self, model: Option<&str>) -> Option<u32> {
        let list = self.models.load();
        let at = match model {
            Some(name) => list.names.binary_search_by(|n| (**n).cmp(name)).ok()?,
            None => (list.names.len() == 1).then_some(0)?,
        };
        *list.contexts.get(at)?
    }

    /// Names of all models served, sorted.
    pub fn model_names(&self) -> Arc<[Arc<str>]> {
        self.models.load().names.clone()
    }

    /// The union of all replicas' `/v1/models`, in OpenAI's shape, in a stable order.
    pub fn models_page(&self) -> bytes::Bytes {
        self.models.load().page.clone()
    }

    /// Tells the index each replica's capacity in blocks of the text chain, as tokens a byte are learned.
    pub(super) fn fit_capacities(&self) {
        let mut members = self.members.lock();
        for known in members.by_id.values_mut() {
            let learned = || self.slots.load().get(known.id).and_then(|e| e.capacity.lock().tokens());
            let Some(tokens) = known.capacity.or_else(learned) else { continue };
            let ratio = self.tokens_per_byte(known);
            let blocks = (tokens as f64 / (f64::from(self.block_bytes) * ratio)) as u64;
            let moved = known.blocks.is_none_or(|b| blocks.abs_diff(b) * 50 > b);
            if moved {
                known.blocks = Some(blocks);
                self.index.write().set_capacity(known.id.slot, Some(blocks));
                let block = self.block_of(known);
                self.kv_capacity(known.id.slot, Some(known.rank_blocks(tokens, block)));
            }
        }
    }

    /// Tokens a byte of the model of which most was seen on that replica.
    fn tokens_per_byte(&self, known: &Known) -> f64 {
        let names = self.names.read();
        let fleet = self.fleet.lock();
        let listed = known.models.iter().flatten().filter_map(|m| names.get(&m.id));
        listed
            .chain([names::UNLISTED])
            .filter_map(|m| fleet.model(m))
            .max_by(|a, b| a.prompts_seen().total_cmp(&b.prompts_seen()))
            .map_or(fleet.settings().tokens_per_byte, |s| s.tokens_per_byte())
    }

    fn intern(&self, list: impl Iterator<Item = Arc<str>>) -> Vec<ModelId> {
        let mut names = self.names.write();
        let mut ids: Vec<ModelId> = list.map(|n| names.intern(&n)).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    fn refresh_models(&self) {
        let members = self.members.lock();
        let mut union: BTreeMap<Arc<str>, ModelInfo> = BTreeMap::new();
        for known in members.by_id.values() {
            if let Some(told) = &known.member.spec.models {
                for name in told {
                    let id: Arc<str> = name.as_str().into();
                    union.entry(id.clone()).or_insert(ModelInfo { id, parent: None, max_model_len: None });
                }
            } else {
                for m in known.models.iter().flatten() {
                    let best = union.entry(m.id.clone()).or_insert_with(|| m.clone());
                    best.max_model_len = best.max_model_len.max(m.max_model_len);
                }
            }
        }
        let mut known = self.names.write();
        if known.crowded() {
            let kept = known.keep(|name| union.contains_key(name));
            self.fleet.lock().keep_models(|id| id == names::UNLISTED || kept.binary_search(&id).is_ok());
        }
        drop(known);
        let names = union.keys().cloned().collect();
        let parents = union.values().filter_map(|m| Some((m.id.clone(), m.parent.clone()?))).collect();
        let contexts = union.values().map(|m| m.max_model_len).collect();
        self.models.store(Arc::new(ModelList { names, parents, contexts, page: page_of(&union) }));
    }
}

fn page_of(union: &BTreeMap<Arc<str>, ModelInfo>) -> bytes::Bytes {
    let data: Vec<serde_json::Value> = union
        .values()
        .map(|m| {
            serde_json::json!({
                "id": &*m.id, "object": "model", "created": 0, "owned_by": "homing",
                "root": &*m.id, "parent": m.parent.as_deref(), "max_model_len": m.max_model_len,
            })
        })
        .collect();
    serde_json::json!({"object": "list", "data": data}).to_string().into()
}
