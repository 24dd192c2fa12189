//! One replay: a workload against a fleet of simulated engines, placed by a policy, in virtual time.
//!
//! What happens at the same time happens in this order: restarts, news of caches, arrivals, looks at metrics pages, engines. So
//! requests that arrive together share an engine's next step, as they do in a trace with coarse times.

use super::fleet::Engines;
use super::measure::{Measures, Served};
use super::setup::{POLL, Setup};
use super::tally::{StageTimes, Tally};
use super::view::View;
use super::workload::{Plan, Workload};
use crate::core::policy::{Arriving, Placement, Policy, Sight};
use crate::core::{RequestId, Time};
use crate::sim::engine::{Event, EventKind, Job, Reason};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is due at a time; of one time in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// Of [`super::setup::Trouble::restarts`], this one.
    Down(usize),
    Back(usize),
    Heard {
        replica: usize,
        life: u32,
        ask: usize,
        from: usize,
    },
    /// `origin`: which stage or session.
    Arrive {
        ask: usize,
        origin: usize,
    },
    /// This router looks whether one of those who wait can go.
    Turns(usize),
    /// Of this router.
    Poll(usize),
    Sample,
}

impl Due {
    /// Can it bring work? The rest only looks.
    fn matters(&self) -> bool {
        !matches!(self, Due::Poll(_) | Due::Sample)
    }
}

/// A request that was placed. Its number is its identity.
struct Flight {
    ask: usize,
    origin: usize,
    arrived: Time,
    /// Where it was sent; meaningless while it waits in the router.
    replica: usize,
    router: usize,
    waits: bool,
    cached: u32,
    first: Option<Time>,
    over: bool,
}

struct Replay<'a> {
    workload: &'a Workload,
    setup: &'a Setup,
    engines: Engines,
    routers: Vec<Box<dyn Policy>>,
    /// For policies that know caches, when events are late or lost.
    view: Option<View>,
    knows: bool,
    rng: fastrand::Rng,
    due: BinaryHeap<Reverse<(Time, Due, u64)>>,
    /// Orders what is due at one time by when it was planned.
    planned: u64,
    flights: Vec<Flight>,
    loads: Vec<u32>,
    /// For each router how many requests wait in it, and when it looks next.
    waiting: Vec<usize>,
    looks: Vec<Option<Time>>,
    events: Vec<Event>,
    exact: Vec<u32>,
    times: Vec<StageTimes>,
    /// The stage under way, and how many of its requests aren't over.
    stage: usize,
    left: usize,
    /// For each session how many turns are over.
    turns: Vec<usize>,
    next_session: usize,
    asked: usize,
    done: usize,
    tally: Tally,
}

/// Replays `workload`; `policies` has one policy a router. `progress` counts requests that ended.
///
/// The same arguments give the same measures.
pub fn replay(
    workload: &Workload,
    setup: &Setup,
    policies: Vec<Box<dyn Policy>>,
    progress: &AtomicU64,
) -> Measures {
    if policies.is_empty() {
        return Measures::default();
    }
    let mut replay = Replay::new(workload, setup, policies);
    replay.begin();
    while replay.done < workload.requests() {
        let before = replay.done;
        if !replay.step() {
            break;
        }
        progress.fetch_add((replay.done - before) as u64, Ordering::Relaxed);
    }
    let Replay { tally, done, times, .. } = replay;
    tally.measures(workload, setup.slo, done, &times)
}

impl<'a> Replay<'a> {
    fn new(workload: &'a Workload, setup: &'a Setup, routers: Vec<Box<dyn Policy>>) -> Self {
        let engines = Engines::new(setup, workload.block_tokens);
        let n = engines.len();
        let knows = routers.iter().any(|r| r.knows_caches());
        let (stages, sessions) = match &workload.plan {
            Plan::Open(stages) => (stages.len(), 0),
            Plan::Closed(sessions) => (1, sessions.len()),
        };
        Replay {
            view: (knows && setup.trouble.blurs_events()).then(|| View::new(n)),
            knows,
            rng: fastrand::Rng::with_seed(setup.seed),
            due: BinaryHeap::new(),
            planned: 0,
            flights: Vec::with_capacity(workload.requests()),
            loads: vec![0; n],
            waiting: vec![0; routers.len()],
            looks: vec![None; routers.len()],
            events: Vec::new(),
            exact: Vec::new(),
            times: vec![StageTimes::default(); stages],
            stage: 0,
            left: 0,
            turns: vec![0; sessions],
            next_session: 0,
            asked: 0,
            done: 0,
            tally: Tally::new(workload, n, engines.blocks() * n),
            workload,
            setup,
            engines,
            routers,
        }
    }

