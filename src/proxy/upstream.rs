//! One connection to a replica, driven by the request that uses it.
//!
//! Usually such a connection is a task of its own and the request talks to it through channels. Here the request owns
//! it and polls it. Two things follow: no wake-up passes between two tasks for each chunk, and whoever drops the
//! request (or the answer's body) closes the socket in the same instant, so that the engine sees a client leave.

use super::io::ReplicaIo;
use super::payload::Payload;
use super::through::Through;
use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::cell::Cell;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// Bytes that one connection may buffer in each direction: bounds the memory of a slow reader's stream.
const BUFFER: usize = 64 * 1024;
/// A replica's answer may have a head of this size at most.
const MAX_HEAD: usize = 64 * 1024;

/// Time for HTTP to let go of a connection that is something else from now on.
const HANDOVER: Duration = Duration::from_secs(1);

/// A connection to a replica. Dropping it closes the socket.
pub(super) struct Upstream {
    sender: http1::SendRequest<Payload>,
    conn: http1::Connection<TokioIo<ReplicaIo>, Payload>,
    heard: Rc<Cell<bool>>,
    closed: bool,
    /// The body underway is the client's own, so an error that hyper blames on its user is the client's.
    passes: bool,
    client_broke: bool,
    reused: bool,
    idle_since: Instant,
}

/// A connection to a replica that ended before its answer did.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub(super) struct Broken {
    /// What hyper says.
    pub(super) error: hyper::Error,
    /// It was the client's own body, passing through, that broke off: the replica has done nothing wrong.
    pub(super) by_client: bool,
}

/// Why a request got no answer's head.
#[derive(Debug)]
pub(super) struct SendError {
    /// What went wrong.
    pub(super) broken: Broken,
    /// The connection had served before and not a byte of an answer came: most likely the replica had closed it
    /// while it lay idle.
    pub(super) idle_close: bool,
    /// The body, if it is one that passes through and nothing of it has been taken.
    pub(super) unsent: Option<Box<Through>>,
}

impl Upstream {
    /// Speaks HTTP/1.1 over a socket that is connected.
    ///
    /// # Errors
    /// Those of hyper's handshake, which for HTTP/1.1 sends nothing.
    pub(super) async fn handshake(stream: TcpStream) -> hyper::Result<Box<Self>> {
        let heard = Rc::new(Cell::new(false));
        let io = TokioIo::new(ReplicaIo::new(stream, heard.clone()));
        let (sender, conn) =
            http1::Builder::new().max_buf_size(BUFFER).max_header_size(MAX_HEAD).handshake(io).await?;
        Ok(Box::new(Upstream {
            sender,
            conn,
            heard,
            closed: false,
            passes: false,
            client_broke: false,
            reused: false,
            idle_since: Instant::now(),
        }))
    }

    /// Sends a request and waits for the head of the answer. The answer's body is read with [`Upstream::poll_body`].
    ///
    /// # Errors
    /// The replica refused, closed or spoke something that isn't HTTP.
    pub(super) async fn send(&mut self, request: Request<Payload>) -> Result<Response<Incoming>, SendError> {
        self.heard.set(false);
        self.passes = matches!(request.body(), Payload::Stream(_));
        let mut answer = pin!(self.sender.try_send_request(request));
        let result = std::future::poll_fn(|cx| {
            Self::turn(&mut self.conn, &mut self.closed, &mut self.client_broke, cx);
            answer.as_mut().poll(cx)
        })
        .await;
        result.map_err(|mut refused| {
            let unsent = refused.take_message().and_then(|request| request.into_body().into_stream());
            let error = refused.into_error();
            let by_client = self.passes && (self.client_broke || error.is_user());
            let idle_close = self.reused && !self.heard.get() && !by_client;
            SendError { unsent, idle_close, broken: Broken { error, by_client } }
        })
    }

    /// Next piece of an answer's body, moving the connection on as needed.
    pub(super) fn poll_body(
        &mut self,
        body: &mut Incoming,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        Self::turn(&mut self.conn, &mut self.closed, &mut self.client_broke, cx);
        let by_client = self.passes && self.client_broke;
        Pin::new(body).poll_frame(cx).map_err(|error| Broken { error, by_client })
    }

    /// The socket, once the replica has agreed to speak something else over it, and what it has said already.
    pub(super) async fn into_io(mut self: Box<Self>) -> Option<(ReplicaIo, Bytes)> {
        // HTTP takes note of the change with its next turn.
        let over = std::future::poll_fn(|cx| {
            Self::turn(&mut self.conn, &mut self.closed, &mut self.client_broke, cx);
            if self.closed { Poll::Ready(()) } else { Poll::Pending }
        });
        tokio::time::timeout(HANDOVER, over).await.ok()?;
        let parts = self.conn.into_parts();
        Some((parts.io.into_inner(), parts.read_buf))
    }

    /// The answer was read to its end: can the connection serve again?
    pub(super) fn reusable(&mut self) -> bool {
        // The end of the body may have been seen before the connection turned idle: one turn more settles that.
        (!self.closed && self.sender.is_ready()) || self.alive()
    }

    /// Has the replica left an idle connection open, as far as can be known here?
    pub(super) fn alive(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        Self::turn(&mut self.conn, &mut self.closed, &mut self.client_broke, &mut cx);
        !self.closed && self.sender.is_ready()
    }

    /// Marks the connection as idle from `now` on.
    pub(super) fn rest(&mut self, now: Instant) {
        self.reused = true;
        self.idle_since = now;
    }

    /// When it was last used.
    pub(super) fn idle_since(&self) -> Instant {
        self.idle_since
    }

    fn turn(
        conn: &mut http1::Connection<TokioIo<ReplicaIo>, Payload>,
        closed: &mut bool,
        client_broke: &mut bool,
        cx: &mut Context<'_>,
    ) {
        if *closed {
            return;
        }
        // An error isn't lost here: hyper hands it to the waiting answer or body as well. But a body isn't told
        // whose fault it was.
        if let Poll::Ready(ended) = Pin::new(conn).poll(cx) {
            *closed = true;
            *client_broke = ended.is_err_and(|error| error.is_user());
        }
    }
}
