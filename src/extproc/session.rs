//! One stream of Envoy's with its state machine and its reservation.
//!
//! It is a stream itself, polled by the connection that it answers on: no task, no channel, no copy between them. If
//! Envoy resets its stream, or the connection is lost, this is dropped, and what is booked is given back.

use super::address::Wanted;
use super::effect::{Effect, Effects, Release, Wish};
use super::exchange::Exchange;
use super::intent::Rules;
use super::kept::Kept;
use super::policies::Feed;
use super::record::Record;
use super::refuse::Refused;
use super::request::Context as Cx;
use super::wire;
use crate::core::ReplicaId;
use crate::observe::{AccessLog, Metrics};
use crate::proxy::PromptReader;
use crate::router::{Ask, Refusal, Reservation, Router};
use envoy_types::pb::envoy::service::ext_proc::v3::{ProcessingRequest, ProcessingResponse};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use tonic::codegen::tokio_stream::Stream;
use tonic::{Status, Streaming};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of bodies held in memory at once, all streams together.
const BODIES: usize = 1 << 30;
/// Prompt readers kept for the next request: each has buffers of a prompt's size.
const READERS: usize = 64;

/// What all streams share.
pub(super) struct Shared {
    pub(super) rules: Rules,
    pub(super) feed: Feed,
    pub(super) router: Arc<Router>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) access: AccessLog,
    pub(super) kept: Kept,
    pub(super) prompts: Mutex<Vec<PromptReader>>,
    pub(super) held: AtomicUsize,
}

type Placing = Pin<Box<dyn Future<Output = (Box<Ask>, Result<Reservation, Refusal>)> + Send>>;

