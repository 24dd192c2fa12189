//! The body of a request on its way to a replica.

use super::through::{BodyFault, Through};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use smallvec::SmallVec;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Parts of a body that lies in memory. Three, because splicing one key into a body leaves: before, key, after.
pub(super) type Pieces = SmallVec<[Bytes; 3]>;

/// What is sent: bytes in memory (cloned cheaply for another attempt) or the client's body as it comes in.
pub(super) enum Payload {
    /// In memory; the number is the bytes left.
    Pieces(smallvec::IntoIter<[Bytes; 3]>, u64),
    /// Passed through, with back-pressure.
    Stream(Box<Through>),
}

impl Payload {
    pub(super) fn pieces(pieces: &Pieces) -> Self {
        let left = pieces.iter().map(|p| p.len() as u64).sum();
        Payload::Pieces(pieces.clone().into_iter(), left)
    }
}

impl Payload {
    /// The client's own body, if this is one.
    pub(super) fn into_stream(self) -> Option<Box<Through>> {
        match self {
            Payload::Stream(body) => Some(body),
            Payload::Pieces(..) => None,
        }
    }
}

impl Body for Payload {
    type Data = Bytes;
    type Error = BodyFault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        match &mut *self {
            Payload::Pieces(pieces, left) => Poll::Ready(pieces.next().map(|piece| {
                *left = left.saturating_sub(piece.len() as u64);
                Ok(Frame::data(piece))
            })),
            Payload::Stream(body) => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Payload::Pieces(_, left) => *left == 0,
            Payload::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Payload::Pieces(_, left) => SizeHint::with_exact(*left),
            Payload::Stream(body) => body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    #[test]
    fn pieces_keep_their_order_and_say_their_length() {
        let pieces: Pieces = ["{\"a\":1", ",\"b\":2", "}"].into_iter().map(Bytes::from).collect();
        let body = Payload::pieces(&pieces);
        assert_eq!(body.size_hint().exact(), Some(13));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let whole = runtime.block_on(body.collect()).unwrap().to_bytes();
        assert_eq!(&whole[..], b"{\"a\":1,\"b\":2}");
        assert!(Payload::pieces(&Pieces::new()).is_end_stream());
    }
}
