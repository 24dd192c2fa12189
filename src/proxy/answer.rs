//! The body of an answer on its way to the client.

use super::live::Live;
use super::pace::Pace;
use super::record::{Ending, Record};
use super::reply::Pieces;
use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Why a body can't be continued; the connection is cut, so that nobody takes it for complete.
#[derive(Debug, thiserror::Error)]
#[error("the replica broke off in the middle of its answer")]
pub(super) struct CutOff;

/// What the client gets.
pub(super) struct Answer {
    /// `None` for an answer without a body.
    pace: Option<Rc<Pace>>,
}

/// Its body.
pub(super) enum Inner {
    /// In memory.
    Whole(Whole),
    /// As it comes.
    Live(Box<Live>),
}

/// A body in memory.
pub(super) struct Whole {
    pieces: smallvec::IntoIter<[Bytes; 2]>,
    left: u64,
    trailers: Option<HeaderMap>,
    /// Ends when the body has been taken.
    record: Box<Record>,
}

impl Answer {
    pub(super) fn whole(pieces: Pieces, trailers: Option<HeaderMap>, record: Box<Record>) -> Self {
        let left = pieces.iter().map(|p| p.len() as u64).sum();
        let client = record.client().clone();
        let inner = Inner::Whole(Whole { pieces: pieces.into_iter(), left, trailers, record });
        let pace = Pace::new(inner);
        client.paces.mind(&pace);
        Answer { pace: Some(pace) }
    }

    pub(super) fn live(live: Box<Live>) -> Self {
        let client = live.client().clone();
        let pace = Pace::new(Inner::Live(live));
        client.paces.mind(&pace);
        Answer { pace: Some(pace) }
    }

    /// A head without a body.
    pub(super) fn none() -> Self {
        Answer { pace: None }
    }

    fn look<T>(&self, at: impl FnOnce(&Inner) -> T) -> Option<T> {
        self.pace.as_ref()?.inner.borrow().as_ref().map(at)
    }
}

impl Inner {
    /// The client takes nothing more: says so before the end.
    pub(super) fn stalled(&mut self) {
        match self {
            Inner::Whole(whole) => whole.record.end(Ending::Stalled),
            Inner::Live(live) => live.stalled(),
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        match self {
            Inner::Whole(whole) => Poll::Ready(match whole.pieces.next() {
                Some(piece) => {
                    whole.left = whole.left.saturating_sub(piece.len() as u64);
                    whole.record.sent(piece.len());
                    Some(Ok(Frame::data(piece)))
                }
                None => whole.trailers.take().map(|t| Ok(Frame::trailers(t))),
            }),
            Inner::Live(live) => live.poll_frame(cx),
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        let Some(pace) = &self.pace else { return Poll::Ready(None) };
        pace.wanted();
        let polled = match &mut *pace.inner.borrow_mut() {
            Some(inner) => inner.poll_frame(cx),
            // It was given up because nobody took it.
            None => Poll::Ready(Some(Err(CutOff))),
        };
        if let Poll::Ready(Some(Ok(_))) = polled {
            pace.given();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.pace.is_none()
            || self
                .look(|inner| {
                    matches!(inner, Inner::Whole(whole) if whole.left == 0 && whole.trailers.is_none())
                })
                .unwrap_or(false)
    }

    fn size_hint(&self) -> SizeHint {
        let exact = self.look(|inner| match inner {
            Inner::Whole(whole) if whole.trailers.is_none() => Some(whole.left),
            _ => None,
        });
        match exact.flatten() {
            Some(left) => SizeHint::with_exact(left),
            None => SizeHint::default(),
        }
    }
}