    fn plan(&mut self, at: Time, due: Due) {
        self.planned += 1;
        self.due.push(Reverse((at, due, self.planned)));
    }

    fn begin(&mut self) {
        let told = self.told_capacity();
        for router in &mut self.routers {
            (0..self.engines.len()).for_each(|i| router.joined(Time(0), i, told));
        }
        for (k, restart) in self.setup.trouble.restarts.iter().enumerate() {
            self.plan(Time::from_secs(restart.at), Due::Down(k));
        }
        for router in 0..self.routers.len() {
            if self.period(router) > 0.0 {
                self.plan(Time::from_secs(self.period(router)), Due::Poll(router));
            }
        }
        self.plan(Time(0), Due::Sample);
        match &self.workload.plan {
            Plan::Open(_) => self.begin_stage(Time(0)),
            Plan::Closed(sessions) => {
                let at_once = (self.setup.sessions * self.setup.speedup).round().max(1.0) as usize;
                let at_once = at_once.min(sessions.len());
                for i in 0..at_once {
                    self.begin_session(Time::from_secs(self.setup.ramp * i as f64 / at_once as f64));
                }
            }
        }
    }

    /// Seconds between two looks of this router at the metrics pages.
    fn period(&self, router: usize) -> f64 {
        self.setup.poll.unwrap_or_else(|| self.routers[router].looks_every().unwrap_or(POLL))
    }

    fn told_capacity(&self) -> u64 {
        (self.setup.profile.kv_tokens as f64 * self.setup.trouble.capacity) as u64
    }

    /// Begins the next stage that has requests, if there is one.
    fn begin_stage(&mut self, now: Time) {
        let workload = self.workload;
        let Plan::Open(stages) = &workload.plan else { return };
        while let Some(stage) = stages.get(self.stage) {
            self.left = stage.arrivals.len();
            self.times[self.stage] = StageTimes { begun: now, ended: now };
            if self.left > 0 {
                for &(offset, ask) in &stage.arrivals {
                    self.plan(now.plus(offset / self.setup.speedup), Due::Arrive { ask, origin: self.stage });
                }
                return;
            }
            self.stage += 1;
        }
    }

    /// Begins the next session that waits to, if there is one.
    fn begin_session(&mut self, now: Time) {
        let workload = self.workload;
        let Plan::Closed(sessions) = &workload.plan else { return };
        let origin = self.next_session;
        if let Some(&(delay, ask)) = sessions.get(origin).and_then(|s| s.turns.first()) {
            self.next_session += 1;
            self.plan(now.plus(delay), Due::Arrive { ask, origin });
        }
    }

