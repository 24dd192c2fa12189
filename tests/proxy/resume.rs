//! Streams whose replica dies, continued by another: the client sees one answer, the same as the unbroken one.

use crate::client::{CHAT, ask, chat};
use crate::double::{Act, Double, chunk, last, sse_head, token};
use crate::rig::{Rig, eventually};
use homing::config::{Config, ReplicaSpec, Seconds, Size};
use homing::core::health::Probe;
use homing::sim::http::{Faults, Mock, MockConfig};
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const COMPLETIONS: &str = "/v1/completions";

fn config() -> MockConfig {
    MockConfig { models: vec!["m".into()], seed: 5, mean_output: 60, ..MockConfig::default() }
}

async fn mocks(n: usize) -> Vec<Mock> {
    let mut all = Vec::new();
    for _ in 0..n {
        all.push(Mock::start(config()).await.unwrap());
    }
    all
}

fn resuming(c: &mut Config) {
    c.resume.enabled = true;
    c.resume.within = Seconds::from_secs(20);
}

/// What a client makes of a stream.
#[derive(Debug, PartialEq)]
struct Story {
    text: String,
    roles: usize,
    finish: Vec<String>,
    /// Prompt and completion tokens.
    usage: Vec<(u64, u64)>,
    done: usize,
}

fn story(stream: &str) -> Story {
    let mut told = Story { text: String::new(), roles: 0, finish: Vec::new(), usage: Vec::new(), done: 0 };
    let mut heads: Vec<(Value, Value, Value, Value)> = Vec::new();
    for event in stream.split_terminator("\n\n") {
        let data = event.strip_prefix("data: ").unwrap_or_else(|| panic!("{event:?}"));
        assert_eq!(told.done, 0, "nothing comes after the end: {event:?}");
        if data == "[DONE]" {
            told.done += 1;
            continue;
        }
        let event: Value = serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {data}"));
        assert!(event.get("error").is_none(), "{data}");
        assert!(event["prompt_token_ids"].is_null(), "nobody asked for ids: {data}");
        heads.push((
            event["id"].clone(),
            event["created"].clone(),
            event["model"].clone(),
            event["object"].clone(),
        ));
        if let Some(usage) = event.get("usage").filter(|u| u.is_object()) {
            let of = |k: &str| usage[k].as_u64().unwrap();
            assert_eq!(of("total_tokens"), of("prompt_tokens") + of("completion_tokens"));
            told.usage.push((of("prompt_tokens"), of("completion_tokens")));
        }
        for choice in event["choices"].as_array().unwrap() {
            assert!(choice["token_ids"].is_null() && choice["prompt_token_ids"].is_null(), "{data}");
            told.roles += usize::from(choice["delta"]["role"].is_string());
            let text = choice["delta"]["content"].as_str().or(choice["text"].as_str());
            told.text.push_str(text.unwrap_or_default());
            told.finish.extend(choice["finish_reason"].as_str().map(str::to_owned));
        }
    }
    heads.dedup();
    assert_eq!(heads.len(), 1, "one id, one time, one model: {heads:?}");
    told
}

