//! What clients may take of the router's time and memory.

use crate::client::{CHAT, ask, chat, raw};
use crate::double::{Double, answer};
use crate::rig::{Rig, eventually};
use homing::config::{Seconds, Size};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let rig = Rig::with(&[], |c| c.limits.header_bytes = Size::bytes(16 << 10)).await;
    let fits = format!(
        "GET /health HTTP/1.1\r\nhost: r\r\nconnection: close\r\nx: {}\r\n\r\n",
        "a".repeat(15 << 10)
    );
    assert!(raw(rig.addr, fits.as_bytes()).await.starts_with("HTTP/1.1 503"));
    let large = fits.replace("x: ", &format!("y: {}\r\nx: ", "b".repeat(2 << 10)));
    assert!(raw(rig.addr, large.as_bytes()).await.starts_with("HTTP/1.1 431"));
}

#[tokio::test]
async fn a_head_that_takes_too_long_ends_the_connection() {
    let rig = Rig::with(&[], |c| c.limits.header_timeout = Seconds::from_millis(200)).await;
    for first in ["", "P", "PRI * HTTP/2.0\r\n", "GET /health HTTP/1.1\r\nx:"] {
        let mut client = TcpStream::connect(rig.addr).await.unwrap();
        client.write_all(first.as_bytes()).await.unwrap();
        let begun = Instant::now();
        let mut all = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(2), client.read_to_end(&mut all)).await;
        assert!(ended.is_ok(), "after {first:?}");
        assert!(begun.elapsed() >= Duration::from_millis(150));
    }
    // One byte now and then doesn't help.
    let mut client = TcpStream::connect(rig.addr).await.unwrap();
    let begun = Instant::now();
    while client.write_all(b"x").await.is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(3));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_body_that_takes_too_long_is_a_408() {
    let rig = Rig::with(&[], |c| c.limits.body_timeout = Seconds::from_millis(200)).await;
    let mut client = TcpStream::connect(rig.addr).await.unwrap();
    let head =
        format!("POST {CHAT} HTTP/1.1\r\nhost: r\r\nconnection: close\r\ncontent-length: 100\r\n\r\n{{");
    client.write_all(head.as_bytes()).await.unwrap();
    let mut all = String::new();
    let read = client.read_to_string(&mut all);
    tokio::time::timeout(Duration::from_secs(3), read).await.unwrap().unwrap();
    assert!(all.starts_with("HTTP/1.1 408") && all.contains("request_timeout"), "{all}");
    rig.quiet().await;
}

#[tokio::test]
async fn a_slow_sender_is_served_if_it_keeps_within_the_time() {
    let replica = Double::always(vec![answer("a")]).await;
    let rig = Rig::start(&[replica.addr]).await;
    let body = chat("x", false);
    let mut client = TcpStream::connect(rig.addr).await.unwrap();
    client.set_nodelay(true).unwrap();
    let all = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: r\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    for byte in all.as_bytes() {
        client.write_all(&[*byte]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut got = String::new();
    client.read_to_string(&mut got).await.unwrap();
    assert!(got.starts_with("HTTP/1.1 200"), "{got}");
}

#[tokio::test]
async fn connections_beyond_the_cap_wait() {
    let replica = Double::always(vec![answer("a")]).await;
    let rig = Rig::with(&[replica.addr], |c| c.limits.connections = 2).await;
    let hold = [TcpStream::connect(rig.addr).await.unwrap(), TcpStream::connect(rig.addr).await.unwrap()];
    let waiting = tokio::spawn(ask(rig.addr, CHAT, chat("x", false)));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished() && replica.seen().is_empty());
    drop(hold);
    assert_eq!(waiting.await.unwrap().status, 200);
}

#[tokio::test]
async fn a_length_that_lies_reserves_no_memory() {
    let rig = Rig::with(&[], |c| c.limits.body_bytes = Size::bytes(1 << 40)).await;
    let mut clients = Vec::new();
    for _ in 0..50 {
        let mut client = TcpStream::connect(rig.addr).await.unwrap();
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: r\r\ncontent-length: {}\r\n\r\n{{", 1_u64 << 39);
        client.write_all(head.as_bytes()).await.unwrap();
        clients.push(client);
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kilobytes: u64 = status
        .lines()
        .find_map(|l| l.strip_prefix("VmData:"))
        .map(|v| v.trim().trim_end_matches(" kB").parse().unwrap())
        .unwrap();
    assert!(kilobytes < 16 << 20, "{kilobytes} kB");
}

#[tokio::test]
async fn a_replica_that_answers_before_it_was_asked_everything_is_heard() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let rig = Rig::start(&[listener.local_addr().unwrap()]).await;
    let replica = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut some = [0; 1024];
        assert!(stream.read(&mut some).await.unwrap() > 0);
        let early = b"HTTP/1.1 415 Unsupported\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
        stream.write_all(early).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
    });
    let mut client = TcpStream::connect(rig.addr).await.unwrap();
    let head = "POST /v1/audio/transcriptions HTTP/1.1\r\nhost: r\r\ncontent-length: 1000000\r\n\r\nabc";
    client.write_all(head.as_bytes()).await.unwrap();
    let mut begin = [0; 12];
    client.read_exact(&mut begin).await.unwrap();
    assert_eq!(&begin, b"HTTP/1.1 415");
    replica.await.unwrap();
    eventually("nothing in flight", || rig.router.load() == (0, 0)).await;
}
