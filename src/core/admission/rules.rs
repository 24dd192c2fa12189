//! When a request waits in a replica's lane, and in which order.

/// Rules of the lanes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneRules {
    /// Off: requests are placed at once and queue inside the engines; only those that nothing can take wait.
    pub on: bool,
    /// Seconds of prefill that may be pending on a replica when another request is sent there. Enough to keep the engine
    /// busy over a round trip and a scheduling step, and to let small prompts share a step; everything above is order and
    /// choice given away, since engines serve first come, first served.
    pub pending: f64,
    /// α: seconds of own prefill that a second of waiting makes up for. Short prompts go first; a prompt whose prefill is
    /// `s` seconds longer is overtaken by those that come up to `s/α` seconds after it.
    pub aging: f64,
    /// A waiting request moves to another replica only for a price under this share of what its own place costs now. At 1 it
    /// follows the price: nothing has been sent yet, so that moving costs nothing but what the price says.
    pub stay: f64,
    /// Seconds after which a request that waits is priced again, turn or not: a replica may have become free.
    pub again: f64,
    /// Requests in one lane at most.
    pub per_lane: usize,
    /// Requests shed begin at this share of a bound (of the lane or of all); at the bound itself all new ones are.
    pub shed_from: f64,
}

impl LaneRules {
    /// No lanes.
    pub const OFF: LaneRules = LaneRules { on: false, ..LaneRules::ON };
    /// What did best on conversations past the knee, and harm nowhere; docs/how-it-decides.md has the figures.
    pub const ON: LaneRules = LaneRules {
        on: true,
        pending: 0.1,
        aging: 0.1,
        stay: 1.0,
        again: 0.05,
        per_lane: 1024,
        shed_from: 0.5,
    };
}

impl Default for LaneRules {
    fn default() -> Self {
        LaneRules::ON
    }
}
