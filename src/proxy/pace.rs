//! Does the client take its answer?
//!
//! A client that stops reading costs nothing but its place: nothing is polled, so the replica's socket fills up and the
//! engine waits. But it keeps that place, in the replica's batch and in the ledger, for as long as it likes. So each answer
//! notes when a piece was given out that hasn't been followed by the wish for another; the sweep takes an answer away
//! from a client that has taken nothing for too long. On HTTP/2 that ends one stream, and its neighbours go on.

use super::answer::Inner;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

/// An answer's body and its progress towards the client.
pub(super) struct Pace {
    pub(super) inner: RefCell<Option<Inner>>,
    /// A piece was given out then, and nobody has asked for more since.
    waiting: Cell<Option<Instant>>,
}

impl Pace {
    pub(super) fn new(inner: Inner) -> Rc<Self> {
        Rc::new(Pace { inner: RefCell::new(Some(inner)), waiting: Cell::new(Some(Instant::now())) })
    }

    /// The client wants more.
    pub(super) fn wanted(&self) {
        self.waiting.set(None);
    }

    /// The client has been given something.
    pub(super) fn given(&self) {
        self.waiting.set(Some(Instant::now()));
    }

    /// Has it taken nothing for longer than `limit`?
    fn stalled(&self, now: Instant, limit: Duration) -> bool {
        self.waiting.get().is_some_and(|since| now.duration_since(since) > limit)
    }

    /// Takes the answer away: whatever works for it is given up.
    fn give_up(&self) {
        let taken = self.inner.borrow_mut().take();
        if let Some(mut inner) = taken {
            inner.stalled();
        }
    }
}

/// The answers on one connection. Bounded by its streams: what has ended is swept out.
#[derive(Default)]
pub(super) struct Paces(RefCell<Vec<Weak<Pace>>>);

impl Paces {
    /// Minds one more.
    pub(super) fn mind(&self, pace: &Rc<Pace>) {
        let mut list = self.0.borrow_mut();
        // Many short answers may come between two sweeps.
        if list.len() == list.capacity() {
            list.retain(|p| p.strong_count() > 0);
        }
        list.push(Rc::downgrade(pace));
    }

    /// Gives up what its client hasn't taken for `limit`; was there anything?
    pub(super) fn sweep(&self, now: Instant, limit: Duration) -> bool {
        let mut stalled = Vec::new();
        self.0.borrow_mut().retain(|p| {
            let Some(pace) = p.upgrade() else { return false };
            let over = pace.stalled(now, limit);
            if over {
                stalled.push(pace);
            }
            !over
        });
        stalled.iter().for_each(|pace| pace.give_up());
        !stalled.is_empty()
    }
}
