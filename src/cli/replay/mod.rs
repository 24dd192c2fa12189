//! `homing replay`: traffic against a simulated fleet in virtual time, one cell for each policy, load and fleet.

mod args;
mod fleets;
mod output;
mod policies;
mod report;

pub(super) use args::Args;

use super::Failure;
use crate::sim::replay::cells::{Capacity, capacity, in_parallel};
use crate::sim::replay::{Measures, Setup, Workload, replay, workload};
use fleets::Fleet;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// One replay, or one search for the capacity.
#[derive(Clone, Debug, PartialEq)]
struct Cell {
    /// Which of the traces.
    trace: usize,
    policy: String,
    /// Which of the fleets.
    fleet: usize,
    routers: usize,
    /// `None`: look for the capacity.
    speedup: Option<f64>,
}

/// What came of a cell.
enum Found {
    Measures(Box<Measures>),
    Capacity(Capacity),
}

/// All that cells have in common.
struct Bench<'a> {
    args: &'a Args,
    setup: Setup,
    fleets: Vec<Fleet>,
    workloads: Vec<Workload>,
    progress: AtomicU64,
}

impl<'a> Bench<'a> {
    fn new(args: &'a Args) -> Result<Self, Failure> {
        let fleets = args.fleets()?;
        let setup = args.setup(&fleets)?;
        Ok(Bench { workloads: args.workloads()?, setup, fleets, args, progress: AtomicU64::new(0) })
    }

    fn cells(&self, policies: &[String]) -> Vec<Cell> {
        let mut cells = Vec::new();
        let loads: Vec<Option<f64>> =
            self.args.speedup.iter().copied().map(Some).chain(self.args.capacity.then_some(None)).collect();
        for trace in 0..self.workloads.len() {
            for fleet in 0..self.fleets.len() {
                for &routers in &self.args.routers {
                    for &speedup in &loads {
                        cells.extend(policies.iter().map(|policy| Cell {
                            trace,
                            policy: policy.clone(),
                            fleet,
                            routers,
                            speedup,
                        }));
                    }
                }
            }
        }
        cells
    }

    fn measures(&self, cell: &Cell, speedup: f64) -> Measures {
        let workload = &self.workloads[cell.trace];
        let fleet = &self.fleets[cell.fleet];
        let setup = Setup {
            profile: fleet.profile.clone(),
            replicas: fleet.replicas,
            routers: cell.routers,
            sessions: self.args.sessions(fleet.replicas),
            speedup,
            ..self.setup.clone()
        };
        let policies = policies::make(&cell.policy, &setup, workload, self.args.prior_scale);
        replay(workload, &setup, policies, &self.progress)
    }

    fn run(&self, cell: &Cell) -> Found {
        match cell.speedup {
            Some(speedup) => Found::Measures(Box::new(self.measures(cell, speedup))),
            None => {
                // With all sessions open at once, more load changes nothing.
                let most = match &self.workloads[cell.trace].plan {
                    workload::Plan::Closed(sessions) => {
                        Some(sessions.len() as f64 / self.args.sessions(self.fleets[cell.fleet].replicas))
                    }
                    workload::Plan::Open(_) => None,
                };
                Found::Capacity(capacity(|load| self.measures(cell, load).in_slo, self.args.goal, most))
            }
        }
    }

    /// Requests that the cells will replay, as far as it is known before.
    fn requests(&self, cells: &[Cell]) -> Option<u64> {
        if self.args.capacity {
            return None;
        }
        Some(cells.iter().map(|c| self.workloads[c.trace].requests() as u64).sum())
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let policies = policies::chosen(&args.policy)?;
    let bench = Bench::new(args)?;
    let cells = bench.cells(&policies);
    let threads = match args.threads {
        Some(n) => n.max(1),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let (begun, shown) = (Instant::now(), std::io::stderr().is_terminal());
    let all = bench.requests(&cells);
    let found = in_parallel(
        &cells,
        threads,
        |cell| bench.run(cell),
        || {
            if shown {
                let done = bench.progress.load(Ordering::Relaxed);
                let share = all.map_or(String::new(), |n| format!(" {}%,", done * 100 / n.max(1)));
                eprint!("\rreplay:{share} {done} requests, {:.0} s ", begun.elapsed().as_secs_f64());
            }
        },
    );
    if shown {
        eprint!("\r\x1b[K");
    }
    let done = bench.progress.load(Ordering::Relaxed);
    let seconds = begun.elapsed().as_secs_f64();
    eprintln!("replayed {done} requests in {} cells, {seconds:.1} s on {threads} threads", cells.len());
    let results: Vec<(&Cell, Found)> = cells.iter().zip(found).collect();
    let mut out = std::io::stdout().lock();
    let text = if args.json { output::json(&bench, &results) } else { output::table(&bench, &results) };
    out.write_all(text.as_bytes())?;
    if let Some(path) = &args.report {
        let page = report::page(&bench, &results, &command());
        std::fs::write(path, page).map_err(|e| format!("{}: {e}", path.display()))?;
        eprintln!("wrote {}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// The command line that was run, quoted for a shell.
fn command() -> String {
    let quoted = |word: String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,%+@".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    };
    let words = std::env::args_os().skip(1).map(|w| quoted(w.to_string_lossy().into_owned()));
    std::iter::once("homing".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}
