//! Steps: planning the next ones, and booking what they have done.

use super::counters::Reason;
use super::job::{Event, EventKind, Seq};
use super::{Engine, Profile};
use crate::core::Time;

/// One step, or several decode steps in a row at whose ends nothing but the count of tokens changes.
pub(super) struct Run {
    start: Time,
    /// How many steps.
    pub(super) steps: u32,
    /// How many of them are booked.
    pub(super) done: u32,
    /// Seconds of the first step.
    first: f64,
    /// Seconds that each step takes longer than the one before, as contexts grow.
    growth: f64,
    /// Tokens computed a step.
    tokens: u32,
}

impl Run {
    /// End of step number `k` (0: the beginning).
    pub(super) fn at(&self, k: u32) -> Time {
        let k = f64::from(k);
        self.start.plus(k * self.first + self.growth * k * (k - 1.0) / 2.0)
    }

    /// How many steps have ended by `now`.
    fn ended_by(&self, now: Time) -> u32 {
        if self.at(self.steps) <= now {
            return self.steps;
        }
        let (mut low, mut high) = (self.done, self.steps);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.at(middle) <= now { low = middle } else { high = middle }
        }
        low
    }
}

impl Engine {
    /// Book everything that ends by `now`. A step that would begin right at `now` is planned only if told so: others
    /// may still be submitted at the same time.
    pub(super) fn run_to(&mut self, now: Time, plan_now: bool) {
        loop {
            if let Some(run) = &self.run {
                let (done, ended) = (run.done, run.ended_by(now));
                if self.tell_tokens {
                    for k in done + 1..=ended {
                        self.book(k);
                    }
                } else if ended > done {
                    self.book(ended);
                }
                if self.run.is_some() {
                    return;
                }
            }
            match self.due {
                Some(t) if t < now || (t == now && plan_now) => {
                    if self.hangs || self.asleep || !self.plan(t) {
                        return;
                    }
                }
                _ => return,
            }
        }
    }

    /// Let the leap end with the step under way: something has changed.
    pub(super) fn cut(&mut self, now: Time) {
        let Some(run) = &mut self.run else { return };
        if run.done > 0 && run.at(run.done) >= now {
            let at = run.at(run.done);
            self.end_run(at);
        } else {
            run.steps = run.done + 1;
        }
    }

    fn end_run(&mut self, at: Time) {
        self.run = None;
        self.due = Some(at);
        for seq in &mut self.running {
            seq.decoding = false;
        }
    }

    /// Plan the steps from `t` on. False if there is nothing to do.
    fn plan(&mut self, t: Time) -> bool {
        let block = self.profile.block_tokens;
        let preempted = self.plan_decodes(t);
        let mut decodes = 0;
        let mut seconds = self.profile.t0;
        let mut growth = 0.0;
        for seq in self.running.iter().filter(|s| s.decoding) {
            let n = f64::from(seq.job.choices);
            decodes += seq.job.choices;
            seconds += n * (self.profile.d + self.profile.e * f64::from(seq.stored + 1));
            growth += n * self.profile.e;
        }
        let mut budget = self.profile.max_batched_tokens.saturating_sub(decodes);
        let mut prefill = 0;
        for seq in self.running.iter_mut().filter(|s| !s.prefilled()) {
            prefill += give_chunk(&self.profile, seq, &mut budget, &mut seconds);
        }
        while !preempted && budget > 0 {
            let Some(mut seq) = self.admit(t) else { break };
            prefill += give_chunk(&self.profile, &mut seq, &mut budget, &mut seconds);
            self.running.push(seq);
        }
        if decodes == 0 && prefill == 0 {
            self.due = None;
            return false;
        }
        let one_step = prefill > 0 || (preempted && !self.waiting.is_empty());
        let steps = if one_step { 1 } else { self.leap(block) };
        let (first, growth) = (seconds * self.slow, growth * self.slow);
        self.run = Some(Run { start: t, steps, done: 0, first, growth, tokens: decodes + prefill });
        self.due = None;
        true
    }

