//! Replicas that fail in every way: what the client sees, and what the router makes of it.

use crate::client::{CHAT, Client, ask, chat, read};
use crate::double::{Act, Double, answer, json, json_with, sse_head, token};
use crate::rig::{Rig, eventually};
use homing::config::Seconds;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// An address where nobody listens.
fn refused() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

#[tokio::test]
async fn idle_close_race_loses_no_request() {
    // Each second request finds a connection that was kept and is closed without a word.
    let replica = Double::start(|n, _| if n % 2 == 1 { vec![Act::Close] } else { vec![answer("a")] }).await;
    let rig = Rig::start(&[replica.addr]).await;
    let mut client = Client::connect(rig.addr).await;
    for n in 0..20 {
        let got = read(client.post(CHAT, chat(&format!("{n}"), false)).await.unwrap()).await;
        assert_eq!(got.status, 200, "{}", got.text());
    }
    assert!(replica.seen().len() > 20, "connections were kept");
    assert_eq!(rig.state(0), "ready");
    assert_eq!(rig.metric("homing_retries_total"), 0.0, "it is no failure");

    // The same by the clock: the replica closes a moment after each answer.
    let replica = Double::always(vec![answer("a"), Act::Pause(Duration::from_millis(1)), Act::Close]).await;
    let rig = Rig::start(&[replica.addr]).await;
    let mut client = Client::connect(rig.addr).await;
    for n in 0..200 {
        let got = read(client.post(CHAT, chat(&format!("{n}"), false)).await.unwrap()).await;
        assert_eq!(got.status, 200, "{}", got.text());
        tokio::time::sleep(Duration::from_micros(n * 17 % 2000)).await;
    }
    assert_eq!(rig.state(0), "ready");
}

#[tokio::test]
async fn four_hundreds_do_not_eject() {
    let script = |_: usize, seen: &crate::double::Seen| {
        let bad = memchr::memmem::find(&seen.body, b"bad").is_some();
        vec![if bad { json(400, "{\"error\":{\"message\":\"no such parameter\"}}") } else { answer("good") }]
    };
    let (a, b) = (Double::start(script).await, Double::start(script).await);
    let rig = Rig::start(&[a.addr, b.addr]).await;
    let mut client = Client::connect(rig.addr).await;
    for n in 0..60 {
        let got = read(client.post(CHAT, chat(&format!("bad {n}"), n % 2 == 0)).await.unwrap()).await;
        assert_eq!((got.status, got.text().contains("no such parameter")), (400, true));
    }
    assert_eq!((rig.state(0), rig.state(1)), ("ready", "ready"));
    assert_eq!(a.seen().len() + b.seen().len(), 60, "none was tried twice");
    assert_eq!(read(client.post(CHAT, chat("good", false)).await.unwrap()).await.status, 200);
    rig.quiet().await;
}

/// A hundred requests to three replicas of which the first fails as `acts` say (or refuses): none is lost.
async fn one_fails(acts: Option<Vec<Act>>) {
    let broken = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let flag = broken.clone();
    let failing = acts.clone().unwrap_or_default();
    let first = Double::start(move |_, _| {
        if flag.load(std::sync::atomic::Ordering::Relaxed) { failing.clone() } else { vec![answer("a")] }
    })
    .await;
    let others = [Double::always(vec![answer("b")]).await, Double::always(vec![answer("c")]).await];
    let home = if acts.is_some() { first.addr } else { refused() };
    let rig = Rig::start(&[home, others[0].addr, others[1].addr]).await;
    // While all is well the prompts find their homes; a third of them at the replica that fails afterwards.
    let long = "a long prompt that fills some blocks ".repeat(40);
    for round in 0..2 {
        let mut all = JoinSet::new();
        for n in 0..50 {
            let (addr, body) = (rig.addr, chat(&format!("{n} {long}"), false));
            all.spawn(async move { ask(addr, CHAT, body).await });
        }
        while let Some(got) = all.join_next().await {
            let got = got.unwrap();
            assert_eq!(got.status, 200, "{acts:?}: {}", got.text());
        }
        if round == 0 && acts.is_some() {
            assert!(!first.seen().is_empty());
        }
        broken.store(true, std::sync::atomic::Ordering::Relaxed);
    }
    rig.quiet().await;
}

impl std::fmt::Debug for Act {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Act::Send(bytes) => write!(f, "{}", String::from_utf8_lossy(bytes)),
            Act::Close => f.write_str("close"),
            Act::Reset => f.write_str("reset"),
            _ => f.write_str("wait"),
        }
    }
}

