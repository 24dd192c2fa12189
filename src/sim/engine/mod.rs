//! A model of an inference engine, in virtual time and without I/O.
//!
//! It does what a vLLM engine does as far as a router can tell: requests wait in order of arrival; a step gives each
//! decoding sequence one token and spends what is left of its token budget on prefill, in chunks; a prompt's leading
//! blocks that are in the cache aren't computed again; and when the KV cache is full, the request admitted last is
//! thrown out and computed anew later. How long a step takes is the [`Profile`]'s business.
//!
//! The caller owns the clock: [`Engine::next`] says when something will happen, [`Engine::advance`] lets it happen.
//! Decode steps at whose end nothing changes but the count of tokens are done in one leap, so an hour of traffic takes
//! seconds; in token mode the same steps are told one by one, at the same times.

mod counters;
mod job;
mod kv;
mod profile;
mod step;
#[cfg(test)]
mod tests;

pub use counters::{Counters, Reason, Sum};
pub use job::{Event, EventKind, Job};
pub use kv::{BlockHash, HashTable, PoolChange};
pub use profile::Profile;

use crate::core::Time;
use job::Seq;
use kv::Pool;
use std::collections::VecDeque;
use step::Run;

/// A disturbance that can be switched at run time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// Every step takes this many times as long (1 = healthy).
    Slow(f64),
    /// No step begins any more; requests are still taken.
    Hang,
    /// Back to health.
    Recover,
}

/// One engine.
pub struct Engine {
    profile: Profile,
    pool: Pool,
    waiting: VecDeque<Seq>,
    /// In order of admission.
    running: Vec<Seq>,
    /// The steps under way.
    run: Option<Run>,
    /// With no step under way: when the next one can begin, if there is work.
    due: Option<Time>,
    counters: Counters,
    /// Not handed out yet.
    events: Vec<Event>,
    tell_tokens: bool,
    slow: f64,
    hangs: bool,
    asleep: bool,
}

impl Engine {
    /// An idle engine with an empty cache. `profile.startup` is left to the caller.
    pub fn new(mut profile: Profile) -> Self {
        profile.block_tokens = profile.block_tokens.max(1);
        profile.max_batched_tokens = profile.max_batched_tokens.max(1);
        Engine {
            pool: Pool::new(profile.blocks()),
            profile,
            waiting: VecDeque::new(),
            running: Vec::new(),
            run: None,
            due: None,
            counters: Counters::default(),
            events: Vec::new(),
            tell_tokens: false,
            slow: 1.0,
            hangs: false,
            asleep: false,
        }
    }

    /// Tell every token ([`EventKind::Tokens`]), not only the first and the last. Nothing else changes.
    pub fn tell_tokens(mut self, yes: bool) -> Self {
        self.tell_tokens = yes;
        self
    }

    /// Keep what changes in the cache until it is taken with [`Engine::take_changes`].
    pub fn tell_changes(mut self) -> Self {
        self.pool.tell_changes();
        self
    }

    /// What has changed in the cache since this was last asked, in order.
    pub fn take_changes(&mut self) -> Vec<PoolChange> {
        self.pool.take_changes()
    }

    /// The profile it runs on.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Take a request at `now`. It can enter the batch at the end of the step under way; requests submitted at the
    /// same time to an idle engine share their first step.
    pub fn submit(&mut self, now: Time, mut job: Job) {
        job.prompt_tokens = job.prompt_tokens.max(1);
        job.output_tokens = job.output_tokens.max(1);
        job.choices = job.choices.max(1);
        self.run_to(now, false);
        let seq = Seq::new(job, now);
        let most = seq.job.prompt_tokens.saturating_add(seq.job.output_tokens);
        let blocks = seq.blocks_for(most, self.profile.block_tokens);
        if blocks > self.pool.total() || seq.job.choices > self.profile.max_batch {
            self.events.push(Event { at: now, id: seq.job.id, kind: EventKind::Rejected });
            return;
        }
        // Behind others that wait, it can't go in before a request ends, and there the leap ends anyway.
        if self.waiting.is_empty() && self.places() + seq.job.choices <= self.profile.max_batch {
            self.cut(now);
        }
        self.waiting.push_back(seq);
        self.wake_up_at(now);
    }

