//! Connections that become something else: WebSocket, as `/v1/realtime` speaks it.

use crate::double::{Act, Double};
use crate::rig::{Rig, eventually};
use homing::config::Seconds;
use homing::proxy::Phase;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const ASK: &str = "GET /v1/realtime?model=m HTTP/1.1\r\nhost: r\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const YES: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// Reads the head of a request or an answer, and no byte more.
async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).await.unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap().to_lowercase()
}

/// A client and a replica, connected through the router; also what each has got for a head.
async fn connected(rig: &Rig, listener: &TcpListener, early: &[u8]) -> (TcpStream, TcpStream) {
    let mut client = TcpStream::connect(rig.addr).await.unwrap();
    client.write_all(&[ASK.as_bytes(), early].concat()).await.unwrap();
    let (mut replica, _) = listener.accept().await.unwrap();
    let asked = head(&mut replica).await;
    assert!(asked.starts_with("get /v1/realtime?model=m http/1.1"), "{asked}");
    assert!(asked.contains("upgrade: websocket") && asked.contains("connection: upgrade"), "{asked}");
    assert!(asked.contains("sec-websocket-key: dghlihnhbxbszsbub25jzq=="), "{asked}");
    replica.write_all(&[YES, b"early"].concat()).await.unwrap();
    let got = head(&mut client).await;
    assert!(got.starts_with("http/1.1 101 "), "{got}");
    assert!(got.contains("upgrade: websocket") && got.contains("sec-websocket-accept: s3p"), "{got}");
    let mut five = [0; 5];
    client.read_exact(&mut five).await.unwrap();
    assert_eq!(&five, b"early");
    (client, replica)
}

#[tokio::test]
async fn an_upgraded_connection_passes_both_ways_and_closes_side_by_side() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    // Limits that a quiet connection would run into if it were HTTP.
    let rig = Rig::with(&[listener.local_addr().unwrap()], |c| {
        c.limits.stall_timeout = Seconds::from_millis(50);
        c.limits.client_idle = Seconds::from_millis(50);
        c.limits.header_timeout = Seconds::from_millis(50);
        c.timeouts.stream_idle = Seconds::from_millis(50);
        c.timeouts.first_byte = Some(Seconds::from_millis(500));
    })
    .await;
    let (mut client, mut replica) = connected(&rig, &listener, b"said before the answer").await;
    let mut first = [0; 22];
    replica.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"said before the answer");
    assert_eq!(rig.router.load(), (1, 0), "it counts as in flight");
    // Quiet, through two sweeps.
    tokio::time::sleep(Duration::from_millis(1000)).await;
    let much = vec![7; 3 << 20];
    let (mut from, mut to) = client.split();
    let mut got = vec![0; much.len()];
    let (sent, read) = tokio::join!(to.write_all(&much), replica.read_exact(&mut got));
    sent.unwrap();
    read.unwrap();
    assert!(got == much);
    replica.write_all(b"ping").await.unwrap();
    let mut four = [0; 4];
    from.read_exact(&mut four).await.unwrap();
    assert_eq!(&four, b"ping");
    // The client has nothing more to say, the replica has.
    client.shutdown().await.unwrap();
    assert_eq!(replica.read(&mut four).await.unwrap(), 0);
    tokio::time::sleep(Duration::from_millis(900)).await;
    replica.write_all(b"last").await.unwrap();
    client.read_exact(&mut four).await.unwrap();
    assert_eq!(&four, b"last");
    assert_eq!(rig.router.load(), (1, 0));
    drop(replica);
    assert_eq!(client.read(&mut four).await.unwrap(), 0);
    rig.quiet().await;
    assert_eq!(rig.metric("homing_requests_total{model=\"m\",code=\"101\",reason=\"ok\"}"), 1.0);
}

#[tokio::test]
async fn a_client_that_vanishes_ends_its_tunnel() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let rig = Rig::start(&[listener.local_addr().unwrap()]).await;
    let (client, mut replica) = connected(&rig, &listener, b"").await;
    socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(1), replica.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the engine sees it");
    drop(replica);
    rig.quiet().await;
}

#[tokio::test]
async fn an_upgraded_connection_is_drained() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let rig = Rig::start(&[listener.local_addr().unwrap()]).await;
    let (mut client, mut replica) = connected(&rig, &listener, b"").await;
    rig.phase.send(Phase::Draining).unwrap();
    rig.phase.send(Phase::Closing).unwrap();
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(!rig.ended.is_finished());
    client.write_all(b"more").await.unwrap();
    let mut four = [0; 4];
    replica.read_exact(&mut four).await.unwrap();
    drop((client, replica));
    tokio::time::timeout(Duration::from_secs(20), rig.ended).await.expect("over").unwrap();
    assert_eq!(rig.router.load(), (0, 0));
}

#[tokio::test]
async fn an_upgraded_connection_ends_with_the_grace_period() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let rig =
        Rig::with(&[listener.local_addr().unwrap()], |c| c.drain.grace = Seconds::from_millis(200)).await;
    let (mut client, _replica) = connected(&rig, &listener, b"").await;
    rig.phase.send(Phase::Closing).unwrap();
    let mut rest = Vec::new();
    let _ = client.read_to_end(&mut rest).await;
    tokio::time::timeout(Duration::from_secs(20), rig.ended).await.expect("over").unwrap();
    assert_eq!(rig.router.load(), (0, 0));
}

#[tokio::test]
async fn a_replica_that_will_not_change_answers_as_always() {
    let no = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno".to_vec();
    let replica = Double::always(vec![Act::Send(no)]).await;
    let rig = Rig::start(&[replica.addr]).await;
    let ask = ASK.replace("keep-alive, Upgrade", "close, Upgrade");
    let got = crate::client::raw(rig.addr, ask.as_bytes()).await;
    assert!(got.starts_with("HTTP/1.1 403") && got.ends_with("no"), "{got}");
    eventually("nothing in flight", || rig.router.load() == (0, 0)).await;
}
