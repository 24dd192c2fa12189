//! Bodies: unchanged, of any size, and refused where they must be.

use crate::client::{CHAT, ask, call, chat, get, post};
use crate::double::{Act, Double, answer, json};
use crate::rig::Rig;
use homing::config::{ReplicaSpec, Seconds, Size};
use http_body_util::Full;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

#[tokio::test]
async fn unknown_fields_pass_byte_for_byte() {
    let replica = Double::always(vec![answer("a")]).await;
    let rig = Rig::start(&[replica.addr]).await;
    for body in [
        "  {\"zzz\": [1,2 , {\"a\":null}],\"model\":\"m\",\"seed\":123456789012345678901234567890, \"model\":\"m\",\"messages\":[{\"content\":null,\"role\":\"assistant\"},{\"role\":\"user\",\"content\":\"\\ud800 \\u00e9 é\"}],\"temperature\":1e-400}\n",
        "{\"model\":\"m\",\"messages\":[],\"temperature\":\"odd\",\"max_tokens\":-1,\"n\":[]}",
    ] {
        assert_eq!(ask(rig.addr, CHAT, body).await.status, 200);
        let seen = replica.seen().pop().unwrap();
        assert_eq!(String::from_utf8(seen.body).unwrap(), body);
    }
}

#[tokio::test]
async fn big_bodies_up_to_50_mb() {
    let replica =
        Double::start(|_, seen| vec![json(200, &format!("{{\"length\":{}}}", seen.body.len()))]).await;
    let rig = Rig::start(&[replica.addr]).await;
    // 512 KiB are about 128 K tokens.
    for size in [32 << 10, 512 << 10, 1 << 20, 8 << 20, 20 << 20, 50 << 20] {
        let body = chat(&"A".repeat(size), false);
        let got = ask(rig.addr, CHAT, body.clone()).await;
        assert_eq!(got.json()["length"], body.len(), "{size}");
        // The same over a path that doesn't look at it.
        let got = ask(rig.addr, "/v1/audio/transcriptions", body.clone()).await;
        assert_eq!(got.json()["length"], body.len(), "{size}");
    }
    rig.quiet().await;
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_here() {
    let replica = Double::always(vec![answer("a")]).await;
    let rig = Rig::with(&[replica.addr], |c| c.limits.body_bytes = Size::bytes(100_000)).await;
    let bad = ask(rig.addr, CHAT, "{\"model\":\"m\",\n\"messages\":[}").await;
    assert_eq!(bad.status, 400);
    assert!(bad.json()["error"]["message"].as_str().unwrap().contains("line 2, column 13"), "{}", bad.text());
    assert_eq!(ask(rig.addr, CHAT, "").await.status, 400);
    assert_eq!(ask(rig.addr, CHAT, "[1]").await.status, 400);

    let unknown = ask(rig.addr, CHAT, "{\"model\":\"nope\",\"messages\":[]}").await;
    assert_eq!(unknown.status, 404);
    let error = unknown.json()["error"].clone();
    assert_eq!((&error["code"], &error["param"]), (&"model_not_found".into(), &"model".into()));
    assert!(error["message"].as_str().unwrap().contains("`m`"), "the models there are: {error}");
    let anthropic = ask(rig.addr, "/v1/messages", "{\"model\":\"nope\",\"messages\":[]}").await;
    assert_eq!(anthropic.json()["error"]["type"], "not_found_error");

    let large = ask(rig.addr, CHAT, chat(&"A".repeat(100_000), false)).await;
    assert_eq!((large.status, large.json()["error"]["code"].as_str()), (413, Some("payload_too_large")));
    let wrong = get(rig.addr, CHAT).await;
    assert_eq!((wrong.status, &wrong.headers["allow"]), (405, &"POST".parse().unwrap()));
    let trace =
        call(rig.addr, http::Request::builder().method("TRACE").uri("/x").body(Full::default()).unwrap());
    assert_eq!(trace.await.status, 405, "an echo would show the key that replicas get");
    let climbing = get(rig.addr, "/v1/%2e%2E/%2e%2e/metrics").await;
    assert_eq!(climbing.status, 400);
    assert!(replica.seen().is_empty());
    // Whether a page of another origin may ask is the replica's to say.
    let preflight = http::Request::builder().method("OPTIONS").uri(CHAT).body(Full::default()).unwrap();
    assert_eq!(call(rig.addr, preflight).await.status, 200);
    assert!(replica.seen()[0].line().starts_with("OPTIONS /v1/chat/completions "));
    rig.quiet().await;
}

#[tokio::test]
async fn other_paths_pass_with_any_method() {
    let replica = Double::start(|_, seen| {
        if seen.line().starts_with("HEAD") {
            vec![Act::Send(b"HTTP/1.1 200 OK\r\ncontent-length: 77\r\nx-head: 1\r\n\r\n".to_vec())]
        } else {
            vec![json(200, &format!("{{\"line\":\"{}\",\"length\":{}}}", seen.line(), seen.body.len()))]
        }
    })
    .await;
    let rig = Rig::start(&[replica.addr]).await;
    for (method, path, body) in [
        ("GET", "/version?x=1", ""),
        ("POST", "/tokenize", "{\"model\":\"m\",\"prompt\":\"x\"}"),
        ("POST", "/v1/embeddings", "{\"model\":\"m\",\"input\":\"x\"}"),
        ("POST", "/v1/embeddings", "not json"),
        ("DELETE", "/v1/files/1", ""),
        ("PUT", "/odd", "abc"),
    ] {
        let request = http::Request::builder().method(method).uri(path).header("host", "r");
        let got = call(rig.addr, request.body(Full::new(body.into())).unwrap()).await;
        assert_eq!(got.status, 200);
        assert_eq!(got.json()["line"], format!("{method} {path} HTTP/1.1"));
        assert_eq!(got.json()["length"], body.len());
    }
    let request = http::Request::builder().method("HEAD").uri("/x").header("host", "r");
    let got = call(rig.addr, request.body(Full::default()).unwrap()).await;
    assert_eq!(
        (got.status, &got.headers["content-length"], got.body.len()),
        (200, &"77".parse().unwrap(), 0)
    );
    rig.quiet().await;
}

#[tokio::test]
async fn many_big_bodies_at_once_share_a_bounded_store() {
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let replica = Double::start(move |_, seen| {
        vec![Act::Gate(held.clone()), json(200, &format!("{{\"length\":{}}}", seen.body.len()))]
    })
    .await;
    let spec = ReplicaSpec::new(format!("http://{}", replica.addr));
    let tweak = |c: &mut homing::config::Config| {
        c.limits.body_bytes = Size::bytes(4 << 20);
        // Prompts as long as these would wait for one another; how many fit is the matter here.
        c.lanes.enabled = false;
    };
    let rig = Rig::tuned(vec![spec], tweak, |s| s.bodies = 8 << 20).await;
    let mut all = tokio::task::JoinSet::new();
    for n in 0..20 {
        let addr = rig.addr;
        all.spawn(async move {
            let body = chat(&format!("{n}{}", "A".repeat(3 << 20)), false);
            let length = body.len();
            let got = call(addr, post(CHAT, body)).await;
            assert_eq!(got.json()["length"], length);
        });
    }
    replica.asked(2).await;
    // Small ones pass by.
    let small = tokio::spawn(ask(rig.addr, CHAT, chat("small", false)));
    replica.asked(3).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(replica.seen().len(), 3, "the others wait until there is memory for them");
    gate.add_permits(21);
    while let Some(done) = all.join_next().await {
        done.unwrap();
    }
    assert_eq!(small.await.unwrap().status, 200);
    rig.quiet().await;
}

#[tokio::test]
async fn announced_bodies_that_do_not_come_make_way() {
    let replica = Double::always(vec![answer("a")]).await;
    let spec = ReplicaSpec::new(format!("http://{}", replica.addr));
    let rig =
        Rig::tuned(vec![spec], |c| c.limits.body_bytes = Size::bytes(4 << 20), |s| s.bodies = 8 << 20).await;
    let mut idle = Vec::new();
    for _ in 0..4 {
        let mut client = tokio::net::TcpStream::connect(rig.addr).await.unwrap();
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: r\r\ncontent-length: {}\r\n\r\n{{", 4 << 20);
        tokio::io::AsyncWriteExt::write_all(&mut client, head.as_bytes()).await.unwrap();
        idle.push(client);
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    // Two of them have taken all the room there is, for up to a minute by their own time limit.
    let honest = ask(rig.addr, CHAT, chat(&"A".repeat(1 << 20), false));
    let got = tokio::time::timeout(Duration::from_secs(15), honest).await.expect("it isn't kept out");
    assert_eq!(got.status, 200);
}

#[tokio::test]
async fn a_big_body_that_finds_no_memory_in_time_is_a_503() {
    let replica = Double::always(vec![Act::UntilGone]).await;
    let spec = ReplicaSpec::new(format!("http://{}", replica.addr));
    let tweak = |c: &mut homing::config::Config| {
        c.limits.body_bytes = Size::bytes(4 << 20);
        c.queue.timeout = Seconds::from_millis(100);
    };
    let rig = Rig::tuned(vec![spec], tweak, |s| s.bodies = 4 << 20).await;
    let body = chat(&"A".repeat(3 << 20), false);
    let holds = tokio::spawn(ask(rig.addr, CHAT, body.clone()));
    replica.asked(1).await;
    let got = ask(rig.addr, CHAT, body).await;
    assert_eq!((got.status, got.headers.contains_key("retry-after")), (503, true), "{}", got.text());
    holds.abort();
    rig.quiet().await;
}
