//! List, watch, and what to do when that fails: the order of the steps, without the steps themselves.
//!
//! A list says what is there, a watch what changes from then on. A watch that the server ends in good order is asked for again from
//! where it was. One that ends in any other way (410 Gone, a broken line, an answer that can't be read) may have
//! missed something, so all is listed anew: whatever isn't in the list is gone, however long the silence was.

use std::time::Duration;

/// Longest pause after failures.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// A watch that ends sooner than this without a word is a failure: else a server that accepts and closes would be asked
/// a thousand times a second.
const SHORT: Duration = Duration::from_secs(1);

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Wait; up to half of it may be left out, by chance, so that many routers don't come at once.
    Pause(Duration),
    /// Ask for a page of the list: the first one, or the one that this token stands for.
    List(Option<String>),
    /// Ask for what changes after this version.
    Watch(String),
}

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The server closed a watch of this age in good order.
    Closed(Duration),
    /// 404: it doesn't know the kind.
    Absent,
    /// 410: the version, or the token of a list, is too old.
    Gone,
    /// Anything else.
    Failed,
}

/// Where a list and its watch are.
#[derive(Clone, Debug)]
pub(super) struct Reflector {
    retry: Duration,
    look_again: Duration,
    next: Step,
    /// What comes after a pause.
    after: Step,
    /// Failures in a row.
    failures: u32,
    /// Has the running watch said anything?
    heard: bool,
    version: String,
}

impl Reflector {
    /// `retry`: the first pause after a failure; `look_again`: the pause when the kind is absent.
    pub(super) fn new(retry: Duration, look_again: Duration) -> Self {
        Reflector {
            retry,
            look_again,
            next: Step::List(None),
            after: Step::List(None),
            failures: 0,
            heard: false,
            version: String::new(),
        }
    }

    /// What is to be done now.
    pub(super) fn step(&self) -> Step {
        self.next.clone()
    }

    /// Failures in a row; 0 once a watch runs.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// The pause is over.
    pub(super) fn rested(&mut self) {
        self.next = self.after.clone();
    }

    /// A page of the list came; true if it was the last one.
    pub(super) fn page(&mut self, version: &str, more: Option<String>) -> bool {
        if let Some(token) = more.filter(|t| !t.is_empty()) {
            self.next = Step::List(Some(token));
            return false;
        }
        self.at(version);
        self.next = Step::Watch(self.version.clone());
        true
    }

    /// The server accepted the watch.
    pub(super) fn opened(&mut self) {
        self.failures = 0;
        self.heard = false;
    }

    /// An event or a bookmark of this version came.
    pub(super) fn heard(&mut self, version: &str) {
        self.heard = true;
        self.at(version);
    }

    /// The step ended, and this is how.
    pub(super) fn ended(&mut self, end: End) {
        let resume = Step::Watch(self.version.clone());
        match end {
            End::Closed(age) if self.heard || age >= SHORT => self.next = resume,
            End::Closed(_) => self.pause(resume),
            End::Gone | End::Failed => self.pause(Step::List(None)),
            End::Absent => {
                self.failures = 0;
                self.after = Step::List(None);
                self.next = Step::Pause(self.look_again);
            }
        }
    }

    fn at(&mut self, version: &str) {
        if !version.is_empty() {
            version.clone_into(&mut self.version);
        }
    }

