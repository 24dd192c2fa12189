//! The words of a placement: what became of an arrival, and a decision that explains itself.

use super::cost::Price;
use super::health::State;
use super::ids::ReplicaId;

/// What became of an arrival.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrival {
    /// Placed and reserved.
    Placed(Placed),
    /// It waits. Arrive again when [`Fleet::turns`](super::fleet::Fleet::turns) names it.
    Waiting(Ticket),
    /// It can't be served.
    Rejected(Rejection),
}

/// A place among those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The replica that it chose and in whose lane it waits; `None`: nothing can take it now, and it stands in the line for
    /// whatever comes.
    pub lane: Option<ReplicaId>,
}

/// A reservation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placed {
    /// Where.
    pub replica: ReplicaId,
    /// Prompt tokens believed to be cached there.
    pub cached: u32,
    /// Prompt tokens, believed or exact.
    pub prompt: u32,
    /// Tokens of one block of its chain.
    pub block_tokens: f64,
    /// Does it fit there, as far as known? One that may be refused for its length leaves nothing in the cache, and must not
    /// push out what is believed to be there.
    pub fits: bool,
}

/// Why a request can't be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// No replica serves that model, and all of them are known.
    UnknownModel,
    /// Every replica that serves it has been tried, or none is up.
    NoReplica,
    /// The prompt is longer than any replica takes.
    TooLong {
        /// Tokens of the prompt, as far as known.
        prompt: u32,
        /// Tokens that the roomiest replica takes.
        max: u32,
    },
    /// Too many wait already.
    QueueFull,
    /// Many wait, and this one was picked to go so that it doesn't come to the above for all: the lowest band first.
    Shed,
    /// It had a deadline, and wasn't placed by then.
    Deadline,
    /// The one replica that could continue the conversation is gone or can't serve.
    PinnedGone,
}

/// Why a replica isn't eligible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excluded {
    /// It doesn't serve the model.
    Model,
    /// Its state says no.
    State(State),
    /// It is draining or has left.
    Draining,
    /// It has been tried for this request.
    Tried,
    /// The gateway's subset doesn't have it.
    Subset,
    /// Another replica must serve this request.
    NotPinned,
    /// Its context is too short.
    TooLong,
    /// Its context is too short if the estimate of the prompt's length is right.
    MaybeTooLong,
    /// It has as many in flight as it may.
    Full,
    /// It is new, and has its slow-start share already.
    SlowStart,
    /// It asked for patience.
    Paused,
}

impl Excluded {
    /// The label in explanations.
    pub fn label(self) -> &'static str {
        match self {
            Excluded::Model => "model_not_served",
            Excluded::State(s) => s.label(),
            Excluded::Draining => "draining",
            Excluded::Tried => "already_tried",
            Excluded::Subset => "not_in_subset",
            Excluded::NotPinned => "another_is_pinned",
            Excluded::TooLong => "context_too_short",
            Excluded::MaybeTooLong => "context_may_be_too_short",
            Excluded::Full => "full",
            Excluded::SlowStart => "slow_start",
            Excluded::Paused => "paused",
        }
    }

    /// May be overlooked when there is nobody else.
    pub(super) fn soft(self) -> bool {
        matches!(self, Excluded::SlowStart | Excluded::Paused | Excluded::MaybeTooLong)
    }
}

/// One replica in a decision.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Which.
    pub replica: ReplicaId,
    /// Leading blocks of the chain that it holds.
    pub blocks: u32,
    /// Tokens that those blocks are.
    pub cached: f64,
    /// The price of placing the request there.
    pub price: Price,
    /// Why it isn't eligible, if it isn't.
    pub excluded: Option<Excluded>,
}

/// A decision that explains itself.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Every replica.
    pub candidates: Vec<Candidate>,
    /// Which of them it would be.
    pub chosen: Option<ReplicaId>,
    /// How many were as good within the tie's width; the order of ties chose among them.
    pub tied: usize,
    /// Prompt tokens.
    pub prompt: f64,
    /// Output tokens expected.
    pub output: f64,
}
