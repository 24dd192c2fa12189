//! The whole router, started as `homing serve` starts it.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod watch_double;

use homing::cli::Running;
use homing::config::{AccessTarget, Config, ReplicaSpec, Seconds};
use homing::proxy::Phase;
use homing::sim::http::{Mock, MockConfig};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use watch_double::{ask, until};

const CHAT: &str = "POST /v1/chat/completions";

/// Ports that are free, one worker, an impatient watch, nothing on standard output.
fn config(replicas: &[&Mock]) -> Config {
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    let mut config = Config {
        listen: any,
        metrics: any,
        admin: Some(any),
        replicas: replicas.iter().map(|m| ReplicaSpec::new(m.url())).collect(),
        workers: Some(1),
        ..Config::default()
    };
    config.log.access = AccessTarget::Off;
    config.health.interval = Seconds::from_millis(15);
    config.poll.interval = Seconds::from_millis(15);
    config
}

/// Starts everything, waits until a replica is ready, lets `scene` play (data port, metrics port) and stops it all.
async fn serving<T>(config: &Config, scene: impl AsyncFnOnce(SocketAddr, SocketAddr) -> T) -> T {
    let mut running = Running::start(config).expect("starts");
    let (listen, metrics, router) = (running.listen.unwrap(), running.metrics, running.router.clone());
    let phase = running.phase();
    let played = async {
        until("a replica is ready", || router.ready() && !router.model_names().is_empty()).await;
        let result = scene(listen, metrics).await;
        phase.send_replace(Phase::Closing);
        result
    };
    let (served, result) = tokio::join!(running.serve(), played);
    served.unwrap();
    result
}

/// A path in the directory for temporary files that no other test uses.
fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("homing-{}-{name}", std::process::id()))
}

/// One run with a key file of that content; the identities in its access log.
async fn identities(name: &str, key: &str) -> Vec<Value> {
    let server = Mock::start(MockConfig { models: vec!["m".into()], ..MockConfig::instant() }).await.unwrap();
    let (log, key_file) = (scratch(&format!("{name}.log")), scratch(&format!("{name}.key")));
    fs::write(&key_file, key).unwrap();
    let mut config = config(&[&server]);
    config.index.seed = Some(42);
    config.log.blocks = true;
    config.log.block_key_file = Some(key_file.clone());
    config.log.access = AccessTarget::File(log.clone());
    serving(&config, async |listen, _| {
        for n in 0..3 {
            let text = "a prompt of some length ".repeat(300 * (n + 1));
            let body = format!("{{\"model\":\"m\",\"max_tokens\":2,\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}]}}");
            assert_eq!(ask(listen, CHAT, "", &body).await.0, 200);
        }
    })
    .await;
    let read = || fs::read_to_string(&log).unwrap_or_default();
    until("three lines are written", || read().lines().count() == 3).await;
    let found =
        read().lines().map(|l| serde_json::from_str::<Value>(l).unwrap()["hash_ids"].clone()).collect();
    fs::remove_file(&log).unwrap();
    fs::remove_file(&key_file).unwrap();
    found
}

#[tokio::test]
async fn a_key_file_makes_the_block_identities_of_two_runs_comparable() {
    let first = identities("first", "0123456789abcdef").await;
    assert!(first.iter().all(|ids| ids.as_array().is_some_and(|a| a.len() >= 3)), "{first:?}");
    assert_eq!(identities("second", "0123456789abcdef\n").await, first, "line ends don't count");
    let other = identities("other", "fedcba9876543210").await;
    assert_eq!(other.len(), 3);
    assert!(other.iter().zip(&first).all(|(a, b)| a[0] != b[0]), "another key, other identities");
}

#[tokio::test]
async fn a_key_file_that_cannot_be_used_is_an_error_that_names_it() {
    let (absent, empty) = (scratch("absent.key"), scratch("empty.key"));
    fs::write(&empty, "\n").unwrap();
    for (file, why) in [(&absent, "No such file"), (&empty, "empty")] {
        let mut config = config(&[]);
        config.log.blocks = true;
        config.log.block_key_file = Some(file.clone());
        let error = Running::start(&config).err().expect("refused").to_string();
        assert!(error.contains(&file.display().to_string()) && error.contains(why), "{error}");
        config.log.blocks = false;
        assert!(Running::start(&config).is_ok(), "it isn't needed");
    }
    fs::remove_file(&empty).unwrap();
}

/// Asks without a pause, one body of a megabyte after the other, until told to stop.
fn flood(listen: SocketAddr, stop: &AtomicBool, answers: &AtomicUsize) {
    let text = "x".repeat(1 << 20);
    let body = format!(
        "{{\"model\":\"m\",\"max_tokens\":1,\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}]}}"
    );
    let request = format!("{CHAT} HTTP/1.1\r\nhost: r\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let mut socket = TcpStream::connect(listen).unwrap();
    let mut answer = [0; 4096];
    while !stop.load(Relaxed) {
        if socket.write_all(request.as_bytes()).is_err() || !matches!(socket.read(&mut answer), Ok(1..)) {
            return;
        }
        answers.fetch_add(1, Relaxed);
    }
}

#[tokio::test]
async fn liveness_answers_in_time_while_the_data_plane_is_saturated() {
    let server = Mock::start(MockConfig { models: vec!["m".into()], ..MockConfig::instant() }).await.unwrap();
    serving(&config(&[&server]), async |listen, metrics| {
        let (stop, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let threads: Vec<_> = (0..16)
            .map(|_| {
                let (stop, answers) = (stop.clone(), answers.clone());
                std::thread::spawn(move || flood(listen, &stop, &answers))
            })
            .collect();
        until("the flood is there", || answers.load(Relaxed) >= 32).await;
        let mut best = Duration::MAX;
        for _ in 0..30 {
            let begun = Instant::now();
            assert_eq!(ask(metrics, "GET /livez", "", "").await.0, 200);
            best = best.min(begun.elapsed());
        }
        let during = answers.load(Relaxed);
        stop.store(true, Relaxed);
        // The best one: how long the others take is a matter of how many cores the test has.
        assert!(best < Duration::from_millis(50), "{best:?}");
        until("the flood goes on", || answers.load(Relaxed) > during).await;
        for thread in threads {
            until("a thread has ended", || thread.is_finished()).await;
            thread.join().unwrap();
        }
    })
    .await;
}
