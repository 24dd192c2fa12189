//! What one replica has in flight for this router, and how much work that is.
//!
//! The router's own counts come first: they are exact and instant. What the replica's metrics page adds (traffic of
//! other routers) is a correction, believed while it is fresh. No page at all means *unknown*: then the ledger alone
//! speaks, and the replica looks neither idle nor full.

use super::ids::RequestId;
use super::time::Time;

/// One placed request, as the ledger of its replica keeps it.
#[derive(Clone, Debug)]
pub struct Flight {
    /// Which request.
    pub id: RequestId,
    /// Seconds of prefill expected for it, alone on the engine.
    pub prefill: f64,
    /// Prompt tokens that it pins in the cache.
    pub context: u32,
    /// Output tokens expected of it, over all its choices.
    pub output: u32,
    /// Sequences that it decodes at once.
    pub sequences: u32,
    /// When its prefill should be done.
    pub due: Time,
    /// True until its first token was seen (or, for answers that aren't streamed, is due).
    pub prefilling: bool,
    /// Will its first token be seen?
    pub streams: bool,
    /// A generating request, as opposed to a pass-through call.
    pub generates: bool,
    /// Output tokens seen so far.
    pub produced: u32,
}

/// What a metrics page said, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Polled {
    /// Sequences running in the engine.
    pub running: Option<u32>,
    /// Requests waiting in the engine's queue.
    pub waiting: Option<u32>,
    /// Share of the cache's blocks that running requests pin, 0 to 1.
    pub kv_usage: Option<f64>,
}

/// What a request in flight has still to do, by what is expected of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Remaining {
    /// Seconds until its prefill should be done.
    pub prefill: f64,
    /// Output tokens of each choice.
    pub tokens: f64,
}

/// Seconds that a metrics page is believed.
const FRESH: f64 = 5.0;
/// Seconds over which the share of time spent on prompts is taken: longer than one long prompt, shorter than a change
/// of load.
const LATELY: f64 = 60.0;
/// Share of a cache in use from which a queue is taken to wait for its blocks.
const CACHE_FULL: f64 = 0.9;
/// Pages in a row that must show a batch at its largest, and a queue, before that is taken for the engine's limit.
const STEADY_PAGES: u32 = 3;
/// Context tokens of a stranger's request where there are none of our own to judge by.
const STRANGER: f64 = 1000.0;
/// A stream's prefill that should be done by now counts on with this share until it is.
const LATE_SHARE: f64 = 0.3;

/// The ledger of one replica.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    flights: Vec<Flight>,
    calls: u32,
    sequences: u32,
    context: u64,
    output: u64,
    produced: u64,
    prefilling: u32,
    pending: f64,
    /// Seconds of prefill done here since the start.
    prefilled: f64,
    /// The same, fading over [`LATELY`].
    recent: f64,
    recent_at: Time,
    busy_until: Time,
    polled: Polled,
    polled_at: Option<Time>,
    foreign: u32,
    foreign_before: u32,
    limit: Option<u32>,
    limit_at: Time,
    /// Most sequences that a page showed running, and how many pages in a row showed just as many, and a queue.
    most_running: u32,
    steady_pages: u32,
}

impl Ledger {
    /// Requests in flight, pass-through calls included.
    pub fn in_flight(&self) -> u32 {
        self.flights.len() as u32
    }

    /// Sequences that this router has in flight here, plus those of other routers that the last fresh page showed.
    pub fn sequences(&self, now: Time) -> f64 {
        f64::from(self.sequences + self.foreign(now))
    }

    /// Pass-through calls in flight.
    pub fn calls(&self) -> u32 {
        self.calls
    }

    /// Context tokens resident: prompts in flight and what they produced, with strangers at the mean of our own.
    pub fn context(&self, now: Time) -> f64 {
        let own = self.context as f64;
        let mean = if self.sequences > 0 { own / f64::from(self.sequences) } else { STRANGER };
        own + mean * f64::from(self.foreign(now))
    }

    /// Output tokens of requests in flight: produced so far, and still expected.
    pub fn outputs(&self) -> f64 {
        (self.produced + self.output) as f64
    }

    /// Tokens that requests in flight will pin in the cache before they end. `prompts`: distinct tokens of their
    /// prompts, if known; prompts that share a prefix pin it once.
    pub fn pinned(&self, now: Time, prompts: Option<f64>) -> f64 {
        let Some(prompts) = prompts else { return self.context(now) + self.output as f64 };
        let own = prompts + self.outputs();
        let mean = if self.sequences > 0 { own / f64::from(self.sequences) } else { STRANGER };
        own + mean * f64::from(self.foreign(now))
    }

