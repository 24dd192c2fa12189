//! The engine on a real clock, shared by all connections.
//!
//! One lock, one task that sleeps until the engine's next event. A request books its progress in a slot of its own that
//! its response looks into: a slow client makes nothing grow, it finds a higher count when it looks next.

use super::kv_events::Publisher;
use crate::core::Time;
use crate::sim::engine::{Counters, Engine, Event, EventKind, Fault, Job, Reason};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use tokio::sync::Notify;

pub(super) struct Station {
    desk: Mutex<Desk>,
    origin: Instant,
    /// Something was booked: the engine's next event may be sooner.
    changed: Notify,
}

struct Desk {
    engine: Engine,
    /// To whom changes of the cache are told.
    publisher: Option<Arc<Publisher>>,
    slots: HashMap<u64, Arc<Slot>>,
    events: Vec<Event>,
    next_id: u64,
}

/// How far one request is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    pub(super) cached: u32,
    pub(super) produced: u32,
    pub(super) end: Option<End>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum End {
    Finished(Reason),
    Rejected,
}

#[derive(Default)]
struct Slot(Mutex<(Progress, Option<Waker>)>);

/// A request inside the engine. Dropped before its end, it is cancelled.
pub(super) struct Ticket {
    station: Arc<Station>,
    id: u64,
    slot: Arc<Slot>,
}

impl Station {
    pub(super) fn new(engine: Engine, publisher: Option<Arc<Publisher>>) -> Arc<Self> {
        let mut engine = engine.tell_tokens(true);
        if publisher.is_some() {
            engine = engine.tell_changes();
        }
        let desk = Desk { engine, publisher, slots: HashMap::new(), events: Vec::new(), next_id: 0 };
        Arc::new(Station { desk: Mutex::new(desk), origin: Instant::now(), changed: Notify::new() })
    }

    fn now(&self) -> Time {
        Time::default() + self.origin.elapsed()
    }

    /// Hand a request in; its id is given here.
    pub(super) fn submit(self: &Arc<Self>, mut job: Job) -> Ticket {
        let mut desk = self.desk.lock();
        desk.next_id += 1;
        job.id = desk.next_id;
        let (id, slot) = (job.id, Arc::new(Slot::default()));
        desk.slots.insert(id, Arc::clone(&slot));
        let now = self.now();
        desk.engine.submit(now, job);
        desk.pump(now);
        let more = desk.engine.next().is_some();
        drop(desk);
        // An instant engine is done already, and its timer needn't be disturbed.
        if more {
            self.changed.notify_one();
        }
        Ticket { station: Arc::clone(self), id, slot }
    }

    /// Act on the engine at the present time.
    pub(super) fn with<T>(&self, act: impl FnOnce(Time, &mut Engine) -> T) -> T {
        let mut desk = self.desk.lock();
        let now = self.now();
        desk.pump(now);
        let result = act(now, &mut desk.engine);
        desk.publish();
        drop(desk);
        self.changed.notify_one();
        result
    }

    pub(super) fn counters(&self) -> Counters {
        let mut desk = self.desk.lock();
        let now = self.now();
        desk.pump(now);
        desk.engine.snapshot()
    }

    pub(super) fn fault(&self, slow: Option<f64>) {
        let fault = slow.map_or(Fault::Recover, Fault::Slow);
        self.with(|now, engine| engine.fault(now, fault));
    }

    /// Let the engine's events happen when they are due, for ever.
    pub(super) async fn run(self: Arc<Self>) {
        loop {
            let next = {
                let mut desk = self.desk.lock();
                let now = self.now();
                desk.pump(now);
                desk.engine.next()
            };
            let changed = self.changed.notified();
            match next {
                None => changed.await,
                Some(at) => {
                    let due = self.origin + std::time::Duration::from_nanos(at.0);
                    tokio::select! {
                        () = tokio::time::sleep_until(due.into()) => {}
                        () = changed => {}
                    }
                }
            }
        }
    }
}

impl Desk {
    fn publish(&mut self) {
        if let Some(publisher) = &self.publisher {
            publisher.changes(&self.engine.take_changes());
        }
    }

    fn pump(&mut self, now: Time) {
        self.engine.advance(now, &mut self.events);
        self.publish();
        for event in self.events.drain(..) {
            let end = match event.kind {
                EventKind::Finished(reason) => Some(End::Finished(reason)),
                EventKind::Rejected => Some(End::Rejected),
                _ => None,
            };
            let slot = match end {
                Some(_) => self.slots.remove(&event.id),
                None => self.slots.get(&event.id).cloned(),
            };
            let Some(slot) = slot else { continue };
            let mut state = slot.0.lock();
            match event.kind {
                EventKind::Started { cached_tokens } => state.0.cached = cached_tokens,
                EventKind::FirstToken => state.0.produced = 1,
                EventKind::Tokens(n) => state.0.produced = n,
                _ => state.0.end = end,
            }
            let waker = state.1.take();
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl Ticket {
    /// How far the request is now; wakes the task when it gets farther.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Progress {
        let mut state = self.slot.0.lock();
        if state.0.end.is_none() {
            state.1 = Some(cx.waker().clone());
        }
        state.0
    }

    /// Wait for the end.
    pub(super) async fn ended(&self) -> Progress {
        poll_fn(|cx| {
            let progress = self.poll(cx);
            if progress.end.is_some() { Poll::Ready(progress) } else { Poll::Pending }
        })
        .await
    }

    /// Did the engine turn the request down? That is decided on submission.
    pub(super) fn rejected(&self) -> bool {
        self.slot.0.lock().0.end == Some(End::Rejected)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.slot.0.lock().0.end.is_some() {
            return;
        }
        let mut desk = self.station.desk.lock();
        desk.slots.remove(&self.id);
        let now = self.station.now();
        desk.engine.cancel(now, self.id);
        drop(desk);
        self.station.changed.notify_one();
    }
}
