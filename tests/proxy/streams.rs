//! Answers that stream: at once, unchanged, and honest about their end.

use crate::client::{CHAT, Client, ask, chat, post, read};
use crate::double::{Act, Double, answer, chunk, last, sse_head, token};
use crate::rig::Rig;
use homing::config::Seconds;
use http_body_util::BodyExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\"total_tokens\":11,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

#[tokio::test]
async fn mid_stream_death_ends_with_an_error_event_and_no_done() {
    for death in [Act::Close, Act::Reset] {
        // In the middle of an event, as it happens.
        let half = chunk("data: {\"choices\":[{\"ind");
        let acts = vec![sse_head(), token("a"), half, Act::Pause(Duration::from_millis(30)), death];
        let replica = Double::always(acts).await;
        let rig = Rig::start(&[replica.addr]).await;
        for (path, mark) in [(CHAT, "data: {\"error\":"), ("/v1/messages", "event: error\ndata: {")] {
            let got = ask(rig.addr, path, chat("x", true)).await;
            let text = got.text();
            assert_eq!(got.status, 200);
            assert!(got.complete, "the body ends as HTTP wants");
            assert!(
                text.starts_with("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n")
            );
            let event = text.rsplit("\n\n").nth(1).unwrap();
            assert!(event.starts_with(mark), "{text}");
            assert!(!text.contains("[DONE]"));
        }
        assert_eq!(replica.seen().len(), 2, "what has begun is never sent again");
        rig.quiet().await;
        assert_eq!(rig.metric("homing_requests_total{model=\"m\",code=\"200\",reason=\"cut_off\"}"), 2.0);
    }
}

#[tokio::test]
async fn a_long_json_answer_that_breaks_off_is_cut_off_for_the_client_too() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n";
    let begun = Act::Send([head.as_bytes(), &[b' '; 200_000]].concat());
    let replica = Double::always(vec![begun, Act::Close]).await;
    let rig = Rig::start(&[replica.addr]).await;
    let got = ask(rig.addr, CHAT, chat("x", false)).await;
    assert_eq!((got.status, got.complete), (200, false), "nobody may take it for whole");
    rig.quiet().await;
}

#[tokio::test]
async fn a_stream_that_falls_silent_ends_with_an_error_event() {
    let mut replica = Double::always(vec![sse_head(), token("a"), Act::UntilGone]).await;
    let rig = Rig::with(&[replica.addr], |c| c.timeouts.stream_idle = Seconds::from_millis(150)).await;
    let got = ask(rig.addr, CHAT, chat("x", true)).await;
    assert!(got.complete && got.text().contains("data: {\"error\":"), "{}", got.text());
    replica.gone(1).await;
    rig.quiet().await;
}

#[tokio::test]
async fn a_slow_stream_and_a_slow_answer_have_all_the_time_they_need() {
    let pause = || Act::Pause(Duration::from_millis(400));
    let stream = vec![sse_head(), token("a"), pause(), token("b"), pause(), token("c"), pause(), last()];
    let replica =
        Double::start(move |n, _| if n == 0 { stream.clone() } else { vec![pause(), pause(), answer("x")] })
            .await;
    let rig = Rig::with(&[replica.addr], |c| c.timeouts.stream_idle = Seconds::from_millis(1000)).await;
    let got = ask(rig.addr, CHAT, chat("x", true)).await;
    assert!(got.complete && !got.text().contains("error"), "the limit is on each silence, not on the sum");
    let got = ask(rig.addr, CHAT, chat("x", false)).await;
    assert_eq!(got.status, 200, "an answer that isn't streamed may be silent for long");
}

#[tokio::test]
async fn injected_usage_is_not_seen() {
    let acts = vec![sse_head(), token("a"), token("b"), chunk(USAGE), chunk(DONE), last()];
    let replica = Double::always(acts).await;
    let rig = Rig::start(&[replica.addr]).await;
    let body = chat("x", true);
    let mut request = post(CHAT, body.clone());
    request.headers_mut().insert("accept-encoding", "gzip, br".parse().unwrap());
    let got = crate::client::call(rig.addr, request.clone()).await;
    assert!(!got.text().contains("usage"), "{}", got.text());
    assert!(got.text().ends_with(DONE));
    let seen = &replica.seen()[0];
    assert!(String::from_utf8_lossy(&seen.body).contains("\"stream_options\":{\"include_usage\":true}"));
    assert_eq!(
        seen.header("accept-encoding"),
        None,
        "the event could not be taken out of a compressed stream"
    );

    // Who asks for it gets it, and then nothing is changed at all.
    let body = body.replace("\"stream\":true", "\"stream_options\":{\"include_usage\":true},\"stream\":true");
    *request.body_mut() = http_body_util::Full::new(body.clone().into());
    let got = crate::client::call(rig.addr, request).await;
    assert!(got.text().contains(USAGE));
    let seen = &replica.seen()[1];
    assert_eq!(seen.body, body.as_bytes());
    assert_eq!(seen.header("accept-encoding"), Some("gzip, br"));
    rig.quiet().await;
    assert_eq!(rig.metric("homing_actual_cached_tokens_total"), 8.0, "the router has read both");
}

