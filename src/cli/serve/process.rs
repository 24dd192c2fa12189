//! The process: how it begins, what signals do, and how it ends.
//!
//! | signal | what it does |
//! |---|---|
//! | SIGTERM | drain: readiness fails, requests are served for `drain.delay`, then what is in flight for `drain.grace` |
//! | SIGINT | the same without the delay |
//! | SIGHUP | read the configuration anew |
//! | SIGUSR2 | start the successor and let it take over |

use super::handover::{Estate, Predecessor, Program, pass_on};
use super::reload::Reloader;
use super::watched::Watched;
use super::{Origin, Running, serve_both, snapshots, systemd};
use crate::cli::options::ServeArgs;
use crate::cli::{Failure, small_runtime};
use crate::control::Reload;
use crate::door::Inherited;
use crate::observe;
use crate::proxy::Phase;
use crate::router::Router;
use std::future::pending;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// Time between two looks at the configuration file.
const LOOK: Duration = Duration::from_secs(1);
/// How long a successor waits for a replica to be seen healthy before it takes over nevertheless.
const SETTLE: Duration = Duration::from_secs(10);

/// How the process ends.
enum End {
    /// Everything that was in flight has ended, or its grace has.
    Served,
    /// Somebody asked twice.
    Cut,
}

pub(in crate::cli) fn run(args: &ServeArgs) -> Result<ExitCode, Failure> {
    let program = Program::this()?;
    let (config, warnings) = args.load()?;
    let log = observe::init_log(&config.log.level, config.log.format)?;
    for problem in &warnings.problems {
        tracing::warn!("{problem}");
    }
    let mut predecessor = Predecessor::find(config.index.max_blocks)?;
    let inherited = Inherited::from_env()?;
    let known = match &mut predecessor {
        // What it knew may be of another block size: then the router says so, and starts cold.
        Some(p) => std::mem::replace(&mut p.snapshot, Err(String::new())).map(Some),
        None => snapshots::read(&config),
    };
    let (snapshot, unusable) = match known {
        Ok(snapshot) => (snapshot, None),
        Err(why) => (None, Some(why)),
    };
    let reread = args.clone();
    let origin = Origin {
        inherited,
        snapshot,
        shut: predecessor.is_some(),
        source: Some(Arc::new(move || reread.load())),
        log: Some(log),
    };
    small_runtime()?.block_on(async {
        let mut running = Running::start_from(&config, origin)?;
        if let Some(why) = unusable {
            running.registry.snapshot("refused");
            tracing::error!("{why}; the router starts without knowing what the caches hold");
        }
        if predecessor.is_some() {
            settle(&running.router).await;
        }
        running.open();
        tracing::info!(
            listen = running.listen.map(display), extproc = running.extproc.map(|(at, _)| display(at)),
            health = running.extproc.and_then(|(_, at)| at).map(display), metrics = %running.metrics, admin = ?running.admin,
            replicas = running.router.endpoints().len(), successor = predecessor.is_some(), "serving"
        );
        let end = serve(&mut running, &program, args, predecessor).await?;
        Ok(match end {
            End::Served => {
                tracing::info!("stopped");
                ExitCode::SUCCESS
            }
            End::Cut => {
                tracing::warn!("told to stop a second time: cutting what is in flight");
                ExitCode::FAILURE
            }
        })
    })
}