/// A chat or a completion whose answer has between 30 and 90 tokens; every third one is cut by its limit.
fn request(n: usize) -> (&'static str, String) {
    let limit = if n.is_multiple_of(3) { 20 + n % 40 } else { 500 };
    let usage = if n.is_multiple_of(2) { r#","stream_options":{"include_usage":true}"# } else { "" };
    let rest = format!(r#""model":"m","stream":true,"max_tokens":{limit},"temperature":0{usage}"#);
    if n.is_multiple_of(5) {
        // The marker behind which the simulated engines answer; padded to whole tokens.
        (COMPLETIONS, format!(r#"{{"prompt":"say{n:05}<|asst|>",{rest}}}"#))
    } else {
        (CHAT, format!(r#"{{"messages":[{{"role":"user","content":"number {n} of many"}}],{rest}}}"#))
    }
}

#[tokio::test]
async fn a_stream_whose_replica_dies_goes_on_elsewhere_as_if_nothing_had_happened() {
    let replicas = mocks(2).await;
    let addrs: Vec<SocketAddr> = replicas.iter().map(Mock::addr).collect();
    let well = Mock::start(config()).await.unwrap();
    let rig = Rig::with(&addrs, |c| {
        resuming(c);
        c.health.suspect_after = 1000;
    })
    .await;
    for (n, after) in [1, 2, 3, 7, 19, 29].into_iter().enumerate() {
        for fault in [0, 1] {
            let number = 10 * n + fault;
            let (path, body) = request(number);
            let unbroken = story(&ask(well.addr(), path, body.clone()).await.text());
            let after = Some(after);
            let faults = match fault {
                0 => Faults { reset_mid_stream_after: after, times: Some(1), ..Faults::default() },
                _ => Faults { cut_mid_stream_after: after, times: Some(1), ..Faults::default() },
            };
            replicas.iter().for_each(|r| r.set_faults(faults.clone()));
            let got = ask(rig.addr, path, body).await;
            assert!(got.complete);
            assert_eq!(story(&got.text()), unbroken, "after {after:?}");
        }
    }
    rig.quiet().await;
    assert!(rig.metric("homing_resumes_total{outcome=\"continued\"}") >= 10.0);
    assert_eq!(rig.metric("homing_resumes_total{outcome=\"lost\"}"), 0.0);
}

#[tokio::test]
async fn resumed_streams_are_exact_under_constant_kills() {
    const STREAMS: usize = 60;
    let profile = homing::sim::engine::Profile { t0: 0.004, ..config().profile };
    let slow = move || MockConfig { profile: profile.clone(), ..config() };
    let well = Mock::start(config()).await.unwrap();
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(Mock::start(slow()).await.unwrap());
    }
    let addrs: Vec<SocketAddr> = replicas.iter().map(Mock::addr).collect();
    let rig = Rig::with(&addrs, resuming).await;
    let (router, ids) = (rig.router.clone(), rig.ids.clone());
    let kills = Arc::new(AtomicUsize::new(0));
    let (over, count) = (Arc::new(AtomicBool::new(false)), kills.clone());
    let stop = over.clone();
    let killer = tokio::spawn(async move {
        let mut n = 0;
        while !stop.load(Relaxed) {
            let turn = n % replicas.len();
            let old = replicas.remove(turn);
            let listen = old.addr();
            old.kill();
            drop(old);
            count.fetch_add(1, Relaxed);
            tokio::time::sleep(Duration::from_millis(15)).await;
            let again = loop {
                match Mock::start(MockConfig { listen, ..slow() }).await {
                    Ok(mock) => break mock,
                    Err(_) => tokio::time::sleep(Duration::from_millis(2)).await,
                }
            };
            replicas.insert(turn, again);
            // What the health checks of a whole router find out.
            for _ in 0..3 {
                ids.iter().for_each(|id| router.probe(*id, Probe::Ok));
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
            n += 1;
        }
    });
    let mut all = JoinSet::new();
    for n in 0..STREAMS {
        let (addr, direct) = (rig.addr, well.addr());
        all.spawn(async move {
            let (path, body) = request(n);
            let unbroken = story(&ask(direct, path, body.clone()).await.text());
            let got = ask(addr, path, body).await;
            assert!(got.complete, "{}", got.text());
            assert_eq!(story(&got.text()), unbroken);
        });
    }
    while let Some(done) = all.join_next().await {
        done.unwrap();
    }
    over.store(true, Relaxed);
    killer.await.unwrap();
    rig.quiet().await;
    assert!(kills.load(Relaxed) > 3, "{} kills", kills.load(Relaxed));
    assert!(rig.metric("homing_resumes_total{outcome=\"continued\"}") > 3.0);
}

#[tokio::test]
async fn what_cannot_be_continued_exactly_ends_with_an_error_event_and_no_done() {
    let replicas = mocks(2).await;
    let addrs: Vec<SocketAddr> = replicas.iter().map(Mock::addr).collect();
    let rig = Rig::with(&addrs, |c| {
        resuming(c);
        c.health.suspect_after = 1000;
    })
    .await;
    let plain = r#""model":"m","stream":true,"messages":[{"role":"user","content":"x"}]"#;
    for more in [
        r#""n":2,"max_tokens":50"#,
        r#""logprobs":true,"max_tokens":50"#,
        r#""tools":[{"type":"function","function":{"name":"f"}}],"max_tokens":50"#,
        r#""response_format":{"type":"json_object"},"max_tokens":50"#,
        r#""presence_penalty":0.5,"max_tokens":50"#,
        r#""stop":["x"],"max_tokens":50"#,
        r#""seed":7,"max_tokens":50"#,
        r#""min_tokens":7,"max_tokens":50"#,
        r#""a_parameter_of_tomorrow":7,"max_tokens":50"#,
        // Nobody knows how long the model's context is.
        r#""temperature":0"#,
    ] {
        let faults = Faults { reset_mid_stream_after: Some(5), times: Some(1), ..Faults::default() };
        replicas.iter().for_each(|r| r.set_faults(faults.clone()));
        let got = ask(rig.addr, CHAT, format!("{{{plain},{more}}}")).await;
        let text = got.text();
        assert!(got.complete && !text.contains("[DONE]"), "{more}: {text}");
        assert!(text.rsplit("\n\n").nth(1).unwrap().starts_with("data: {\"error\":"), "{more}: {text}");
    }
    rig.quiet().await;
}

#[tokio::test]
async fn a_stream_without_resume_is_not_touched() {
    let replica = Double::always(vec![sse_head(), token("a"), chunk("data: [DONE]\n\n"), last()]).await;
    let rig = Rig::with(&[replica.addr], |c| {
        resuming(c);
        c.resume.models = Some(vec!["another".into()]);
    })
    .await;
    ask(rig.addr, CHAT, chat("x", true)).await;
    let seen = replica.seen();
    assert!(!String::from_utf8_lossy(&seen[0].body).contains("return_token_ids"));
}

#[tokio::test]
async fn more_text_than_may_be_remembered_is_not_continued() {
    let replicas = mocks(2).await;
    let addrs: Vec<SocketAddr> = replicas.iter().map(Mock::addr).collect();
    for total in [false, true] {
        let rig = Rig::with(&addrs, |c| {
            resuming(c);
            // A token takes four bytes; the prompt is some eight of them.
            if total {
                c.resume.total_bytes = Size::bytes(128);
            } else {
                c.resume.max_bytes = Size::bytes(300);
            }
            c.health.suspect_after = 1000;
        })
        .await;
        let faults = Faults { reset_mid_stream_after: Some(300), times: Some(1), ..Faults::default() };
        replicas.iter().for_each(|r| r.set_faults(faults.clone()));
        let body = r#"{"model":"m","stream":true,"max_tokens":400,"ignore_eos":true,"messages":[{"role":"user","content":"x"}]}"#;
        let got = ask(rig.addr, CHAT, body).await;
        assert!(got.text().contains("data: {\"error\":") && !got.text().contains("[DONE]"), "{}", got.text());
        rig.quiet().await;
    }
}

/// An event of a chat with its token's id; the first one also names the prompt.
fn with_ids(text: &str, id: u32) -> Act {
    let prompt = if id == 1 { ",\"prompt_token_ids\":[9,9]" } else { "" };
    chunk(&format!(
        "data: {{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":null,\"token_ids\":[{id}]}}]{prompt}}}\n\n"
    ))
}

#[tokio::test]
async fn client_leaving_while_its_stream_is_continued_is_seen_by_the_engine() {
    let dies = vec![sse_head(), with_ids("a", 1), Act::Pause(Duration::from_millis(20)), Act::Close];
    let replica = Double::start(move |n, _| if n == 0 { dies.clone() } else { vec![Act::UntilGone] }).await;
    let mut other = Double::always(vec![Act::UntilGone]).await;
    let specs = [replica.addr, other.addr].map(|a| ReplicaSpec::new(format!("http://{a}")));
    let rig = Rig::of(specs.into(), resuming).await;
    // The replica that dies must be asked first.
    rig.router.drain(rig.ids[1], true);
    let body = r#"{"model":"m","stream":true,"max_tokens":9,"messages":[]}"#;
    let mut client = crate::client::Client::connect(rig.addr).await;
    let mut response = client.post(CHAT, body).await.unwrap();
    assert!(http_body_util::BodyExt::frame(&mut response).await.unwrap().is_ok());
    rig.router.drain(rig.ids[1], false);
    // Somebody has to read on, or nobody notices that the replica died.
    let reading = tokio::spawn(async move {
        let _client = client;
        let _ = http_body_util::BodyExt::frame(&mut response).await;
    });
    other.asked(1).await;
    let seen = &other.seen()[0];
    assert!(seen.line().starts_with("POST /v1/completions "), "{}", seen.line());
    assert!(String::from_utf8_lossy(&seen.body).ends_with("\"max_tokens\":8,\"prompt\":[9,9,1]}"));
    reading.abort();
    other.gone(1).await;
    rig.quiet().await;
}

#[tokio::test]
async fn a_fleet_that_is_gone_for_a_moment_is_waited_for() {
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let rest = "data: {\"id\":\"d\",\"object\":\"text_completion\",\"created\":2,\"model\":\"m\",\"choices\":[{\"index\":0,\"text\":\"b\",\"finish_reason\":\"stop\",\"token_ids\":[2]}]}\n\ndata: [DONE]\n\n";
    let replica = Double::start(move |n, _| match n {
        0 => vec![sse_head(), with_ids("a", 1), Act::Gate(held.clone()), Act::Reset],
        1 => vec![Act::Close],
        _ => vec![sse_head(), chunk(rest), last()],
    })
    .await;
    let rig = Rig::with(&[replica.addr], resuming).await;
    let addr = rig.addr;
    let body = r#"{"model":"m","stream":true,"max_tokens":9,"messages":[]}"#;
    let asking = tokio::spawn(async move { ask(addr, CHAT, body).await });
    replica.asked(1).await;
    gate.add_permits(1);
    let got = asking.await.unwrap();
    let told = story(&got.text());
    assert_eq!((told.text.as_str(), told.done), ("ab", 1), "{}", got.text());
    eventually("nothing in flight", || rig.router.load() == (0, 0)).await;
}

#[tokio::test]
async fn nobody_to_go_on_in_time_ends_with_an_error_event() {
    let dies = vec![sse_head(), with_ids("a", 1), Act::Pause(Duration::from_millis(20)), Act::Reset];
    let replica = Double::start(move |n, _| if n == 0 { dies.clone() } else { vec![Act::UntilGone] }).await;
    let rig = Rig::with(&[replica.addr], |c| {
        resuming(c);
        c.resume.within = Seconds::from_millis(150);
    })
    .await;
    let got = ask(rig.addr, CHAT, r#"{"model":"m","stream":true,"max_tokens":9,"messages":[]}"#).await;
    assert!(got.text().contains("data: {\"error\":") && !got.text().contains("[DONE]"), "{}", got.text());
    rig.quiet().await;
    assert_eq!(rig.metric("homing_resumes_total{outcome=\"lost\"}"), 1.0);
}
