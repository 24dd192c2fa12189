//! An answer that passes through while it is being made.
//!
//! The client's connection polls this body, this body polls the replica's connection: a chunk goes from one socket to
//! the other in one go, on one thread, without a queue in between. If the client reads slowly nothing is polled, and
//! the replica's socket fills up. If the client leaves, the body is dropped, and the replica's socket with it.

use super::answer::CutOff;
use super::record::{Ending, Record};
use super::reply::{Next, Pieces, Source};
use super::watch::Watch;
use crate::core::Failure;
use crate::router::Reservation;
use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::time::Sleep;

/// What is still to be sent without asking the replica.
enum Then {
    /// More may come.
    Read,
    /// The trailers, then nothing.
    Trailers(Box<HeaderMap>),
    /// Nothing.
    End,
    /// Cut the connection.
    Cut,
}

/// An answer underway.
pub(super) struct Live {
    source: Source,
    /// Sent next, last first.
    ready: Pieces,
    then: Then,
    watch: Watch,
    reservation: Option<Reservation>,
    record: Box<Record>,
    idle: Option<Idle>,
    /// Can an error be told inside the body?
    events: bool,
}

/// A limit on the time between two chunks. One timer a stream, set again only when it rings, not with each chunk.
struct Idle {
    limit: Duration,
    last: Instant,
    bell: Pin<Box<Sleep>>,
}

impl Idle {
    fn new(limit: Duration) -> Self {
        Idle { limit, last: Instant::now(), bell: Box::pin(tokio::time::sleep(limit)) }
    }

    /// Has nothing come for too long? Otherwise the task is woken when it may be so.
    fn over(&mut self, cx: &mut Context<'_>) -> bool {
        while self.bell.as_mut().poll(cx).is_ready() {
            let due = self.last + self.limit;
            if Instant::now() >= due {
                return true;
            }
            self.bell.as_mut().reset(due.into());
        }
        false
    }
}

impl Live {
    /// An answer whose first `pieces` have been read from `source`. `idle` limits the time between chunks; `events`
    /// says that it is a stream of events without a length.
    pub(super) fn new(
        source: Source,
        pieces: Pieces,
        watch: Watch,
        reservation: Option<Reservation>,
        record: Box<Record>,
        idle: Option<Duration>,
        events: bool,
    ) -> Box<Self> {
        let idle = idle.map(Idle::new);
        let mut live = Box::new(Live {
            source,
            ready: Pieces::new(),
            then: Then::Read,
            watch,
            reservation,
            record,
            idle,
            events,
        });
        let mut seen = Pieces::new();
        for piece in pieces {
            seen.extend(live.see(piece));
        }
        seen.reverse();
        live.ready = seen;
        live
    }

    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        loop {
            if let Some(piece) = self.ready.pop() {
                self.record.sent(piece.len());
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            match std::mem::replace(&mut self.then, Then::End) {
                Then::Read => self.then = Then::Read,
                Then::Trailers(trailers) => return Poll::Ready(Some(Ok(Frame::trailers(*trailers)))),
                Then::End => return Poll::Ready(None),
                Then::Cut => return Poll::Ready(Some(Err(CutOff))),
            }
            match self.source.poll_next(cx) {
                Poll::Ready(Ok(Next::Data(data))) => {
                    if let Some(idle) = &mut self.idle {
                        idle.last = Instant::now();
                    }
                    self.ready = self.see(data);
                    self.ready.reverse();
                }
                Poll::Ready(Ok(Next::Trailers(trailers))) => {
                    self.end(None);
                    self.then = Then::Trailers(Box::new(trailers));
                }
                Poll::Ready(Ok(Next::End)) => {
                    self.end(None);
                    self.then = Then::End;
                }
                Poll::Ready(Err(broken)) => {
                    self.end(Some(if broken.by_client { Failure::Blameless } else { Failure::Reset }));
                }
                Poll::Pending => {
                    if !self.idle.as_mut().is_some_and(|idle| idle.over(cx)) {
                        return Poll::Pending;
                    }
                    self.end(Some(Failure::Timeout));
                }
            }
        }
    }

    /// Looks at a piece of the answer; returns what of it goes to the client.
    fn see(&mut self, data: Bytes) -> Pieces {
        let out = self.watch.see(data);
        let tokens = self.watch.tokens();
        if self.watch.first_token() {
            let now = Instant::now();
            if self.record.token_at(now, tokens)
                && let Some(reservation) = &mut self.reservation
            {
                reservation.first_token();
            }
        }
        if tokens > 0
            && let Some(reservation) = &self.reservation
        {
            reservation.progress(tokens);
        }
        out
    }

    /// The replica has said all it will say.
    fn end(&mut self, failure: Option<Failure>) {
        self.ready.extend(self.watch.end());
        match failure {
            None => {
                self.record.whole(&self.watch, self.reservation.take());
                self.then = Then::End;
            }
            Some(failure) => {
                self.record.learned(&self.watch, self.reservation.as_ref());
                let timed_out = failure == Failure::Timeout;
                self.record.end(if timed_out { Ending::Timeout } else { Ending::CutOff });
                if let Some(reservation) = self.reservation.take() {
                    reservation.fail(failure);
                }
                if self.events {
                    self.ready.insert(0, self.record.broken_event(timed_out));
                    self.then = Then::End;
                } else {
                    self.then = Then::Cut;
                }
            }
        }
    }
}
