//! One client's connection: which protocol it speaks, and serving it until it ends.

use super::io::{Client, ClientIo, Order};
use super::worker::Worker;
use super::{handler, tunnel};
use bytes::{Bytes, BytesMut};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, server::conn::http1, server::conn::http2};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use tokio::io::AsyncReadExt;

/// How an HTTP/2 client begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes buffered a connection in each direction at most.
const BUFFER: usize = 64 * 1024;
/// HTTP/2: bytes a client may send ahead, a stream and a connection.
const WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Serves a connection until it ends or is told to.
pub(super) async fn serve(worker: Rc<Worker>, client: Rc<Client>) {
    let mut io = ClientIo::new(client.clone());
    let Some(h2) = or_order(&client, speaks_h2(&mut io)).await else { return };
    let io = TokioIo::new(io);
    // Read once: what holds for a connection is agreed when it begins.
    let (streams, head) = {
        let settings = worker.shared.settings();
        (settings.h2_streams, settings.header_bytes)
    };
    let service = {
        let client = client.clone();
        service_fn(move |request: Request<Incoming>| {
            let (worker, in_flight) = (worker.clone(), client.begin());
            async move { Ok::<_, Infallible>(handler::handle(worker, in_flight, request).await) }
        })
    };
    let ended = if h2 {
        client.speaks_h2();
        let conn = http2::Builder::new(LocalExecutor)
            .max_concurrent_streams(streams)
            .max_header_list_size(u32::try_from(head).unwrap_or(u32::MAX))
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(BUFFER)
            .serve_connection(io, service);
        let conn = pin!(conn);
        drive(&client, conn, |c| c.graceful_shutdown()).await
    } else {
        let conn = http1::Builder::new()
            .header_read_timeout(None)
            .max_header_size(head)
            .max_buf_size(BUFFER.max(head))
            .serve_connection(io, service);
        let mut conn = conn;
        let ended = drive(&client, Pin::new(&mut conn), |c| c.graceful_shutdown()).await;
        if let Some(far) = client.take_far() {
            let parts = conn.into_parts();
            return tunnel::run(&client, parts.io, parts.read_buf, far).await;
        }
        ended
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a client's connection ended");
    }
}

/// Polls a connection to its end, minding what it is told.
async fn drive<C: Future<Output = hyper::Result<()>>>(
    client: &Client,
    mut conn: Pin<&mut C>,
    finish: impl Fn(Pin<&mut C>),
) -> hyper::Result<()> {
    let mut finishing = false;
    poll_fn(|cx| {
        client.register(cx.waker());
        match client.order() {
            Order::Kill => return Poll::Ready(Ok(())),
            Order::Finish if !finishing => {
                finishing = true;
                finish(conn.as_mut());
            }
            Order::Finish | Order::Serve => {}
        }
        conn.as_mut().poll(cx)
    })
    .await
}

/// The future's output, or `None` if the connection is told to end before.
async fn or_order<F: Future<Output = Option<bool>>>(client: &Client, future: F) -> Option<bool> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        client.register(cx.waker());
        if client.order() != Order::Serve {
            return Poll::Ready(None);
        }
        future.as_mut().poll(cx)
    })
    .await
}

/// Reads until it is clear which protocol is spoken; the bytes are put back. `None`: the client left before.
async fn speaks_h2(io: &mut ClientIo) -> Option<bool> {
    let mut first = BytesMut::new();
    loop {
        let mut chunk = [0; PREFACE.len()];
        let want = PREFACE.len() - first.len();
        let n = io.read(&mut chunk[..want]).await.ok().filter(|n| *n > 0)?;
        first.extend_from_slice(&chunk[..n]);
        let h2 = PREFACE.starts_with(&first);
        if !h2 || first.len() == PREFACE.len() {
            io.unread(Bytes::from(first));
            return Some(h2);
        }
    }
}

/// Runs HTTP/2's streams on the worker's own thread.
#[derive(Clone, Copy)]
struct LocalExecutor;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}
