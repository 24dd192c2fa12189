//! The front: one listening socket, one thread that accepts, and the workers that serve.
//!
//! A worker is one thread with a runtime of its own; a connection stays with its worker for life, and everything of a
//! request happens on that thread. So nothing on the way of a request is locked or woken across threads, but for the
//! router's short lock. The price is that connections must be dealt out evenly: a new one goes to the worker with
//! the fewest open, which with few long-lived connections matters more than who happens to wake first.

use super::budget::Budget;
use super::settings::Settings;
use super::worker::{self, Shared};
use crate::observe::{AccessLog, Metrics};
use crate::router::Router;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;
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
    listener: TcpListener,
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
        let socket =
            socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Self::on(socket.into(), settings, router, metrics, access)
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
        listener.set_nonblocking(true)?;
        let budget = Arc::new(Budget::new(settings.retry_share, settings.retry_floor));
        let hedges = Arc::new(Budget::new(settings.hedge.budget, 0));
        let limits = settings.body_limits();
        let settings = Arc::new(settings);
        Ok(Proxy {
            listener,
            shared: Shared {
                settings,
                router,
                budget,
                hedges,
                recent: Arc::default(),
                limits,
                remembered: Arc::default(),
                metrics,
                access,
            },
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// Those of the system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `phase` says [`Phase::Closing`] (or its sender is gone) and everything in flight has ended, or the
    /// grace period has.
    ///
    /// # Errors
    /// A thread couldn't be started.
    pub async fn run(self, phase: watch::Receiver<Phase>) -> io::Result<()> {
        let (alive, mut ended) = mpsc::channel::<()>(1);
        let mut lanes = Vec::new();
        for n in 0..self.shared.settings.workers.max(1) {
            let (sockets, incoming) = mpsc::unbounded_channel();
            let open = Arc::new(AtomicUsize::new(0));
            lanes.push(Lane { sockets, open: open.clone() });
            let (shared, phase, alive) = (self.shared.clone(), phase.clone(), alive.clone());
            spawn(format!("homing-work-{n}"), alive, worker::run(shared, incoming, open, phase))?;
        }
        let cap = self.shared.settings.connections;
        spawn("homing-accept".into(), alive, accept(self.listener, lanes, cap, phase))?;
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
    listener: TcpListener,
    lanes: Vec<Lane>,
    cap: usize,
    mut phase: watch::Receiver<Phase>,
) -> impl AsyncFnOnce() + Send + 'static {
    async move || {
        let listener = match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "the listening socket can't be watched"),
        };
        let closing = async {
            let _ = phase.wait_for(|p| *p == Phase::Closing).await;
        };
        tokio::select! {
            biased;
            () = closing => {}
            () = deal(&listener, &lanes, cap) => {}
        }
        // What has already been connected by the system is still served: closing the socket would reset it.
        if let Ok(listener) = listener.into_std() {
            while let Ok((socket, _)) = listener.accept() {
                if socket.set_nonblocking(true).is_ok() {
                    hand_over(socket, &lanes);
                }
            }
        }
    }
}

async fn deal(listener: &tokio::net::TcpListener, lanes: &[Lane], cap: usize) {
    loop {
        if lanes.iter().map(|l| l.open.load(Relaxed)).sum::<usize>() >= cap {
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