    /// Forget a request whose client left. Its blocks are free at once; the step under way takes as long as it would
    /// have. False if the engine doesn't have it (any more).
    pub fn cancel(&mut self, now: Time, id: u64) -> bool {
        self.run_to(now, false);
        if let Some(at) = self.waiting.iter().position(|s| s.job.id == id) {
            self.waiting.remove(at);
        } else if let Some(at) = self.running.iter().position(|s| s.job.id == id) {
            self.cut(now);
            let mut seq = self.running.remove(at);
            self.pool.release(&mut seq.blocks);
        } else {
            return false;
        }
        self.counters.aborted += 1;
        true
    }

    /// When something will happen next; `None` if nothing will. In token mode that is the end of the step under way.
    pub fn next(&self) -> Option<Time> {
        if !self.events.is_empty() {
            return Some(Time(0));
        }
        match &self.run {
            Some(run) if self.tell_tokens => Some(run.at(run.done + 1)),
            Some(run) => Some(run.at(run.steps)),
            None if self.hangs || self.asleep => None,
            None => self.due,
        }
    }

    /// Let everything happen that does until `now`, and append it to `out` in the order in which it happened.
    pub fn advance(&mut self, now: Time, out: &mut Vec<Event>) {
        self.run_to(now, true);
        out.append(&mut self.events);
    }

    /// Gauges and counters, as of the last call that took a time.
    pub fn snapshot(&self) -> Counters {
        let mut counters = self.counters.clone();
        counters.running = self.running.len() as u32;
        counters.waiting = self.waiting.len() as u32;
        counters.blocks_used = self.pool.used();
        counters.blocks_cached = self.pool.cached();
        counters.blocks_total = self.pool.total();
        counters
    }

    /// Switch a fault on or off. The step under way ends as planned.
    pub fn fault(&mut self, now: Time, fault: Fault) {
        self.run_to(now, false);
        self.cut(now);
        match fault {
            Fault::Slow(factor) => self.slow = factor.max(0.0),
            Fault::Hang => self.hangs = true,
            Fault::Recover => (self.slow, self.hangs) = (1.0, false),
        }
        self.wake_up_at(now);
    }

    /// Lose all cached content; running requests keep their blocks.
    pub fn clear_cache(&mut self, now: Time) {
        self.run_to(now, false);
        self.pool.clear();
    }

    /// Stop working after the step under way and lose the cache, as an engine does whose memory is lent to others.
    /// Requests are taken, and wait.
    pub fn sleep(&mut self, now: Time) {
        self.run_to(now, false);
        self.cut(now);
        self.pool.clear();
        self.asleep = true;
    }

    /// Go on working.
    pub fn wake(&mut self, now: Time) {
        self.run_to(now, false);
        self.asleep = false;
        self.wake_up_at(now);
    }

    /// Does it sleep?
    pub fn is_asleep(&self) -> bool {
        self.asleep
    }

    /// Leading tokens of `chain` that are in the cache now, in whole blocks.
    pub fn holds(&self, chain: &[BlockHash]) -> u32 {
        self.pool.lookup(chain).0 as u32 * self.profile.block_tokens
    }

    /// Sequences in the batch.
    fn places(&self) -> u32 {
        self.running.iter().map(|s| s.job.choices).sum()
    }

    /// There may be work: begin the next step at `now`, unless one is under way.
    fn wake_up_at(&mut self, now: Time) {
        if self.run.is_none() && !(self.running.is_empty() && self.waiting.is_empty()) {
            self.due = Some(self.due.map_or(now, |due| due.max(now)));
        }
    }
}
