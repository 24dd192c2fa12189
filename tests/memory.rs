//! Memory and series stay bounded, whatever strangers send. One test at a time: they measure the process.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "proxy/client.rs"]
#[allow(dead_code, reason = "shared with the tests of the proxy")]
mod client;
#[path = "proxy/rig.rs"]
#[allow(dead_code, reason = "shared with the tests of the proxy")]
mod rig;

use bytes::Bytes;
use client::{CHAT, Client, chat, read};
use homing::config::{ReplicaSpec, Size};
use homing::core::Outcome;
use homing::core::health::Probe;
use homing::router::{Ask, Member, ModelInfo, Router};
use rig::{Rig, eventually};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};

static ALONE: Mutex<()> = Mutex::const_new(());
const MIB: u64 = 1 << 20;

/// Resident bytes of this process.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    line.split_ascii_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// A replica that throws bodies away as they come, and answers each when the gate lets one through.
struct Sink {
    addr: SocketAddr,
    bodies: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
}

impl Sink {
    async fn start(open: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let gate = Arc::new(Semaphore::new(if open { Semaphore::MAX_PERMITS } else { 0 }));
        let bodies = Arc::new(AtomicUsize::new(0));
        let (held, count) = (gate.clone(), bodies.clone());
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(Self::serve(socket, held.clone(), count.clone()));
            }
        });
        Sink { addr, bodies, gate }
    }

    async fn serve(socket: TcpStream, gate: Arc<Semaphore>, bodies: Arc<AtomicUsize>) {
        let mut socket = BufReader::new(socket);
        loop {
            let mut length = 0u64;
            loop {
                let mut line = String::new();
                if !matches!(socket.read_line(&mut line).await, Ok(1..)) {
                    return;
                }
                let line = line.to_ascii_lowercase();
                if let Some(n) = line.strip_prefix("content-length:") {
                    length = n.trim().parse().unwrap();
                }
                if line == "\r\n" {
                    break;
                }
            }
            let mut body = (&mut socket).take(length);
            if tokio::io::copy(&mut body, &mut tokio::io::sink()).await.is_err() {
                return;
            }
            bodies.fetch_add(1, Relaxed);
            gate.acquire().await.unwrap().forget();
            let answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
            if socket.write_all(answer).await.is_err() {
                return;
            }
        }
    }
}

#[tokio::test]
async fn two_hundred_bodies_of_a_megabyte_at_once_in_bounded_memory() {
    let _alone = ALONE.lock().await;
    let sink = Sink::start(false).await;
    let spec = ReplicaSpec { max_in_flight: Some(1000), ..ReplicaSpec::new(format!("http://{}", sink.addr)) };
    let store = 32 * MIB;
    let tweak = |c: &mut homing::config::Config| {
        c.limits.body_bytes = Size::bytes(2 * MIB);
        // Prompts as long as these would wait for one another; how many fit is the matter here.
        c.lanes.enabled = false;
    };
    let rig = Rig::tuned(vec![spec], tweak, |s| s.bodies = store as usize).await;
    // One body for all: what grows is the router's.
    let body = Bytes::from(chat(&"A".repeat(1 << 20), false));
    let before = resident();
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let (addr, body) = (rig.addr, body.clone());
        all.spawn(async move {
            let mut client = Client::connect(addr).await;
            read(client.post(CHAT, body).await.unwrap()).await.status
        });
    }
    eventually("the store is full", || sink.bodies.load(Relaxed) >= 20).await;
    let mut peak = resident();
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        peak = peak.max(resident());
    }
    assert!(sink.bodies.load(Relaxed) <= 32, "the others wait until there is memory for them");
    sink.gate.add_permits(1000);
    while let Some(status) = all.join_next().await {
        assert_eq!(status.unwrap(), 200);
        peak = peak.max(resident());
    }
    assert_eq!(sink.bodies.load(Relaxed), 200);
    rig.quiet().await;
    let grown = peak.saturating_sub(before);
    // The store, and at most two buffers of 64 KiB on each of 200 connections at both ends.
    assert!(grown < store + 80 * MIB, "{} MiB for 200 MiB of bodies", grown / MIB);
}

