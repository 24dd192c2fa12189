//! Clients that don't read, and clients that don't send.

use crate::client::{CHAT, ask, chat};
use crate::double::{Act, Double, answer, last, sse_head, token};
use crate::rig::Rig;
use bytes::Bytes;
use homing::config::{Config, ReplicaSpec, Seconds, Size};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A replica that streams more than all buffers on the way hold, unless it is asked for something short.
async fn endless() -> Double {
    let much = format!("data: {}\n\n", "x".repeat(60_000)).repeat(1000);
    Double::start(move |_, seen| {
        if memchr::memmem::find(&seen.body, b"short").is_some() {
            return vec![sse_head(), token("a"), last()];
        }
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
        vec![Act::Send(head.into()), Act::Send(much.clone().into_bytes()), Act::UntilGone]
    })
    .await
}

fn impatient(c: &mut Config) {
    c.limits.stall_timeout = Seconds::from_millis(300);
}

#[tokio::test]
async fn a_client_that_reads_nothing_loses_its_place() {
    let replica = endless().await;
    let rig = Rig::with(&[replica.addr], impatient).await;
    let body = chat("x", true);
    let mut client = TcpStream::connect(rig.addr).await.unwrap();
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: r\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    client.write_all(head.as_bytes()).await.unwrap();
    replica.asked(1).await;
    crate::rig::eventually("the engine is let go", || replica.gone_now() == 1).await;
    rig.quiet().await;
    assert_eq!(rig.metric("homing_requests_total{model=\"m\",code=\"200\",reason=\"client_stalled\"}"), 1.0);
    // What was on its way is there; then the connection ends.
    let mut rest = Vec::new();
    let _ = client.read_to_end(&mut rest).await;
    assert!(rest.starts_with(b"HTTP/1.1 200") && !rest.ends_with(b"0\r\n\r\n"));
}

#[tokio::test]
async fn a_stream_that_is_not_taken_loses_its_place_and_its_neighbours_go_on() {
    let replica = endless().await;
    let rig = Rig::with(&[replica.addr], impatient).await;
    let stream = TcpStream::connect(rig.addr).await.unwrap();
    let (sender, conn) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(1 << 16)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(conn);
    let request = |what: &str| {
        http::Request::post(format!("http://r{CHAT}")).body(Full::<Bytes>::from(chat(what, true))).unwrap()
    };
    let mut one = sender.clone();
    let mut ignored = one.send_request(request("x")).await.unwrap();
    assert_eq!(ignored.status(), 200);
    for _ in 0..50 {
        // Its window is full; others pass by.
        let mut other = sender.clone();
        let got = other.send_request(request("short")).await.unwrap().into_body().collect().await.unwrap();
        assert!(got.to_bytes().ends_with(b"\n\n"));
        if replica.gone_now() == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    crate::rig::eventually("the engine is let go", || replica.gone_now() == 1).await;
    rig.quiet().await;
    assert_eq!(rig.metric("homing_requests_total{model=\"m\",code=\"200\",reason=\"client_stalled\"}"), 1.0);
    // Who comes back to it finds it cut, not ended.
    let cut = loop {
        match ignored.frame().await {
            Some(Ok(_)) => {}
            Some(Err(_)) => break true,
            None => break false,
        }
    };
    assert!(cut);
    let mut other = sender.clone();
    assert_eq!(other.send_request(request("short")).await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_client_that_reads_slowly_is_served_to_the_end() {
    let events: Vec<Act> = (0..40).map(|_| token(&"y".repeat(20_000))).collect();
    let replica = Double::start(move |_, _| [vec![sse_head()], events.clone(), vec![last()]].concat()).await;
    let rig = Rig::with(&[replica.addr], impatient).await;
    let mut client = TcpStream::connect(rig.addr).await.unwrap();
    let body = chat("x", true);
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: r\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    client.write_all(head.as_bytes()).await.unwrap();
    let (mut all, mut piece) = (Vec::new(), vec![0; 32 << 10]);
    loop {
        let n = client.read(&mut piece).await.unwrap();
        if n == 0 {
            break;
        }
        all.extend_from_slice(&piece[..n]);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(all.ends_with(b"0\r\n\r\n") && all.len() > 800_000, "{}", all.len());
    rig.quiet().await;
}

async fn announce(rig: &Rig, length: usize, sent: usize) -> TcpStream {
    let mut client = TcpStream::connect(rig.addr).await.unwrap();
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: r\r\ncontent-length: {length}\r\n\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    client.write_all(&chat(&"A".repeat(sent), false).as_bytes()[..sent]).await.unwrap();
    client
}

/// A router with room for two bodies of the greatest length.
async fn small_store(replica: &Double, tweak: impl FnOnce(&mut Config)) -> Rig {
    let spec = ReplicaSpec::new(format!("http://{}", replica.addr));
    let limits = |c: &mut Config| {
        c.limits.body_bytes = Size::bytes(4 << 20);
        c.limits.bodies_bytes = Size::bytes(8 << 20);
        tweak(c);
    };
    Rig::of(vec![spec], limits).await
}

#[tokio::test]
async fn bodies_that_are_announced_and_not_sent_take_no_room() {
    let replica = Double::always(vec![answer("a")]).await;
    // Whoever has to wait for room is refused: nobody has to.
    let rig = small_store(&replica, |c| c.queue.timeout = Seconds::from_millis(1)).await;
    let mut idle = Vec::new();
    for _ in 0..20 {
        idle.push(announce(&rig, 4 << 20, 30_000).await);
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let got = ask(rig.addr, CHAT, chat(&"A".repeat(3 << 20), false)).await;
    assert_eq!(got.status, 200, "{}", got.text());
}

#[tokio::test]
async fn bodies_that_stop_in_the_middle_keep_only_the_room_they_use() {
    let replica = Double::always(vec![answer("a")]).await;
    let rig = small_store(&replica, |_| {}).await;
    let mut idle = Vec::new();
    for _ in 0..2 {
        idle.push(announce(&rig, 4 << 20, 500_000).await);
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    // The two have taken all there is; what they don't use they give back, well before their time is over.
    let honest = ask(rig.addr, CHAT, chat(&"A".repeat(3 << 20), false));
    let got = tokio::time::timeout(Duration::from_secs(10), honest).await.expect("it isn't kept out");
    assert_eq!(got.status, 200);
    // They can still go on.
    let mut client = idle.remove(0);
    let rest = chat(&"A".repeat((4 << 20) - chat("", false).len()), false);
    assert_eq!(rest.len(), 4 << 20);
    client.write_all(&rest.as_bytes()[500_000..]).await.unwrap();
    let mut begin = [0; 12];
    client.read_exact(&mut begin).await.unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200");
}

#[tokio::test]
async fn a_body_that_makes_no_progress_is_a_408() {
    let rig = Rig::with(&[], |c| c.limits.body_idle = Seconds::from_millis(200)).await;
    let mut client = announce(&rig, 1000, 100).await;
    let mut all = [0; 12];
    client.read_exact(&mut all).await.unwrap();
    assert_eq!(&all, b"HTTP/1.1 408");
    rig.quiet().await;
}
