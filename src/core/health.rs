//! In which state a replica is, and what changes it.
//!
//! Two kinds of evidence: probes (the health page, once a second) and traffic (requests that failed or succeeded).
//! Traffic is faster and sees what a health page doesn't: an engine that answers `/health` and fails every request.

use super::time::Time;

/// What a replica may be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Joined, never yet seen healthy: it may be loading weights. Gets nothing, and isn't called dead.
    Starting,
    /// Serves.
    Ready,
    /// Failed several requests in a row: gets probes only, until its cool-down is over and probes succeed.
    Suspect,
    /// Was ready, and its health page now fails or can't be reached.
    Down,
    /// Its engine sleeps (weights offloaded): answers the health page, but requests would hang.
    Asleep,
}

impl State {
    /// The label in metrics and pages.
    pub fn label(self) -> &'static str {
        match self {
            State::Starting => "starting",
            State::Ready => "ready",
            State::Suspect => "suspect",
            State::Down => "down",
            State::Asleep => "asleep",
        }
    }
}

/// What a probe saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Healthy and awake.
    Ok,
    /// Answered, but not healthy (loading weights, shutting down).
    NotReady,
    /// No answer within the probe's time.
    Unreachable,
    /// Healthy, but asleep.
    Asleep,
}

/// How many of what change the state.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Failures in a row (requests, or probes) that take a ready replica out.
    pub suspect_after: u32,
    /// Good probes in a row that bring it back.
    pub recover_after: u32,
    /// Seconds of the first cool-down of a suspect; doubles with each relapse.
    pub cooldown: f64,
    /// Seconds that a cool-down is at most.
    pub cooldown_max: f64,
}

impl Default for Rules {
    fn default() -> Self {
        Rules { suspect_after: 3, recover_after: 2, cooldown: 1.0, cooldown_max: 60.0 }
    }
}

/// The health of one replica.
#[derive(Clone, Debug)]
pub struct Health {
    state: State,
    failures: u32,
    bad_probes: u32,
    good_probes: u32,
    relapses: u32,
    successes: u32,
    cool_until: Time,
    ready_since: Time,
    /// When the last failure was counted.
    failed_at: Time,
}

/// Successes in a row after which earlier relapses are forgiven.
const FORGIVEN_AFTER: u32 = 20;

impl Health {
    /// A replica that has just joined.
    pub fn new() -> Self {
        Health {
            state: State::Starting,
            failures: 0,
            bad_probes: 0,
            good_probes: 0,
            relapses: 0,
            successes: 0,
            cool_until: Time(0),
            ready_since: Time(0),
            failed_at: Time(0),
        }
    }

    /// Its state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Failed requests in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// When it last became ready.
    pub fn ready_since(&self) -> Time {
        self.ready_since
    }

    /// Takes in a probe; true if the state changed.
    pub fn probe(&mut self, now: Time, probe: Probe, rules: &Rules) -> bool {
        let before = self.state;
        match probe {
            Probe::Ok => {
                self.bad_probes = 0;
                self.good_probes = self.good_probes.saturating_add(1);
                let enough = self.good_probes >= rules.recover_after;
                match self.state {
                    // The first good page is enough for one that only had to load: waiting longer wastes a warm GPU.
                    State::Starting | State::Asleep => self.becomes_ready(now),
                    State::Down if enough => self.becomes_ready(now),
                    State::Suspect if enough && now >= self.cool_until => self.becomes_ready(now),
                    _ => {}
                }
            }
            Probe::NotReady | Probe::Unreachable => {
                self.good_probes = 0;
                self.bad_probes = self.bad_probes.saturating_add(1);
                if matches!(self.state, State::Ready | State::Asleep)
                    && self.bad_probes >= rules.suspect_after
                {
                    self.state = State::Down;
                }
            }
            Probe::Asleep => {
                self.bad_probes = 0;
                self.good_probes = 0;
                self.state = State::Asleep;
            }
        }
        self.state != before
    }

    /// A request placed at `placed` failed by the replica's fault; true if it became a suspect by it. `may` is false while
    /// the fleet can't do without it. Requests that were under way together and die together are one failure: only
    /// one that was sent after the last failure says that it goes on.
    pub fn failed(&mut self, now: Time, placed: Time, rules: &Rules, may: bool) -> bool {
        self.successes = 0;
        if placed < self.failed_at {
            return false;
        }
        self.failed_at = now;
        self.failures = self.failures.saturating_add(1);
        if !may || self.state != State::Ready || self.failures < rules.suspect_after {
            return false;
        }
        self.state = State::Suspect;
        self.good_probes = 0;
        let cool = (rules.cooldown * 2f64.powi(self.relapses.min(16) as i32)).min(rules.cooldown_max);
        self.relapses = self.relapses.saturating_add(1);
        // Never shortened by a newer, shorter one.
        self.cool_until = self.cool_until.max(now.plus(cool));
        true
    }

