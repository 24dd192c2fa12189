//! What a placement policy is, so that others can be compared with ours on the same traffic.
//!
//! A policy sees what a router would see: requests as they arrive, their first tokens and ends, metrics pages as they are
//! polled. What it believes of caches and loads it keeps itself. Where a router's project has exact knowledge of caches (by
//! KV events), [`Sight::exact`] gives it.

use super::ids::RequestId;
use super::ledger::Polled;
use super::time::Time;
use super::waiting::Turns;

/// A request as it arrives.
#[derive(Clone, Copy, Debug)]
pub struct Arriving<'a> {
    /// Which request.
    pub id: RequestId,
    /// Chained hashes of its prompt's full blocks.
    pub chain: &'a [u64],
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Most output tokens that its client set, if any. The real length isn't known before the end.
    pub max_output: Option<u32>,
    /// Conversation or session that it belongs to, if its client says so.
    pub session: Option<u64>,
}

/// What is known of the fleet when a request arrives, beside the policy's own books.
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> {
    /// Replicas that may be chosen, by number; never empty.
    pub up: &'a [usize],
    /// Leading blocks of the prompt's chain that each replica (by number) really holds, as KV events would tell, with
    /// their delay and losses; empty for policies whose project doesn't have them.
    pub exact: &'a [u32],
}

/// What becomes of a request that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// It goes to that replica and is booked there.
    At(usize),
    /// It waits in the router until [`Policy::turns`] names it.
    Waits,
    /// It is refused.
    Refused,
}

/// A placement policy. Replicas are numbers from 0.
pub trait Policy {
    /// Its name in tables.
    fn name(&self) -> &str;

    /// Does its project know the caches exactly?
    fn knows_caches(&self) -> bool {
        false
    }

    /// Seconds between two looks of its project at the metrics pages; `None`: whatever the replay is set to.
    fn looks_every(&self) -> Option<f64> {
        None
    }

    /// Chooses one of `sight.up` and books the request there.
    fn place(&mut self, now: Time, request: &Arriving<'_>, sight: &Sight<'_>) -> usize;

    /// A request arrives, or one that waits arrives again because it was its turn. Routers that place at once, whatever
    /// comes, leave this as it is.
    fn offer(&mut self, now: Time, request: &Arriving<'_>, sight: &Sight<'_>) -> Placement {
        Placement::At(self.place(now, request, sight))
    }

    /// Those that wait and are to arrive again now, and when to look next. Asked after everything that happened while
    /// anybody waits, until nobody's turn it is.
    fn turns(&mut self, _now: Time) -> Turns {
        Turns::default()
    }

    /// The first token of a request was seen.
    fn first_token(&mut self, _now: Time, _id: RequestId) {}

    /// So many output tokens of a request were seen so far; told in strides, not for each.
    fn progress(&mut self, _now: Time, _id: RequestId, _output_tokens: u32) {}

    /// A request ended, with so many output tokens; `cached` prompt tokens had been in the engine's cache.
    /// No output at all means that it failed.
    fn finish(&mut self, now: Time, id: RequestId, output_tokens: u32, cached: u32);

    /// A metrics page of a replica was read.
    fn polled(&mut self, _now: Time, _replica: usize, _page: &Polled) {}

    /// A replica joined, or came back with an empty cache.
    fn joined(&mut self, _now: Time, _replica: usize, _kv_tokens: u64) {}

    /// A replica is gone.
    fn left(&mut self, _now: Time, _replica: usize) {}
}
