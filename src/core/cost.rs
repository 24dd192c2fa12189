//! The price of placing a request on a replica, in seconds of somebody's waiting.
//!
//! Scores with hand-set weights add apples to pears. Here each term is seconds, so they add up, and each can be argued
//! with: own waiting, the waiting caused to those already there, the cost of what gets pushed out of the cache.

use super::replica::Replica;
use super::speed::Shape;
use super::time::Time;

/// What a request brings, as far as it is the same on each replica.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Prompt tokens.
    pub prompt: f64,
    /// Output tokens expected of each choice.
    pub output: f64,
    /// Sequences that decode at once.
    pub choices: f64,
}

/// What one replica is believed to hold for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Here {
    /// Prompt tokens cached there.
    pub cached: f64,
    /// Tokens that fit into its cache before something is pushed out; `None` = not known.
    pub room: Option<f64>,
    /// Distinct tokens of prompts in flight there, which can't be pushed out; `None` = not known.
    pub pinned: Option<f64>,
}

/// Weights of other people's waiting against one's own, and the pool's measure of regret.
#[derive(Clone, Copy, Debug)]
pub struct Weights {
    /// `wx`: of the harm that my prefill does to requests in flight.
    pub harm: f64,
    /// `wd`: of decoding, mine and what I slow down.
    pub decode: f64,
    /// Candidates within this share of the best are a tie.
    pub tie: f64,
    /// `p`: share of evicted blocks that are asked for again, 0 to 1.
    pub reuse: f64,
}

impl Default for Weights {
    fn default() -> Self {
        Weights { harm: 0.1, decode: 0.3, tie: 0.01, reuse: 0.0 }
    }
}

/// The price, term by term, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Price {
    /// `W`: prefill queued ahead of me.
    pub wait: f64,
    /// `P`: my own prefill.
    pub prefill: f64,
    /// My prefill, times those whom it holds up, weighted.
    pub harm: f64,
    /// Decoding, weighted.
    pub decode: f64,
    /// Thrashing when the cache can't hold all that runs.
    pub memory: f64,
    /// What my blocks push out of the cache.
    pub regret: f64,
    /// Failures, late prefills.
    pub trouble: f64,
    /// Loading the request's LoRA adapter.
    pub adapter: f64,
}

impl Price {
    /// The sum.
    pub fn total(&self) -> f64 {
        self.wait
            + self.prefill
            + self.harm
            + self.decode
            + self.memory
            + self.regret
            + self.trouble
            + self.adapter
    }
}

/// Regret is at most this many seconds of prefill a second of prefill pushed out; at p = 0.92 the measure reaches it.
const REGRET_MAX: f64 = 48.0;
/// An eviction costs its own miss and those of the evictions that the miss causes in turn: 4·p/(1−p) fits measured
/// thrashing on traces with scarce caches.
const REGRET_GAIN: f64 = 4.0;
/// Share of its time at most that an engine is taken to spend on prompts. Beyond it a queue has formed, which the
/// waiting term counts.
const PREFILL_MOST: f64 = 0.75;
/// Blocks beyond the capacity are swapped or recomputed about twice while a request decodes.
const MEMORY_COST: f64 = 2.0;

/// Seconds of prefill charged for each second of prefill that is pushed out.
pub fn regret_factor(reuse: f64) -> f64 {
    (REGRET_GAIN * reuse / (1.0 - reuse).max(1e-6)).clamp(0.0, REGRET_MAX)
}

/// Seconds of prefill expected for `load` on `replica`, alone there.
pub fn prefill(shape: &Shape, scale: f64, load: &Load, here: &Here) -> f64 {
    let cached = here.cached.min(load.prompt - 1.0).max(0.0);
    shape.prefill(load.prompt - cached, cached) * scale
}

/// The price of `load` on `replica`, which holds `here` for it.
pub fn price(now: Time, shape: &Shape, w: &Weights, replica: &Replica, load: &Load, here: &Here) -> Price {
    let ledger = &replica.ledger;
    let (slow, step_scale) = (replica.pace.prefill, replica.pace.decode);
    let n = ledger.sequences(now);
    let context = ledger.context(now);
    let own = prefill(shape, slow, load, here);
    let step = shape.decode_step(n, context) * step_scale;
    // Between two steps of mine the engine computes prompts of others, for the share of its time that it did lately.
    let held_up = step / (1.0 - ledger.prefill_share().min(PREFILL_MOST));
    let slows = (shape.sequence + shape.context * load.prompt) * step_scale * load.choices;

    let mut price = Price {
        wait: ledger.wait(now),
        prefill: own,
        harm: w.harm * own * n,
        decode: w.decode * load.output * (held_up + n * slows),
        memory: 0.0,
        regret: 0.0,
        trouble: replica.trouble(now),
        adapter: 0.0,
    };
    let fresh = load.prompt - here.cached.min(load.prompt) + load.output * load.choices;
    if let Some(capacity) = replica.facts.capacity.filter(|&c| c > 0) {
        let over = (ledger.pinned(now, here.pinned) + fresh) / capacity as f64 - 1.0;
        if over > 0.0 {
            price.memory = over * load.output * step * MEMORY_COST;
        }
    }
    if let Some(room) = here.room
        && w.reuse > 0.0
    {
        price.regret =
            regret_factor(w.reuse) * shape.token * slow * (fresh + ledger.outputs() - room).clamp(0.0, fresh);
    }
    price
}

