//! One publisher: one rank of one replica.
//!
//! Connect, subscribe, ask for everything that was published before, then listen. On each gap the missing batches are
//! asked for. After a pause the last batch is asked for once more: what comes behind it had been lost at the end of a
//! burst, where no gap shows; and if it isn't the same batch, another process answers, whose cache has nothing to do
//! with what was known.

use super::link::{self, Trouble};
use super::order::{Order, Step};
use super::replay::Replay;
use super::status::Status;
use crate::core::ReplicaId;
use crate::core::prefix::exact::{Change, Follower};
use crate::engine::kv::zmtp::{Message, Received, Wire};
use crate::engine::kv::{Batch, KvEndpoint, decode};
use crate::router::{Router, Trust};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

/// Blocks that one holding of the index's lock covers.
const SLICE: usize = 64;
/// Pause after the first failed connection; doubles up to [`LONGEST`].
const RETRY: Duration = Duration::from_millis(200);
/// Longest pause between two connections.
const LONGEST: Duration = Duration::from_secs(5);
/// A publisher that is quiet for so long is asked whether there is more; then at doubling pauses up to [`RARELY`].
const QUIET: Duration = Duration::from_millis(500);
/// Longest pause between two such questions.
const RARELY: Duration = Duration::from_secs(10);
/// How often signs are looked at that others have left.
const TICK: Duration = Duration::from_millis(250);
/// Prefills in a row of which no event told: the publisher has fallen silent.
const UNANSWERED: u32 = 3;

/// Where a publisher is.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) endpoint: KvEndpoint,
    pub(super) replay: Option<KvEndpoint>,
    pub(super) topic: String,
    /// The engine connects to `endpoint`, where we listen.
    pub(super) bind: bool,
}

/// Follows one publisher.
pub(super) struct Source {
    id: ReplicaId,
    rank: u32,
    at: Address,
    router: Arc<Router>,
    follower: Follower,
    order: Order,
    status: Status,
    changes: Vec<Change>,
    /// Is something missing that can't be had any more?
    partial: bool,
    /// Removals seen when that came about.
    lost_at: u64,
    /// Fell silent: the estimate serves until something is heard.
    silent: bool,
    /// Has the estimate been at work since events were last followed?
    estimated: bool,
    /// Times that others have seen it begin anew.
    restarts: u32,
}

impl Source {
    pub(super) fn new(
        id: ReplicaId,
        rank: u32,
        at: Address,
        router: Arc<Router>,
        follower: Follower,
        status: Status,
    ) -> Self {
        Source {
            id,
            rank,
            at,
            router,
            follower,
            order: Order::default(),
            status,
            changes: Vec::new(),
            partial: false,
            lost_at: 0,
            silent: false,
            estimated: false,
            restarts: 0,
        }
    }

    /// Follows until it is dropped.
    pub(super) async fn run(mut self) {
        let mut pause = RETRY;
        let mut listener = None;
        loop {
            let trouble = match self.session(&mut listener, &mut pause).await {
                Ok(never) => match never {},
                Err(trouble) => trouble,
            };
            let ready = self.router.is_ready(self.id);
            if self.status.lost(&trouble, &self.at.endpoint, ready) {
                self.estimate();
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST);
        }
    }

    /// One connection, until it breaks.
    async fn session(
        &mut self,
        listener: &mut Option<TcpListener>,
        pause: &mut Duration,
    ) -> Result<std::convert::Infallible, Trouble> {
        let mut wire = self.connect(listener).await?;
        wire.subscribe(self.at.topic.as_bytes()).await?;
        if std::mem::take(&mut self.estimated) {
            // Estimates have been at work in the index: what they took out would never be heard of again.
            self.order.forget();
        }
        self.catch_up().await?;
        self.silent = false;
        self.settle_trust();
        *pause = RETRY;
        self.listen(&mut wire).await
    }

    async fn connect(&self, listener: &mut Option<TcpListener>) -> Result<Wire<TcpStream>, Trouble> {
        use crate::engine::kv::zmtp::Kind;
        if !self.at.bind {
            return link::connect(&self.at.endpoint, Kind::Sub).await;
        }
        let host = if self.at.endpoint.host == "*" { "0.0.0.0" } else { &*self.at.endpoint.host };
        let bound = match listener.take() {
            Some(bound) => bound,
            None => TcpListener::bind((host, self.at.endpoint.port)).await?,
        };
        let wire = link::accept(&bound).await;
        *listener = Some(bound);
        wire
    }

