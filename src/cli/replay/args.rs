//! What the command line of `homing replay` says, made into setups.

use super::fleets::{self, Fleet};
use crate::cli::Failure;
use crate::config::Seconds;
use crate::sim::replay::setup::SESSIONS_PER_REPLICA;
use crate::sim::replay::{Restart, Setup, Slo, Trouble, Workload, generate, read};
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Trace files (Mooncake, session trace, or Homing's access log with `log.blocks`; JSON lines), or made-up
    /// workloads by name: ladder, chat, agents, rag, single, bursts.
    #[arg(required = true, value_name = "TRACE")]
    pub(super) traces: Vec<String>,
    /// Replicas; several numbers are compared.
    #[arg(long, default_value = "8", value_delimiter = ',', value_name = "N")]
    pub(super) replicas: Vec<usize>,
    /// Engine: dense-32b, dense-32b-small, moe, plain-8k, demo, instant, or a JSON file
    /// (`{"base": "dense-32b", "kv_tokens": 307328}`; any of t0, a, q, d, e, max_batched_tokens, kv_tokens, max_batch).
    #[arg(long, default_value = "dense-32b", value_name = "NAME|FILE")]
    pub(super) engine: String,
    /// Tokens that an engine's cache holds [default: the engine's].
    #[arg(long, value_name = "TOKENS")]
    kv_tokens: Option<u64>,
    /// Another fleet beside the first one, by what differs: replicas=6, engine=moe, kv=2 (times the cache), speed=0.5
    /// (times the speed), several joined by commas. Repeat it for more fleets.
    #[arg(long, value_name = "WHAT=VALUE")]
    what_if: Vec<String>,
    /// Policies to compare, or `all`.
    #[arg(long, default_value = "homing", value_delimiter = ',', value_name = "NAME")]
    pub(super) policy: Vec<String>,
    /// Load: arrivals come so many times as fast; of session traces so many times as many sessions are open at once.
    #[arg(long, default_value = "1", value_delimiter = ',', value_name = "X")]
    pub(super) speedup: Vec<f64>,
    /// Objectives of a request.
    #[arg(long, default_value = "ttft=5s,tpot=100ms", value_parser = slo, value_name = "SLO")]
    pub(super) slo: Slo,
    /// Look for the highest load at which `--goal` of the requests are inside the objectives.
    #[arg(long)]
    pub(super) capacity: bool,
    /// Share of requests inside the objectives that `--capacity` asks for.
    #[arg(long, default_value_t = 0.9, value_name = "SHARE")]
    pub(super) goal: f64,
    /// Print a JSON object for each cell, one a line.
    #[arg(long)]
    pub(super) json: bool,
    /// Write a page with plots.
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
    /// Seed of made-up workloads and of all chance.
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Threads [default: as many as cores].
    #[arg(long, value_name = "N")]
    pub(super) threads: Option<usize>,
    /// Copies of each trace side by side, with block ids of their own.
    #[arg(long, default_value_t = 1, value_name = "N")]
    copies: usize,
    /// Session traces: sessions open at once at speed-up 1 [default: 20 a replica].
    #[arg(long, value_name = "N")]
    sessions: Option<f64>,
    /// Session traces: the first sessions begin evenly over this time.
    #[arg(long, default_value = "60s", value_name = "TIME")]
    ramp: Seconds,
    /// Time between two looks at the engines' metrics pages; 0 = before each placement [default: as each policy's project does].
    #[arg(long, value_name = "TIME")]
    poll: Option<Seconds>,
    /// Routers without shared state; several numbers are compared.
    #[arg(long, default_value = "1", value_delimiter = ',', value_name = "N")]
    pub(super) routers: Vec<usize>,
    /// Time until routers with exact knowledge of caches hear of stored blocks.
    #[arg(long, default_value = "0", value_name = "TIME")]
    event_delay: Seconds,
    /// Share of these events that is lost.
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    event_loss: f64,
    /// Slower replicas, as number:factor; `0:2` takes twice as long a step.
    #[arg(long, value_delimiter = ',', value_parser = slow, value_name = "I:FACTOR")]
    slow: Vec<(usize, f64)>,
    /// The policies' prior speeds, times this.
    #[arg(long, default_value_t = 1.0, value_name = "X")]
    pub(super) prior_scale: f64,
    /// The cache capacity that policies are told, times this.
    #[arg(long, default_value_t = 1.0, value_name = "X")]
    wrong_capacity: f64,
    /// Replicas that restart with an empty cache, as time:number[:time until it is back]; `600s:3:30s`.
    #[arg(long, value_delimiter = ',', value_parser = restart, value_name = "T:I")]
    restart: Vec<Restart>,
}