    fn pause(&mut self, after: Step) {
        let factor = 1u32.checked_shl(self.failures.min(16)).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_add(1);
        self.after = after;
        self.next = Step::Pause(self.retry.saturating_mul(factor).min(MAX_PAUSE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    fn new() -> Reflector {
        Reflector::new(100 * MS, Duration::from_secs(60))
    }

    fn watching(version: &str) -> Reflector {
        let mut r = new();
        assert!(r.page(version, None));
        r.opened();
        r
    }

    #[test]
    fn pages_then_a_watch_from_the_lists_version() {
        let mut r = new();
        assert_eq!(r.step(), Step::List(None));
        assert!(!r.page("5", Some("token".into())));
        assert_eq!(r.step(), Step::List(Some("token".into())));
        assert!(r.page("5", Some(String::new())), "an empty token is none");
        assert_eq!(r.step(), Step::Watch("5".into()));
    }

    #[test]
    fn a_watch_that_was_closed_in_order_goes_on_where_it_was() {
        let mut r = watching("5");
        r.heard("9");
        r.ended(End::Closed(MS));
        assert_eq!((r.step(), r.failures()), (Step::Watch("9".into()), 0));
        let mut r = watching("5");
        r.ended(End::Closed(SHORT));
        assert_eq!(r.step(), Step::Watch("5".into()));
    }

    #[test]
    fn a_watch_that_is_closed_at_once_is_not_asked_for_at_once() {
        let mut r = watching("5");
        r.ended(End::Closed(MS));
        assert_eq!(r.step(), Step::Pause(100 * MS));
        r.rested();
        assert_eq!(r.step(), Step::Watch("5".into()));
    }

    #[test]
    fn what_may_have_missed_something_lists_anew() {
        for end in [End::Gone, End::Failed] {
            let mut r = watching("5");
            r.ended(end);
            assert_eq!(r.step(), Step::Pause(100 * MS));
            r.rested();
            assert_eq!(r.step(), Step::List(None));
        }
    }

    #[test]
    fn pauses_grow_until_a_watch_runs_again() {
        let mut r = new();
        let mut pauses = Vec::new();
        for _ in 0..12 {
            r.ended(End::Failed);
            let Step::Pause(d) = r.step() else { panic!("{:?}", r.step()) };
            pauses.push(d);
            r.rested();
            // That a list succeeds isn't enough: the right to watch may be missing.
            r.page("1", None);
        }
        assert_eq!(pauses[..3], [100 * MS, 200 * MS, 400 * MS]);
        assert_eq!((pauses[11], r.failures()), (MAX_PAUSE, 12));
        r.opened();
        assert_eq!(r.failures(), 0);
    }

    #[test]
    fn an_absent_kind_is_looked_for_again_later() {
        let mut r = new();
        r.ended(End::Absent);
        assert_eq!((r.step(), r.failures()), (Step::Pause(Duration::from_secs(60)), 0));
        r.rested();
        assert_eq!(r.step(), Step::List(None));
    }

    proptest! {
        /// Whatever happens: after anything but a watch closed in good order all is listed before it is watched again, and a
        /// failure is never followed by a request without a pause.
        #[test]
        fn nothing_is_missed_and_nothing_is_hammered(ops in prop::collection::vec(0u8..7, 1..80)) {
            let mut r = new();
            let (mut must_list, mut must_pause) = (true, false);
            for op in ops {
                let step = r.step();
                prop_assert!(!must_pause || matches!(step, Step::Pause(_)));
                prop_assert!(!(must_list && matches!(step, Step::Watch(_))));
                match (step, op) {
                    (Step::Pause(d), _) => {
                        prop_assert!(!d.is_zero() && d <= Duration::from_secs(60));
                        r.rested();
                        must_pause = false;
                    }
                    (Step::List(_), 0) => (must_list, must_pause) = { r.ended(End::Failed); (true, true) },
                    (Step::List(_), 1) => (must_list, must_pause) = { r.ended(End::Absent); (true, true) },
                    (Step::List(_), 2) => (must_list, must_pause) = { r.ended(End::Gone); (true, true) },
                    (Step::List(_), 3) => prop_assert!(!r.page("7", Some("t".into()))),
                    (Step::List(_), _) => { r.page("7", None); must_list = false; }
                    (Step::Watch(_), 0) => { r.ended(End::Failed); (must_list, must_pause) = (true, true); }
                    (Step::Watch(_), 1) => { r.opened(); r.ended(End::Gone); (must_list, must_pause) = (true, true); }
                    (Step::Watch(_), 2) => { r.opened(); r.ended(End::Closed(MS)); must_pause = true; }
                    (Step::Watch(_), _) => { r.opened(); r.heard("8"); r.ended(End::Closed(MS)); }
                }
            }
        }
    }
}