    async fn listen(&mut self, wire: &mut Wire<TcpStream>) -> Result<std::convert::Infallible, Trouble> {
        let mut quiet = QUIET;
        let mut heard = tokio::time::Instant::now();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                received = wire.recv() => {
                    if let Received::Message(frames) = received? {
                        self.message(&frames).await?;
                        quiet = QUIET;
                        heard = tokio::time::Instant::now();
                    }
                }
                _ = tick.tick() => {
                    let restarts = self.router.kv_restarts(self.id);
                    if std::mem::replace(&mut self.restarts, restarts) != restarts {
                        self.begin_anew();
                        self.catch_up().await?;
                        self.settle_trust();
                    }
                    let unanswered = self.router.kv_unanswered(self.id, self.rank) >= UNANSWERED;
                    if heard.elapsed() >= quiet || unanswered && !self.silent {
                        quiet = (quiet * 2).min(RARELY);
                        heard = tokio::time::Instant::now();
                        let more = self.catch_up().await?;
                        self.check_silence(unanswered, more);
                    }
                }
            }
        }
    }

    /// Prefills went unannounced, and there is nothing that could be asked for: the estimate has to serve.
    fn check_silence(&mut self, unanswered: bool, more: bool) {
        if more {
            self.settle_trust();
        } else if unanswered && !self.silent {
            self.silent = true;
            self.lose();
            self.estimate();
            self.status.silent();
        }
    }

    /// A message came: `[topic, number, payload]`.
    async fn message(&mut self, frames: &Message) -> Result<(), Trouble> {
        let [topic, seq, payload] = &frames[..] else {
            self.status.count.malformed += 1;
            return Ok(());
        };
        if !topic.starts_with(self.at.topic.as_bytes()) {
            self.status.count.wrong_topic += 1;
            return Ok(());
        }
        let Ok(seq) = <[u8; 8]>::try_from(&**seq).map(u64::from_be_bytes) else {
            self.status.count.malformed += 1;
            return Ok(());
        };
        let (batch, whole) = self.decoded(payload);
        match self.order.look(seq, batch.ts) {
            // A message that was damaged on its way is like one that was lost: the engine has it whole.
            Step::Apply if !whole => {
                self.count_gap();
                self.catch_up().await?;
                if self.order.last().is_none_or(|last| last.seq < seq) {
                    self.lose();
                    self.take(seq, batch).await;
                }
            }
            Step::Apply => self.take(seq, batch).await,
            Step::Skip => self.status.count.repeated += 1,
            Step::Gap(_) => {
                self.count_gap();
                self.catch_up().await?;
                self.after_gap(seq, batch).await;
            }
            Step::Restart => {
                self.begin_anew();
                self.catch_up().await?;
                self.after_gap(seq, batch).await;
            }
        }
        if std::mem::take(&mut self.silent) {
            self.estimated = false;
            self.order.forget();
            self.catch_up().await?;
        }
        self.settle_trust();
        Ok(())
    }

    /// The batch before which something was missing: by now it may have been replayed, or the gap remains.
    async fn after_gap(&mut self, seq: u64, batch: Batch) {
        match self.order.look(seq, batch.ts) {
            Step::Skip | Step::Restart => {}
            Step::Apply => self.take(seq, batch).await,
            Step::Gap(from) => {
                self.status.count.lost_batches += seq - from;
                self.lose();
                self.take(seq, batch).await;
            }
        }
    }

    /// Asks for what was published since the last batch that was seen, or for all. True if there was more.
    async fn catch_up(&mut self) -> Result<bool, Trouble> {
        loop {
            let Some(replay) = self.at.replay.clone() else {
                // What was published while nobody listened can't be had.
                if self.order.last().is_none() {
                    self.lose();
                }
                return Ok(false);
            };
            let last = self.order.last();
            let mut answers = Replay::ask(&replay, last.map_or(0, |last| last.seq)).await?;
            let (mut first, mut more) = (true, false);
            let mut another_life = false;
            while let Some((seq, payload)) = answers.next().await? {
                let (batch, whole) = self.decoded(&payload);
                if std::mem::take(&mut first) {
                    match last {
                        // Everything since the engine's start: that is all there is to know.
                        None if seq == 0 => self.know_nothing().await,
                        None => {
                            self.lose();
                            self.follower.reset(&mut Vec::new());
                        }
                        Some(last) if seq == last.seq && batch.ts == last.ts => continue,
                        Some(last) if seq == last.seq => another_life = true,
                        // Its memory doesn't reach back so far.
                        Some(last) => {
                            self.status.count.lost_batches += seq.saturating_sub(last.seq + 1);
                            self.lose();
                        }
                    }
                }
                if another_life {
                    break;
                }
                if self.order.last().is_some_and(|last| seq <= last.seq) {
                    continue;
                }
                more = true;
                self.status.count.replayed += 1;
                if !whole {
                    self.lose();
                }
                self.take(seq, batch).await;
            }
            // An engine that hasn't even the batch that was seen last has begun anew since.
            if another_life || first && last.is_some() {
                self.begin_anew();
                continue;
            }
            if first {
                // It hasn't announced anything yet, so it has nothing.
                self.know_nothing().await;
            }
            return Ok(more);
        }
    }

    /// What is told from here on is all there is.
    async fn know_nothing(&mut self) {
        self.changes.clear();
        self.follower.reset(&mut self.changes);
        self.flush().await;
        self.partial = false;
    }

    /// Events are no use for now.
    fn estimate(&mut self) {
        self.estimated = true;
        self.trust(Trust::Estimate);
    }

    /// Another life of the engine: what was known of its cache is gone.
    fn begin_anew(&mut self) {
        self.status.count.restarts += 1;
        self.order.forget();
        self.partial = false;
        self.changes.clear();
        self.follower.reset(&mut self.changes);
        self.router.kv_apply(self.id, self.rank, &self.changes);
        self.changes.clear();
    }

    fn count_gap(&mut self) {
        self.status.count.gaps += 1;
    }

    /// Something is missing from now on that can't be had.
    fn lose(&mut self) {
        self.partial = true;
        self.lost_at = self.follower.tally().removed;
    }

    /// Has the cache been turned over since something was lost? Then nothing of that time is left in it, but for what
    /// is used all the time, and that has been found by now.
    fn turned_over(&self) -> bool {
        let capacity = self.router.kv_capacity_blocks(self.id);
        capacity.is_some_and(|blocks| self.follower.tally().removed >= self.lost_at.saturating_add(blocks))
    }

    /// Reads a payload. The second is whether all of it could be read.
    fn decoded(&mut self, payload: &Bytes) -> (Batch, bool) {
        let count = &mut self.status.count;
        let Some(batch) = decode(payload) else {
            count.malformed += 1;
            // As old as the one before: it is neither another life nor a repetition.
            return (Batch { ts: self.order.last().map_or(0.0, |last| last.ts), ..Batch::default() }, false);
        };
        let faults = u64::from(batch.faulty) + u64::from(batch.cut);
        count.unknown += u64::from(batch.unknown);
        count.faulty += faults;
        (batch, faults == 0)
    }

    async fn take(&mut self, seq: u64, batch: Batch) {
        self.order.took(seq, batch.ts);
        self.status.batch(batch.ts, batch.events.len());
        for event in batch.events {
            if event == crate::core::prefix::exact::KvEvent::Cleared {
                self.partial = false;
            }
            self.follower.apply(event, &mut self.changes);
            if self.changes.len() >= SLICE {
                self.flush().await;
            }
        }
        self.flush().await;
        self.status.tally(self.follower.tally());
    }

    /// Hands the changes to the index, a few blocks at a time.
    async fn flush(&mut self) {
        let mut changes = std::mem::take(&mut self.changes);
        for slice in slices(&mut changes) {
            self.router.kv_apply(self.id, self.rank, &slice);
            tokio::task::yield_now().await;
        }
        self.changes = changes;
    }

    /// Says how far events are to be trusted now.
    fn settle_trust(&mut self) {
        if self.partial && self.turned_over() {
            self.partial = false;
        }
        let late = self.partial || self.follower.joined_late();
        let reports = self.router.kv_reports(self.id, late);
        self.follower.expect_reports(reports);
        let trust = match (self.silent, late) {
            (true, _) => Trust::Estimate,
            (false, true) => Trust::Partial,
            (false, false) => Trust::Exact,
        };
        self.trust(trust);
        self.status.followed(late, self.at.replay.is_some());
    }

    fn trust(&mut self, trust: Trust) {
        if self.status.trust(trust) {
            self.router.kv_trust(self.id, self.rank, trust);
        }
    }
}

