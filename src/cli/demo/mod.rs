//! `homing demo`: four simulated replicas behind Homing, the same four behind plain round robin, one workload for both.
//!
//! All of it is real HTTP on loopback; only the engines are models. Both sides get the same conversations at the same
//! times, so what differs is where the requests went.

mod summary;
mod view;

use super::serve::Running;
use super::{Failure, small_runtime};
use crate::config::{AccessTarget, Config, LogFormat, ReplicaSpec, Resume};
use crate::observe;
use crate::proxy::Phase;
use crate::sim::driver::{Driver, Snapshot, Stats};
use crate::sim::engine::Profile;
use crate::sim::http::{Mock, MockConfig};
use crate::sim::round_robin::RoundRobin;
use crate::sim::workload::Workload;
use std::io::IsTerminal;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use view::{Frame, View};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where Homing listens.
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDR")]
    listen: SocketAddr,
    /// Seed of the workload.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Leave everything up afterwards, for your own requests.
    #[arg(long)]
    serve: bool,
    /// Print the figures as one JSON object on the last line.
    #[arg(long)]
    json: bool,
}

/// Replicas on each side.
const REPLICAS: usize = 4;
/// What the simulated replicas call their model.
const MODEL: &str = "mock";
/// A demo that hasn't ended by then has failed: the slower side needs about 40 seconds.
const PATIENCE: Duration = Duration::from_secs(180);
/// Time between two pictures on a terminal.
const REDRAW: Duration = Duration::from_millis(500);

/// One side: its replicas, and the client that drives it.
struct Side {
    mocks: Vec<Mock>,
    driver: Driver,
    stats: Arc<Stats>,
}

impl Side {
    /// Requests in each replica.
    fn loads(&self) -> Vec<u32> {
        let busy = |m: &Mock| {
            let c = m.counters();
            c.running + c.waiting
        };
        self.mocks.iter().map(busy).collect()
    }

    /// Requests that each replica has had.
    fn had(&self) -> Vec<u64> {
        self.mocks.iter().map(|m| m.stats().requests).collect()
    }
}

async fn replicas() -> Result<Vec<Mock>, Failure> {
    let profile = Profile::named("demo").ok_or("the demo's engine profile is missing")?;
    let mut mocks = Vec::new();
    for _ in 0..REPLICAS {
        let config = MockConfig { models: vec![MODEL.into()], ..MockConfig::with_profile(profile.clone()) };
        mocks.push(Mock::start(config).await?);
    }
    Ok(mocks)
}

fn side(mocks: Vec<Mock>, url: &str) -> Result<Side, Failure> {
    let driver = Driver::new(url, MODEL)?;
    Ok(Side { stats: driver.stats(), mocks, driver })
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    observe::init_log("error", LogFormat::Text)?;
    small_runtime()?.block_on(async {
        tokio::select! {
            done = show(args) => done,
            _ = tokio::signal::ctrl_c() => {
                println!("\nstopped");
                Ok(ExitCode::SUCCESS)
            }
        }
    })
}

async fn show(args: &Args) -> Result<ExitCode, Failure> {
    let homing = replicas().await?;
    let plain = replicas().await?;
    let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let config = Config {
        listen: args.listen,
        metrics: free,
        admin: Some(free),
        replicas: homing.iter().map(|m| ReplicaSpec::new(m.url())).collect(),
        resume: Resume { enabled: true, ..Resume::default() },
        log: crate::config::Log { access: AccessTarget::Off, ..Default::default() },
        ..Config::default()
    };
    let mut running = Running::start(&config)?;
    let (listen, admin, router) =
        (running.listen.unwrap_or(args.listen), running.admin, running.router.clone());
    let phase = running.phase();
    let served = tokio::task::LocalSet::new();
    served.spawn_local(async move { running.serve().await });
    let shown = served.run_until(async {
        while router.replicas().iter().filter(|r| r.state == "ready" && r.models.is_some()).count() < REPLICAS
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let turn = RoundRobin::start(plain.iter().map(|m| m.addr().to_string()).collect()).await?;
        let sides = [side(homing, &format!("http://{listen}"))?, side(plain, &turn.url())?];
        let result = race(args, &sides).await?;
        print!("{}", summary::words(&result[0], &result[1]));
        if args.serve {
            leave_up(listen, admin, &turn.url()).await?;
        }
        if args.json {
            println!("{}", summary::json(&result[0], &result[1]));
        }
        let failed = result.iter().map(|s| s.failed).sum::<u64>();
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    });
    let done = shown.await;
    phase.send_replace(Phase::Closing);
    done
}

/// Sends the same conversations to both sides, and draws how they fare.
async fn race(args: &Args, sides: &[Side; 2]) -> Result<[Snapshot; 2], Failure> {
    let sessions = Workload::demo().sessions(args.seed);
    let mut view = View::new(std::io::stdout().is_terminal(), args.seed);
    let mut tick = tokio::time::interval(REDRAW);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let both = async { tokio::join!(sides[0].driver.run(sessions.clone()), sides[1].driver.run(sessions)) };
    let both = tokio::time::timeout(PATIENCE, both);
    tokio::pin!(both);
    let frame = || {
        let one = |s: &Side| Frame { now: s.stats.snapshot(), loads: s.loads(), had: s.had() };
        [one(&sides[0]), one(&sides[1])]
    };
    loop {
        tokio::select! {
            ended = &mut both => {
                view.draw(&frame(), true);
                let (homing, plain) = ended.map_err(|_| format!("not done after {} s", PATIENCE.as_secs()))?;
                return Ok([homing, plain]);
            }
            _ = tick.tick() => view.draw(&frame(), false),
        }
    }
}

async fn leave_up(listen: SocketAddr, admin: Option<SocketAddr>, plain: &str) -> Result<(), Failure> {
    println!(
        "\nStill up: Homing at http://{listen}, round robin at {plain}. Ctrl-C stops them. Try:\n\n  \
         curl -sN http://{listen}/v1/chat/completions -H 'content-type: application/json' -H 'x-homing-explain: 1' -i \\\n    \
         -d '{{\"model\": \"{MODEL}\", \"stream\": true, \"max_tokens\": 20, \"messages\": [{{\"role\": \"user\", \"content\": \"Hello\"}}]}}'"
    );
    if let Some(admin) = admin {
        println!("  curl -s http://{admin}/replicas");
    }
    tokio::signal::ctrl_c().await?;
    Ok(())
}