/// One stream.
pub(super) struct Session {
    shared: Arc<Shared>,
    incoming: Streaming<ProcessingRequest>,
    exchange: Exchange,
    outgoing: VecDeque<ProcessingResponse>,
    placing: Option<Placing>,
    /// What was asked, as long as it may have gone elsewhere.
    ask: Option<Box<Ask>>,
    /// A test's choice: what is told instead of the router's.
    told: Option<SmallVec<[SocketAddr; 4]>>,
    reservation: Option<Reservation>,
    record: Record,
    held: usize,
    over: bool,
    closed: bool,
    unseen: bool,
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, incoming: Streaming<ProcessingRequest>) -> Self {
        Session {
            shared,
            incoming,
            exchange: Exchange::default(),
            outgoing: VecDeque::new(),
            placing: None,
            ask: None,
            told: None,
            reservation: None,
            record: Record::new(),
            held: 0,
            over: false,
            closed: false,
            unseen: false,
        }
    }

    fn hear(&mut self, message: ProcessingRequest) -> Result<(), Status> {
        let Some((input, notes)) = wire::read(message) else { return Ok(()) };
        let shared = self.shared.clone();
        let mut effects = Effects::new();
        let mut prompts = shared.prompts.lock().pop().unwrap_or_else(|| PromptReader::new(&shared.router));
        let policies = shared.feed.get();
        let mut cx = Cx { rules: &shared.rules, policies: &policies, prompts: &mut prompts };
        let taken = self.exchange.take(input, notes, &mut cx, &mut effects);
        let mut readers = shared.prompts.lock();
        if readers.len() < READERS {
            readers.push(prompts);
        }
        drop(readers);
        if let Err(setup) = taken {
            tracing::error!("Envoy's ext_proc filter is set up wrongly: {setup}");
            return Err(Status::failed_precondition(setup));
        }
        self.act(effects);
        self.count_held();
        Ok(())
    }

    /// Bodies in memory are bounded, all streams together.
    fn count_held(&mut self) {
        let now = self.exchange.held();
        if now != self.held {
            let before = self.shared.held.fetch_add(now, Relaxed);
            self.shared.held.fetch_sub(self.held, Relaxed);
            self.held = now;
            if now > 0 && before > BODIES {
                let mut effects = Effects::new();
                self.exchange.no_room(&mut effects);
                self.act(effects);
            }
        }
    }

    fn act(&mut self, effects: Effects) {
        for effect in effects {
            match effect {
                Effect::Send(out) => self.outgoing.push_back(wire::write(out)),
                Effect::Place(wish) => self.place(*wish),
                Effect::Abandon => self.placing = None,
                Effect::Served(by) => self.served(by),
                Effect::FirstToken => {
                    self.record.first_token();
                    if let Some(reservation) = &mut self.reservation {
                        reservation.first_token();
                    }
                }
                Effect::Progress(tokens) => {
                    self.record.token(&self.shared);
                    if let Some(reservation) = &self.reservation {
                        reservation.progress(tokens);
                    }
                }
                Effect::Stored(id) => {
                    if let Some(reservation) = &self.reservation {
                        self.shared.router.remember_response(&id, reservation.replica());
                    }
                }
                Effect::Release(how) => self.release(how),
                Effect::Over => self.over = true,
            }
        }
    }

    fn place(&mut self, wish: Wish) {
        let router = self.shared.router.clone();
        let mut ask = Box::new(wish.ask);
        let wishes = &wish.wishes;
        let bounds = (i32::from(i8::MIN), i32::from(i8::MAX));
        ask.priority = wishes.priority.clamp(bounds.0, bounds.1) as i8;
        // Keyed, so that nobody can aim at another's account.
        let hash = |t: &String| xxh3_64_with_seed(t.as_bytes(), router.chain_seed());
        ask.tenant = wishes.tenant.as_ref().map_or(0, hash);
        ask.only = router.numbered();
        if let Some(subset) = &wish.subset {
            ask.only = Some(members(&router, subset));
        }
        if let Some(follow) = &wish.follow {
            let all: SmallVec<[ReplicaId; 4]> = follow.iter().flat_map(|w| router.at(w.ip, w.port)).collect();
            let address = |id: &ReplicaId| router.endpoint(*id).and_then(|e| e.address);
            self.told = Some(all.iter().filter_map(address).collect());
            ask.only = Some(all.first().copied().into_iter().collect());
        }
        self.placing = Some(Box::pin(async move {
            let placed = router.place(&ask).await;
            (ask, placed)
        }));
    }

    fn placed(&mut self, ask: Box<Ask>, placed: Result<Reservation, Refusal>) {
        let mut effects = Effects::new();
        let destinations = placed.map(|reservation| {
            let mut all: SmallVec<[SocketAddr; 4]> = reservation.address().into_iter().collect();
            all.extend(reservation.fallbacks().filter_map(|e| e.address));
            (reservation, self.told.take().unwrap_or(all))
        });
        match destinations {
            Ok((reservation, destinations)) if !destinations.is_empty() => {
                self.record.placed(&reservation);
                self.reservation = Some(reservation);
                self.ask = Some(ask);
                self.exchange.placed(Ok(&destinations), &mut effects);
            }
            Ok(_) => self.exchange.placed(Err(&Refused::no_endpoints(1)), &mut effects),
            Err(refusal) => {
                let refused = Refused::from_router(refusal, ask.model.as_deref());
                self.exchange.placed(Err(&refused), &mut effects);
            }
        }
        self.act(effects);
        self.count_held();
    }

    /// The one that answers may not be the one that was chosen.
    fn served(&mut self, by: SocketAddr) {
        let Some(ask) = self.ask.take() else { return };
        if self.reservation.as_ref().and_then(Reservation::address) == Some(by) {
            return;
        }
        // An address that isn't known says nothing: it may be the replica's, seen through something else.
        let Some(to) = self.shared.router.at(by.ip(), Some(by.port())).next() else { return };
        self.reservation = self.reservation.take().and_then(|r| r.moved(&ask, to));
        if let Some(reservation) = &self.reservation {
            self.record.placed(reservation);
        }
    }

    fn release(&mut self, how: Release) {
        self.ask = None;
        let Some(reservation) = self.reservation.take() else { return };
        match how {
            Release::Finished(outcome) => reservation.finish(outcome),
            Release::Failed(failure) => reservation.fail(failure),
            Release::Cancelled => drop(reservation),
            Release::Unseen => {
                self.unseen = true;
                self.shared.kept.keep(reservation, self.record.started());
            }
        }
    }

    fn close(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        self.placing = None;
        let mut effects = Effects::new();
        self.exchange.closed(&mut effects);
        self.act(effects);
        // Whatever the state machine thinks: nothing outlives its stream.
        self.reservation = None;
        self.shared.held.fetch_sub(std::mem::take(&mut self.held), Relaxed);
        self.record.end(&self.exchange.facts(), self.unseen, &self.shared);
    }
}

/// The members of a subset, sorted.
fn members(router: &Router, subset: &[Wanted]) -> Arc<[ReplicaId]> {
    let mut all: Vec<ReplicaId> = subset.iter().flat_map(|w| router.at(w.ip, w.port)).collect();
    all.sort_unstable();
    all.dedup();
    all.into()
}

impl Stream for Session {
    type Item = Result<ProcessingResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(out) = self.outgoing.pop_front() {
                return Poll::Ready(Some(Ok(out)));
            }
            if self.over || self.closed {
                self.close();
                return Poll::Ready(None);
            }
            // While a place is being found nothing more is read: what comes waits in Envoy.
            if let Some(placing) = &mut self.placing {
                let (ask, placed) = std::task::ready!(placing.as_mut().poll(cx));
                self.placing = None;
                self.placed(ask, placed);
                continue;
            }
            match std::task::ready!(Pin::new(&mut self.incoming).poll_next(cx)) {
                Some(Ok(message)) => {
                    if let Err(status) = self.hear(message) {
                        self.close();
                        return Poll::Ready(Some(Err(status)));
                    }
                }
                Some(Err(_)) | None => self.close(),
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}