    /// Seconds of prefill queued ahead of a request that came now (`W`), decaying as they are worked off.
    pub fn wait(&self, now: Time) -> f64 {
        self.busy_until.since(now).max(LATE_SHARE * self.pending)
    }

    /// Seconds of prefill done here so far, as they were expected. What was done between two moments is what those who
    /// decoded meanwhile were held up by.
    pub fn prefilled(&self) -> f64 {
        self.prefilled
    }

    /// Share of its time that this replica spent on prompts lately, 0 to 1.
    pub fn prefill_share(&self) -> f64 {
        (self.recent / LATELY).min(1.0)
    }

    /// Lets time pass for [`prefill_share`](Self::prefill_share); once a second is often enough.
    pub fn fade(&mut self, now: Time) {
        self.prefill_done(now, 0.0);
    }

    fn prefill_done(&mut self, now: Time, prefill: f64) {
        self.prefilled += prefill;
        self.recent = self.recent * (-now.since(self.recent_at) / LATELY).exp() + prefill;
        self.recent_at = now;
    }

    /// Seconds by which the most overdue prefill is late.
    pub fn overdue(&self, now: Time) -> f64 {
        if self.prefilling == 0 {
            return 0.0;
        }
        let late = |f: &Flight| if f.prefilling && f.streams { now.since(f.due) } else { 0.0 };
        self.flights.iter().map(late).fold(0.0, f64::max)
    }

    /// What the last page said, if it is fresh.
    pub fn polled(&self, now: Time) -> Option<Polled> {
        self.polled_at.filter(|&at| now.since(at) <= FRESH).map(|_| self.polled)
    }

    /// Requests in flight at most, learned from a page that showed a queue inside the engine; `None` = no limit known.
    pub fn limit(&self, now: Time) -> Option<u32> {
        self.limit.filter(|_| now.since(self.limit_at) <= 60.0)
    }

    /// Books a request and moves the end of the queued prefill by its own.
    pub fn book(&mut self, now: Time, mut flight: Flight) {
        let start = self.busy_until.max(now);
        self.busy_until = start.plus(flight.prefill);
        flight.due = self.busy_until;
        flight.prefilling = flight.generates;
        if flight.generates {
            self.sequences += flight.sequences;
            self.context += u64::from(flight.context);
            self.output += u64::from(flight.output);
            if flight.streams {
                self.prefilling += 1;
                self.pending += flight.prefill;
            }
        } else {
            self.calls += 1;
        }
        self.flights.push(flight);
    }

    /// The first token of a stream came: its prefill is done, and so is what was queued before it.
    pub fn first_token(&mut self, now: Time, id: RequestId) {
        let Some(f) = self.flights.iter_mut().find(|f| f.id == id && f.prefilling) else { return };
        f.prefilling = false;
        let (streams, prefill) = (f.streams, f.prefill);
        self.prefill_done(now, prefill);
        if streams {
            self.no_longer_pending(prefill);
            self.resettle(now);
        }
    }

    /// Output tokens seen so far of a request.
    pub fn progress(&mut self, id: RequestId, produced: u32) {
        let Some(f) = self.flights.iter_mut().find(|f| f.id == id && f.generates) else { return };
        let more = produced.saturating_sub(f.produced);
        f.produced += more;
        self.context += u64::from(more);
        self.produced += u64::from(more);
        // What it produced is pinned as context from now on, not as expectation.
        let expected = f.output.min(more);
        f.output -= expected;
        self.output -= u64::from(expected);
    }

    /// Takes a request off the books; `None` if it isn't on them (so that nothing can be released twice).
    pub fn release(&mut self, now: Time, id: RequestId) -> Option<Flight> {
        let at = self.flights.iter().position(|f| f.id == id)?;
        let f = self.flights.swap_remove(at);
        if f.generates {
            self.sequences -= f.sequences;
            let own = u64::from(f.context) + u64::from(f.produced);
            self.context -= own;
            self.output -= u64::from(f.output);
            self.produced -= u64::from(f.produced);
            if f.prefilling {
                self.prefill_done(now, f.prefill);
            }
            if f.prefilling && f.streams {
                self.no_longer_pending(f.prefill);
            }
            // However it ended: prefill that it had queued and that isn't done will not be done.
            self.resettle(now);
        } else {
            self.calls -= 1;
        }
        Some(f)
    }

