//! Bodies too long to be read into memory: decided on their first part, passed through as they come.

use crate::client::{CHAT, ask, call, chat, post, raw};
use crate::double::{Double, Seen, json};
use crate::rig::Rig;
use homing::config::{Config, Seconds, Size};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn short(c: &mut Config) {
    c.limits.scan_bytes = Size::bytes(128 << 10);
}

fn says_length(name: &'static str) -> impl Fn(usize, &Seen) -> Vec<crate::double::Act> + Clone {
    move |_, seen| vec![json(200, &format!("{{\"length\":{},\"name\":\"{name}\"}}", seen.body.len()))]
}

#[tokio::test]
async fn long_bodies_pass_byte_for_byte_with_and_without_a_length() {
    let replica = Double::start(says_length("a")).await;
    let rig = Rig::with(&[replica.addr], short).await;
    for size in [100 << 10, 128 << 10, 129 << 10, 3 << 20] {
        let body = chat(&format!("{size}{}", "A".repeat(size)), false);
        let got = ask(rig.addr, CHAT, body.clone()).await;
        assert_eq!(got.json()["length"], body.len(), "{size}");
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: r\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        let chunks: String = body
            .as_bytes()
            .chunks(50_000)
            .map(|c| format!("{:x}\r\n{}\r\n", c.len(), std::str::from_utf8(c).unwrap()))
            .collect();
        let got = raw(rig.addr, format!("{head}{chunks}0\r\n\r\n").as_bytes()).await;
        assert!(got.starts_with("HTTP/1.1 200"), "{got}");
        let seen = replica.seen();
        assert!(seen.iter().all(|s| s.body == body.as_bytes() || s.body.len() != body.len()));
        assert!(seen[seen.len() - 1].body == body.as_bytes());
    }
    rig.quiet().await;
}

#[tokio::test]
async fn the_replica_hears_of_a_long_body_before_it_is_complete() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let rig = Rig::with(&[listener.local_addr().unwrap()], short).await;
    let body = chat(&"A".repeat(2 << 20), false);
    let mut client = TcpStream::connect(rig.addr).await.unwrap();
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: r\r\ncontent-length: {}\r\n\r\n", body.len());
    client.write_all(head.as_bytes()).await.unwrap();
    client.write_all(&body.as_bytes()[..400_000]).await.unwrap();
    let (mut engine, _) = listener.accept().await.unwrap();
    let mut some = vec![0; 100_000];
    engine.read_exact(&mut some).await.unwrap();
    assert!(some.starts_with(b"POST /v1/chat/completions "));
    // The client is gone in the middle: so is the request.
    drop(client);
    rig.quiet().await;
    assert_eq!(rig.state(0), "ready", "it isn't the replica's fault");
}

#[tokio::test]
async fn long_bodies_have_limits_too() {
    let replica = Double::start(says_length("a")).await;
    let rig = Rig::with(&[replica.addr], |c| {
        short(c);
        c.limits.body_bytes = Size::bytes(1 << 20);
        c.limits.body_idle = Seconds::from_millis(200);
    })
    .await;
    for path in [CHAT, "/v1/audio/transcriptions"] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: r\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        let body = chat(&"A".repeat(200_000), false);
        let chunk = format!("{:x}\r\n{body}\r\n", body.len());
        let got = raw(rig.addr, format!("{head}{}0\r\n\r\n", chunk.repeat(8)).as_bytes()).await;
        assert!(got.starts_with("HTTP/1.1 413"), "{path}: {got}");
        let mut client = TcpStream::connect(rig.addr).await.unwrap();
        client.write_all(format!("{head}{chunk}").as_bytes()).await.unwrap();
        let mut begin = [0; 12];
        client.read_exact(&mut begin).await.unwrap();
        assert_eq!(&begin, b"HTTP/1.1 408", "{path}");
    }
    rig.quiet().await;
}

#[tokio::test]
async fn a_long_conversation_stays_where_its_first_part_is() {
    let replicas = [Double::start(says_length("a")).await, Double::start(says_length("b")).await];
    let addrs: Vec<SocketAddr> = replicas.iter().map(|r| r.addr).collect();
    let rig = Rig::with(&addrs, short).await;
    for n in 0..6 {
        let begin = format!("{n} {}", "image ".repeat(60_000));
        let mut homes = Vec::new();
        for turn in 0..3 {
            let got =
                ask(rig.addr, CHAT, chat(&format!("{begin}{}", "more ".repeat(turn * 1000)), false)).await;
            homes.push(got.json()["name"].clone());
        }
        assert!(homes.iter().all(|h| *h == homes[0]), "{homes:?}");
    }
}

#[tokio::test]
async fn a_model_that_is_named_behind_the_first_part_must_come_before_it() {
    let replica = Double::start(says_length("a")).await;
    let rig = Rig::of(
        vec![homing::config::ReplicaSpec {
            models: Some(vec!["m".into(), "n".into()]),
            ..homing::config::ReplicaSpec::new(format!("http://{}", replica.addr))
        }],
        short,
    )
    .await;
    let body = format!(
        "{{\"messages\":[{{\"role\":\"user\",\"content\":\"{}\"}}],\"model\":\"m\"}}",
        "A".repeat(300_000)
    );
    let got = ask(rig.addr, CHAT, body).await;
    assert!(got.status == 400 && got.text().contains("Put `model` before the messages"), "{}", got.text());
    let got = tokio::time::timeout(
        Duration::from_secs(10),
        call(rig.addr, post(CHAT, chat(&"A".repeat(300_000), false))),
    );
    assert_eq!(got.await.unwrap().status, 200);
}