    /// Give each decoding sequence the block that its next token may need; throw out the latest admitted while there
    /// are none. True if that happened.
    fn plan_decodes(&mut self, t: Time) -> bool {
        let block = self.profile.block_tokens;
        let (mut i, mut preempted) = (0, false);
        while i < self.running.len() {
            let seq = &mut self.running[i];
            if !seq.prefilled() {
                i += 1;
            } else if seq.blocks_for(seq.stored + 1, block) - seq.blocks.len() as u32 <= self.pool.available()
            {
                grow(&mut self.pool, seq, seq.stored + 1, block);
                seq.decoding = true;
                i += 1;
            } else if let Some(victim) = self.running.pop() {
                preempted = true;
                self.preempt(t, victim);
            }
        }
        preempted
    }

    fn preempt(&mut self, at: Time, mut seq: Seq) {
        self.pool.release(&mut seq.blocks);
        self.counters.preemptions += 1;
        self.events.push(Event { at, id: seq.job.id, kind: EventKind::Preempted });
        seq.target = seq.job.prompt_tokens + seq.produced;
        (seq.stored, seq.chunk, seq.registered, seq.decoding) = (0, 0, 0, false);
        self.waiting.push_front(seq);
    }

    /// Take the first that waits, if it has a place in the batch and its blocks.
    fn admit(&mut self, t: Time) -> Option<Seq> {
        let block = self.profile.block_tokens;
        let head = self.waiting.front()?;
        if self.places() + head.job.choices > self.profile.max_batch {
            return None;
        }
        // The last token is always computed: its output is what the first token comes from.
        let most = ((head.target - 1) / block) as usize;
        let most = most.min(head.registrable(head.target, block));
        let (found, idle) = self.pool.lookup(&head.job.chain[..most]);
        if head.blocks_for(head.target, block) - found as u32 + idle > self.pool.available() {
            return None;
        }
        let mut seq = self.waiting.pop_front()?;
        self.pool.take_cached(&seq.job.chain, found, &mut seq.blocks);
        seq.registered = found;
        seq.stored = found as u32 * block;
        let target = seq.target;
        grow(&mut self.pool, &mut seq, target, block);
        if seq.admitted.is_none() {
            seq.admitted = Some(t);
            seq.cached = seq.stored;
            self.counters.cache_queries += u64::from(seq.job.prompt_tokens);
            self.counters.cache_hits += u64::from(seq.cached);
            let kind = EventKind::Started { cached_tokens: seq.cached };
            self.events.push(Event { at: t, id: seq.job.id, kind });
        }
        Some(seq)
    }

