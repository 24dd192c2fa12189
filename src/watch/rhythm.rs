//! When to look.
//!
//! Each replica has its own place in the interval, told by its address. A hundred replicas are so spread evenly over
//! the second, and two routers that poll the same replica do it at the same place of their own seconds, which began at
//! different times.

use std::time::Duration;
use tokio::time::Instant;

/// A beat with a phase of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Beat {
    every: Duration,
    /// Moments `origin + n · every` are beats.
    origin: Instant,
    next: Instant,
}

impl Beat {
    /// The first beat is now; the next ones at the place that `key` has in the interval, counted from `epoch`.
    pub(super) fn new(every: Duration, key: u64, epoch: Instant, now: Instant) -> Self {
        let share = (key >> 11) as f64 / (1u64 << 53) as f64;
        Beat { every: every.max(Duration::from_millis(1)), origin: epoch + every.mul_f64(share), next: now }
    }

    /// When to look next.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Is it time? Then the next beat is the first one after `now`: those that were missed aren't made up for.
    pub(super) fn due(&mut self, now: Instant) -> bool {
        if now < self.next {
            return false;
        }
        let gone = now.saturating_duration_since(self.origin).as_nanos();
        let every = self.every.as_nanos();
        let into = if now < self.origin {
            // Before the first beat there is: that one comes next.
            every - (self.origin - now).as_nanos() % every
        } else {
            gone % every
        };
        self.next = now + Duration::from_nanos(u64::try_from(every - into % every).unwrap_or(u64::MAX));
        true
    }

    /// Look again after `wait`, whatever the beat.
    pub(super) fn hurry(&mut self, now: Instant, wait: Duration) {
        self.next = self.next.min(now + wait);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_first_is_now_and_then_the_phase_holds() {
        let epoch = Instant::now();
        let now = epoch + Duration::from_millis(12_345);
        let mut beat = Beat::new(SECOND, u64::MAX / 4, epoch, now);
        assert!(beat.due(now));
        for n in 0..5 {
            let at = beat.next() - epoch;
            let want = Duration::from_millis(13_250) + n * SECOND;
            assert!(at.abs_diff(want) < Duration::from_micros(1), "{at:?}");
            assert!(!beat.due(epoch + at - Duration::from_millis(1)));
            // A little late each time: the phase doesn't drift.
            assert!(beat.due(epoch + at + Duration::from_millis(30)));
        }
    }

    #[test]
    fn missed_beats_are_not_made_up_for() {
        let epoch = Instant::now();
        let mut beat = Beat::new(SECOND, 0, epoch, epoch);
        assert!(beat.due(epoch));
        assert_eq!(beat.next(), epoch + SECOND);
        assert!(beat.due(epoch + Duration::from_millis(9_100)));
        assert_eq!(beat.next(), epoch + 10 * SECOND);
    }

    #[test]
    fn a_hundred_replicas_are_spread_over_the_second() {
        let epoch = Instant::now();
        let now = epoch + 7 * SECOND;
        let mut tenths = [0; 10];
        for i in 0..100u64 {
            let key = xxhash_rust::xxh3::xxh3_64(&i.to_le_bytes());
            let mut beat = Beat::new(SECOND, key, epoch, now);
            beat.due(now);
            let at = (beat.next() - now).as_secs_f64();
            assert!(at > 0.0 && at <= 1.0, "{at}");
            tenths[((at * 10.0) as usize).min(9)] += 1;
        }
        assert!(tenths.iter().all(|n| (2..=22).contains(n)), "{tenths:?}");
    }

    #[test]
    fn a_join_before_the_first_beat_of_its_phase() {
        let epoch = Instant::now();
        let mut beat = Beat::new(10 * SECOND, u64::MAX / 2, epoch, epoch);
        assert!(beat.due(epoch));
        let wait = beat.next() - epoch;
        assert!(wait.abs_diff(5 * SECOND) < Duration::from_micros(10), "{wait:?}");
    }

    #[test]
    fn hurrying_only_shortens() {
        let epoch = Instant::now();
        let mut beat = Beat::new(30 * SECOND, 0, epoch, epoch);
        beat.due(epoch);
        beat.hurry(epoch, 2 * SECOND);
        assert_eq!(beat.next(), epoch + 2 * SECOND);
        beat.hurry(epoch, 5 * SECOND);
        assert_eq!(beat.next(), epoch + 2 * SECOND);
    }
}
