//! What is told of one publisher: counts, its flags, the line on the admin port.

use super::link::Trouble;
use crate::core::prefix::exact::Tally;
use crate::engine::kv::KvEndpoint;
use crate::observe::{Flag, Loud, now_unix};
use crate::router::{KvSlot, KvView, Trust};
use std::sync::Arc;

/// Failed connections in a row before it is told: an engine that restarts is gone for a moment.
const TOLD_AFTER: u32 = 3;

/// What has come, and what of it was of no use. All are totals since the router began to listen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count {
    pub(super) batches: u64,
    pub(super) events: u64,
    pub(super) replayed: u64,
    pub(super) gaps: u64,
    pub(super) lost_batches: u64,
    pub(super) repeated: u64,
    pub(super) restarts: u64,
    pub(super) wrong_topic: u64,
    pub(super) malformed: u64,
    pub(super) faulty: u64,
    pub(super) unknown: u64,
}

/// The status of one publisher.
pub(super) struct Status {
    pub(super) count: Count,
    slot: Arc<KvSlot>,
    lost: Flag,
    partial: Flag,
    failures: u32,
    trust: Trust,
    lag: Option<f64>,
    tally: Tally,
}

impl Status {
    pub(super) fn new(slot: Arc<KvSlot>, loud: &Loud, replica: &str) -> Self {
        Status {
            count: Count::default(),
            slot,
            lost: loud.flag("events_lost", replica),
            partial: loud.flag("events_partial", replica),
            failures: 0,
            trust: Trust::Estimate,
            lag: None,
            tally: Tally::default(),
        }
    }

    /// The connection broke, or there is none. `ready`: does the replica serve?
    /// Tells whether it has been so for a while: then nothing that events said can be built on.
    pub(super) fn lost(&mut self, why: &Trouble, endpoint: &KvEndpoint, ready: bool) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.partial.clear();
        if ready && self.failures >= TOLD_AFTER {
            self.lost.raise(|| {
                format!(
                    "no KV events from {endpoint} ({why}); what its cache holds is estimated until they come"
                )
            });
        }
        self.publish();
        self.failures >= TOLD_AFTER
    }

    /// It publishes nothing though its cache must have changed.
    pub(super) fn silent(&mut self) {
        self.lost.raise(|| {
            "prompts were computed and no KV event told of them; what its cache holds is estimated until one comes"
        });
        self.publish();
    }

    /// Events are followed. `late`: something that was published before is missing.
    pub(super) fn followed(&mut self, late: bool, replay: bool) {
        self.failures = 0;
        if self.trust != Trust::Estimate {
            self.lost.clear();
        }
        if late {
            let why = if replay {
                "the engine's replay doesn't reach back"
            } else {
                "no replay endpoint is configured"
            };
            self.partial.raise(|| {
                format!("blocks stored before the router listened are unknown ({why}); they are learned from answers")
            });
        } else {
            self.partial.clear();
        }
        self.publish();
    }

    /// Tells whether that is news.
    pub(super) fn trust(&mut self, trust: Trust) -> bool {
        let news = std::mem::replace(&mut self.trust, trust) != trust;
        if news {
            self.publish();
        }
        news
    }

    /// A batch of so many events, made at `ts`, was taken in.
    pub(super) fn batch(&mut self, ts: f64, events: usize) {
        self.count.batches += 1;
        self.count.events += events as u64;
        self.lag = Some((now_unix() - ts).max(0.0));
    }

    pub(super) fn tally(&mut self, tally: Tally) {
        self.tally = tally;
    }

    fn publish(&self) {
        let (c, t) = (&self.count, &self.tally);
        self.slot.set(KvView {
            source: self.trust.label(),
            lag_s: self.lag,
            batches: c.batches,
            events: c.events,
            replayed: c.replayed,
            gaps: c.gaps,
            lost_batches: c.lost_batches,
            repeated: c.repeated,
            restarts: c.restarts,
            unreadable: c.malformed + c.faulty + c.wrong_topic,
            unknown: c.unknown,
            blocks: t.known,
            host_blocks: t.tiers[1] + t.tiers[2],
            orphans: t.orphans,
            unknown_removals: t.unknown_removals,
            refused: t.refused + t.orphans_dropped + t.conflicts,
        });
    }
}
