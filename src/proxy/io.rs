//! The two kinds of socket: a client's and a replica's.
//!
//! Both are plain TCP streams that note one thing beside the bytes. A replica's socket notes whether anything was heard
//! since the request went out: that is what tells a connection that the replica closed while it lay idle from a
//! request that failed. A client's socket notes when a request's head began, so that one sweep over all connections
//! replaces a timer for each request.

use super::pace::Paces;
use super::tunnel::Far;
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// After this long without traffic the kernel starts to ask whether the other side still exists. It is the only thing
/// that notices a vanished host while an answer that may take half an hour is waited for.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);

/// Sets what both kinds of socket want: no delay for small writes, and keep-alive probes.
pub(super) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let probes = socket2::TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_EVERY);
    socket2::SockRef::from(stream).set_tcp_keepalive(&probes)
}

/// A connection to a replica.
pub(super) struct ReplicaIo {
    stream: TcpStream,
    heard: Rc<Cell<bool>>,
}

impl ReplicaIo {
    /// `heard` becomes true with the first byte read; whoever sends a request sets it back.
    pub(super) fn new(stream: TcpStream, heard: Rc<Cell<bool>>) -> Self {
        ReplicaIo { stream, heard }
    }
}

impl AsyncRead for ReplicaIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.heard.set(true);
        }
        polled
    }
}

impl AsyncWrite for ReplicaIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// What a connection was told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Nothing: serve on.
    Serve,
    /// End what is in flight, take nothing new.
    Finish,
    /// End now.
    Kill,
}

/// A client's connection as its worker sees it; shared by the socket, the handlers and the sweep, all on one thread.
pub(super) struct Client {
    stream: RefCell<TcpStream>,
    order: Cell<Order>,
    waker: RefCell<Option<Waker>>,
    in_flight: Cell<u32>,
    /// First byte of a head that isn't whole yet.
    head_since: Cell<Option<Instant>>,
    /// Nothing in flight and no head begun since then.
    idle_since: Cell<Instant>,
    served: Cell<bool>,
    /// Speaks HTTP/2: bytes that come in needn't be a request's.
    h2: Cell<bool>,
    /// Bytes have waited to be taken by its socket since then.
    stuck_since: Cell<Option<Instant>>,
    /// Its answers.
    pub(super) paces: Paces,
    /// What it becomes once HTTP is done with it.
    far: RefCell<Option<Far>>,
    upgraded: Cell<bool>,
}

/// How long what may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// To send a head.
    pub(super) head: Duration,
    /// Without a request.
    pub(super) idle: Duration,
    /// Without taking anything of an answer.
    pub(super) stall: Duration,
}

impl Client {
    pub(super) fn new(stream: TcpStream) -> Rc<Self> {
        Rc::new(Client {
            stream: RefCell::new(stream),
            order: Cell::new(Order::Serve),
            waker: RefCell::new(None),
            in_flight: Cell::new(0),
            head_since: Cell::new(None),
            idle_since: Cell::new(Instant::now()),
            served: Cell::new(false),
            h2: Cell::new(false),
            stuck_since: Cell::new(None),
            paces: Paces::default(),
            far: RefCell::default(),
            upgraded: Cell::new(false),
        })
    }

