//! The body of an answer: at once, or token by token as the engine makes them.

use super::answer::Answer;
use super::conn::Busy;
use super::state::Pending;
use super::station::Ticket;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Sleep;

/// So much is written at once if the client was slow: memory a stream stays bounded.
const BURST: usize = 64 * 1024;

/// Bytes on their way when a connection is reset are lost; wait so long for the client to read them.
const SETTLE: Duration = Duration::from_millis(20);

/// A body.
pub(super) enum Reply {
    /// The connection counts as busy until the body is gone.
    Whole {
        body: Option<Bytes>,
        _busy: Busy,
    },
    Stream(Box<Stream>),
}

/// What a stream does after so many tokens instead of going on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Break {
    Hang,
    Reset,
    Cut,
}

/// The events of one answer.
pub(super) struct Stream {
    pub(super) answer: Answer,
    pub(super) ticket: Ticket,
    pub(super) sent: u32,
    pub(super) begun: bool,
    pub(super) over: bool,
    pub(super) breaks: Option<(u32, Break)>,
    pub(super) settle: Option<Pin<Box<Sleep>>>,
    pub(super) busy: Busy,
    pub(super) pending: Pending,
}

impl Stream {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, io::Error>>> {
        if self.over {
            return Poll::Ready(None);
        }
        let progress = self.ticket.poll(cx);
        let limit = self.breaks.map_or(u32::MAX, |(after, _)| after);
        let mut out = Vec::new();
        if !self.begun && progress.produced > 0 && limit > 0 {
            self.begun = true;
            self.answer.begin(&mut out);
        }
        while self.sent < progress.produced.min(limit) && out.len() < BURST {
            for choice in 0..self.answer.texts.len() {
                self.answer.token(&mut out, choice, self.sent);
            }
            self.sent += 1;
        }
        if self.sent == self.answer.tokens && progress.end.is_some() {
            self.answer.end(&mut out, progress.cached);
            self.over = true;
            self.pending.done();
        }
        if !out.is_empty() {
            return Poll::Ready(Some(Ok(Bytes::from(out))));
        }
        match self.breaks {
            Some((after, how)) if self.sent >= after => self.poll_break(cx, how),
            _ => Poll::Pending,
        }
    }

    fn poll_break(&mut self, cx: &mut Context<'_>, how: Break) -> Poll<Option<Result<Bytes, io::Error>>> {
        if how == Break::Hang {
            return Poll::Pending;
        }
        let settle = self.settle.get_or_insert_with(|| Box::pin(tokio::time::sleep(SETTLE)));
        ready!(settle.as_mut().poll(cx));
        if how == Break::Cut {
            self.over = true;
            return Poll::Ready(Some(Err(io::Error::other("cut on purpose"))));
        }
        self.busy.0.reset();
        Poll::Pending
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Reply::Whole { body, .. } => Poll::Ready(body.take().map(|b| Ok(Frame::data(b)))),
            Reply::Stream(stream) => stream.poll(cx).map(|next| next.map(|r| r.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Reply::Whole { body, .. } => body.is_none(),
            Reply::Stream(stream) => stream.over,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Reply::Whole { body, .. } => SizeHint::with_exact(body.as_ref().map_or(0, |b| b.len() as u64)),
            Reply::Stream(_) => SizeHint::default(),
        }
    }
}

/// The result of a handler: it answers whatever happens.
pub(super) type Handled = Result<hyper::Response<Reply>, Infallible>;
