//! A plain round-robin proxy: what the demo compares with.
//!
//! It does what a careful round robin does (streams, keep-alive on both sides, `TCP_NODELAY`), and looks at nothing.

use super::client::Link;
use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, HOST, HeaderValue, TRANSFER_ENCODING};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

/// Idle connections kept for each back end.
const KEEP: usize = 64;

/// A running proxy. Dropping it stops it, with all its connections.
pub struct RoundRobin {
    addr: SocketAddr,
    task: JoinHandle<()>,
}

struct Fleet {
    backends: Vec<Arc<Backend>>,
    next: AtomicUsize,
}

struct Backend {
    authority: String,
    idle: Mutex<Vec<Link>>,
}

impl RoundRobin {
    /// Start a proxy to `backends` (`host:port` each) on a free port of loopback.
    ///
    /// # Errors
    /// When there are no back ends, or no port.
    pub async fn start(backends: Vec<String>) -> io::Result<RoundRobin> {
        if backends.is_empty() {
            return Err(io::Error::other("round robin needs at least one back end"));
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let addr = listener.local_addr()?;
        let backends = backends
            .into_iter()
            .map(|authority| Arc::new(Backend { authority, idle: Mutex::default() }))
            .collect();
        let fleet = Arc::new(Fleet { backends, next: AtomicUsize::new(0) });
        Ok(RoundRobin { addr, task: tokio::spawn(accept(listener, fleet)) })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its base URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }
}

impl Drop for RoundRobin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, fleet: Arc<Fleet>) {
    // The set aborts its connections when this task is aborted.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        drop(stream.set_nodelay(true));
        let fleet = Arc::clone(&fleet);
        while connections.try_join_next().is_some() {}
        connections.spawn(async move {
            let service = service_fn(move |request| forward(Arc::clone(&fleet), request));
            let server = http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service);
            // An error here is a client that left.
            drop(server.await);
        });
    }
}

type Reply = Response<Either<Relay, Full<Bytes>>>;

async fn forward(fleet: Arc<Fleet>, request: Request<Incoming>) -> Result<Reply, Infallible> {
    let backend = &fleet.backends[fleet.next.fetch_add(1, Ordering::Relaxed) % fleet.backends.len()];
    let pooled = backend.idle.lock().pop();
    let mut link = pooled.unwrap_or_else(|| Link::new(&backend.authority));
    match send(&mut link, request).await {
        Ok(response) => {
            let (mut parts, inner) = response.into_parts();
            parts.headers.remove(CONNECTION);
            parts.headers.remove(TRANSFER_ENCODING);
            let relay = Relay { inner, link: Some(link), backend: Arc::clone(backend), over: false };
            Ok(Response::from_parts(parts, Either::Left(relay)))
        }
        Err(error) => {
            let mut response = Response::new(Either::Right(Full::from(format!("{error}\n"))));
            *response.status_mut() = StatusCode::BAD_GATEWAY;
            Ok(response)
        }
    }
}

async fn send(link: &mut Link, request: Request<Incoming>) -> io::Result<Response<Incoming>> {
    let (mut parts, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    parts.headers.insert(HOST, HeaderValue::from_str(link.authority()).map_err(io::Error::other)?);
    parts.headers.remove(CONNECTION);
    parts.headers.remove(TRANSFER_ENCODING);
    link.send(Request::from_parts(parts, Full::new(body))).await
}

/// The body of an answer on its way through. At its end the connection goes back to the pool.
struct Relay {
    inner: Incoming,
    link: Option<Link>,
    backend: Arc<Backend>,
    over: bool,
}

impl Body for Relay {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        self.over |= matches!(polled, Poll::Ready(None));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if !self.over && !self.inner.is_end_stream() {
            return;
        }
        let mut idle = self.backend.idle.lock();
        if idle.len() < KEEP {
            idle.extend(self.link.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::driver::Driver;
    use crate::sim::http::{Mock, MockConfig};
    use crate::sim::workload::Workload;

    #[tokio::test]
    async fn the_demo_workload_passes_without_a_failure() {
        let mut mocks = Vec::new();
        for _ in 0..3 {
            mocks.push(Mock::start(MockConfig::instant()).await.unwrap());
        }
        let authorities = mocks.iter().map(|m| m.addr().to_string()).collect();
        let proxy = RoundRobin::start(authorities).await.unwrap();
        let mut sessions = Workload::demo().sessions(1);
        for session in &mut sessions {
            session.arrive *= 0.01;
            session.turns.iter_mut().for_each(|turn| turn.think = 0.0);
        }
        let turns: u64 = sessions.iter().map(|s| s.turns.len() as u64).sum();
        let done = Driver::new(&proxy.url(), "mock").unwrap().run(sessions).await;
        assert_eq!((done.failed, done.completed), (0, turns), "{:?}", done.last_error);
        let seen: Vec<u64> = mocks.iter().map(|m| m.stats().requests).collect();
        assert_eq!(seen.iter().sum::<u64>(), turns);
        assert!(seen.iter().max().unwrap() - seen.iter().min().unwrap() <= 1, "uneven: {seen:?}");
        assert!(mocks[0].stats().connections_accepted < 60, "connections aren't used again");
    }
}
