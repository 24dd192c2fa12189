//! The front: one listening socket, one thread that accepts, and the workers that serve.
//!
//! A worker is one thread with a runtime of its own; a connection stays with its worker for life, and everything of a
//! request happens on that thread. So nothing on the way of a request is locked or woken across threads, but for the
//! router's short lock. The price is that connections must be dealt out evenly: a new one goes to the worker with
//! the fewest open, which with few long-lived connections matters more than who happens to wake first.

use super::settings::{LiveSettings, Settings};
use super::worker::{self, Shared};
use crate::door::{self, Door, Watcher};
use crate::observe::{AccessLog, Metrics};
use crate::router::Router;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Pause after the system refused to accept (out of descriptors, usually), or at the cap of connections.
const PAUSE: Duration = Duration::from_millis(10);

/// How far the process is on its way out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Serving.
    #[default]
    Running,
    /// Told to stop: still serving everything, but asking clients to come back elsewhere.
    Draining,
    /// Taking nothing new; what is in flight may end within the grace period.
    Closing,
}

/// The data port: bound, not yet serving.
pub struct Proxy {
    door: Door,
    shared: Shared,
}

/// One worker as the accepting thread sees it.
struct Lane {
    sockets: mpsc::UnboundedSender<TcpStream>,
    open: Arc<AtomicUsize>,
}

impl Proxy {
    /// Binds `address`.
    ///
    /// # Errors
    /// The address is in use or not ours.
    pub fn bind(
        address: SocketAddr,
        settings: Settings,
        router: Arc<Router>,
        metrics: Arc<Metrics>,
        access: AccessLog,
    ) -> io::Result<Self> {
        Self::on(door::bind(address)?, settings, router, metrics, access)
    }

    /// Serves on a socket that listens already.
    ///
    /// # Errors
    /// The socket can't be made non-blocking.
    pub fn on(
        listener: TcpListener,
        settings: Settings,
        router: Arc<Router>,
        metrics: Arc<Metrics>,
        access: AccessLog,
    ) -> io::Result<Self> {
        Ok(Self::behind(Door::new(listener, true)?, settings, router, metrics, access))
    }

    /// Serves who comes through `door`.
    pub fn behind(
        door: Door,
        settings: Settings,
        router: Arc<Router>,
        metrics: Arc<Metrics>,
        access: AccessLog,
    ) -> Self {
        Proxy {
            door,
            shared: Shared {
                live: LiveSettings::new(settings),
                router,
                recent: Arc::default(),
                remembered: Arc::default(),
                metrics,
                access,
            },
        }
    }

    /// Where it listens.
    ///
    /// # Errors
    /// Those of the system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.door.local_addr()
    }

    /// The settings, for who changes them while it serves.
    pub fn live(&self) -> LiveSettings {
        self.shared.live.clone()
    }

    /// Serves until `phase` says [`Phase::Closing`] (or its sender is gone) and everything in flight has ended, or the
    /// grace period has.
    ///
    /// # Errors
    /// A thread couldn't be started.
    pub async fn run(self, phase: watch::Receiver<Phase>) -> io::Result<()> {
        let (alive, mut ended) = mpsc::channel::<()>(1);
        let mut lanes = Vec::new();
        for n in 0..self.shared.live.settings().workers.max(1) {
            let (sockets, incoming) = mpsc::unbounded_channel();
            let open = Arc::new(AtomicUsize::new(0));
            lanes.push(Lane { sockets, open: open.clone() });
            let (shared, phase, alive) = (self.shared.clone(), phase.clone(), alive.clone());
            spawn(format!("homing-work-{n}"), alive, worker::run(shared, incoming, open, phase))?;
        }
        spawn("homing-accept".into(), alive, accept(self.door.watch(), lanes, self.shared.live, phase))?;
        // Whoever steers the door holds an end of its own.
        drop(self.door);
        // Each thread holds a sender; there is nothing left to receive once all have ended.
        ended.recv().await;
        Ok(())
    }
}

/// Runs a future that isn't `Send` on a thread and runtime of its own. `alive` is dropped when it has ended.
fn spawn<F>(name: String, alive: mpsc::Sender<()>, make: F) -> io::Result<()>
where
    F: AsyncFnOnce() + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name(name).spawn(move || {
        let tasks = tokio::task::LocalSet::new();
        runtime.block_on(tasks.run_until(make()));
        drop(alive);
    })?;
    Ok(())
}

fn accept(
    mut door: Watcher,
    lanes: Vec<Lane>,
    live: LiveSettings,
    mut phase: watch::Receiver<Phase>,
) -> impl AsyncFnOnce() + Send + 'static {
    async move || {
        loop {
            let socket = door.current();
            let closing = async {
                let _ = phase.wait_for(|p| *p == Phase::Closing).await;
            };
            let closed = tokio::select! {
                biased;
                () = closing => true,
                () = door.changed() => false,
                () = deal(socket.as_deref(), &lanes, &live) => true,
            };
            // What has already been connected by the system is still served: closing the socket would reset it. One
            // that another process has too isn't closed, and what waits there is that one's.
            if let Some(listener) = socket.filter(|_| !door.handed_over()) {
                while let Ok((socket, _)) = listener.accept() {
                    if socket.set_nonblocking(true).is_ok() {
                        hand_over(socket, &lanes);
                    }
                }
            }
            if closed {
                return;
            }
        }
    }
}

/// Deals out what comes; for ever, unless the socket can't be watched.
async fn deal(listener: Option<&TcpListener>, lanes: &[Lane], live: &LiveSettings) {
    let Some(listener) = listener else { return std::future::pending().await };
    let listener = match door::reacting(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the listening socket can't be watched"),
    };
    loop {
        if lanes.iter().map(|l| l.open.load(Relaxed)).sum::<usize>() >= live.settings().connections {
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
        // Counted here, so that a burst isn't dealt to one worker before it has looked.
        lane.open.fetch_add(1, Relaxed);
        if lane.sockets.send(socket).is_err() {
            lane.open.fetch_sub(1, Relaxed);
        }
    }
}