    /// What a request in flight has still to do.
    pub fn remaining(&self, now: Time, id: RequestId) -> Option<Remaining> {
        let f = self.flights.iter().find(|f| f.id == id)?;
        // Its choices decode at once; what it produced already is no longer in `output`.
        let tokens = f64::from(f.output) / f64::from(f.sequences.max(1));
        Some(Remaining { prefill: f.due.since(now).max(0.0), tokens })
    }

    /// Takes in a metrics page.
    pub fn poll(&mut self, now: Time, polled: Polled) {
        self.polled = polled;
        self.polled_at = Some(now);
        let shown = match (polled.running, polled.waiting) {
            (None, None) => {
                self.foreign = 0;
                self.foreign_before = 0;
                return;
            }
            (r, w) => r.unwrap_or(0).saturating_add(w.unwrap_or(0)),
        };
        // The smaller of two pages: a request of our own that just ended may still be on one of them.
        let foreign = shown.saturating_sub(self.sequences);
        self.foreign = foreign.min(self.foreign_before);
        self.foreign_before = foreign;
        self.learn_limit(now, &polled);
    }

    /// Does the page show an engine that can't take more? A queue alone doesn't: while it computes a prompt it lets
    /// others wait that it will take next. A full cache does, and so does a batch that stays at one size, which it
    /// never exceeded, page after page.
    fn learn_limit(&mut self, now: Time, polled: &Polled) {
        let (Some(running), Some(waiting)) = (polled.running, polled.waiting) else { return };
        let steady = waiting > 0 && running > 0 && running == self.most_running;
        self.steady_pages = if steady { self.steady_pages + 1 } else { 0 };
        self.most_running = self.most_running.max(running);
        let cache_full = waiting > 0 && polled.kv_usage.is_some_and(|used| used >= CACHE_FULL);
        if cache_full || self.steady_pages >= STEADY_PAGES {
            // A second batch may wait there, no more.
            let room = running.saturating_mul(2).max(16);
            self.limit = Some(self.limit(now).map_or(room, |l| l.max(room)));
            self.limit_at = now;
        }
    }

    /// Recounts everything from the flights; a message says what differs.
    pub fn check(&self) -> Result<(), String> {
        let gen_ = || self.flights.iter().filter(|f| f.generates);
        let sequences: u32 = gen_().map(|f| f.sequences).sum();
        let output: u64 = gen_().map(|f| u64::from(f.output)).sum();
        let context: u64 = gen_().map(|f| u64::from(f.context) + u64::from(f.produced)).sum();
        let late: Vec<f64> = gen_().filter(|f| f.prefilling && f.streams).map(|f| f.prefill).collect();
        let pending: f64 = late.iter().sum();
        let calls = self.flights.len() - gen_().count();
        let same = sequences == self.sequences
            && output == self.output
            && context == self.context
            && gen_().map(|f| u64::from(f.produced)).sum::<u64>() == self.produced
            && late.len() == self.prefilling as usize
            && (pending - self.pending).abs() < 1e-6
            && calls == self.calls as usize;
        if same {
            Ok(())
        } else {
            Err(format!(
                "ledger differs from its {} flights: sequences {} {sequences}, output {} {output}, context {} {context}, \
                 prefilling {} {}, pending {} {pending}, calls {} {calls}",
                self.flights.len(),
                self.sequences,
                self.output,
                self.context,
                self.prefilling,
                late.len(),
                self.pending,
                self.calls
            ))
        }
    }

    fn foreign(&self, now: Time) -> u32 {
        if self.polled(now).is_some() { self.foreign } else { 0 }
    }

    fn no_longer_pending(&mut self, prefill: f64) {
        self.prefilling -= 1;
        // Sums of floats drift; an empty queue is exactly empty.
        self.pending = if self.prefilling == 0 { 0.0 } else { (self.pending - prefill).max(0.0) };
    }

