//! What the state machine wants done.

use super::address::Wanted;
use super::intent::Wishes;
use super::message::Out;
use crate::core::{Failure, Outcome};
use crate::router::Ask;
use smallvec::SmallVec;
use std::net::SocketAddr;

/// A thing to be done by the shell, in this order.
#[derive(Debug)]
pub enum Effect {
    /// Say this to Envoy.
    Send(Out),
    /// Find a place for the request, then call [`placed`](super::Exchange::placed).
    Place(Box<Wish>),
    /// Nothing waits for a place any more.
    Abandon,
    /// This one answers, whoever was chosen.
    Served(SocketAddr),
    /// The first token came.
    FirstToken,
    /// So many tokens came so far.
    Progress(u32),
    /// The replica has stored the answer under this name.
    Stored(Box<str>),
    /// Give back what was booked. Once for each request that was placed.
    Release(Release),
    /// There is nothing more to say: end the stream.
    Over,
}

/// Room for what one message sets off, as a rule.
pub type Effects = SmallVec<[Effect; 4]>;

/// A request for a place.
#[derive(Debug)]
pub struct Wish {
    /// For the router.
    pub ask: Ask,
    /// The subset that must be chosen from.
    pub subset: Option<Vec<Wanted>>,
    /// These are to be chosen, in this order (a test's word).
    pub follow: Option<Vec<Wanted>>,
    /// Who asks, and how urgently.
    pub wishes: Wishes,
}

/// How a placed request ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Release {
    /// With a whole answer.
    Finished(Outcome),
    /// Not well.
    Failed(Failure),
    /// The client left, or the gateway gave up.
    Cancelled,
    /// It goes on, but its end can't be seen from here.
    Unseen,
}
