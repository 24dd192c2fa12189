//! Follows what engines publish of their caches.
//!
//! A thread and a runtime of its own: a burst of events delays neither a probe nor a request. For each replica whose
//! events are configured there is one task a data-parallel rank; what it hears goes to the index in slices.
//!
//! - `source`: one publisher: connect, replay, listen; `order`: what a batch's number says
//! - `link`, `replay`: connections; asking for what was published before
//! - `status`: counts, flags, the line on the admin port

mod link;
mod order;
mod replay;
mod source;
mod status;

use crate::config::EventsSpec;
use crate::core::ReplicaId;
use crate::core::prefix::exact::{Follower, FollowerConfig};
use crate::engine::kv::KvEndpoint;
use crate::observe::Loud;
use crate::router::{Endpoint, Member, Router};
use source::{Address, Source};
use status::Status;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Longest time until one that joined is followed.
const SWEEP: Duration = Duration::from_millis(250);
/// Token ids kept of blocks whose beginning isn't known, each rank: 4 MB.
const ORPHAN_TOKENS: usize = 1 << 20;

struct Followed(Vec<JoinHandle<()>>);

impl Drop for Followed {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Follows the members of `router` until it is dropped.
pub(super) async fn run(router: Arc<Router>, loud: Loud, max_blocks: usize) {
    let mut fleet: HashMap<ReplicaId, Followed> = HashMap::new();
    let mut sweeps = tokio::time::interval(SWEEP);
    sweeps.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        sweeps.tick().await;
        let members = router.endpoints();
        fleet.retain(|id, tasks| {
            let broken = tasks.0.iter().any(JoinHandle::is_finished);
            if broken {
                tracing::error!(replica = ?id, "the task that follows its events broke down and is begun anew");
            }
            !broken && members.iter().any(|e| e.id == *id)
        });
        for endpoint in members {
            if fleet.contains_key(&endpoint.id) {
                continue;
            }
            let Some(member) = router.member(endpoint.id) else { continue };
            let Some(spec) = &member.spec.events else { continue };
            // Until its list of models has been read, it isn't known which tokens its blocks are made of.
            let Some(identity) = router.kv_identity(endpoint.id) else { continue };
            let sources = sources(&router, &loud, &endpoint, &member, spec, identity, max_blocks);
            let tasks = sources.into_iter().map(|source| tokio::spawn(source.run())).collect();
            fleet.insert(endpoint.id, Followed(tasks));
        }
    }
}

fn sources(
    router: &Arc<Router>,
    loud: &Loud,
    endpoint: &Endpoint,
    member: &Member,
    spec: &EventsSpec,
    (model, block): (String, u32),
    max_blocks: usize,
) -> Vec<Source> {
    let at = |text: &str| {
        let text =
            text.replace("{host}", &bracketed(&endpoint.host)).replace("{port}", &endpoint.port.to_string());
        text.parse::<KvEndpoint>()
    };
    let (first, replay) = match (at(&spec.endpoint), spec.replay.as_deref().map(at).transpose()) {
        (Ok(first), Ok(replay)) => (first, replay),
        (Err(e), _) | (_, Err(e)) => {
            // The configuration was checked; only a host from discovery can make it wrong.
            tracing::error!(replica = member.spec.label(), "its events can't be followed: {e}");
            return Vec::new();
        }
    };
    let mut found = Vec::new();
    for rank in 0..spec.ranks.max(1) {
        let Some(there) = first.of_rank(rank, spec.rank_stride) else { continue };
        let Some(slot) = router.kv_attach(endpoint.id, rank) else { continue };
        let at = Address {
            endpoint: there,
            replay: replay.as_ref().and_then(|replay| replay.of_rank(rank, spec.rank_stride)),
            topic: spec.topic.replace("{host}", &endpoint.host).replace("{port}", &endpoint.port.to_string()),
            bind: spec.bind,
        };
        let follower = Follower::new(FollowerConfig {
            seed: router.chain_seed(),
            block,
            model: model.clone(),
            max_blocks,
            max_orphan_tokens: ORPHAN_TOKENS,
        });
        let name =
            if spec.ranks > 1 { format!("{}#{rank}", endpoint.name) } else { endpoint.name.to_string() };
        let status = Status::new(slot, loud, &name);
        found.push(Source::new(endpoint.id, rank, at, router.clone(), follower, status));
    }
    found
}

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}
