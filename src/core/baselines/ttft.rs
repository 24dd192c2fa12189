//! Argmin of the estimated TTFT: Mooncake's conductor (FAST '25), without transfers between replicas.
//!
//! Queue seconds plus the prefill seconds of the uncached part, by a fitted model of prefill times: it is given the
//! true shape. Exact knowledge of caches. The queue decays as it is worked off, and what is known of first tokens
//! corrects it: both readings are the better ones for the rival.

use super::rng::Rng;
use super::view::{told, uncached};
use crate::core::ids::RequestId;
use crate::core::policy::{Arriving, Policy, Sight};
use crate::core::speed::Shape;
use crate::core::time::Time;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    until: Time,
    /// Seconds of prefill of those that wait for their first token, and how many they are.
    seconds: f64,
    waiting: u32,
}

/// The policy.
#[derive(Clone, Debug)]
pub(super) struct LeastTtft {
    shape: Shape,
    queues: Vec<Queue>,
    /// Where, and seconds of prefill, of those that wait for their first token.
    flights: BTreeMap<RequestId, (usize, f64)>,
    rng: Rng,
}

impl LeastTtft {
    pub(super) fn new(shape: Shape, seed: u64) -> Self {
        LeastTtft { shape, queues: Vec::new(), flights: BTreeMap::new(), rng: Rng::new(seed) }
    }

    fn prefill(&self, request: &Arriving<'_>, sight: &Sight<'_>, i: usize) -> f64 {
        let new = uncached(request, told(sight, i)) as f64;
        self.shape.prefill(new, (f64::from(request.prompt_tokens) - new).max(0.0))
    }

    fn wait(&self, now: Time, i: usize) -> f64 {
        self.queues.get(i).map_or(0.0, |q| q.until.since(now))
    }

    fn done(&mut self, now: Time, id: RequestId) {
        let Some((i, seconds)) = self.flights.remove(&id) else { return };
        let q = &mut self.queues[i];
        q.waiting -= 1;
        q.seconds = if q.waiting == 0 { 0.0 } else { (q.seconds - seconds).max(0.0) };
        q.until = q.until.min(now.plus(q.seconds));
    }
}

impl Policy for LeastTtft {
    fn name(&self) -> &str {
        "ttft"
    }

    fn knows_caches(&self) -> bool {
        true
    }

    fn place(&mut self, now: Time, request: &Arriving<'_>, sight: &Sight<'_>) -> usize {
        self.done(now, request.id);
        let mut rng = self.rng.clone();
        let chosen = rng.least(sight.up, |i| self.wait(now, i) + self.prefill(request, sight, i));
        self.rng = rng;
        let seconds = self.prefill(request, sight, chosen);
        if self.queues.len() <= chosen {
            self.queues.resize(chosen + 1, Queue::default());
        }
        let q = &mut self.queues[chosen];
        q.until = q.until.max(now).plus(seconds);
        q.seconds += seconds;
        q.waiting += 1;
        self.flights.insert(request.id, (chosen, seconds));
        chosen
    }

    fn first_token(&mut self, now: Time, id: RequestId) {
        self.done(now, id);
    }

    fn finish(&mut self, now: Time, id: RequestId, _output_tokens: u32, _cached: u32) {
        self.done(now, id);
    }

    fn left(&mut self, _now: Time, replica: usize) {
        self.flights.retain(|_, f| f.0 != replica);
        if let Some(q) = self.queues.get_mut(replica) {
            *q = Queue::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::hand::ask;
    use super::*;

    #[test]
    fn by_hand() {
        let mut p = LeastTtft::new(Shape::PLAIN_8K, 1);
        let at = Time::from_secs;
        let sight = Sight { up: &[0, 1], exact: &[8, 0] };
        let chain: Vec<u64> = (1..=8).collect();
        let big = ask(1, &chain, 4896);
        // 800 tokens of 125 µs and a step of 8 ms, against 4,896.
        assert!((p.prefill(&big, &sight, 0) - 0.108).abs() < 1e-9);
        assert!((p.prefill(&big, &sight, 1) - 0.620).abs() < 1e-9);
        // Five of them wait there in less than one elsewhere takes: 4·0.108 + 0.108 = 0.54; the sixth would be 0.648.
        let got: Vec<usize> = (1..=6).map(|id| p.place(at(0.0), &ask(id, &chain, 4896), &sight)).collect();
        assert_eq!(got, [0, 0, 0, 0, 0, 1]);
        assert!((p.wait(at(0.1), 0) - 0.44).abs() < 1e-6);
        // The first came early: no more than the other four can be ahead.
        p.first_token(at(0.05), RequestId(1));
        assert!((p.wait(at(0.05), 0) - 0.432).abs() < 1e-6);
        (2..=5).for_each(|id| p.finish(at(0.06), RequestId(id), 1, 0));
        assert_eq!(p.wait(at(0.06), 0), 0.0);
        p.left(at(0.06), 1);
        assert_eq!((p.wait(at(0.06), 1), p.flights.len()), (0.0, 0));
    }
}
