//! Monotonic time as the core sees it.

use std::ops::Add;
use std::time::Duration;

/// Nanoseconds since an origin that the caller chose (process start, or the first request of a trace).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// A time `s` seconds after the origin. Negative and non-finite values become the origin.
    pub fn from_secs(s: f64) -> Self {
        Time((s.max(0.0) * 1e9) as u64)
    }

    /// Seconds since the origin.
    pub fn secs(self) -> f64 {
        self.0 as f64 * 1e-9
    }

    /// Seconds from `earlier` to `self`; zero if `earlier` is later (clocks of two threads may be read out of order).
    pub fn since(self, earlier: Time) -> f64 {
        self.0.saturating_sub(earlier.0) as f64 * 1e-9
    }

    /// This time moved by `s` seconds, which may be negative; stops at the origin.
    pub fn plus(self, s: f64) -> Self {
        if s >= 0.0 {
            Time(self.0.saturating_add((s * 1e9) as u64))
        } else {
            Time(self.0.saturating_sub((-s * 1e9) as u64))
        }
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, d: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_stays_in_range() {
        let t = Time::from_secs(2.0);
        assert_eq!(t.plus(-5.0), Time(0));
        assert_eq!(Time(0).since(t), 0.0);
        assert!((t.plus(0.5).since(t) - 0.5).abs() < 1e-9);
        assert_eq!(Time::from_secs(-1.0), Time(0));
        assert_eq!(t + Duration::MAX, Time(u64::MAX));
    }
}
