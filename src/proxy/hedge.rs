//! A second request to another replica, because the first is slow to begin.
//!
//! Only for streams: of an answer that comes as a whole nobody can see whether it has begun. The first to begin wins; the
//! other's connection is closed in the same moment, so its engine stops. Second requests have a budget of their own, so that
//! a fleet that is slow because it is full doesn't get even more to do.

use super::attempts::Repeat;
use super::attempts::{Verdict, verdict};
use super::exchange::{Body, Call, Failed};
use super::record::Record;
use super::reply::Reply;
use super::worker::Worker;
use crate::core::Failure;
use crate::router::{Ask, Endpoint, Reservation};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// Buckets of times, each a quarter longer than the one before.
const BUCKETS: usize = 60;
/// The first bucket, in seconds.
const SHORTEST: f64 = 0.001;
const RATIO: f64 = 1.25;
/// With fewer times than this nothing is known.
const ENOUGH: u32 = 50;
/// With so many, all are halved: older ones fade.
const MANY: u32 = 2000;

/// How long streams took to begin, lately.
#[derive(Debug)]
pub(super) struct Recent {
    buckets: [AtomicU32; BUCKETS],
    total: AtomicU32,
}

impl Default for Recent {
    fn default() -> Self {
        Recent { buckets: std::array::from_fn(|_| AtomicU32::new(0)), total: AtomicU32::new(0) }
    }
}

impl Recent {
    /// One began after this long.
    pub(super) fn observe(&self, took: Duration) {
        let at = (took.as_secs_f64() / SHORTEST).max(1.0).log(RATIO).ceil();
        let at = (at.max(0.0) as usize).min(BUCKETS - 1);
        if let Some(bucket) = self.buckets.get(at) {
            bucket.fetch_add(1, Relaxed);
        }
        if self.total.fetch_add(1, Relaxed) + 1 >= MANY {
            // Two threads at once halve twice: what is lost is only weight.
            let mut left = 0;
            for bucket in &self.buckets {
                let half = bucket.load(Relaxed) / 2;
                bucket.store(half, Relaxed);
                left += half;
            }
            self.total.store(left, Relaxed);
        }
    }

    /// The time within which this share of them began, if enough is known.
    fn quantile(&self, share: f64) -> Option<Duration> {
        let counts: Vec<u32> = self.buckets.iter().map(|b| b.load(Relaxed)).collect();
        let total: u32 = counts.iter().sum();
        if total < ENOUGH {
            return None;
        }
        let mut left = (share * f64::from(total)).ceil();
        let at = counts.iter().position(|n| {
            left -= f64::from(*n);
            left <= 0.0
        })?;
        Some(Duration::from_secs_f64(SHORTEST * RATIO.powi(at as i32)))
    }
}

/// After how long a second replica is asked; `None`: never.
pub(super) fn delay(worker: &Worker, ask: &Ask, call: &Call) -> Option<Duration> {
    let hedge = &worker.shared.settings().hedge;
    if !ask.streams || !call.generates || !matches!(call.body, Body::Memory(_)) {
        return None;
    }
    let after = hedge.after.map(|s| s.get());
    match hedge.quantile {
        None => after,
        Some(share) => worker.shared.recent.quantile(share).max(after),
    }
}

/// Tries `reservation`'s replica, and after `delay` a second one as well. Whoever fails is told so here, unless it is the
/// last: that result is returned with its reservation.
pub(super) async fn race(
    record: &mut Record,
    ask: &mut Ask,
    call: &mut Call,
    reservation: Reservation,
    endpoint: &Endpoint,
    delay: Duration,
) -> (Result<Reply, Failed>, Reservation) {
    let worker: Rc<Worker> = record.worker.clone();
    let shared = &worker.shared;
    let Some(mut other) = call.fork() else {
        return (call.attempt(&worker, endpoint).await, reservation);
    };
    let mut first = pin!(call.attempt(&worker, endpoint));
    tokio::select! {
        biased;
        result = &mut first => return (result, reservation),
        () = tokio::time::sleep(delay) => {}
    }
    if !shared.live.hedges().withdraw(shared.router.now()) {
        shared.metrics.hedged("no_budget");
        return (first.await, reservation);
    }
    let mut elsewhere = ask.clone();
    elsewhere.tried.push(reservation.replica());
    let second = tokio::select! {
        biased;
        result = &mut first => return (result, reservation),
        placed = shared.router.place(&elsewhere) => placed,
    };
    let Ok(second) = second else { return (first.await, reservation) };
    let Some(there) = second.endpoint().cloned() else { return (first.await, reservation) };
    other.rank = second.rank();
    let mut attempt = pin!(other.attempt(&worker, &there));
    tokio::select! {
        biased;
        result = &mut first => {
            if good(&result) {
                shared.metrics.hedged("lost");
                return (result, reservation);
            }
            ask.tried.push(reservation.replica());
            failed(result, reservation);
            record.placed(&second);
            (attempt.await, second)
        }
        result = &mut attempt => {
            if good(&result) {
                shared.metrics.hedged("won");
                record.placed(&second);
                // The first is dropped, and with it its connection.
                return (result, second);
            }
            ask.tried.push(second.replica());
            failed(result, second);
            (first.await, reservation)
        }
    }
}

fn good(result: &Result<Reply, Failed>) -> bool {
    result
        .as_ref()
        .is_ok_and(|r| matches!(verdict(r, Repeat::Always, u64::MAX), Verdict::Pass | Verdict::Blameless))
}

fn failed(result: Result<Reply, Failed>, reservation: Reservation) {
    let failure = match result {
        Err(failed) => failed.failure(),
        Ok(reply) => match verdict(&reply, Repeat::Always, u64::MAX) {
            Verdict::Failed(failure) => failure,
            Verdict::Pass | Verdict::Blameless => Failure::Blameless,
        },
    };
    reservation.fail(failure);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_follow_what_is_seen() {
        let recent = Recent::default();
        assert_eq!(recent.quantile(0.95), None);
        for n in 0..1000 {
            recent.observe(Duration::from_millis(if n % 10 == 0 { 1000 } else { 100 }));
        }
        let at = |share| recent.quantile(share).unwrap().as_secs_f64();
        assert!((0.1..0.125).contains(&at(0.5)), "{}", at(0.5));
        assert!((1.0..1.25).contains(&at(0.95)), "{}", at(0.95));
        for _ in 0..20_000 {
            recent.observe(Duration::from_millis(10));
        }
        assert!(at(0.95) < 0.0125, "older times fade: {}", at(0.95));
        recent.observe(Duration::from_secs(1 << 40));
        recent.observe(Duration::ZERO);
    }
}