/// Sends requests back to back on one connection, fifty at a time; returns the statuses' tally (200, 404, others).
fn pour(addr: SocketAddr, bodies: impl Iterator<Item = String>) -> [usize; 3] {
    let mut socket = std::net::TcpStream::connect(addr).unwrap();
    let mut tally = [0; 3];
    let mut bodies = bodies.peekable();
    let mut inbox = Vec::new();
    let mut piece = [0; 1 << 16];
    while bodies.peek().is_some() {
        let mut out = String::new();
        let mut left = 0;
        for body in bodies.by_ref().take(50) {
            out +=
                &format!("POST {CHAT} HTTP/1.1\r\nhost: r\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            left += 1;
        }
        socket.write_all(out.as_bytes()).unwrap();
        while left > 0 {
            let Some(end) = memchr::memmem::find(&inbox, b"\r\n\r\n") else {
                let n = socket.read(&mut piece).unwrap();
                assert!(n > 0, "closed");
                inbox.extend_from_slice(&piece[..n]);
                continue;
            };
            let head = String::from_utf8_lossy(&inbox[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|l| l.strip_prefix("content-length: ")).unwrap();
            let whole = end + 4 + length.parse::<usize>().unwrap();
            if inbox.len() < whole {
                let n = socket.read(&mut piece).unwrap();
                inbox.extend_from_slice(&piece[..n]);
                continue;
            }
            match &head[9..12] {
                "200" => tally[0] += 1,
                "404" => tally[1] += 1,
                _ => tally[2] += 1,
            }
            inbox.drain(..whole);
            left -= 1;
        }
    }
    tally
}

#[tokio::test]
async fn a_hundred_thousand_invented_models_and_tenants_leave_series_and_memory_as_they_were() {
    let _alone = ALONE.lock().await;
    let sink = Sink::start(true).await;
    let rig = Rig::start(&[sink.addr]).await;
    let addr = rig.addr;
    // Nine of ten invent a model, all invent a tenant.
    let run = async |from: usize, to: usize| {
        let halves = [(from, (from + to) / 2), ((from + to) / 2, to)];
        let poured = halves.map(|(from, to)| {
            let body = |n: usize| {
                let model = if n.is_multiple_of(10) { "m".to_owned() } else { format!("invented-{n}") };
                format!(
                    "{{\"model\":\"{model}\",\"user\":\"tenant-{n}\",\"cache_salt\":\"salt-{n}\",\"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}]}}"
                )
            };
            tokio::task::spawn_blocking(move || pour(addr, (from..to).map(body)))
        });
        let mut sum = [0; 3];
        for half in poured {
            half.await.unwrap().iter().zip(&mut sum).for_each(|(n, s)| *s += n);
        }
        assert_eq!(sum, [(to - from) / 10, (to - from) / 10 * 9, 0]);
    };
    let series = || -> BTreeSet<String> {
        let page = rig.metrics.render();
        let named = page.lines().filter(|l| !l.starts_with('#'));
        named.filter_map(|l| l.rsplit_once(' ').map(|(name, _)| name.to_owned())).collect()
    };
    run(0, 40_000).await;
    rig.quiet().await;
    let (names, memory, models) = (series(), resident(), rig.router.model_names());
    run(40_000, 140_000).await;
    rig.quiet().await;
    assert_eq!(series(), names);
    assert!(!names.iter().any(|n| n.contains("invented") || n.contains("tenant") || n.contains("salt")));
    assert_eq!(rig.router.model_names(), models);
    let grown = resident().saturating_sub(memory);
    assert!(grown < 4 * MIB, "{} MiB for 100,000 names", grown / MIB);
}

#[tokio::test]
async fn replicas_and_adapters_that_come_and_go_leave_memory_as_it_was() {
    let _alone = ALONE.lock().await;
    let router = Router::new(&homing::config::Config::default(), 7);
    let info = |id: &str| ModelInfo { id: id.into(), parent: None, max_model_len: Some(4096) };
    let churn = async |from: u64, to: u64| {
        for n in from..to {
            let spec = ReplicaSpec::new(format!("http://10.{}.{}.{}:8000", n >> 16, n >> 8 & 255, n & 255));
            let id = router.join(Member::new(spec).unwrap()).unwrap();
            let adapter = format!("adapter-{n}");
            router.models(id, vec![info("base"), info(&adapter)]);
            router.probe(id, Probe::Ok);
            for k in 0..20 {
                let ask = Ask {
                    model: Some(if k % 2 == 0 { "base".into() } else { adapter.clone() }),
                    chain: (0..32).map(|b| (n << 32) | (k << 16) | b | 1 << 62).collect(),
                    text_bytes: 8192,
                    generates: true,
                    ..Ask::default()
                };
                router.place(&ask).await.unwrap().finish(Outcome::default());
            }
            router.leave(id);
        }
    };
    churn(0, 1000).await;
    let (stats, memory) = (router.index_stats(), resident());
    churn(1000, 6000).await;
    let now = router.index_stats();
    assert_eq!((now.nodes, now.holds, now.speculations), (0, 0, 0), "what they held left with them");
    assert!(now.bytes <= stats.bytes + stats.bytes / 10, "{} bytes, then {}", stats.bytes, now.bytes);
    assert!(router.model_names().is_empty() && router.replicas().is_empty());
    let grown = resident().saturating_sub(memory);
    assert!(grown < 16 * MIB, "{} MiB for 5,000 replicas", grown / MIB);
}
