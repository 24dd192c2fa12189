//! `homing serve`: the router for real.
//!
//! - [`Running`]: the parts, put together
//! - `process`: the command: signals, the way in and the way out
//! - `reload`: a new configuration while it runs; `watched`: files that tell of one
//! - `snapshots`: what is known, kept in a file
//! - `handover`: the sockets and what is known, given to the process that comes after; `systemd`: telling the manager

mod handover;
mod process;
mod reload;
mod snapshots;
mod systemd;
mod watched;

pub(super) use process::run;

use super::descriptors;
use crate::config::{Config, ConfigError, Report};
use crate::control::{Context, Control, Doors, Reload, ReloadReport, admin_may_be_at};
use crate::core::prefix::TEXT_BLOCK;
use crate::discovery::{self, Discovery};
use crate::door::{self, Door, Inherited};
use crate::extproc::{ExtProc, PickerDoors};
use crate::observe::{AccessLog, BlockKey, LogHandle, Loud, Metrics};
use crate::openai::{Problem, Shape};
use crate::proxy::{Phase, PromptReader, Proxy, Settings, tokenized};
use crate::router::{Ask, Router, Snapshot, Tokens, TokensError};
use crate::watch::Watch;
use arc_swap::ArcSwap;
use reload::{Parts, Reloader};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use tokio::sync::watch;

/// Why a router couldn't start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A model's tokenizer.
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// A port, a file or a thread.
    #[error("{what}: {source}")]
    Start {
        /// Which part.
        what: String,
        /// The system's word.
        source: io::Error,
    },
}

/// Reads the configuration anew, as at the start.
pub type Source = dyn Fn() -> Result<(Config, Report), ConfigError> + Send + Sync;

/// What a router starts from besides its configuration.
#[derive(Default)]
pub struct Origin {
    /// Sockets that came with the start of the process; the others are bound.
    pub inherited: Inherited,
    /// What an earlier router knew.
    pub snapshot: Option<Snapshot>,
    /// Bound, but shut: nobody is let in before [`Running::open`].
    pub shut: bool,
    /// Where the configuration is read anew from; without it there is nothing to reload.
    pub source: Option<Arc<Source>>,
    /// The log whose level follows the configuration.
    pub log: Option<LogHandle>,
}

/// A router that serves: the doors, the eyes and the ports beside the traffic, all on threads of their own.
pub struct Running {
    /// Where clients come in, if there is a proxy.
    pub listen: Option<SocketAddr>,
    /// Where Envoy comes in, and where the picker's health service is, if there is an endpoint picker.
    pub extproc: Option<(SocketAddr, Option<SocketAddr>)>,
    /// Where health and metrics are.
    pub metrics: SocketAddr,
    /// Where the admin port is.
    pub admin: Option<SocketAddr>,
    /// The router itself.
    pub router: Arc<Router>,
    registry: Arc<Metrics>,
    config: Arc<ArcSwap<Config>>,
    phase: watch::Sender<Phase>,
    proxy: Option<Proxy>,
    picker: Option<ExtProc>,
    data: Option<Door>,
    picker_doors: Option<PickerDoors>,
    doors: Doors,
    reloader: Option<Arc<Reloader>>,
    _parts: (Arc<Discovery>, Arc<Watch>, Control),
}

impl Running {
    /// Binds the ports and starts everything but the door itself: [`Running::serve`] opens that.
    ///
    /// # Errors
    /// A port is taken, a file can't be read or written, or a thread can't be started. The message says which.
    pub fn start(config: &Config) -> Result<Running, ServeError> {
        Self::start_from(config, Origin::default())
    }