#[tokio::test]
async fn one_failing_replica_loses_no_request() {
    one_fails(None).await;
    for status in [500, 502, 503, 429] {
        one_fails(Some(vec![json(status, "{\"error\":{\"message\":\"mine\"}}")])).await;
    }
    one_fails(Some(vec![Act::Close])).await;
    one_fails(Some(vec![Act::Reset])).await;
    one_fails(Some(vec![Act::Send(b"HTTP/1.1 200 OK\r\ncontent-le".to_vec()), Act::Reset])).await;
    one_fails(Some(vec![Act::Send(b"SSH-2.0-OpenSSH_9.9\r\n".to_vec()), Act::Close])).await;
    // The head alone is nothing that a client could use: still nothing is lost.
    one_fails(Some(vec![sse_head(), Act::Close])).await;
    let short =
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"id\":".to_vec();
    one_fails(Some(vec![Act::Send(short), Act::Close])).await;
}

#[tokio::test]
async fn three_failures_make_a_suspect() {
    let bad = Double::always(vec![Act::Close]).await;
    let rig = Rig::with(&[bad.addr], |c| c.retry.attempts = 1).await;
    for n in 1..=3 {
        assert_eq!(rig.state(0), "ready", "before failure {n}");
        let got = ask(rig.addr, CHAT, chat("x", false)).await;
        assert_eq!(got.status, 502, "{}", got.text());
        assert_eq!(got.json()["error"]["code"], "replica_failed");
    }
    assert_ne!(rig.state(0), "ready");
    let seen = bad.seen().len();
    assert_eq!(ask(rig.addr, CHAT, chat("x", false)).await.status, 503);
    assert_eq!(bad.seen().len(), seen, "a suspect gets probes only");
}

#[tokio::test]
async fn all_dead_is_a_503_with_retry_after() {
    let rig = Rig::start(&[refused(), refused(), refused()]).await;
    for n in 0..6 {
        let begun = Instant::now();
        let got = ask(rig.addr, CHAT, chat(&format!("{n}"), n % 2 == 0)).await;
        assert!(begun.elapsed() < Duration::from_secs(1));
        assert_eq!(got.status, 503, "{}", got.text());
        assert!(got.headers.contains_key("retry-after"), "{:?}", got.headers);
        let error = &got.json()["error"];
        assert!(error["message"].is_string() && error["type"].is_string() && error["code"].is_string());
        let id = got.headers["x-request-id"].to_str().unwrap();
        assert!(error["message"].as_str().unwrap().contains(id), "the answer says which request it was");
    }
    let health = crate::client::get(rig.addr, "/health").await;
    assert_eq!(health.status, 503);
    rig.quiet().await;
}

#[tokio::test]
async fn hang_before_first_byte_times_out() {
    let limit = |c: &mut homing::config::Config| c.timeouts.first_byte = Some(Seconds::from_millis(150));
    for acts in [vec![Act::UntilGone], vec![sse_head(), Act::UntilGone]] {
        let mut hung = Double::always(acts).await;
        let rig = Rig::with(&[hung.addr], limit).await;
        for n in 1..=3 {
            assert_eq!(rig.state(0), "ready", "before time-out {n}");
            let got = ask(rig.addr, CHAT, chat("x", true)).await;
            assert_eq!(got.status, 504, "{}", got.text());
            hung.gone(n).await;
        }
        assert_eq!(rig.state(0), "suspect");
        // With somebody else to ask nobody notices, and hardly anything is sent to the one that hangs.
        let well = Double::always(vec![answer("b")]).await;
        let rig = Rig::with(&[hung.addr, well.addr], limit).await;
        for n in 0..20 {
            assert_eq!(ask(rig.addr, CHAT, chat(&format!("{n}"), false)).await.status, 200);
        }
        assert!(hung.seen().len() <= 3 + 3, "{}", hung.seen().len());
        rig.quiet().await;
    }
}

#[tokio::test]
async fn a_busy_replica_is_not_a_failed_one() {
    let busy =
        Double::always(vec![json_with(429, "retry-after: 600\r\n", "{\"error\":{\"message\":\"mine\"}}")])
            .await;
    let rig = Rig::start(&[busy.addr]).await;
    let got = ask(rig.addr, CHAT, chat("x", false)).await;
    assert_eq!(got.status, 429, "its own words pass when nobody else can be asked");
    assert!(got.text().contains("mine"));
    assert_eq!(got.headers["retry-after"], "30", "capped");
    assert_ne!(rig.state(0), "suspect");
}

#[tokio::test]
async fn no_more_retries_than_the_budget_allows() {
    let a = Double::always(vec![json(500, "{}")]).await;
    let b = Double::always(vec![json(500, "{}")]).await;
    let rig = Rig::with(&[a.addr, b.addr], |c| {
        c.retry.budget = 0.0;
        c.retry.min_per_second = 0;
        c.health.suspect_after = 1000;
    })
    .await;
    for _ in 0..10 {
        assert_eq!(ask(rig.addr, CHAT, chat("x", false)).await.status, 500);
    }
    assert_eq!(a.seen().len() + b.seen().len(), 10);
    assert_eq!(rig.metric("homing_retry_budget_exhausted_total"), 10.0);
}

