//! `homing serve`: the router for real.

use super::options::ServeArgs;
use super::{Failure, descriptors, small_runtime};
use crate::config::Config;
use crate::control::{Context, Control};
use crate::core::prefix::TEXT_BLOCK;
use crate::discovery::{self, Discovery};
use crate::observe::{self, AccessLog, BlockKey, Loud, Metrics};
use crate::openai::{Problem, Shape};
use crate::proxy::{Phase, PromptReader, Proxy, Settings, tokenized};
use crate::router::{Ask, Router, Tokens, TokensError};
use crate::watch::Watch;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
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

/// A router that serves: the doors, the eyes and the ports beside the traffic, all on threads of their own.
pub struct Running {
    /// Where clients come in.
    pub listen: SocketAddr,
    /// Where health and metrics are.
    pub metrics: SocketAddr,
    /// Where the admin port is.
    pub admin: Option<SocketAddr>,
    /// The router itself.
    pub router: Arc<Router>,
    phase: watch::Sender<Phase>,
    proxy: Option<Proxy>,
    _parts: (Discovery, Watch, Control),
}

impl Running {
    /// Binds the ports and starts everything but the door itself: [`Running::serve`] opens that.
    ///
    /// # Errors
    /// A port is taken, a file can't be read or written, or a thread can't be started. The message says which.
    pub fn start(config: &Config) -> Result<Running, ServeError> {
        let named = |what: String| move |source| ServeError::Start { what, source };
        let router = Router::new(config, random_seed());
        if let Some(tokens) = Tokens::load(config)? {
            router.use_tokens(tokens);
        }
        let metrics = Arc::new(Metrics::new());
        let loud = Loud::new(metrics.clone());
        let access = AccessLog::open(&config.log.access, metrics.log_dropped.clone())
            .map_err(named("the access log".into()))?;
        let (phase, seen) = watch::channel(Phase::Running);
        let mut settings = Settings::new(config);
        settings.connections = descriptors::clients(settings.connections);
        if let Some(file) = config.log.block_key_file.as_ref().filter(|_| config.log.blocks) {
            settings.block_key =
                Some(block_key(file).map_err(named(format!("log.block_key_file {}", file.display())))?);
        }
        let proxy = Proxy::bind(config.listen, settings, router.clone(), metrics.clone(), access)
            .map_err(named(format!("data port {}", config.listen)))?;
        let listen = proxy.local_addr().map_err(named("data port".into()))?;
        let reader = router.clone();
        let control = Control::start(Context {
            config: Arc::new(config.clone()),
            router: router.clone(),
            metrics: metrics.clone(),
            loud: loud.clone(),
            draining: Arc::new(move || *seen.borrow() != Phase::Running),
            read_prompt: Arc::new(move |path: &str, body: &[u8]| read_prompt(&reader, path, body)),
        })
        .map_err(named("control".into()))?;
        let watch =
            Watch::start(config, router.clone(), metrics, loud.clone()).map_err(named("watch".into()))?;
        let found = Discovery::start(config, router.clone(), &loud, discovery::EVERY)
            .map_err(named("discovery".into()))?;
        Ok(Running {
            listen,
            metrics: control.metrics_addr(),
            admin: control.admin_addr(),
            router,
            phase,
            proxy: Some(proxy),
            _parts: (found, watch, control),
        })
    }

    /// Serves until [`Phase::Closing`] is reached and what was in flight has ended.
    ///
    /// # Errors
    /// A worker's thread can't be started.
    pub async fn serve(&mut self) -> io::Result<()> {
        match self.proxy.take() {
            Some(proxy) => proxy.run(self.phase.subscribe()).await,
            None => Ok(()),
        }
    }

    /// The way out: who holds it can drain and close.
    pub fn phase(&self) -> watch::Sender<Phase> {
        self.phase.clone()
    }
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

pub(super) fn run(args: &ServeArgs) -> Result<ExitCode, Failure> {
    let (config, warnings) = args.load()?;
    observe::init_log(&config.log.level, config.log.format)?;
    for problem in &warnings.problems {
        tracing::warn!("{problem}");
    }
    small_runtime()?.block_on(async {
        let mut running = Running::start(&config)?;
        tracing::info!(
            listen = %running.listen, metrics = %running.metrics, admin = ?running.admin,
            replicas = config.replicas.len(), "serving"
        );
        let phase = running.phase();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let delay = config.drain.delay.get();
        let ending = async {
            let delay = tokio::select! {
                _ = terminate.recv() => delay,
                // A person at a terminal doesn't wait for load balancers to notice.
                _ = interrupt.recv() => Duration::ZERO,
            };
            tracing::info!("draining: readiness fails from now on");
            phase.send_replace(Phase::Draining);
            // Whoever asks again means it, also while the delay lasts.
            let again = async {
                tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            };
            let close = async {
                tokio::time::sleep(delay).await;
                phase.send_replace(Phase::Closing);
                std::future::pending::<()>().await;
            };
            tokio::select! { () = again => {}, () = close => {} }
        };
        tokio::select! {
            served = running.serve() => {
                served?;
                tracing::info!("stopped");
                Ok(ExitCode::SUCCESS)
            }
            () = ending => {
                tracing::warn!("told to stop a second time: cutting what is in flight");
                Ok(ExitCode::FAILURE)
            }
        }
    })
}