/// The price of a pass-through call: what is queued, and a step for each that shares the engine.
pub fn call_price(now: Time, shape: &Shape, replica: &Replica) -> Price {
    let ledger = &replica.ledger;
    let n = ledger.sequences(now) + f64::from(ledger.calls());
    Price {
        wait: ledger.wait(now),
        decode: shape.decode_step(n, 0.0) * (n + 1.0),
        trouble: replica.trouble(now),
        ..Price::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ids::ReplicaId;
    use crate::core::ids::RequestId;
    use crate::core::ledger::Flight;
    use crate::core::replica::Facts;

    const SHAPE: Shape = Shape::DENSE_32B;

    fn replica(capacity: Option<u64>) -> Replica {
        Replica::new(ReplicaId { slot: 0, life: 0 }, Facts { capacity, ..Facts::default() })
    }

    fn flight(id: u64, context: u32) -> Flight {
        Flight {
            id: RequestId(id),
            prefill: 0.0,
            context,
            output: 100,
            sequences: 1,
            due: Time(0),
            prefilling: false,
            streams: true,
            generates: true,
            produced: 0,
        }
    }

    fn price_of(r: &Replica, here: &Here, w: &Weights) -> Price {
        let load = Load { prompt: 2000.0, output: 100.0, choices: 1.0 };
        price(Time(0), &SHAPE, w, r, &load, here)
    }

    #[test]
    fn by_hand_on_an_idle_replica() {
        let p =
            price_of(&replica(None), &Here { cached: 1500.0, room: None, pinned: None }, &Weights::default());
        let own = 4.7e-5 * 500.0 + 2.1e-9 * (500.0 * 1500.0 + 500.0 * 500.0 / 2.0) + 0.014;
        assert!((p.prefill - own).abs() < 1e-12);
        assert!((p.decode - 0.3 * 100.0 * 0.014).abs() < 1e-12);
        assert_eq!((p.wait, p.harm, p.memory, p.regret, p.trouble), (0.0, 0.0, 0.0, 0.0, 0.0));
    }

    #[test]
    fn by_hand_with_others_there() {
        let mut r = replica(Some(8000));
        for i in 0..3 {
            r.ledger.book(Time(0), flight(i, 2000));
        }
        let p = price_of(&r, &Here::default(), &Weights::default());
        assert!((p.harm - 0.1 * p.prefill * 3.0).abs() < 1e-12);
        let step = 0.014 + 3.0 * 3e-5 + 6000.0 * 5.5e-8;
        let slows = 3e-5 + 5.5e-8 * 2000.0;
        assert!((p.decode - 0.3 * 100.0 * (step + 3.0 * slows)).abs() < 1e-12);
        // 6,300 pinned and 2,100 of mine in 8,000: 5% over.
        assert!((p.memory - 0.05 * 100.0 * step * 2.0).abs() < 1e-9);
    }

    #[test]
    fn regret_only_beyond_the_room_and_by_measured_reuse() {
        let w = Weights { reuse: 0.5, ..Weights::default() };
        let with = |room| price_of(&replica(None), &Here { room, ..Here::default() }, &w).regret;
        assert_eq!(with(None), 0.0);
        assert_eq!(with(Some(5000.0)), 0.0);
        assert!((with(Some(100.0)) - 4.0 * 4.7e-5 * 2000.0).abs() < 1e-9);
        let none = Weights { reuse: 0.0, ..w };
        assert_eq!(price_of(&replica(None), &Here { room: Some(0.0), ..Here::default() }, &none).regret, 0.0);
        assert_eq!(regret_factor(1.0), 48.0);
    }

    #[test]
    fn failures_are_priced_as_waiting_and_fade() {
        let mut r = replica(None);
        assert_eq!(r.trouble(Time(0)), 0.0);
        r.failed(Time(0));
        assert!(r.trouble(Time(0)) >= 0.5);
        let fresh = r.trouble(Time(0));
        for _ in 0..20 {
            r.succeeded(Time(0));
        }
        assert!(r.trouble(Time(0)) < 0.2 * fresh);
        r.failed(Time(0));
        assert!(r.trouble(Time::from_secs(120.0)) < 0.01);
    }

    #[test]
    fn the_last_token_is_always_computed() {
        let p = price_of(&replica(None), &Here { cached: 1e9, ..Here::default() }, &Weights::default());
        assert!(p.prefill > SHAPE.step);
    }
}
