//! Accepts connections on a control port.

use crate::door::{self, Watcher};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Connections open at once on one port. Probes and scrapers use a handful.
const CONNECTIONS: usize = 512;
/// Time to send a request's head, and how long a connection may lie idle: twice the interval at which Prometheus
/// usually scrapes.
const IDLE: Duration = Duration::from_secs(60);
/// Pause after the system refused to accept (out of descriptors, usually).
const PAUSE: Duration = Duration::from_millis(50);

/// Serves `app` on whatever the door says, until it is dropped.
pub(super) async fn run(mut door: Watcher, app: axum::Router) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let listener = door.current();
        tokio::select! {
            () = door.changed() => {}
            () = accept(listener.as_deref(), &places, &app) => return,
        }
    }
}

/// Lets in who comes; for ever, unless the socket can't be watched.
async fn accept(listener: Option<&TcpListener>, places: &Arc<Semaphore>, app: &axum::Router) {
    let Some(listener) = listener else { return std::future::pending().await };
    let listener = match door::reacting(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "a control port can't be watched"),
    };
    // The semaphore is never closed, so this goes on until it is dropped.
    while let Ok(place) = places.clone().acquire_owned().await {
        let socket = match listener.accept().await {
            Ok((socket, _)) => socket,
            Err(error) => {
                tracing::warn!(%error, "a control port can't accept");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        // Without it answers still go out, a little later.
        let _ = socket.set_nodelay(true);
        let service = TowerToHyperService::new(app.clone());
        tokio::spawn(async move {
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(IDLE)
                .serve_connection(TokioIo::new(socket), service);
            if let Err(error) = served.await {
                tracing::debug!(%error, "a control connection ended early");
            }
            drop(place);
        });
    }
}