#[tokio::test]
async fn a_retry_sends_the_same_bytes_to_another_replica() {
    let a = Double::always(vec![json(503, "{}")]).await;
    let b = Double::always(vec![json(503, "{}")]).await;
    let rig = Rig::start(&[a.addr, b.addr]).await;
    let body = "{ \"model\":\"m\",\"stream\":true,\"seed\":123456789012345678901234567890,\"messages\":[] }";
    assert_eq!(ask(rig.addr, CHAT, body).await.status, 503);
    let (a, b) = (a.seen(), b.seen());
    assert_eq!((a.len(), b.len()), (1, 1), "once each");
    assert_eq!(a[0].body, b[0].body);
    assert_eq!(a[0].header("x-request-id"), b[0].header("x-request-id"));
}

#[tokio::test]
async fn an_error_inside_a_200_passes() {
    let body = "{\"error\":{\"message\":\"inside\",\"code\":500}}";
    let a = Double::always(vec![json(200, body)]).await;
    let rig = Rig::start(&[a.addr]).await;
    let got = ask(rig.addr, CHAT, chat("x", false)).await;
    assert_eq!((got.status, got.text().as_str()), (200, body));
    assert_eq!(a.seen().len(), 1);
    eventually("counted as an error", || {
        rig.metric("homing_requests_total{model=\"m\",code=\"200\",reason=\"replica_error\"}") == 1.0
    })
    .await;
}

#[tokio::test]
async fn mixed_endings_leave_nothing_in_flight() {
    let script = |n: usize, _: &crate::double::Seen| match n % 9 {
        0 => vec![json(500, "{}")],
        1 => vec![Act::Close],
        2 => vec![sse_head(), token("a"), Act::Close],
        3 => vec![json(429, "{}")],
        4 => vec![json(400, "{}")],
        5 => vec![sse_head(), token("a"), Act::Pause(Duration::from_millis(20)), Act::Reset],
        6 => vec![Act::Pause(Duration::from_millis(30)), answer("slow")],
        _ => vec![answer("a")],
    };
    let replicas = [Double::start(script).await, Double::start(script).await, Double::start(script).await];
    let addrs: Vec<SocketAddr> = replicas.iter().map(|r| r.addr).collect();
    let rig = Rig::with(&addrs, |c| c.health.suspect_after = 1_000_000).await;
    let mut all = JoinSet::new();
    for n in 0..600_u64 {
        let addr = rig.addr;
        all.spawn(async move {
            let request = ask(addr, CHAT, chat(&format!("{n}"), n % 3 == 0));
            // A quarter of the clients have no patience.
            let patience = if n % 4 == 0 { n % 25 } else { 10_000 };
            let _ = tokio::time::timeout(Duration::from_millis(patience), request).await;
        });
    }
    while all.join_next().await.is_some() {}
    rig.quiet().await;
    for replica in rig.router.replicas() {
        assert_eq!(replica.in_flight, 0);
    }
}

#[tokio::test]
async fn a_change_of_protocols_is_never_passed_on() {
    let switch = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n";
    let replica = Double::always(vec![Act::Send(switch.to_vec())]).await;
    let rig = Rig::start(&[replica.addr]).await;
    assert_eq!(ask(rig.addr, CHAT, chat("x", false)).await.status, 502);
    rig.quiet().await;
}

#[tokio::test]
async fn a_clients_broken_body_is_not_the_replicas_failure() {
    let (a, b) = (Double::always(vec![answer("a")]).await, Double::always(vec![answer("b")]).await);
    let rig = Rig::start(&[a.addr, b.addr]).await;
    let head = "POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    for n in 0..20 {
        // A body of unknown length passes through; its second chunk is nonsense, or never comes.
        let rest = if n % 2 == 0 { "5\r\nhello\r\nZZ\r\n" } else { "5\r\nhello\r\n" };
        let mut socket = tokio::net::TcpStream::connect(rig.addr).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut socket, format!("{head}{rest}").as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    rig.quiet().await;
    assert_eq!((rig.state(0), rig.state(1)), ("ready", "ready"));
    let got = crate::client::raw(rig.addr, format!("{head}5\r\nhello\r\nZZ\r\n").as_bytes()).await;
    assert!(got.starts_with("HTTP/1.1 400 "), "{got}");
    assert_eq!(rig.metric("homing_retries_total"), 0.0);
}
