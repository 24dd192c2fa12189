//! Ports, threads, and the way out.
//!
//! As the proxy: one thread accepts and deals connections to workers, each a thread with a runtime of its own; a
//! connection with all its streams stays on its worker, so that nothing on a request's way is woken across threads.
//! Envoy opens one connection for each of its own threads. The health service has its own thread: it answers while the
//! workers are busy.

use super::conn::{self, Greeting};
use super::health::Pulse;
use super::intent::Rules;
use super::kept::Kept;
use super::policies::{Feed, Policies, Target};
use super::session::Shared;
use super::tls::Certificates;
use crate::config::Config;
use crate::door::{self, Door, Watcher};
use crate::observe::{AccessLog, Metrics};
use crate::proxy::Phase;
use crate::router::Router;
use parking_lot::Mutex;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};

/// How often certificates are read again.
const REREAD: Duration = Duration::from_secs(5);
/// How often reservations whose end isn't seen are looked over.
const SWEEP: Duration = Duration::from_secs(1);
/// Connections open at once. Envoy opens a few; whatever opens more isn't Envoy.
const CONNECTIONS: usize = 4096;
/// Pause after the system refused to accept, or at the cap.
const PAUSE: Duration = Duration::from_millis(10);

/// The endpoint picker: bound, not yet serving.
pub struct ExtProc {
    doors: PickerDoors,
    shared: Arc<Shared>,
    certificates: Option<Certificates>,
    workers: usize,
    grace: Duration,
}

/// The picker's ports.
#[derive(Clone, Debug)]
pub struct PickerDoors {
    /// Where Envoy comes in.
    pub grpc: Door,
    /// The health service's own, if it has one.
    pub health: Option<Door>,
}

/// One worker as the accepting thread sees it.
struct Lane {
    sockets: mpsc::UnboundedSender<TcpStream>,
    open: Arc<AtomicUsize>,
}

impl ExtProc {
    /// Binds the ports of the configuration; `None` if it has no endpoint picker.
    ///
    /// # Errors
    /// A port is taken, or a certificate can't be read. The message says which.
    pub fn bind(
        config: &Config,
        router: Arc<Router>,
        metrics: Arc<Metrics>,
        access: AccessLog,
    ) -> io::Result<Option<Self>> {
        let named = |what: &str, at, e: io::Error| io::Error::new(e.kind(), format!("{what} {at}: {e}"));
        let open = |what: &str, at: SocketAddr| {
            door::bind(at).and_then(|l| Door::new(l, true)).map_err(|e| named(what, at, e))
        };
        let Some(at) = config.extproc.listen else { return Ok(None) };
        let health = config.extproc.health.map(|at| open("extproc.health", at)).transpose()?;
        let doors = PickerDoors { grpc: open("extproc.listen", at)?, health };
        Self::behind(doors, config, router, metrics, access).map(Some)
    }

    /// Serves who comes through `doors`.
    ///
    /// # Errors
    /// A certificate can't be read. The message says which.
    pub fn behind(
        doors: PickerDoors,
        config: &Config,
        router: Arc<Router>,
        metrics: Arc<Metrics>,
        access: AccessLog,
    ) -> io::Result<Self> {
        let c = &config.extproc;
        let certificates = match (&c.cert_file, &c.key_file) {
            _ if c.plaintext => None,
            (Some(cert), Some(key)) => Some(Certificates::files(cert, key)?),
            _ => Some(Certificates::self_signed()?),
        };
        let rewrites = |(name, model): (&String, &String)| {
            (name.clone(), vec![Target { model: model.clone(), weight: 1 }])
        };
        let policies = Policies {
            objectives: c.objectives.clone().into_iter().collect(),
            rewrites: c.rewrites.iter().map(rewrites).collect(),
        };
        let rules = Rules {
            decide: c.decide_bytes.as_usize(),
            held: config.limits.body_bytes.as_usize(),
            fallbacks: c.fallbacks as usize,
            trusted: c.trust_headers,
            testing: c.conformance,
        };
        let shared = Shared {
            rules,
            feed: Feed::new(policies),
            router,
            metrics,
            access,
            kept: Kept::new(config.poll.interval.get()),
            prompts: Mutex::default(),
            held: AtomicUsize::new(0),
        };
        Ok(ExtProc {
            doors,
            shared: Arc::new(shared),
            certificates,
            workers: config.workers.unwrap_or_else(|| available_parallelism().map_or(1, NonZero::get)).max(1),
            grace: config.drain.grace.get(),
        })
    }

