//! A replica's answer while it is still ours alone: nothing of it has reached the client.
//!
//! The head is held back until the first piece of the body is there, and a short answer until it is whole. That costs
//! nothing (a client can't use a head), and a replica that dies in between has not yet cost the client its request:
//! it can go to another one.

use super::upstream::{Broken, Upstream};
use super::worker::Worker;
use crate::core::ReplicaId;
use bytes::Bytes;
use http::{HeaderMap, Response, response};
use hyper::body::Incoming;
use smallvec::SmallVec;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

/// Answers up to this size are held until they are whole. Memory a request, so not more than a stream may take.
pub(super) const HOLD: usize = 64 * 1024;

/// What of an answer has been read.
pub(super) type Pieces = SmallVec<[Bytes; 2]>;

/// What came next of an answer's body.
pub(super) enum Next {
    /// Data.
    Data(Bytes),
    /// The trailers.
    Trailers(HeaderMap),
    /// Its end.
    End,
}

/// The body of an answer and the connection it comes over.
pub(super) struct Source {
    worker: Rc<Worker>,
    replica: ReplicaId,
    /// `None` once the answer was read to its end and the connection went back to the pool.
    upstream: Option<Box<Upstream>>,
    body: Incoming,
}

impl Source {
    /// The next piece. After its end has been seen once, the connection serves others.
    ///
    /// # Errors
    /// The replica broke off.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Next, Broken>> {
        let Some(upstream) = &mut self.upstream else { return Poll::Ready(Ok(Next::End)) };
        loop {
            return Poll::Ready(match std::task::ready!(upstream.poll_body(&mut self.body, cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.is_empty() => continue,
                    Ok(data) => Ok(Next::Data(data)),
                    Err(frame) => match frame.into_trailers() {
                        Ok(trailers) => Ok(Next::Trailers(trailers)),
                        Err(_) => continue,
                    },
                },
                Some(Err(error)) => {
                    self.upstream = None;
                    Err(error)
                }
                None => {
                    if let Some(upstream) = self.upstream.take() {
                        self.worker.pool.borrow_mut().put(self.replica, upstream, Instant::now());
                    }
                    Ok(Next::End)
                }
            });
        }
    }
}

/// An answer, as far as it has come.
pub(super) struct Reply {
    /// Status and headers, as the replica sent them.
    pub(super) head: response::Parts,
    /// What was read of the body.
    pub(super) pieces: Pieces,
    /// What comes after the body, if it was read.
    pub(super) trailers: Option<HeaderMap>,
    /// The rest of it.
    pub(super) source: Source,
    /// Is there no rest?
    pub(super) ended: bool,
    held: usize,
}

impl Reply {
    pub(super) fn new(
        worker: Rc<Worker>,
        replica: ReplicaId,
        upstream: Box<Upstream>,
        response: Response<Incoming>,
    ) -> Self {
        let (head, body) = response.into_parts();
        let source = Source { worker, replica, upstream: Some(upstream), body };
        Reply { head, pieces: Pieces::new(), trailers: None, source, ended: false, held: 0 }
    }

    /// The connection that it came over, for something else.
    pub(super) fn into_upstream(self) -> Option<Box<Upstream>> {
        self.source.upstream
    }

    /// Reads on until more than `hold` bytes are held or the answer is whole.
    ///
    /// # Errors
    /// The replica broke off.
    pub(super) async fn read(&mut self, hold: usize) -> Result<(), Broken> {
        poll_fn(|cx| self.poll_read(hold, cx)).await
    }

    /// Reads on until the first event is whole, more than `hold` bytes are held or the answer is whole.
    ///
    /// # Errors
    /// The replica broke off.
    pub(super) async fn read_event(&mut self, hold: usize) -> Result<(), Broken> {
        let (mut looked, mut last) = (0, 0);
        while !self.ended && self.held <= hold {
            self.read(self.held).await?;
            for byte in self.pieces.iter().skip(looked).flat_map(|p| p.iter().copied()) {
                // A line that ends where it begins; of CR LF CR LF the two in the middle tell.
                if matches!((last, byte), (b'\n', b'\n' | b'\r') | (b'\r', b'\r')) {
                    return Ok(());
                }
                last = byte;
            }
            looked = self.pieces.len();
        }
        Ok(())
    }

    fn poll_read(&mut self, hold: usize, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        while !self.ended && self.held <= hold {
            match std::task::ready!(self.source.poll_next(cx))? {
                Next::Data(data) => {
                    self.held += data.len();
                    self.pieces.push(data);
                }
                Next::Trailers(trailers) => self.trailers = Some(trailers),
                Next::End => self.ended = true,
            }
        }
        Poll::Ready(Ok(()))
    }
}