    /// How many decode steps can be done before a sequence ends or blocks run out.
    fn leap(&self, block: u32) -> u32 {
        let decoding = || self.running.iter().filter(|s| s.decoding);
        let most = decoding().map(Seq::to_come).min().unwrap_or(1).max(1);
        let fits = |k: u32| {
            let needed = |s: &Seq| u64::from(s.blocks_for(s.stored + k, block)) - s.blocks.len() as u64;
            decoding().map(needed).sum::<u64>() <= u64::from(self.pool.available())
        };
        if fits(most) {
            return most;
        }
        let (mut low, mut high) = (1, most);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) { low = middle } else { high = middle }
        }
        low
    }

    /// Book the steps up to number `k` of the run.
    fn book(&mut self, k: u32) {
        let Some(run) = &mut self.run else { return };
        let n = k - run.done;
        let (from, to) = (run.at(run.done), run.at(k));
        run.done = k;
        let over = k == run.steps;
        let block = self.profile.block_tokens;
        let counters = &mut self.counters;
        counters.iteration_tokens.add(f64::from(run.tokens) * f64::from(n), u64::from(n));
        let mut finished = false;
        for seq in &mut self.running {
            if seq.chunk > 0 {
                seq.stored += std::mem::take(&mut seq.chunk);
                register(&mut self.pool, seq, block);
                if !seq.prefilled() {
                    continue;
                }
                seq.produced += 1;
                counters.generation_tokens += u64::from(seq.job.choices);
                let kind = if seq.first.is_none() {
                    seq.first = Some(to);
                    counters.prompt_tokens += u64::from(seq.job.prompt_tokens);
                    counters.ttft.observe(to.since(seq.arrived));
                    EventKind::FirstToken
                } else {
                    EventKind::Tokens(seq.produced)
                };
                if kind == EventKind::FirstToken || self.tell_tokens {
                    self.events.push(Event { at: to, id: seq.job.id, kind });
                }
            } else if seq.decoding {
                let stored = seq.stored + n;
                grow(&mut self.pool, seq, stored, block);
                seq.stored = stored;
                seq.target = stored;
                seq.produced += n;
                register(&mut self.pool, seq, block);
                let tokens = u64::from(n) * u64::from(seq.job.choices);
                counters.generation_tokens += tokens;
                counters.inter_token.add(to.since(from) * f64::from(seq.job.choices), tokens);
                if self.tell_tokens {
                    self.events.push(Event { at: to, id: seq.job.id, kind: EventKind::Tokens(seq.produced) });
                }
            }
            finished |= seq.to_come() == 0;
        }
        if finished {
            self.take_finished(to);
        }
        if over {
            self.end_run(to);
        }
    }

    fn take_finished(&mut self, at: Time) {
        let mut i = 0;
        while i < self.running.len() {
            if self.running[i].to_come() > 0 {
                i += 1;
                continue;
            }
            let mut seq = self.running.remove(i);
            self.pool.release(&mut seq.blocks);
            self.count_finished(at, &seq);
            self.events.push(Event { at, id: seq.job.id, kind: EventKind::Finished(seq.job.ends) });
        }
    }

    fn count_finished(&mut self, at: Time, seq: &Seq) {
        let counters = &mut self.counters;
        match seq.job.ends {
            Reason::Stop => counters.stopped += 1,
            Reason::Length => counters.length += 1,
            Reason::Abort => counters.aborted += 1,
        }
        let admitted = seq.admitted.unwrap_or(seq.arrived);
        let first = seq.first.unwrap_or(at);
        counters.e2e.observe(at.since(seq.arrived));
        counters.queue_time.observe(admitted.since(seq.arrived));
        counters.prefill_time.observe(first.since(admitted));
        counters.decode_time.observe(at.since(first));
        counters.inference_time.observe(at.since(admitted));
        counters.prefill_computed.observe(f64::from(seq.job.prompt_tokens - seq.cached));
        counters.request_prompt.observe(f64::from(seq.job.prompt_tokens));
        counters.request_generation.observe(f64::from(seq.job.output_tokens) * f64::from(seq.job.choices));
        if seq.job.output_tokens > 1 {
            counters.per_output_token.observe(at.since(first) / f64::from(seq.job.output_tokens - 1));
        }
    }
}

/// The next chunk of a prompt, as long as the budget allows; returns its tokens.
fn give_chunk(profile: &Profile, seq: &mut Seq, budget: &mut u32, seconds: &mut f64) -> u32 {
    seq.chunk = (seq.target - seq.stored).min(*budget);
    *budget -= seq.chunk;
    *seconds += profile.chunk(seq.chunk, seq.stored);
    seq.chunk
}

/// Blocks for `tokens` of the sequence. The plan has made sure that there are enough.
fn grow(pool: &mut super::kv::Pool, seq: &mut Seq, tokens: u32, block: u32) {
    let needed = seq.blocks_for(tokens, block) as usize;
    while seq.blocks.len() < needed {
        let Some(id) = pool.allocate() else {
            debug_assert!(false, "the plan promised a block that isn't there");
            return;
        };
        seq.blocks.push(id);
    }
}

/// Let full blocks be found.
fn register(pool: &mut super::kv::Pool, seq: &mut Seq, block: u32) {
    let full = seq.registrable(seq.stored, block).min(seq.blocks.len());
    for i in seq.registered..full {
        pool.register(seq.blocks[i], seq.job.chain[i]);
    }
    seq.registered = seq.registered.max(full);
}
