//! A client's body that passes through to a replica as it comes.

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// Why a body was broken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It is longer than allowed.
    TooLarge,
    /// Nothing came for too long.
    Silent,
}

/// Tells the replica's connection that the body has broken off.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyFault {
    /// The client left, or broke the protocol.
    #[error("{0}")]
    Client(#[from] hyper::Error),
    /// It is refused.
    #[error("the body is refused: {0:?}")]
    Refused(Fault),
}

/// What has been read of a body, and the rest of it.
#[derive(Debug)]
pub(super) struct Through {
    first: VecDeque<Bytes>,
    rest: Incoming,
    /// Bytes that may still come.
    left: u64,
    silence: Duration,
    bell: Option<Pin<Box<Sleep>>>,
    fault: Rc<Cell<Option<Fault>>>,
}

impl Through {
    /// A body of at most `limit` bytes beyond `first`, that doesn't pause for longer than `silence`.
    pub(super) fn new(
        first: impl IntoIterator<Item = Bytes>,
        rest: Incoming,
        limit: u64,
        silence: Duration,
    ) -> Self {
        let first = first.into_iter().filter(|b| !b.is_empty()).collect();
        Through { first, rest, left: limit, silence, bell: None, fault: Rc::default() }
    }

    /// Where it will be told what was wrong with the body, should it be refused.
    pub(super) fn fault(&self) -> Rc<Cell<Option<Fault>>> {
        self.fault.clone()
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        if let Some(first) = self.first.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        match Pin::new(&mut self.rest).poll_frame(cx) {
            Poll::Ready(frame) => {
                self.bell = None;
                if let Some(Ok(frame)) = &frame {
                    let length = frame.data_ref().map_or(0, |d| d.len() as u64);
                    match self.left.checked_sub(length) {
                        Some(left) => self.left = left,
                        None => return Poll::Ready(Some(Err(self.refused(Fault::TooLarge)))),
                    }
                }
                Poll::Ready(frame.map(|f| f.map_err(BodyFault::Client)))
            }
            Poll::Pending => {
                let due = Instant::now() + self.silence;
                let bell = self.bell.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
                if bell.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                Poll::Ready(Some(Err(self.refused(Fault::Silent))))
            }
        }
    }

    fn refused(&self, fault: Fault) -> BodyFault {
        self.fault.set(Some(fault));
        BodyFault::Refused(fault)
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.first.is_empty() && self.rest.is_end_stream()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let first = self.first.iter().map(|b| b.len() as u64).sum::<u64>();
        match self.rest.size_hint().exact() {
            Some(rest) => SizeHint::with_exact(first + rest),
            None => SizeHint::default(),
        }
    }
}
