//! The ports beside the traffic: health and metrics for probes and scrapers, admin for people.
//!
//! Both live on a thread and runtime of their own: `/livez` must answer while the data plane is saturated, or the
//! platform kills a router for being busy. What may take long there (reading a large prompt for `/explain`) goes to
//! yet another thread. Connections and bodies are bounded, as on the data port.
//!
//! - `probes`: `/livez`, `/readyz`, `/metrics`
//! - `admin`: `/replicas`, `/explain`, `/config`, drain; `guard`: who may use it
//! - `serve`: accepts connections; `reply`: errors in OpenAI's shape

mod admin;
mod guard;
mod probes;
mod reply;
mod serve;

use crate::config::Config;
use crate::observe::{Loud, Metrics};
use crate::openai::Problem;
use crate::router::{Ask, Router};
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
    /// The running configuration.
    pub config: Arc<Config>,
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
}

/// The two ports. They answer until this is dropped: `/livez` and `/metrics` are wanted to the very end of a drain.
pub struct Control {
    metrics: SocketAddr,
    admin: Option<SocketAddr>,
    /// The thread ends when this is dropped.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Control({}, {:?})", self.metrics, self.admin)
    }
}

impl Control {
    /// Binds the ports of the configuration and answers on them.
    ///
    /// # Errors
    /// A port can't be bound (the message says which), the admin port would be open to strangers, or the thread couldn't
    /// be started.
    pub fn start(context: Context) -> io::Result<Self> {
        let config = context.config.clone();
        let (metrics, metrics_at) = bind("metrics", config.metrics)?;
        let admin = match config.admin {
            Some(at) if config.admin_token.is_none() && !at.ip().is_loopback() => {
                let why = format!("admin port {at}: without a token it must be on loopback");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            Some(at) => Some(bind("admin", at)?),
            None => None,
        };
        let admin_at = admin.as_ref().map(|(_, at)| *at);
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
                        Some((listener, _)) => serve::run(listener, admin::routes(context)).await,
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
        Ok(Control { metrics: metrics_at, admin: admin_at, stop: Some(stop), thread: Some(thread) })
    }

    /// Where health and metrics are.
    pub fn metrics_addr(&self) -> SocketAddr {
        self.metrics
    }

    /// Where the admin port is, if there is one.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin
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

fn bind(what: &str, at: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{what} port {at}: {e}"));
    let listener = TcpListener::bind(at).map_err(named)?;
    listener.set_nonblocking(true)?;
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}