    /// A request succeeded (or at least began to answer).
    pub fn succeeded(&mut self) {
        self.failures = 0;
        self.successes = self.successes.saturating_add(1);
        if self.successes >= FORGIVEN_AFTER {
            self.relapses = 0;
        }
    }

    fn becomes_ready(&mut self, now: Time) {
        self.state = State::Ready;
        self.failures = 0;
        self.ready_since = now;
    }
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready() -> Health {
        let mut h = Health::new();
        assert!(h.probe(Time(1), Probe::Ok, &Rules::default()));
        h
    }

    #[test]
    fn loading_is_not_dead() {
        let mut h = Health::new();
        for i in 0..1000 {
            assert!(!h.probe(Time(i), Probe::NotReady, &Rules::default()));
        }
        assert_eq!(h.state(), State::Starting);
        assert!(h.probe(Time(1001), Probe::Ok, &Rules::default()));
        assert_eq!(h.state(), State::Ready);
    }

    #[test]
    fn one_lost_probe_changes_nothing_three_do() {
        let mut h = ready();
        let r = Rules::default();
        assert!(!h.probe(Time(2), Probe::Unreachable, &r));
        assert!(!h.probe(Time(3), Probe::Unreachable, &r));
        assert!(!h.probe(Time(4), Probe::Ok, &r));
        for t in 5..7 {
            assert!(!h.probe(Time(t), Probe::Unreachable, &r));
        }
        assert!(h.probe(Time(8), Probe::Unreachable, &r));
        assert_eq!(h.state(), State::Down);
        assert!(!h.probe(Time(9), Probe::Ok, &r));
        assert!(h.probe(Time(10), Probe::Ok, &r));
    }

    #[test]
    fn three_failures_in_a_row_make_a_suspect_that_only_probes_redeem() {
        let mut h = ready();
        let r = Rules::default();
        h.failed(Time(2), Time(2), &r, true);
        h.failed(Time(3), Time(3), &r, true);
        h.succeeded();
        assert_eq!(h.state(), State::Ready);
        for t in 4..6 {
            assert!(!h.failed(Time(t), Time(t), &r, true));
        }
        assert!(h.failed(Time(6), Time(6), &r, true));
        assert_eq!(h.state(), State::Suspect);
        // Good probes before the cool-down is over don't help.
        for t in 7..10 {
            assert!(!h.probe(Time(t), Probe::Ok, &r));
        }
        assert!(h.probe(Time::from_secs(1.1), Probe::Ok, &r));
        assert_eq!(h.state(), State::Ready);
    }

    #[test]
    fn a_longer_cool_down_is_never_shortened() {
        let r = Rules::default();
        let mut h = ready();
        let mut now = Time::from_secs(1.0);
        let mut last = 0.0;
        for _ in 0..10 {
            for _ in 0..3 {
                h.failed(now, now, &r, true);
            }
            assert_eq!(h.state(), State::Suspect);
            let start = now;
            while h.state() == State::Suspect {
                now = now.plus(0.5);
                h.probe(now, Probe::Ok, &r);
            }
            let out = now.since(start);
            assert!(out >= last, "{out} after {last}");
            last = out;
        }
        assert!(last >= 60.0);
    }

    #[test]
    fn requests_that_die_together_are_one_failure() {
        let r = Rules::default();
        let mut h = ready();
        for _ in 0..60 {
            assert!(!h.failed(Time(100), Time(50), &r, true));
        }
        assert_eq!(h.state(), State::Ready);
        assert!(!h.failed(Time(102), Time(101), &r, true));
        assert!(h.failed(Time(104), Time(103), &r, true));
    }

    #[test]
    fn asleep_gets_nothing_until_it_wakes() {
        let mut h = ready();
        let r = Rules::default();
        assert!(h.probe(Time(2), Probe::Asleep, &r));
        assert_eq!(h.state(), State::Asleep);
        assert!(h.probe(Time(3), Probe::Ok, &r));
        assert_eq!(h.state(), State::Ready);
    }
}