impl Args {
    /// The conditions of all cells; fleet, routers and load are filled in for each.
    ///
    /// # Errors
    /// When a value is out of range.
    pub(super) fn setup(&self, fleets: &[Fleet]) -> Result<Setup, Failure> {
        let first = fleets.first().ok_or("no fleet to replay on")?;
        let positive =
            |values: &[f64], what: &str| match values.iter().find(|v| !(v.is_finite() && **v > 0.0)) {
                Some(v) => Err(format!("{what} {v} isn't a positive number")),
                None => Ok(()),
            };
        positive(&self.speedup, "--speedup")?;
        positive(&[self.prior_scale], "--prior-scale")?;
        positive(&[self.wrong_capacity], "--wrong-capacity")?;
        positive(self.sessions.as_slice(), "--sessions")?;
        positive(&self.slow.iter().map(|s| s.1).collect::<Vec<_>>(), "--slow: factor")?;
        if !(0.0..=1.0).contains(&self.event_loss) || !(0.0..=1.0).contains(&self.goal) {
            return Err("--event-loss and --goal are shares, from 0 to 1".into());
        }
        let replicas: Vec<usize> = fleets.iter().map(|f| f.replicas).collect();
        let numbers = [replicas.as_slice(), &self.routers, &[self.copies]].concat();
        if numbers.iter().any(|n| !(1..=4096).contains(n)) {
            return Err("--replicas, --routers and --copies go from 1 to 4096".into());
        }
        let least = fleets.iter().map(|f| f.replicas).min().unwrap_or(1);
        let named = self.slow.iter().map(|s| s.0).chain(self.restart.iter().map(|r| r.replica));
        if let Some(i) = named.max().filter(|i| *i >= least) {
            return Err(format!("there is no replica {i}: they are numbered from 0 to {}", least - 1).into());
        }
        if !self.restart.is_empty() && least < 2 {
            return Err("--restart needs at least two replicas".into());
        }
        Ok(Setup {
            slo: self.slo,
            ramp: self.ramp.secs(),
            poll: self.poll.map(Seconds::secs),
            seed: self.seed,
            trouble: Trouble {
                event_delay: self.event_delay.secs(),
                event_loss: self.event_loss,
                slow: self.slow.clone(),
                capacity: self.wrong_capacity,
                restarts: self.restart.clone(),
            },
            ..Setup::new(first.profile.clone(), first.replicas)
        })
    }

    /// The fleets to compare: one for each number of replicas, then the what-ifs, which start from the first.
    ///
    /// # Errors
    /// When an engine isn't known or a what-if makes no sense.
    pub(super) fn fleets(&self) -> Result<Vec<Fleet>, Failure> {
        let mut profile = fleets::engine(&self.engine)?;
        profile.kv_tokens = self.kv_tokens.unwrap_or(profile.kv_tokens);
        let fleet = |&replicas: &usize| Fleet {
            engine: self.engine.clone(),
            replicas,
            profile: profile.clone(),
            what_if: None,
        };
        let mut all: Vec<Fleet> = self.replicas.iter().map(fleet).collect();
        if let Some(first) = all.first().cloned() {
            for what in &self.what_if {
                all.push(first.what_if(what)?);
            }
        }
        Ok(all)
    }

    /// Sessions open at once on so many replicas, at speed-up 1.
    pub(super) fn sessions(&self, replicas: usize) -> f64 {
        self.sessions.unwrap_or(SESSIONS_PER_REPLICA * replicas as f64)
    }