/// Waits until some replica is known to be healthy, so that nothing waits that the predecessor could have served.
async fn settle(router: &Router) {
    let ready = async {
        while !router.ready() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let _ = timeout(SETTLE, ready).await;
}

async fn serve(
    running: &mut Running,
    program: &Program,
    args: &ServeArgs,
    predecessor: Option<Predecessor>,
) -> Result<End, Failure> {
    let phase = running.phase();
    let (terminate, interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (hangup, upgrade) = (signal(SignalKind::hangup())?, signal(SignalKind::user_defined2())?);
    // The successor writes the file from then on.
    let given = Arc::new(AtomicBool::new(false));
    let (router, registry, config) =
        (running.router.clone(), running.registry.clone(), running.config.clone());
    if let Some(p) = predecessor {
        p.ready();
    }
    systemd::ready();
    let served = serve_both(running.proxy.take(), running.picker.take(), &phase);
    let end = tokio::select! {
        served = served => served.map(|()| End::Served)?,
        () = leave(terminate, interrupt, &phase, running) => End::Cut,
        () = upgrades(upgrade, running, program, &phase, &given) => End::Cut,
        () = reloads(hangup, running.reloader.clone(), args) => End::Cut,
        () = keep(running, &given) => End::Cut,
    };
    let path = config.load().snapshot.path.clone();
    if let Some(path) = path.filter(|_| !given.load(Relaxed)) {
        spawn_blocking(move || snapshots::write_loudly(&router, &path, &registry)).await?;
    }
    Ok(end)
}

/// The way out on request; ends only when asked a second time.
async fn leave(
    mut terminate: Signal,
    mut interrupt: Signal,
    phase: &watch::Sender<Phase>,
    running: &Running,
) {
    let patient = tokio::select! {
        _ = terminate.recv() => true,
        // A person at a terminal doesn't wait for load balancers to notice.
        _ = interrupt.recv() => false,
    };
    tracing::info!("draining: readiness fails from now on");
    systemd::notify("STOPPING=1\nSTATUS=Draining");
    let delay = if patient { running.config.load().drain.delay.get() } else { Duration::ZERO };
    let again = async {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    };
    // Whoever asks again means it, also while the delay lasts.
    tokio::select! { () = again => {}, () = close(phase, delay) => {} }
}

/// Asks clients to leave, and after `delay` closes. Never ends by itself.
async fn close(phase: &watch::Sender<Phase>, delay: Duration) {
    advance(phase, Phase::Draining);
    sleep(delay).await;
    advance(phase, Phase::Closing);
    pending::<()>().await;
}

/// Forwards only: who is closing doesn't drain any more.
fn advance(phase: &watch::Sender<Phase>, to: Phase) {
    phase.send_if_modified(|now| std::mem::replace(now, to.max(*now)) < to);
}

/// Successors on request, until one serves.
async fn upgrades(
    mut asked: Signal,
    running: &Running,
    program: &Program,
    phase: &watch::Sender<Phase>,
    given: &AtomicBool,
) {
    loop {
        asked.recv().await;
        if *phase.borrow() != Phase::Running {
            tracing::warn!("asked for a successor on the way out: there will be none");
            continue;
        }
        tracing::info!("starting the successor");
        if let Some(reloader) = running.reloader.clone() {
            // Listeners move first, so that the successor finds its addresses. A file that only a newer program
            // understands is refused here, and may be right for it.
            let _ = spawn_blocking(move || reloader.reload("signal")).await;
        }
        given.store(true, Relaxed);
        let program = program.clone();
        let passed = match Estate::of(running) {
            Ok(estate) => spawn_blocking(move || pass_on(&program, estate)).await.map_err(|e| e.to_string()),
            Err(e) => Err(e.to_string()),
        };
        match passed.and_then(|p| p) {
            Ok(pid) => {
                tracing::info!(pid, "the successor serves: this process takes nothing new");
                running.all_doors().for_each(|(_, door)| door.hand_over());
                close(phase, running.config.load().drain.delay.get()).await;
            }
            Err(why) => {
                given.store(false, Relaxed);
                tracing::error!("no successor, this process goes on: {why}");
            }
        }
    }
}

/// New configurations on request, and when the file changes.
async fn reloads(mut asked: Signal, reloader: Option<Arc<Reloader>>, args: &ServeArgs) {
    let Some(reloader) = reloader else { return pending().await };
    let mut watched = args.config.clone().map(|path| Watched::new(path, &reloader.current()));
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let by = tokio::select! {
            _ = asked.recv() => "signal",
            _ = looks.tick(), if watched.is_some() => "file",
        };
        let reloader = reloader.clone();
        let (mut files, told) = (watched.take(), by == "signal");
        // Files may lie on a network that hangs.
        let done = spawn_blocking(move || {
            let news = files.as_mut().is_some_and(|f| f.look(&reloader.current()));
            if told || news {
                systemd::notify("RELOADING=1");
                reloader.reload(by);
                systemd::notify("READY=1");
            }
            files
        });
        watched = done.await.unwrap_or_default();
    }
}

/// Writes the snapshot at intervals.
async fn keep(running: &Running, given: &AtomicBool) {
    loop {
        let snapshot = running.config.load().snapshot.clone();
        sleep(snapshot.every.get()).await;
        let Some(path) = snapshot.path.filter(|_| !given.load(Relaxed)) else { continue };
        let (router, metrics) = (running.router.clone(), running.registry.clone());
        // A panic in it was reported when it happened.
        let _ = spawn_blocking(move || snapshots::write_loudly(&router, &path, &metrics)).await;
    }
}