    /// Lets the next thing happen. False if nothing ever will.
    fn step(&mut self) -> bool {
        let engine = self.engines.next();
        let due = self.due.peek().map(|Reverse((t, ..))| *t);
        let now = match (engine, due) {
            // Nobody works and nobody comes: looking on won't change that.
            (None, _) if !self.due.iter().any(|Reverse((_, due, _))| due.matters()) => return false,
            (Some((t, i)), due) if due.is_none_or(|d| t < d) => {
                self.engines.advance(t, i, &mut self.events);
                t
            }
            _ => {
                let Some(Reverse((now, due, _))) = self.due.pop() else { return false };
                self.happens(now, due);
                now
            }
        };
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            self.told(&event);
        }
        self.events = events;
        for router in 0..self.routers.len() {
            if self.waiting[router] > 0 {
                self.release(now, router);
            }
        }
        true
    }

    fn happens(&mut self, now: Time, due: Due) {
        match due {
            Due::Down(k) => self.restart(now, k),
            Due::Back(i) => {
                self.engines.back(i);
                let told = self.told_capacity();
                self.routers.iter_mut().for_each(|r| r.joined(now, i, told));
            }
            Due::Heard { replica, life, ask, from } => {
                if let Some(view) = &mut self.view {
                    view.stored(replica, life, &self.workload.asks[ask], from);
                }
            }
            Due::Arrive { ask, origin } => {
                let a = &self.workload.asks[ask];
                self.tally.arrived(a);
                self.place(now, ask, origin, now);
            }
            Due::Turns(router) => {
                // One that an earlier look has replaced must not begin a second series.
                self.looks[router].take_if(|at| *at == now);
            }
            Due::Poll(router) => {
                self.look(now, router);
                self.plan(now.plus(self.period(router)), Due::Poll(router));
            }
            Due::Sample => {
                let next = self.tally.sample(&self.loads);
                self.plan(next.max(now), Due::Sample);
            }
        }
    }

    /// A router reads the metrics pages.
    fn look(&mut self, now: Time, router: usize) {
        for at in 0..self.engines.up().len() {
            let i = self.engines.up()[at];
            let page = self.engines.page(now, i, &mut self.events);
            self.routers[router].polled(now, i, &page);
        }
    }

    fn place(&mut self, now: Time, ask: usize, origin: usize, arrived: Time) {
        let router = self.asked % self.routers.len();
        self.asked += 1;
        self.waiting[router] += 1;
        self.flights.push(Flight {
            ask,
            origin,
            arrived,
            replica: 0,
            router,
            waits: true,
            cached: 0,
            first: None,
            over: false,
        });
        self.offer(now, self.flights.len() - 1);
    }

    /// A request arrives at its router, for the first time or again. True if it doesn't wait there any more.
    fn offer(&mut self, now: Time, flight: usize) -> bool {
        let workload = self.workload;
        let Flight { router, ask, .. } = self.flights[flight];
        let a = &workload.asks[ask];
        if self.period(router) == 0.0 {
            self.look(now, router);
        }
        self.exact.clear();
        if self.knows {
            self.exact.resize(self.engines.len(), 0);
            for &i in self.engines.up() {
                let held = self.engines.holds(i, &a.chain);
                self.exact[i] = match &mut self.view {
                    Some(view) => view.sees(i, &a.chain, held),
                    None => held,
                };
            }
        }
        let id = flight as u64;
        let arriving = Arriving {
            id: RequestId(id),
            chain: &a.chain,
            block_tokens: self.workload.block_tokens,
            prompt_tokens: a.prompt_tokens,
            max_output: None,
            session: a.session,
        };
        let policy = &mut self.routers[router];
        let exact: &[u32] = if policy.knows_caches() { &self.exact } else { &[] };
        let up = self.engines.up();
        let chosen = match policy.offer(now, &arriving, &Sight { up, exact }) {
            Placement::At(chosen) => chosen,
            Placement::Waits => return false,
            Placement::Refused => {
                self.waiting[router] -= 1;
                self.flights[flight].waits = false;
                self.over(now, flight);
                return true;
            }
        };
        debug_assert!(up.contains(&chosen), "{} chose {chosen}, which isn't up", policy.name());
        let replica = if up.contains(&chosen) { chosen } else { up[0] };
        self.waiting[router] -= 1;
        self.flights[flight].waits = false;
        self.flights[flight].replica = replica;
        self.loads[replica] += 1;
        let job = Job {
            id,
            chain: a.chain.clone(),
            prompt_tokens: a.prompt_tokens,
            output_tokens: a.output_tokens,
            choices: 1,
            ends: Reason::Stop,
        };
        self.engines.submit(now, replica, job);
        true
    }

    /// Lets those go whose turn it is, until it is nobody's.
    fn release(&mut self, now: Time, router: usize) {
        let look = loop {
            let turns = self.routers[router].turns(now);
            let mut gone = false;
            for id in turns.go {
                gone |= self.offer(now, id.0 as usize);
            }
            if !gone {
                break turns.look;
            }
        };
        if let Some(at) = look
            && self.looks[router].is_none_or(|planned| at < planned)
        {
            self.looks[router] = Some(at);
            self.plan(at, Due::Turns(router));
        }
    }

    fn told(&mut self, event: &Event) {
        let flight = &mut self.flights[event.id as usize];
        if flight.over {
            return;
        }
        let (id, ask) = (RequestId(event.id), &self.workload.asks[flight.ask]);
        match event.kind {
            EventKind::Started { cached_tokens } => {
                flight.cached = cached_tokens;
                self.tally.started(flight.replica, ask, cached_tokens);
            }
            EventKind::FirstToken => {
                flight.first = Some(event.at);
                self.routers[flight.router].first_token(event.at, id);
                if let Some(view) = &self.view
                    && self.rng.f64() >= self.setup.trouble.event_loss
                {
                    let from = (flight.cached / self.workload.block_tokens) as usize;
                    let (replica, life) = (flight.replica, view.life(flight.replica));
                    let heard = Due::Heard { replica, life, ask: flight.ask, from };
                    self.plan(event.at.plus(self.setup.trouble.event_delay), heard);
                }
            }
            EventKind::Finished(_) => {
                let first = flight.first.unwrap_or(event.at);
                let after = ask.output_tokens - 1;
                let served = Served {
                    ttft: first.since(flight.arrived),
                    tpot: (after > 0).then(|| event.at.since(first) / f64::from(after)),
                    e2e: event.at.since(flight.arrived),
                    stage: if self.turns.is_empty() { flight.origin } else { 0 },
                    output_tokens: ask.output_tokens,
                };
                self.tally.served(flight.replica, served);
                self.routers[flight.router].finish(event.at, id, ask.output_tokens, flight.cached);
                self.loads[flight.replica] -= 1;
                self.over(event.at, event.id as usize);
            }
            EventKind::Rejected => {
                self.routers[flight.router].finish(event.at, id, 0, 0);
                self.loads[flight.replica] -= 1;
                self.over(event.at, event.id as usize);
            }
            EventKind::Tokens(tokens) => {
                if tokens.is_multiple_of(self.setup.stride) {
                    self.routers[flight.router].progress(event.at, id, tokens);
                }
            }
            EventKind::Preempted => {}
        }
    }

    /// A request is over, well or not: what comes after it?
    fn over(&mut self, now: Time, id: usize) {
        let workload = self.workload;
        let flight = &mut self.flights[id];
        flight.over = true;
        self.done += 1;
        self.tally.over(now);
        let origin = flight.origin;
        match &workload.plan {
            Plan::Open(_) => {
                self.times[origin].ended = now;
                self.left -= 1;
                if self.left == 0 {
                    self.stage += 1;
                    self.begin_stage(now);
                }
            }
            Plan::Closed(sessions) => {
                self.turns[origin] += 1;
                match sessions[origin].turns.get(self.turns[origin]) {
                    Some(&(delay, ask)) => self.plan(now.plus(delay), Due::Arrive { ask, origin }),
                    None => self.begin_session(now),
                }
            }
        }
    }

    fn restart(&mut self, now: Time, k: usize) {
        let restart = self.setup.trouble.restarts[k];
        let i = restart.replica;
        if !self.engines.down(now, i) {
            return;
        }
        if let Some(view) = &mut self.view {
            view.forget(i);
        }
        self.routers.iter_mut().for_each(|r| r.left(now, i));
        let lost: Vec<usize> = (0..self.flights.len())
            .filter(|&f| self.flights[f].replica == i && !self.flights[f].over && !self.flights[f].waits)
            .collect();
        for id in lost {
            let flight = &mut self.flights[id];
            self.routers[flight.router].finish(now, RequestId(id as u64), 0, 0);
            self.loads[i] -= 1;
            if flight.first.is_some() {
                // Its client has seen a part of the answer, so it can't be sent again.
                self.over(now, id);
            } else {
                flight.over = true;
                let (ask, origin, arrived) = (flight.ask, flight.origin, flight.arrived);
                self.place(now, ask, origin, arrived);
            }
        }
        self.plan(now.plus(restart.down), Due::Back(i));
    }
}
