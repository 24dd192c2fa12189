//! What watching costs at rest: a hundred replicas with real pages, each looked at once a second. It measures, so it
//! isn't part of the default run: `cargo test --release --test watch_idle -- --ignored --nocapture`.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "tests")]

mod watch_double;

use homing::config::{Config, ReplicaSpec};
use homing::observe::{Loud, Metrics};
use homing::router::{Member, Router};
use homing::watch::Watch;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};
use watch_double::{Double, IDLE, until};

/// Replicas.
const FLEET: usize = 100;

/// Nanoseconds of CPU that the threads of that name have had.
fn cpu_ns(name: &str) -> u64 {
    let threads = fs::read_dir("/proc/self/task").unwrap().map(|e| e.unwrap().path());
    threads
        .filter(|t| fs::read_to_string(t.join("comm")).is_ok_and(|c| c.trim() == name))
        .map(|t| fs::read_to_string(t.join("schedstat")).unwrap())
        .map(|s| s.split(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

#[tokio::test]
#[ignore = "measures for 10 s; meaningful in release mode only"]
async fn a_hundred_replicas_cost_less_than_a_twentieth_of_a_core() {
    let config = Config::default();
    let router = Router::new(&config, 1);
    let metrics = Arc::new(Metrics::new());
    let loud = Loud::new(metrics.clone());
    let _watch = Watch::start(&config, router.clone(), metrics, loud).unwrap();
    let servers: Vec<Double> = (0..FLEET).map(|_| Double::start()).collect();
    for server in &servers {
        router.join(Member::new(ReplicaSpec::new(server.url())).unwrap()).unwrap();
    }
    until("all serve", || router.replicas().iter().all(|v| v.state == "ready")).await;
    let asked = || servers.iter().map(|s| s.count("/metrics")).sum::<usize>();
    let (cpu, pages, begun) = (cpu_ns("homing-watch"), asked(), Instant::now());
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (cpu, pages) = (cpu_ns("homing-watch") - cpu, asked() - pages);
    let share = cpu as f64 * 1e-9 / begun.elapsed().as_secs_f64();
    println!(
        "{pages} pages of {} bytes: {:.2}% of a core, {:.0} µs a round",
        IDLE.len(),
        share * 100.0,
        cpu as f64 * 1e-3 / pages as f64
    );
    assert!(pages >= FLEET * 9, "only {pages} pages were read");
    assert!(share < 0.05, "{share}");
}