    /// The same, with what is there already.
    ///
    /// # Errors
    /// As [`Running::start`].
    pub fn start_from(config: &Config, mut origin: Origin) -> Result<Running, ServeError> {
        let seed = origin.snapshot.as_ref().map_or_else(random_seed, Snapshot::seed);
        let router = Router::new(config, seed);
        if let Some(tokens) = Tokens::load(config)? {
            router.use_tokens(tokens);
        }
        let metrics = Arc::new(Metrics::new());
        let loud = Loud::new(metrics.clone());
        if let Some(snapshot) = origin.snapshot.take() {
            snapshots::believe(&router, snapshot, &metrics, &loud);
        }
        let access = AccessLog::open(&config.log.access, metrics.log_dropped.clone())
            .map_err(named("the access log"))?;
        let settings = settings(config)?;
        let picker_doors = picker_doors(config, &mut origin)?;
        let data = if picker_doors.is_some() && config.extproc.alone {
            None
        } else {
            let listener = socket("data", config.listen, &mut origin.inherited)?;
            Some(Door::new(listener, !origin.shut).map_err(named("data port"))?)
        };
        let doors = control_doors(config, &mut origin)?;
        let picker = match picker_doors.clone() {
            Some(doors) => Some(
                ExtProc::behind(doors, config, router.clone(), metrics.clone(), access.clone())
                    .map_err(named("endpoint picker"))?,
            ),
            None => None,
        };
        let extproc = match &picker {
            Some(p) => Some((p.local_addr().map_err(named("endpoint picker"))?, p.health_addr())),
            None => None,
        };
        let behind = |data| Proxy::behind(data, settings, router.clone(), metrics.clone(), access);
        let proxy = data.clone().map(behind);
        let watch =
            Watch::start(config, router.clone(), metrics.clone(), loud.clone()).map_err(named("watch"))?;
        let found =
            Discovery::start(config, router.clone(), &loud, discovery::EVERY).map_err(named("discovery"))?;
        let (watch, found) = (Arc::new(watch), Arc::new(found));
        let (phase, seen) = watch::channel(Phase::Running);
        let current = Arc::new(ArcSwap::from_pointee(config.clone()));
        let reloader = origin.source.take().map(|source| {
            Arc::new(Reloader::new(
                source,
                current.clone(),
                Parts {
                    router: router.clone(),
                    live: proxy.as_ref().map(Proxy::live),
                    data: data.clone(),
                    doors: doors.clone(),
                    watch: watch.clone(),
                    found: found.clone(),
                    metrics: metrics.clone(),
                    log: origin.log.take(),
                    refused: loud.flag("config_refused", ""),
                },
            ))
        });
        let reader = router.clone();
        let context = Context {
            config: current.clone(),
            router: router.clone(),
            metrics: metrics.clone(),
            loud,
            draining: Arc::new(move || *seen.borrow() != Phase::Running),
            read_prompt: Arc::new(move |path: &str, body: &[u8]| read_prompt(&reader, path, body)),
            reload: reloader.clone().map(|r| r as Arc<dyn Reload>),
        };
        let control = Control::on(context, doors.clone()).map_err(named("control"))?;
        Ok(Running {
            listen: data.as_ref().map(Door::local_addr).transpose().map_err(named("data port"))?,
            extproc,
            metrics: control.metrics_addr(),
            admin: control.admin_addr(),
            router,
            registry: metrics,
            config: current,
            phase,
            proxy,
            picker,
            data,
            picker_doors,
            doors,
            reloader,
            _parts: (found, watch, control),
        })
    }

    /// Lets in who comes, at all ports; needed only after a start that was to stay shut.
    pub fn open(&self) {
        self.all_doors().for_each(|(_, door)| door.open());
    }

    /// Every door with its name.
    fn all_doors(&self) -> impl Iterator<Item = (&'static str, &Door)> {
        let picker = self.picker_doors.as_ref();
        self.data
            .iter()
            .map(|d| ("data", d))
            .chain([("metrics", &self.doors.metrics)])
            .chain(self.doors.admin.as_ref().map(|d| ("admin", d)))
            .chain(picker.map(|p| ("extproc", &p.grpc)))
            .chain(picker.and_then(|p| p.health.as_ref()).map(|d| ("extproc-health", d)))
    }

    /// Serves until [`Phase::Closing`] is reached and what was in flight has ended.
    ///
    /// # Errors
    /// A worker's thread can't be started.
    pub async fn serve(&mut self) -> io::Result<()> {
        let (proxy, picker) = (self.proxy.take(), self.picker.take());
        serve_both(proxy, picker, &self.phase).await
    }

    /// Reads the configuration anew, if it came from somewhere.
    pub fn reload(&self) -> Option<ReloadReport> {
        self.reloader.as_ref().map(|r| r.reload("signal"))
    }

    /// The way out: who holds it can drain and close.
    pub fn phase(&self) -> watch::Sender<Phase> {
        self.phase.clone()
    }
}

