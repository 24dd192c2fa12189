//! Connections: accepting them, and ending them in all the ways a server can.

use super::serve::handle;
use super::state::State;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// What all connections are told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Control {
    pub(super) phase: Phase,
    pub(super) close_idle_after: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Phase {
    Serve,
    /// Answer what has begun, then close.
    Drain,
    /// Reset now.
    Kill,
}

/// One connection, as its requests see it.
pub(super) struct Conn {
    /// Close with a reset instead of an orderly end.
    reset: Arc<AtomicBool>,
    wake: Notify,
    /// Requests under way, and when the last one ended.
    busy: Mutex<(u32, Instant)>,
}

impl Conn {
    /// Reset the connection as soon as its task looks.
    pub(super) fn reset(&self) {
        self.reset.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// How long nothing has been under way; `None` while something is.
    fn idle(&self) -> Option<Duration> {
        let busy = self.busy.lock();
        (busy.0 == 0).then(|| busy.1.elapsed())
    }
}

/// Marks a request as under way on its connection.
pub(super) struct Busy(pub(super) Arc<Conn>);

impl Busy {
    pub(super) fn new(conn: &Arc<Conn>) -> Self {
        conn.busy.lock().0 += 1;
        Busy(Arc::clone(conn))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut busy = self.0.busy.lock();
        *busy = (busy.0.saturating_sub(1), Instant::now());
    }
}

/// A socket that can be closed with a reset.
struct Socket {
    stream: TcpStream,
    reset: Arc<AtomicBool>,
    state: Arc<State>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.reset.load(Ordering::Acquire) {
            // Fails only for a socket that is gone already.
            drop(socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)));
        }
        self.state.stats.closed();
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
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
}

/// Accept until told to stop.
pub(super) async fn accept(listener: TcpListener, state: Arc<State>) {
    let mut control = state.control.subscribe();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    // Without it each token would wait for the acknowledgement of the one before.
                    drop(stream.set_nodelay(true));
                    tokio::spawn(serve(stream, Arc::clone(&state)));
                }
                // Out of descriptors, most likely: give others time to close.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            },
            changed = control.changed() => {
                if changed.is_err() || control.borrow().phase != Phase::Serve {
                    return;
                }
            }
        }
    }
}

async fn serve(stream: TcpStream, state: Arc<State>) {
    state.stats.opened();
    let reset = Arc::new(AtomicBool::new(false));
    let socket = Socket { stream, reset: Arc::clone(&reset), state: Arc::clone(&state) };
    let conn = Arc::new(Conn { reset, wake: Notify::new(), busy: Mutex::new((0, Instant::now())) });
    let mut control = state.control.subscribe();
    let service = {
        let conn = Arc::clone(&conn);
        service_fn(move |request| handle(Arc::clone(&state), Arc::clone(&conn), request))
    };
    let mut http = std::pin::pin!(
        http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(socket), service)
    );
    loop {
        let now = *control.borrow_and_update();
        match now.phase {
            Phase::Serve => {}
            Phase::Drain => http.as_mut().graceful_shutdown(),
            Phase::Kill => conn.reset.store(true, Ordering::Release),
        }
        if conn.reset.load(Ordering::Acquire) {
            return;
        }
        tokio::select! {
            // The client left, or all is said.
            _ = http.as_mut() => return,
            () = conn.wake.notified() => {}
            () = idle(&conn, now.close_idle_after) => {
                http.as_mut().graceful_shutdown();
                drop(http.as_mut().await);
                return;
            }
            changed = control.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}

/// Wait until the connection has been idle for `after` seconds.
async fn idle(conn: &Conn, after: Option<f64>) {
    let Some(after) = after.and_then(|s| Duration::try_from_secs_f64(s).ok()) else {
        return std::future::pending().await;
    };
    loop {
        match conn.idle() {
            Some(idle) if idle >= after => return,
            Some(idle) => tokio::time::sleep(after - idle).await,
            None => tokio::time::sleep(after.max(Duration::from_millis(5))).await,
        }
    }
}