    /// The queue can't last longer than what is still pending of it.
    fn resettle(&mut self, now: Time) {
        let unseen: f64 =
            self.flights.iter().filter(|f| f.generates && !f.streams && f.due > now).map(|f| f.prefill).sum();
        self.busy_until = self.busy_until.min(now.plus(self.pending + unseen));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flight(id: u64, prefill: f64) -> Flight {
        Flight {
            id: RequestId(id),
            prefill,
            context: 1000,
            output: 200,
            sequences: 1,
            due: Time(0),
            prefilling: false,
            streams: true,
            generates: true,
            produced: 0,
        }
    }

    fn at(s: f64) -> Time {
        Time::from_secs(s)
    }

    #[test]
    fn queued_prefill_decays_as_it_is_worked_off() {
        let mut l = Ledger::default();
        l.book(at(1.0), flight(1, 2.0));
        l.book(at(1.0), flight(2, 1.0));
        assert!((l.wait(at(1.0)) - 3.0).abs() < 1e-6);
        assert!((l.wait(at(2.0)) - 2.0).abs() < 1e-6);
        // The first came a second early: only the second's own prefill can still be ahead.
        l.first_token(at(2.0), RequestId(1));
        assert!((l.wait(at(2.0)) - 1.0).abs() < 1e-6);
        l.first_token(at(2.5), RequestId(2));
        assert_eq!(l.wait(at(2.5)), 0.0);
        assert_eq!(l.overdue(at(100.0)), 0.0);
        l.check().unwrap();
    }

    #[test]
    fn a_prefill_that_never_ends_makes_the_replica_late_not_idle() {
        let mut l = Ledger::default();
        l.book(at(0.0), flight(1, 1.0));
        assert!(l.wait(at(60.0)) >= 0.3);
        assert!((l.overdue(at(60.0)) - 59.0).abs() < 1e-6);
    }

    #[test]
    fn everything_returns_to_zero_and_nothing_is_released_twice() {
        let mut l = Ledger::default();
        for i in 0..50 {
            l.book(at(0.1 * i as f64), Flight { streams: i % 3 > 0, generates: i % 7 > 0, ..flight(i, 0.5) });
        }
        for i in 0..50u64 {
            if i % 2 == 0 {
                l.first_token(at(6.0), RequestId(i));
                l.progress(RequestId(i), i as u32 * 9);
            }
            l.check().unwrap();
        }
        for i in 0..50 {
            assert!(l.release(at(9.0), RequestId(i)).is_some());
            assert!(l.release(at(9.0), RequestId(i)).is_none());
            l.check().unwrap();
        }
        assert_eq!((l.in_flight(), l.sequences, l.context, l.output, l.calls), (0, 0, 0, 0, 0));
        assert_eq!(l.pending, 0.0);
    }

    #[test]
    fn a_request_that_ends_early_leaves_no_queue_behind() {
        for streams in [true, false] {
            let mut l = Ledger::default();
            l.book(at(0.0), Flight { streams, ..flight(1, 30.0) });
            l.book(at(0.0), Flight { streams, ..flight(2, 1.0) });
            l.release(at(0.1), RequestId(1));
            assert!(l.wait(at(0.1)) <= 1.0 + 1e-6, "streams {streams}: {}", l.wait(at(0.1)));
            l.release(at(0.2), RequestId(2));
            assert_eq!(l.wait(at(0.2)), 0.0, "streams {streams}");
        }
    }

    #[test]
    fn a_page_adds_only_what_strangers_have_there_and_only_while_fresh() {
        let mut l = Ledger::default();
        l.book(at(0.0), flight(1, 0.1));
        let page =
            |running, waiting| Polled { running: Some(running), waiting: Some(waiting), kv_usage: None };
        l.poll(at(1.0), page(5, 0));
        assert_eq!(l.sequences(at(1.0)), 1.0, "one page alone may still show requests of our own");
        l.poll(at(2.0), page(4, 0));
        assert_eq!(l.sequences(at(2.0)), 4.0);
        assert_eq!(l.sequences(at(8.0)), 1.0, "an old page is unknown, not idle and not busy");
        l.poll(at(9.0), Polled::default());
        assert_eq!(l.sequences(at(9.0)), 1.0);
    }

    #[test]
    fn a_queue_inside_the_engine_teaches_the_cap() {
        let mut l = Ledger::default();
        assert_eq!(l.limit(at(0.0)), None);
        let page =
            |running, waiting, kv_usage| Polled { running: Some(running), waiting: Some(waiting), kv_usage };
        for s in 1..5 {
            l.poll(at(f64::from(s)), page(100, 3, None));
        }
        assert_eq!(l.limit(at(4.0)), Some(200));
        assert_eq!(l.limit(at(70.0)), None);
        l.poll(at(71.0), page(40, 3, Some(0.97)));
        assert_eq!(l.limit(at(71.0)), Some(80), "its cache is full");
    }

    #[test]
    fn requests_that_wait_for_a_prefill_teach_no_cap() {
        let mut l = Ledger::default();
        for s in 0..60 {
            // A long prompt is computed now and then, and some wait meanwhile; the batch goes up and down.
            let (running, waiting) = (9 + s % 3, u32::from(s % 4 < 3));
            let page = Polled { running: Some(running), waiting: Some(waiting), kv_usage: Some(0.3) };
            l.poll(at(f64::from(s)), page);
            assert_eq!(l.limit(at(f64::from(s))), None, "page {s}");
        }
    }
}