/// Serves at both doors until the phase says that it is over.
async fn serve_both(
    proxy: Option<Proxy>,
    picker: Option<ExtProc>,
    phase: &watch::Sender<Phase>,
) -> io::Result<()> {
    let proxy = async {
        match proxy {
            Some(proxy) => proxy.run(phase.subscribe()).await,
            None => Ok(()),
        }
    };
    let picker = async {
        match picker {
            Some(picker) => picker.run(phase.subscribe()).await,
            None => Ok(()),
        }
    };
    tokio::try_join!(proxy, picker).map(|((), ())| ())
}

/// The endpoint picker's doors, if there is one.
fn picker_doors(config: &Config, origin: &mut Origin) -> Result<Option<PickerDoors>, ServeError> {
    let Some(at) = config.extproc.listen else { return Ok(None) };
    let open = !origin.shut;
    let mut door = |name: &'static str, at| {
        let socket = socket(name, at, &mut origin.inherited)?;
        Door::new(socket, open).map_err(named(name))
    };
    let grpc = door("extproc", at)?;
    let health = config.extproc.health.map(|at| door("extproc-health", at)).transpose()?;
    Ok(Some(PickerDoors { grpc, health }))
}

/// The proxy's settings, as this machine and the files that they name make them.
fn settings(config: &Config) -> Result<Settings, ServeError> {
    let mut settings = Settings::new(config);
    settings.connections = descriptors::clients(settings.connections);
    if let Some(file) = config.log.block_key_file.as_ref().filter(|_| config.log.blocks) {
        settings.block_key =
            Some(block_key(file).map_err(named(format!("log.block_key_file {}", file.display())))?);
    }
    Ok(settings)
}

fn control_doors(config: &Config, origin: &mut Origin) -> Result<Doors, ServeError> {
    let open = !origin.shut;
    let metrics = socket("metrics", config.metrics, &mut origin.inherited)?;
    let admin = match config.admin {
        Some(at) => {
            admin_may_be_at(config, at).map_err(named("control"))?;
            Some(Door::new(socket("admin", at, &mut origin.inherited)?, open).map_err(named("admin port"))?)
        }
        None => None,
    };
    for name in origin.inherited.left() {
        tracing::warn!(
            name,
            "a socket came with the start that nothing here uses; names are data, metrics, admin, extproc, extproc-health"
        );
    }
    Ok(Doors { metrics: Door::new(metrics, open).map_err(named("metrics port"))?, admin })
}

/// The socket that came with the start, or a new one.
fn socket(name: &str, at: SocketAddr, inherited: &mut Inherited) -> Result<TcpListener, ServeError> {
    let Some(listener) = inherited.take(name) else {
        return door::bind(at).map_err(named(format!("{name} port {at}")));
    };
    match listener.local_addr() {
        Ok(there) if there != at && at.port() != 0 => {
            tracing::warn!(name, %there, configured = %at, "the socket that came with the start is used where it is");
        }
        _ => {}
    }
    Ok(listener)
}

fn named(what: impl Into<String>) -> impl FnOnce(io::Error) -> ServeError {
    let what = what.into();
    move |source| ServeError::Start { what, source }
}

/// Reads a body as the proxy would.
fn read_prompt(router: &Router, path: &str, body: &[u8]) -> Result<Ask, Problem> {
    let Some(shape) = Shape::of_path(path) else {
        return Err(Problem::bad_request(format!(
            "{path} carries no prompt: it would be placed by load alone"
        )));
    };
    let prompt = PromptReader::new(router).read(shape, body).map_err(|e| Problem::bad_json(&e))?;
    let mut ask = prompt.ask;
    if let Some(kind) = tokenized(shape) {
        let exact = router.tokens_now(kind, ask.model.as_deref(), prompt.salt.as_deref(), body);
        ask.tokens = exact.and_then(Result::ok);
    }
    Ok(ask)
}

/// The key of the block identities. White space around it doesn't count: editors add line ends.
fn block_key(file: &Path) -> io::Result<BlockKey> {
    let bytes = std::fs::read(file)?;
    match bytes.trim_ascii() {
        [] => Err(io::Error::new(io::ErrorKind::InvalidData, "the file is empty")),
        key => Ok(BlockKey::from_bytes(key)),
    }
}

/// A number that nobody outside can guess, to key the block hashes with.
fn random_seed() -> u64 {
    RandomState::new().hash_one(TEXT_BLOCK)
}