    /// Gives an order (never a milder one than before) and wakes the connection to see it.
    pub(super) fn tell(&self, order: Order) {
        let now = self.order.get();
        if now == order || now == Order::Kill {
            return;
        }
        self.order.set(order);
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    pub(super) fn order(&self) -> Order {
        self.order.get()
    }

    /// It speaks HTTP/2.
    pub(super) fn speaks_h2(&self) {
        self.h2.set(true);
    }

    /// Once its answer has gone out, it is connected to `far`.
    pub(super) fn becomes(&self, far: Far) {
        self.upgraded.set(true);
        *self.far.borrow_mut() = Some(far);
    }

    /// The other end, if it has become a tunnel.
    pub(super) fn take_far(&self) -> Option<Far> {
        self.far.borrow_mut().take()
    }

    /// Bytes came in.
    fn heard(&self) {
        if self.in_flight.get() > 0 {
            return;
        }
        if self.h2.get() && self.served.get() {
            self.idle_since.set(Instant::now());
        } else if self.head_since.get().is_none() {
            self.head_since.set(Some(Instant::now()));
        }
    }

    /// Has a request come in on it yet?
    pub(super) fn served(&self) -> bool {
        self.served.get()
    }

    /// Remembers whom to wake when an order is given.
    pub(super) fn register(&self, waker: &Waker) {
        let mut slot = self.waker.borrow_mut();
        match slot.as_ref() {
            Some(known) if known.will_wake(waker) => {}
            _ => *slot = Some(waker.clone()),
        }
    }

    /// A request's head is whole; until the guard is dropped one more request is in flight here.
    pub(super) fn begin(self: &Rc<Self>) -> InFlight {
        self.head_since.set(None);
        self.served.set(true);
        self.in_flight.set(self.in_flight.get() + 1);
        InFlight(self.clone())
    }

    /// What the sweep finds wrong: a head that takes too long, a connection idle for too long, a client that has left
    /// although its connection still looks busy (HTTP doesn't read while pipelined bytes wait), one that takes nothing.
    pub(super) fn overdue(&self, now: Instant, patience: Patience) -> Option<Order> {
        if self.upgraded.get() {
            // What is silent there, and who has closed which side, isn't HTTP's to judge.
            return None;
        }
        let stalled = self.paces.sweep(now, patience.stall);
        let stuck = self.stuck_since.get().is_some_and(|since| now.duration_since(since) > patience.stall);
        // On HTTP/2 only the stream is given up that isn't taken, unless nothing at all is.
        if stuck || (stalled && !self.h2.get()) {
            self.paces.sweep(now, Duration::ZERO);
            return Some(Order::Kill);
        }
        if self.in_flight.get() > 0 {
            return self.left().then_some(Order::Kill);
        }
        match self.head_since.get() {
            Some(since) => (now.duration_since(since) > patience.head).then_some(Order::Kill),
            None => {
                let limit = if self.served.get() { patience.idle } else { patience.head };
                let idle = now.duration_since(self.idle_since.get());
                // Asked to end, and yet it stays: a stream of it was given up and is never fetched.
                let ends = if idle > limit + patience.stall { Order::Kill } else { Order::Finish };
                (idle > limit).then_some(ends)
            }
        }
    }

    /// A write was tried.
    fn wrote(&self, taken: bool) {
        if taken {
            self.stuck_since.set(None);
        } else if self.stuck_since.get().is_none() {
            self.stuck_since.set(Some(Instant::now()));
        }
    }

    fn left(&self) -> bool {
        let stream = self.stream.borrow();
        let mut cx = Context::from_waker(Waker::noop());
        let ready = std::pin::pin!(stream.ready(Interest::READABLE));
        matches!(ready.poll(&mut cx), Poll::Ready(Ok(ready)) if ready.is_read_closed())
    }
}

/// One request in flight on a client's connection.
pub(super) struct InFlight(Rc<Client>);

impl InFlight {
    /// Its connection.
    pub(super) fn client(&self) -> &Rc<Client> {
        &self.0
    }

    /// Told to end: the answer should say that this connection won't be kept.
    pub(super) fn closing(&self) -> bool {
        self.0.order.get() != Order::Serve
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let left = self.0.in_flight.get().saturating_sub(1);
        self.0.in_flight.set(left);
        if left == 0 {
            self.0.idle_since.set(Instant::now());
        }
    }
}

/// The socket of a client, with the bytes that were read to find out which protocol it speaks.
pub(super) struct ClientIo {
    client: Rc<Client>,
    first: Bytes,
}

impl ClientIo {
    pub(super) fn new(client: Rc<Client>) -> Self {
        ClientIo { client, first: Bytes::new() }
    }

    /// Puts bytes back: they are read again first.
    pub(super) fn unread(&mut self, bytes: Bytes) {
        self.first = bytes;
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let n = self.first.len().min(buf.remaining());
            let part = self.first.split_to(n);
            buf.put_slice(&part);
            return Poll::Ready(Ok(()));
        }
        let client = &self.client;
        let before = buf.filled().len();
        let polled = Pin::new(&mut *client.stream.borrow_mut()).poll_read(cx, buf);
        if buf.filled().len() > before {
            client.heard();
        }
        polled
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut *self.client.stream.borrow_mut()).poll_write(cx, buf);
        self.client.wrote(polled.is_ready());
        polled
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut *self.client.stream.borrow_mut()).poll_write_vectored(cx, bufs);
        self.client.wrote(polled.is_ready());
        polled
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.client.stream.borrow_mut()).poll_shutdown(cx)
    }
}
