//! Connections: HTTP/2 with or without TLS, and the two gRPC services on it.

use super::health::Pulse;
use super::session::{Session, Shared};
use super::tls::Certificates;
use crate::door::{self, Watcher};
use crate::proxy::Phase;
use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingRequest;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::{
    ExternalProcessor, ExternalProcessorServer,
};
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::TcpStream;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::{Request, Response, Status, Streaming};
use tonic_health::pb::health_server::HealthServer;

/// Streams on one connection: requests of one of Envoy's threads at once.
const STREAMS: u32 = 16_384;
/// Bytes that may be on their way to one stream, and to all of a connection. Bodies are large, and the way is short.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Longest message that is read. Envoy sends bodies in pieces of at most its buffer limit, 1 MiB unless it is raised.
const MESSAGE: usize = 16 << 20;
/// Time for a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// A connection on which nothing moves is asked whether anybody is there: an Envoy whose host died says no goodbye.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Connections of the health port at once.
const HEALTH_CONNECTIONS: usize = 64;

/// The picker as tonic sees it.
struct Door(Arc<Shared>);

#[tonic::async_trait]
impl ExternalProcessor for Door {
    type ProcessStream = Session;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Session>, Status> {
        Ok(Response::new(Session::new(self.0.clone(), request.into_inner())))
    }
}

/// Both services; which one is meant, the path says.
#[derive(Clone)]
struct Both {
    picker: Option<ExternalProcessorServer<Door>>,
    health: HealthServer<Pulse>,
}

impl hyper::service::Service<http::Request<Incoming>> for Both {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: http::Request<Incoming>) -> Self::Future {
        // These services are always ready: what can be busy is behind them.
        match &self.picker {
            Some(picker) if !request.uri().path().starts_with("/grpc.health.v1.Health/") => {
                Box::pin(Service::call(&mut picker.clone(), request))
            }
            _ => Box::pin(Service::call(&mut self.health.clone(), request)),
        }
    }
}

/// What a connection is met with.
pub(super) struct Greeting {
    both: Both,
    certificates: Option<Certificates>,
}

impl Greeting {
    pub(super) fn new(shared: Arc<Shared>, pulse: Pulse, certificates: Option<Certificates>) -> Self {
        let picker = ExternalProcessorServer::new(Door(shared)).max_decoding_message_size(MESSAGE);
        Greeting { both: Both { picker: Some(picker), health: HealthServer::new(pulse) }, certificates }
    }
}

/// A worker: serves the connections that it is given, until there will be no more and all have ended.
pub(super) async fn work(
    greeting: Greeting,
    mut incoming: mpsc::UnboundedReceiver<TcpStream>,
    open: Arc<AtomicUsize>,
    phase: watch::Receiver<Phase>,
    grace: Duration,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            socket = incoming.recv() => {
                let Some(socket) = socket else { break };
                let (both, tls) = (greeting.both.clone(), greeting.certificates.as_ref().map(Certificates::get));
                let (seat, phase) = (Seat(open.clone()), phase.clone());
                connections.spawn(async move {
                    let _seat = seat;
                    let Ok(socket) = tune(socket) else { return };
                    match tls {
                        None => serve(TokioIo::new(socket), both, phase).await,
                        Some(tls) => match timeout(HANDSHAKE, TlsAcceptor::from(tls).accept(socket)).await {
                            Ok(Ok(stream)) => serve(TokioIo::new(stream), both, phase).await,
                            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                            Err(_) => tracing::debug!("a TLS handshake took too long"),
                        },
                    }
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
    let all = async { while connections.join_next().await.is_some() {} };
    let _ = timeout(grace, all).await;
    connections.shutdown().await;
}

/// The health port: until it is dropped.
pub(super) async fn health(mut door: Watcher, pulse: Pulse) {
    let both = Both { picker: None, health: HealthServer::new(pulse) };
    let (_never, phase) = watch::channel(Phase::Running);
    let mut connections = JoinSet::new();
    loop {
        let socket = door.current();
        let listener = socket.as_deref().map(door::reacting);
        let accept = async {
            let Some(Ok(listener)) = &listener else { return std::future::pending().await };
            loop {
                while connections.len() >= HEALTH_CONNECTIONS {
                    connections.join_next().await;
                }
                match listener.accept().await {
                    Ok((socket, _)) => {
                        connections.spawn(serve(TokioIo::new(socket), both.clone(), phase.clone()));
                        while connections.try_join_next().is_some() {}
                    }
                    Err(error) => {
                        tracing::warn!(%error, "health port: can't accept");
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
            }
        };
        tokio::select! { () = accept => {}, () = door.changed() => {} }
    }
}

/// A connection's place among its worker's; given up when dropped.
struct Seat(Arc<AtomicUsize>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

fn tune(socket: TcpStream) -> std::io::Result<tokio::net::TcpStream> {
    socket.set_nonblocking(true)?;
    // A chunk that waits for an acknowledgement is a token that comes late.
    socket.set_nodelay(true)?;
    tokio::net::TcpStream::from_std(socket)
}

async fn serve(
    io: impl Read + Write + Unpin + Send + 'static,
    both: Both,
    mut phase: watch::Receiver<Phase>,
) {
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        // Envoy resets each stream when it is done with it: that is no attack.
        .max_pending_accept_reset_streams(STREAMS as usize)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT);
    let mut connection = pin!(builder.serve_connection(io, both));
    let closing = async {
        let _ = phase.wait_for(|p| *p == Phase::Closing).await;
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = closing => {
            // New requests go to another picker; those that are here come to their end.
            connection.as_mut().graceful_shutdown();
            connection.as_mut().await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection of Envoy's broke off");
    }
}