#[tokio::test]
async fn events_pass_byte_for_byte_however_they_are_cut() {
    let text = ": comment\r\n\r\nevent: odd\ndata: 1\ndata: 2\n\nid: 7\r\nretry: 10\r\n\r\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\ndata: {\"x\":123456789012345678901234567890}\n\ndata: [DONE]\n\n";
    for size in [1, 2, 3, 7, 1000] {
        let mut acts = vec![sse_head()];
        acts.extend(text.as_bytes().chunks(size).map(|c| chunk(std::str::from_utf8(c).unwrap())));
        acts.push(last());
        let replica = Double::always(acts).await;
        let rig = Rig::start(&[replica.addr]).await;
        for body in [
            chat("x", true),
            chat("x", true).replace("\"stream\"", "\"stream_options\":{\"include_usage\":true},\"stream\""),
        ] {
            let got = ask(rig.addr, CHAT, body).await;
            assert_eq!(got.text(), text);
            assert_eq!(got.headers["x-accel-buffering"], "no");
        }
    }
}

#[tokio::test]
async fn each_chunk_passes_at_once() {
    let gates: Vec<Arc<Semaphore>> = (0..5).map(|_| Arc::new(Semaphore::new(0))).collect();
    let mut acts = vec![sse_head()];
    for gate in &gates {
        acts.extend([Act::Gate(gate.clone()), token("t")]);
    }
    acts.push(last());
    let replica = Double::always(acts).await;
    let rig = Rig::start(&[replica.addr]).await;
    let mut client = Client::connect(rig.addr).await;
    gates[0].add_permits(1);
    let mut response = client.post(CHAT, chat("x", true)).await.unwrap();
    for gate in gates.iter().skip(1) {
        let frame =
            tokio::time::timeout(Duration::from_secs(1), response.frame()).await.expect("not held back");
        assert!(frame.unwrap().unwrap().into_data().unwrap().ends_with(b"\n\n"));
        gate.add_permits(1);
    }
    assert!(read(response).await.complete);
}

#[tokio::test]
async fn gzip_passes_untouched() {
    let bytes: Vec<u8> = (0..70_000_u32).map(|n| (n * 31 % 251) as u8).collect();
    let head = |kind: &str| {
        let length = bytes.len();
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-encoding: gzip\r\ncontent-length: {length}\r\n\r\n"
        )
    };
    for (kind, stream) in [("application/json", false), ("text/event-stream", true)] {
        let replica = Double::always(vec![Act::Send([head(kind).as_bytes(), &bytes].concat())]).await;
        let rig = Rig::start(&[replica.addr]).await;
        let got = ask(rig.addr, CHAT, chat("x", stream)).await;
        assert!(got.complete);
        assert_eq!(got.headers["content-encoding"], "gzip");
        assert!(got.body == bytes, "not a byte is touched");
    }
}

#[tokio::test]
async fn slow_reader_backpressure() {
    const TOTAL: usize = 64 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let rig = Rig::start(&[listener.local_addr().unwrap()]).await;
    let mut client = TcpStream::connect(rig.addr).await.unwrap();
    let body = chat("x", true);
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: r\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    client.write_all(head.as_bytes()).await.unwrap();
    let (mut engine, _) = listener.accept().await.unwrap();
    let mut request = [0; 65536];
    assert!(engine.read(&mut request).await.unwrap() > 0);
    engine.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n").await.unwrap();
    let event = format!("data: {}\n\n", "x".repeat(1000)).repeat(100);
    let mut sent = 0;
    while sent < TOTAL {
        match tokio::time::timeout(Duration::from_millis(300), engine.write(event.as_bytes())).await {
            Ok(n) => sent += n.unwrap(),
            Err(_) => break,
        }
    }
    assert!(sent < TOTAL / 2, "{sent} bytes were taken for a client that reads none");
    drop(engine);
    let mut all = Vec::new();
    client.shutdown().await.ok();
    let _ = client.read_to_end(&mut all).await;
    assert!(all.len() < TOTAL);
    rig.quiet().await;
}

#[tokio::test]
async fn a_conversation_stays_with_the_replica_that_stores_it() {
    let stored = |name: &'static str| {
        move |n: usize, _: &crate::double::Seen| vec![answer(&format!("resp_{name}_{n}"))]
    };
    let (a, b) = (Double::start(stored("a")).await, Double::start(stored("b")).await);
    let rig = Rig::start(&[a.addr, b.addr]).await;
    for n in 0..10 {
        let first = ask(rig.addr, "/v1/responses", format!("{{\"model\":\"m\",\"input\":\"{n}\"}}")).await;
        let id = first.json()["id"].as_str().unwrap().to_owned();
        let body = format!("{{\"model\":\"m\",\"input\":\"more\",\"previous_response_id\":\"{id}\"}}");
        let second = ask(rig.addr, "/v1/responses", body).await.json()["id"].as_str().unwrap().to_owned();
        assert_eq!(id[..6], second[..6]);
        let third = crate::client::get(rig.addr, &format!("/v1/responses/{id}")).await;
        assert_eq!(third.json()["id"].as_str().unwrap()[..6], id[..6]);
    }
    assert!(!a.seen().is_empty() && !b.seen().is_empty());
}