/// Cuts changes into slices of at most [`SLICE`] blocks; a long run becomes several, each behind the one before.
fn slices(changes: &mut Vec<Change>) -> Vec<Vec<Change>> {
    let mut out: Vec<Vec<Change>> = Vec::new();
    let mut room = 0;
    let mut push = |change: Change, blocks: usize| match out.last_mut() {
        Some(slice) if blocks <= room => {
            room -= blocks;
            slice.push(change);
        }
        _ => {
            room = SLICE.saturating_sub(blocks);
            out.push(vec![change]);
        }
    };
    for change in changes.drain(..) {
        match change {
            Change::Hold { mut after, blocks } => {
                for part in blocks.chunks(SLICE) {
                    push(Change::Hold { after, blocks: part.to_vec() }, part.len());
                    after = part.last().copied();
                }
            }
            Change::Drop(blocks) => {
                blocks.chunks(SLICE).for_each(|part| push(Change::Drop(part.to_vec()), part.len()));
            }
            Change::Clear => push(Change::Clear, 1),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_cut_into_slices_that_go_on_where_the_last_one_ended() {
        let mut changes = vec![
            Change::Hold { after: None, blocks: (1..=200).collect() },
            Change::Drop((1..=100).collect()),
            Change::Clear,
        ];
        let cut = slices(&mut changes);
        assert!(changes.is_empty());
        let blocks = |c: &Change| match c {
            Change::Hold { blocks, .. } | Change::Drop(blocks) => blocks.len(),
            Change::Clear => 1,
        };
        assert!(cut.iter().all(|slice| slice.iter().map(blocks).sum::<usize>() <= SLICE));
        let mut whole = Vec::new();
        for change in cut.iter().flatten() {
            if let Change::Hold { after, blocks } = change {
                assert_eq!(*after, whole.last().copied());
                whole.extend_from_slice(blocks);
            }
        }
        assert_eq!(whole, (1..=200).collect::<Vec<u64>>());
    }
}
