//! An answer that passes through while it is being made.
//!
//! The client's connection polls this body, this body polls the replica's connection: a chunk goes from one socket to
//! the other in one go, on one thread, without a queue in between. If the client reads slowly nothing is polled, and
//! the replica's socket fills up. If the client leaves, the body is dropped, and the replica's socket with it.

use super::answer::CutOff;
use super::io::Client;
use super::record::{Ending, Record};
use super::reply::{Next, Pieces, Reply, Source};
use super::resume::{Going, Resume};
use super::watch::Watch;
use crate::core::Failure;
use crate::router::Reservation;
use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use std::pin::Pin;
use std::rc::Rc;
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
    /// What the replica that goes on says; the failure is that of the one before.
    Resume(Going, Failure),
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
    /// How to go on when the replica dies.
    resume: Option<Box<Resume>>,
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

/// How an answer is passed on.
pub(super) struct How {
    /// Limits the time between chunks.
    pub(super) idle: Option<Duration>,
    /// It is a stream of events without a length: an error can be told inside.
    pub(super) events: bool,
    /// How to go on when the replica dies.
    pub(super) resume: Option<Box<Resume>>,
}

impl Live {
    /// An answer whose first `pieces` have been read from `source`.
    pub(super) fn new(
        source: Source,
        pieces: Pieces,
        watch: Watch,
        reservation: Option<Reservation>,
        record: Box<Record>,
        how: How,
    ) -> Box<Self> {
        let How { idle, events, resume } = how;
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
            resume,
        });
        live.take(pieces);
        live
    }

    /// Takes in pieces of the answer, to be sent next.
    fn take(&mut self, pieces: Pieces) {
        let mut seen = Pieces::new();
        for piece in pieces {
            seen.extend(self.see(piece));
        }
        seen.reverse();
        self.ready = seen;
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
                Then::Resume(mut going, failure) => {
                    match going.as_mut().poll(cx) {
                        Poll::Pending => {
                            self.then = Then::Resume(going, failure);
                            return Poll::Pending;
                        }
                        Poll::Ready(Some((reply, reservation))) => self.resumed(reply, reservation),
                        Poll::Ready(None) => {
                            self.record.worker.shared.metrics.resumed("lost");
                            self.end(Some(failure));
                        }
                    }
                    continue;
                }
            }
            if let Watch::Woven(weave) = &self.watch {
                if weave.diverged() {
                    // Nobody is to blame, and nobody would do better: sums in another batch, or a sample.
                    self.record.worker.shared.metrics.resumed("diverged");
                    self.end(Some(Failure::Blameless));
                    continue;
                }
                if weave.failed() {
                    self.broke(Failure::Status(500));
                    continue;
                }
            }
            match self.source.poll_next(cx) {
                Poll::Ready(Ok(Next::Data(data))) => {
                    if let Some(idle) = &mut self.idle {
                        idle.last = Instant::now();
                    }
                    self.ready = self.see(data);
                    self.ready.reverse();
                }
                Poll::Ready(Ok(Next::Trailers(_) | Next::End)) if self.cut_short() => {
                    self.broke(Failure::Reset)
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
                    self.broke(if broken.by_client { Failure::Blameless } else { Failure::Reset });
                }
                Poll::Pending => {
                    if !self.idle.as_mut().is_some_and(|idle| idle.over(cx)) {
                        return Poll::Pending;
                    }
                    self.broke(Failure::Timeout);
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
            self.record.token_at(now, tokens);
        }
        let here = self.watch.tokens_here();
        if here > 0
            && let Some(reservation) = &mut self.reservation
        {
            reservation.first_token();
            reservation.progress(here);
        }
        if let (Watch::Woven(weave), Some(resume)) = (&mut self.watch, &mut self.resume)
            && !resume.holds(weave.bytes())
        {
            weave.forget();
            resume.holds(weave.bytes());
        }
        out
    }

    /// Whose answer it is.
    pub(super) fn client(&self) -> &Rc<Client> {
        self.record.client()
    }

    /// The client takes nothing more.
    pub(super) fn stalled(&mut self) {
        self.record.end(Ending::Stalled);
    }

    /// The connection ended in good order: was that too early?
    fn cut_short(&self) -> bool {
        matches!(&self.watch, Watch::Woven(weave) if !weave.done())
    }

    /// The replica is lost: goes on elsewhere, or ends.
    fn broke(&mut self, failure: Failure) {
        if let (Watch::Woven(weave), Some(resume)) = (&mut self.watch, &self.resume)
            && failure != Failure::Blameless
        {
            let metrics = &self.record.worker.shared.metrics;
            if let Some(words) = weave.closing() {
                metrics.resumed("ended");
                self.record.learned(&self.watch, self.reservation.as_ref());
                self.record.end(Ending::Ok);
                if let Some(reservation) = self.reservation.take() {
                    reservation.fail(failure);
                }
                self.ready.push(words);
                self.then = Then::End;
                return;
            }
            if let Some(body) = weave.continuation(resume.context()) {
                let dead = self.reservation.as_ref().map(Reservation::replica);
                if let Some(reservation) = self.reservation.take() {
                    reservation.fail(failure);
                }
                self.then = Then::Resume(resume.go(dead, body), failure);
                return;
            }
            metrics.resumed("lost");
        }
        self.end(Some(failure));
    }

    /// Another replica goes on.
    fn resumed(&mut self, reply: Reply, reservation: Reservation) {
        self.record.worker.shared.metrics.resumed("continued");
        self.record.placed(&reservation);
        self.reservation = Some(reservation);
        self.source = reply.source;
        if let Watch::Woven(weave) = &mut self.watch {
            weave.resume();
        }
        if let Some(idle) = &mut self.idle {
            idle.last = Instant::now();
        }
        self.take(reply.pieces);
        self.then = Then::Read;
    }

    /// The replica has said all it will say.
    fn end(&mut self, failure: Option<Failure>) {
        let rest = self.watch.end();
        // Of a woven stream nothing but whole events goes out.
        if failure.is_none() || !matches!(self.watch, Watch::Woven(_)) {
            self.ready.extend(rest);
        }
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
                    let own = match &mut self.watch {
                        Watch::Woven(weave) => weave.last_words(),
                        _ => None,
                    };
                    self.ready.insert(0, own.unwrap_or_else(|| self.record.broken_event(timed_out)));
                    self.then = Then::End;
                } else {
                    self.then = Then::Cut;
                }
            }
        }
    }
}