    /// The traces. What was left out of one is told on stderr.
    ///
    /// # Errors
    /// When one can't be read, or a name isn't known.
    pub(super) fn workloads(&self) -> Result<Vec<Workload>, Failure> {
        let load = |name: &String| -> Result<Workload, Failure> {
            let path = Path::new(name);
            let workload = match generate::named(name, self.seed) {
                Some(workload) if !path.exists() => workload,
                _ => {
                    let trace = read::read(path).map_err(|e| match e {
                        read::ReadError::Io { .. } if !name.contains(['.', '/']) => {
                            format!("{e}; made-up workloads are: {}", generate::NAMES.map(|n| n.0).join(", "))
                        }
                        e => e.to_string(),
                    })?;
                    if trace.skipped > 0 {
                        eprintln!("homing: {name}: {} lines without blocks are left out", trace.skipped);
                    }
                    trace.workload
                }
            };
            Ok(if self.copies > 1 { workload.copies(self.copies) } else { workload })
        };
        self.traces.iter().map(load).collect()
    }
}

fn slo(text: &str) -> Result<Slo, String> {
    let mut slo = Slo::default();
    for part in text.split(',') {
        match part.split_once('=') {
            Some(("ttft", time)) => slo.ttft = time.parse::<Seconds>()?.secs(),
            Some(("tpot", time)) => slo.tpot = time.parse::<Seconds>()?.secs(),
            _ => return Err(format!("`{part}`: write ttft=5s,tpot=100ms")),
        }
    }
    Ok(slo)
}

fn slow(text: &str) -> Result<(usize, f64), String> {
    let wrong = || format!("`{text}`: write number:factor, like 0:2");
    let (i, factor) = text.split_once(':').ok_or_else(wrong)?;
    Ok((i.parse().map_err(|_| wrong())?, factor.parse().map_err(|_| wrong())?))
}

fn restart(text: &str) -> Result<Restart, String> {
    let wrong = || format!("`{text}`: write time:number or time:number:time, like 600s:3:30s");
    let mut parts = text.split(':');
    let at = parts.next().ok_or_else(wrong)?.parse::<Seconds>()?.secs();
    let replica = parts.next().and_then(|i| i.parse().ok()).ok_or_else(wrong)?;
    let down = parts.next().map_or(Ok(30.0), |t| t.parse::<Seconds>().map(|s| s.secs()))?;
    if parts.next().is_some() { Err(wrong()) } else { Ok(Restart { at, replica, down }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Args {
        Line::parse_from(line.split(' ')).args
    }

    #[test]
    fn flags_make_a_setup() {
        let a = args(
            "replay chat --replicas 4,8 --slo ttft=2s,tpot=50ms --event-delay 50ms --slow 0:2,3:1.5 --restart 10m:1,20m:2:5s --kv-tokens 1000",
        );
        let s = a.setup(&a.fleets().unwrap()).unwrap();
        assert_eq!((s.slo.ttft, s.slo.tpot, s.trouble.event_delay), (2.0, 0.05, 0.05));
        assert_eq!((s.trouble.slow, s.profile.kv_tokens), (vec![(0, 2.0), (3, 1.5)], 1000));
        let r = s.trouble.restarts;
        assert_eq!((r[0].at, r[0].replica, r[0].down, r[1].down), (600.0, 1, 30.0, 5.0));
        assert_eq!((a.replicas.as_slice(), a.sessions(4)), (&[4, 8][..], 80.0));
        assert_eq!(a.workloads().unwrap()[0].name, "chat");
    }

    #[test]
    fn values_out_of_range_are_told() {
        for (line, why) in [
            ("r chat --speedup 0", "--speedup 0"),
            ("r chat --speedup 1,nan", "positive"),
            ("r chat --event-loss 2", "from 0 to 1"),
            ("r chat --replicas 0", "from 1"),
            ("r chat --slow 8:2", "no replica 8"),
            ("r chat --replicas 1 --restart 1s:0", "two replicas"),
            ("r chat --what-if replicas=4 --slow 5:2", "no replica 5"),
            ("r chat --engine nonesuch", "no engine"),
        ] {
            let a = args(line);
            let error = a.fleets().and_then(|f| a.setup(&f)).unwrap_err().to_string();
            assert!(error.contains(why), "{line}: {error}");
        }
        let error = args("r nonesuch").workloads().unwrap_err().to_string();
        assert!(error.contains("ladder"), "{error}");
        assert!(Line::try_parse_from(["r", "chat", "--slo", "ttft:5"]).is_err());
        assert!(Line::try_parse_from(["r", "chat", "--restart", "5s:1:2s:9"]).is_err());
    }
}
