//! A client that leaves is seen by the engine within a second, in any phase.

use crate::client::{CHAT, Client, chat};
use crate::double::{Act, Double, sse_head, token};
use crate::rig::{Rig, eventually};
use homing::config::Seconds;
use http_body_util::BodyExt;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

fn raw_post(body: &str) -> String {
    format!("POST {CHAT} HTTP/1.1\r\nhost: r\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn client_leaving_before_headers_is_seen_by_the_engine() {
    let mut replica = Double::always(vec![Act::UntilGone]).await;
    let rig = Rig::start(&[replica.addr]).await;
    for (n, stream) in [(1, false), (2, true)] {
        let mut client = TcpStream::connect(rig.addr).await.unwrap();
        client.write_all(raw_post(&chat("x", stream)).as_bytes()).await.unwrap();
        replica.asked(n).await;
        drop(client);
        replica.gone(n).await;
        rig.quiet().await;
    }
    assert_eq!(rig.metric("homing_requests_total{model=\"m\",code=\"0\",reason=\"client_gone\"}"), 2.0);
}

#[tokio::test]
async fn client_leaving_mid_stream_is_seen_by_the_engine() {
    let mut replica = Double::always(vec![sse_head(), token("a"), Act::UntilGone]).await;
    let rig = Rig::start(&[replica.addr]).await;
    let mut client = Client::connect(rig.addr).await;
    let mut response = client.post(CHAT, chat("x", true)).await.unwrap();
    assert!(response.frame().await.unwrap().is_ok());
    drop((response, client));
    replica.gone(1).await;
    rig.quiet().await;
}

#[tokio::test]
async fn client_leaving_in_the_middle_of_a_long_json_answer_is_seen_by_the_engine() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n";
    let begun = Act::Send([head.as_bytes(), &[b' '; 200_000]].concat());
    let mut replica = Double::always(vec![begun, Act::UntilGone]).await;
    let rig = Rig::start(&[replica.addr]).await;
    let mut client = Client::connect(rig.addr).await;
    let mut response = client.post(CHAT, chat("x", false)).await.unwrap();
    assert!(response.frame().await.unwrap().is_ok());
    drop((response, client));
    replica.gone(1).await;
    rig.quiet().await;
}

#[tokio::test]
async fn client_leaving_while_it_waits_in_line_gives_its_place_up() {
    let mut replica = Double::always(vec![Act::UntilGone]).await;
    let rig = Rig::of(
        vec![homing::config::ReplicaSpec {
            max_in_flight: Some(1),
            ..homing::config::ReplicaSpec::new(format!("http://{}", replica.addr))
        }],
        |c| c.queue.timeout = Seconds::from_secs(20),
    )
    .await;
    let mut first = TcpStream::connect(rig.addr).await.unwrap();
    first.write_all(raw_post(&chat("x", false)).as_bytes()).await.unwrap();
    replica.asked(1).await;
    let mut second = TcpStream::connect(rig.addr).await.unwrap();
    second.write_all(raw_post(&chat("y", false)).as_bytes()).await.unwrap();
    eventually("the second waits", || rig.router.load() == (1, 1)).await;
    drop(second);
    eventually("its place is given up", || rig.router.load() == (1, 0)).await;
    drop(first);
    replica.gone(1).await;
    rig.quiet().await;
    assert_eq!(replica.seen().len(), 1);
}

#[tokio::test]
async fn client_leaving_while_its_request_is_tried_again_is_seen_by_the_engine() {
    let script = |n: usize, _: &crate::double::Seen| {
        vec![if n == 0 { crate::double::json(500, "{}") } else { Act::UntilGone }]
    };
    // Whoever is asked first fails; whoever is asked then is silent.
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let of = |count: std::sync::Arc<std::sync::atomic::AtomicUsize>| {
        move |_: usize, seen: &crate::double::Seen| {
            script(count.fetch_add(1, std::sync::atomic::Ordering::Relaxed), seen)
        }
    };
    let replicas = [Double::start(of(asked.clone())).await, Double::start(of(asked.clone())).await];
    for (gone, stream) in [(1, false), (2, true)] {
        asked.store(0, std::sync::atomic::Ordering::Relaxed);
        let rig = Rig::start(&[replicas[0].addr, replicas[1].addr]).await;
        let before = replicas.each_ref().map(|r| r.seen().len());
        let mut client = TcpStream::connect(rig.addr).await.unwrap();
        client.write_all(raw_post(&chat("x", stream)).as_bytes()).await.unwrap();
        eventually("the second attempt", || {
            replicas.iter().map(|r| r.seen().len()).sum::<usize>() == before[0] + before[1] + 2
        })
        .await;
        drop(client);
        let all = || replicas.iter().map(Double::gone_now).sum::<usize>() == gone;
        let seen = tokio::time::timeout(Duration::from_secs(1), eventually("the engine sees it", all)).await;
        seen.expect("within a second");
        rig.quiet().await;
    }
}

#[tokio::test]
async fn client_leaving_behind_pipelined_requests_is_seen_by_the_engine() {
    let mut replica = Double::always(vec![Act::UntilGone]).await;
    let rig = Rig::start(&[replica.addr]).await;
    let mut client = TcpStream::connect(rig.addr).await.unwrap();
    let two = raw_post(&chat("x", false)).repeat(2);
    client.write_all(two.as_bytes()).await.unwrap();
    replica.asked(1).await;
    drop(client);
    replica.gone(1).await;
    rig.quiet().await;
    assert_eq!(replica.seen().len(), 1, "the second was never begun");
}

#[tokio::test]
async fn client_leaving_while_it_sends_its_body_leaves_nothing_behind() {
    let replica = Double::always(vec![Act::UntilGone]).await;
    let rig = Rig::start(&[replica.addr]).await;
    for path in [CHAT, "/v1/audio/transcriptions"] {
        let mut client = TcpStream::connect(rig.addr).await.unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nhost: r\r\ncontent-length: 1000000\r\n\r\nabc");
        client.write_all(head.as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(client);
        rig.quiet().await;
    }
    assert_eq!(replica.seen().len(), 0, "no whole request has come through");
}

#[tokio::test]
async fn client_leaving_while_the_router_connects_is_noticed() {
    // A socket that listens with a full backlog: connecting hangs.
    let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    listener.listen(0).unwrap();
    let addr = listener.local_addr().unwrap().as_socket().unwrap();
    let mut plugs = Vec::new();
    for _ in 0..4 {
        let connect = TcpStream::connect(addr);
        if let Ok(plug) = tokio::time::timeout(Duration::from_millis(100), connect).await {
            plugs.push(plug);
        }
    }
    let rig = Rig::with(&[addr], |c| c.timeouts.connect = Seconds::from_secs(20)).await;
    let mut client = TcpStream::connect(rig.addr).await.unwrap();
    client.write_all(raw_post(&chat("x", false)).as_bytes()).await.unwrap();
    eventually("the request is placed", || rig.router.load() == (1, 0)).await;
    drop(client);
    rig.quiet().await;
}