    /// Where Envoy comes in.
    ///
    /// # Errors
    /// Those of the system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.doors.grpc.local_addr()
    }

    /// Where the health service is, if it has a port of its own.
    pub fn health_addr(&self) -> Option<SocketAddr> {
        self.doors.health.as_ref().and_then(|d| d.local_addr().ok())
    }

    /// Where the cluster's objectives and rewrites come in.
    pub fn feed(&self) -> Feed {
        self.shared.feed.clone()
    }

    /// Serves until `phase` says [`Phase::Closing`] (or its sender is gone) and every stream has ended, or the grace period
    /// has.
    ///
    /// # Errors
    /// A thread couldn't be started.
    pub async fn run(self, phase: watch::Receiver<Phase>) -> io::Result<()> {
        let pulse = Pulse::new(self.shared.router.clone(), phase.clone());
        let (stop, stopped) = oneshot::channel::<()>();
        let health = self.doors.health.as_ref().map(Door::watch);
        let beside = beside(health, pulse.clone(), self.shared.clone(), self.certificates.clone());
        let (besides, mut beside_ended) = mpsc::channel::<()>(1);
        spawn("homing-epp-health".into(), besides, async move {
            tokio::select! { () = beside => {}, _ = stopped => {} }
        })?;
        let (alive, mut ended) = mpsc::channel::<()>(1);
        let mut lanes = Vec::new();
        for n in 0..self.workers {
            let (sockets, incoming) = mpsc::unbounded_channel();
            let open = Arc::new(AtomicUsize::new(0));
            lanes.push(Lane { sockets, open: open.clone() });
            let greeting = Greeting::new(self.shared.clone(), pulse.clone(), self.certificates.clone());
            let work = conn::work(greeting, incoming, open, phase.clone(), self.grace);
            spawn(format!("homing-epp-{n}"), alive.clone(), work)?;
        }
        spawn("homing-epp-accept".into(), alive, accept(self.doors.grpc.watch(), lanes, phase))?;
        // Whoever steers the doors holds ends of their own.
        drop(self.doors);
        // Each thread holds a sender; there is nothing left to receive once all have ended.
        ended.recv().await;
        drop(stop);
        beside_ended.recv().await;
        Ok(())
    }
}

/// What goes on beside the traffic: the health port, reservations whose end isn't seen, certificates.
async fn beside(
    health: Option<Watcher>,
    pulse: Pulse,
    shared: Arc<Shared>,
    mut certificates: Option<Certificates>,
) {
    let answer = async {
        match health {
            Some(door) => conn::health(door, pulse).await,
            None => std::future::pending().await,
        }
    };
    let sweep = async {
        loop {
            tokio::time::sleep(SWEEP).await;
            shared.kept.sweep(Instant::now(), |id| shared.router.counts(id));
        }
    };
    let reread = async {
        loop {
            tokio::time::sleep(REREAD).await;
            match certificates.as_mut().map(Certificates::reread) {
                Some(Ok(true)) => tracing::info!("the certificate was read again"),
                Some(Err(error)) => {
                    tracing::warn!(%error, "the certificate can't be read again: the old one stays")
                }
                _ => {}
            }
        }
    };
    tokio::join!(answer, sweep, reread);
}

/// Runs a future on a thread and runtime of its own. `alive` is dropped when it has ended.
fn spawn(
    name: String,
    alive: mpsc::Sender<()>,
    work: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name(name).spawn(move || {
        runtime.block_on(work);
        // What still runs is dropped with the runtime, before anybody is told that this is over.
        drop(runtime);
        drop(alive);
    })?;
    Ok(())
}

async fn accept(mut door: Watcher, lanes: Vec<Lane>, mut phase: watch::Receiver<Phase>) {
    loop {
        let socket = door.current();
        let closing = async {
            let _ = phase.wait_for(|p| *p == Phase::Closing).await;
        };
        let closed = tokio::select! {
            biased;
            () = closing => true,
            () = door.changed() => false,
            () = deal(socket.as_deref(), &lanes) => true,
        };
        // What the system has connected already is still served, unless another process accepts from the same queue.
        if let Some(listener) = socket.filter(|_| !door.handed_over()) {
            while let Ok((socket, _)) = listener.accept() {
                hand_over(socket, &lanes);
            }
        }
        if closed {
            return;
        }
    }
}

/// Accepts and deals; for ever.
async fn deal(listener: Option<&TcpListener>, lanes: &[Lane]) {
    let Some(listener) = listener else { return std::future::pending().await };
    let listener = match door::reacting(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the listening socket can't be watched"),
    };
    loop {
        if lanes.iter().map(|l| l.open.load(Relaxed)).sum::<usize>() >= CONNECTIONS {
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        match listener.accept().await.and_then(|(socket, _)| socket.into_std()) {
            Ok(socket) => hand_over(socket, lanes),
            Err(error) => {
                tracing::warn!(%error, "can't accept");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn hand_over(socket: TcpStream, lanes: &[Lane]) {
    if let Some(lane) = lanes.iter().min_by_key(|l| l.open.load(Relaxed)) {
        lane.open.fetch_add(1, Relaxed);
        if lane.sockets.send(socket).is_err() {
            lane.open.fetch_sub(1, Relaxed);
        }
    }
}
