//! The body of an answer on its way to the client.

use super::live::Live;
use super::record::Record;
use super::reply::Pieces;
use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Why a body can't be continued; the connection is cut, so that nobody takes it for complete.
#[derive(Debug, thiserror::Error)]
#[error("the replica broke off in the middle of its answer")]
pub(super) struct CutOff;

/// What the client gets.
pub(super) enum Answer {
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
        Answer::Whole(Whole { pieces: pieces.into_iter(), left, trailers, record })
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        match &mut *self {
            Answer::Whole(whole) => Poll::Ready(match whole.pieces.next() {
                Some(piece) => {
                    whole.left = whole.left.saturating_sub(piece.len() as u64);
                    whole.record.sent(piece.len());
                    Some(Ok(Frame::data(piece)))
                }
                None => whole.trailers.take().map(|t| Ok(Frame::trailers(t))),
            }),
            Answer::Live(live) => live.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Answer::Whole(whole) => whole.left == 0 && whole.trailers.is_none(),
            Answer::Live(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answer::Whole(whole) if whole.trailers.is_none() => SizeHint::with_exact(whole.left),
            _ => SizeHint::default(),
        }
    }
}
