//! The ports beside the traffic: health and metrics for probes and scrapers, admin for people.
//!
//! Both live on a thread and runtime of their own: `/livez` must answer while the data plane is saturated, or the
//! platform kills a router for being busy. What may take long there (reading a large prompt for `/explain`) goes to
//! yet another thread. Connections and bodies are bounded, as on the data port.
//!
//! - `probes`: `/livez`, `/readyz`, `/metrics`
//! - `admin`: `/replicas`, `/explain`, `/config`, drain; `reload`: reading the configuration anew; `guard`: who may use it
//! - `serve`: accepts connections; `reply`: errors in OpenAI's shape

mod admin;
mod guard;
mod probes;
mod reload;
mod reply;
mod serve;

pub use reload::{Reload, ReloadOutcome, ReloadReport};

use crate::config::Config;
use crate::door::{self, Door};
use crate::observe::{Loud, Metrics};
use crate::openai::Problem;
use crate::router::{Ask, Router};
use arc_swap::ArcSwap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// Reads the body of a request to this path as the proxy would: what it asks of the router, or what is wrong with it.
pub type ReadPrompt = dyn Fn(&str, &[u8]) -> Result<Ask, Problem> + Send + Sync;

/// What the ports show and steer.
#[derive(Clone)]
pub struct Context {
    /// The running configuration; a reload replaces it.
    pub config: Arc<ArcSwap<Config>>,
    /// The fleet.
    pub router: Arc<Router>,
    /// The registry.
    pub metrics: Arc<Metrics>,
    /// What is degraded.
    pub loud: Loud,
    /// Has the process been told to stop? Asked at each `/readyz`, so that it fails from that moment on.
    pub draining: Arc<dyn Fn() -> bool + Send + Sync>,
    /// For `/explain`.
    pub read_prompt: Arc<ReadPrompt>,
    /// For `/reload`, where there is something to read.
    pub reload: Option<Arc<dyn Reload>>,
}

/// The two ports. They answer until this is dropped: `/livez` and `/metrics` are wanted to the very end of a drain.
pub struct Control {
    metrics: Door,
    admin: Option<Door>,
    /// The thread ends when this is dropped.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Control({:?}, {:?})", self.metrics, self.admin)
    }
}

/// The doors of the two ports, bound: health and metrics, and admin where there is one.
#[derive(Clone, Debug)]
pub struct Doors {
    /// Health and metrics.
    pub metrics: Door,
    /// Admin.
    pub admin: Option<Door>,
}

impl Doors {
    /// Binds the ports of the configuration.
    ///
    /// # Errors
    /// A port can't be bound (the message says which), or the admin port would be open to strangers.
    pub fn bind(config: &Config) -> io::Result<Self> {
        let admin = match config.admin {
            Some(at) => {
                admin_may_be_at(config, at)?;
                Some(Door::new(bind("admin", at)?, true)?)
            }
            None => None,
        };
        Ok(Doors { metrics: Door::new(bind("metrics", config.metrics)?, true)?, admin })
    }
}

/// Without a token the admin port must be on loopback.
///
/// # Errors
/// When it isn't.
pub fn admin_may_be_at(config: &Config, at: SocketAddr) -> io::Result<()> {
    if config.admin_token.is_some() || at.ip().is_loopback() {
        return Ok(());
    }
    let why = format!("admin port {at}: without a token it must be on loopback");
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

impl Control {
    /// Binds the ports of the configuration and answers on them.
    ///
    /// # Errors
    /// See [`Doors::bind`]; or the thread couldn't be started.
    pub fn start(context: Context) -> io::Result<Self> {
        let doors = Doors::bind(&context.config.load())?;
        Self::on(context, doors)
    }

    /// Answers on doors that are there already.
    ///
    /// # Errors
    /// The thread couldn't be started.
    pub fn on(context: Context, doors: Doors) -> io::Result<Self> {
        let (metrics, admin) = (doors.metrics.watch(), doors.admin.as_ref().map(Door::watch));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_name("homing-explain")
            .max_blocking_threads(2)
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("homing-control".into()).spawn(move || {
            runtime.block_on(async {
                let probes = serve::run(metrics, probes::routes(context.clone()));
                let admin = async {
                    match admin {
                        Some(door) => serve::run(door, admin::routes(context)).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    ((), ()) = async { tokio::join!(probes, admin) } => {}
                    // An error says that the other end was dropped, which is what it is for.
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        })?;
        Ok(Control { metrics: doors.metrics, admin: doors.admin, stop: Some(stop), thread: Some(thread) })
    }

    /// Where health and metrics are.
    ///
    /// # Panics
    /// When the port was handed to another process.
    #[expect(clippy::expect_used, reason = "who hands it over doesn't ask")]
    pub fn metrics_addr(&self) -> SocketAddr {
        self.metrics.local_addr().expect("the port is ours")
    }

    /// Where the admin port is, if there is one.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin.as_ref().and_then(|door| door.local_addr().ok())
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to hand back; a panic in it was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn bind(what: &str, at: SocketAddr) -> io::Result<TcpListener> {
    door::bind(at).map_err(|e| io::Error::new(e.kind(), format!("{what} port {at}: {e}")))
}
