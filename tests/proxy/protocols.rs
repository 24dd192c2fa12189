//! What HTTP allows a client to do.

use crate::client::{CHAT, chat, raw};
use crate::double::{Act, Double, answer, last, sse_head, token};
use crate::rig::{Rig, eventually};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn chunked_expect_http10_and_pipelining() {
    let replica = Double::always(vec![answer("a")]).await;
    let rig = Rig::start(&[replica.addr]).await;
    let body = chat("x", false);
    let (half, rest) = body.split_at(20);

    // Chunked, with an extension and a trailer.
    let chunked = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: r\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n{:x};ext=1\r\n{half}\r\n{:x}\r\n{rest}\r\n0\r\nx-trailer: 1\r\n\r\n",
        half.len(),
        rest.len()
    );
    assert!(raw(rig.addr, chunked.as_bytes()).await.starts_with("HTTP/1.1 200"));
    assert_eq!(replica.seen().pop().unwrap().body, body.as_bytes());
    // The same through a path that streams it.
    let streamed = chunked.replace(CHAT, "/v1/audio/transcriptions");
    assert!(raw(rig.addr, streamed.as_bytes()).await.starts_with("HTTP/1.1 200"));
    assert_eq!(replica.seen().pop().unwrap().body, body.as_bytes());

    // A client that waits to be asked for its body.
    let mut client = TcpStream::connect(rig.addr).await.unwrap();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: r\r\nconnection: close\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes()).await.unwrap();
    let mut asked = [0; 25];
    client.read_exact(&mut asked).await.unwrap();
    assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
    client.write_all(body.as_bytes()).await.unwrap();
    let mut all = String::new();
    client.read_to_string(&mut all).await.unwrap();
    assert!(all.starts_with("HTTP/1.1 200"), "{all}");
    assert_eq!(replica.seen().pop().unwrap().header("expect"), None);

    // HTTP/1.0.
    let old = format!("POST {CHAT} HTTP/1.0\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let all = raw(rig.addr, old.as_bytes()).await;
    assert!(all.starts_with("HTTP/1.0 200") && all.ends_with('}'), "{all}");

    // Three at once; answers come in order.
    let one = |path: &str, close: &str| {
        format!("POST {path} HTTP/1.1\r\nhost: r\r\n{close}content-length: {}\r\n\r\n{body}", body.len())
    };
    let three = one(CHAT, "") + &one("/nothing-known", "") + &one(CHAT, "connection: close\r\n");
    let all = raw(rig.addr, three.as_bytes()).await;
    assert_eq!(all.matches("HTTP/1.1 200").count(), 3, "{all}");
    rig.quiet().await;
}

#[tokio::test]
async fn http10_gets_a_stream_without_chunks() {
    let replica = Double::always(vec![
        sse_head(),
        token("a"),
        Act::Pause(Duration::from_millis(10)),
        token("b"),
        last(),
    ])
    .await;
    let rig = Rig::start(&[replica.addr]).await;
    let body = chat("x", true);
    let old = format!("POST {CHAT} HTTP/1.0\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let all = raw(rig.addr, old.as_bytes()).await;
    let (head, events) = all.split_once("\r\n\r\n").unwrap();
    assert!(!head.to_lowercase().contains("transfer-encoding"), "{head}");
    assert!(events.starts_with("data: ") && events.ends_with("\n\n"), "{events}");
}

#[tokio::test]
async fn garbage_is_answered_and_closed() {
    let rig = Rig::start(&[]).await;
    let all = raw(rig.addr, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 this is not HTTP\r\n\r\n").await;
    assert!(all.starts_with("HTTP/1.1 400"), "{all}");
}

#[tokio::test]
async fn h2c_many_streams_on_one_connection() {
    let mut replica = Double::start(|_, seen| {
        let text = String::from_utf8_lossy(&seen.body);
        if text.contains("mute") {
            vec![Act::UntilGone]
        } else if text.contains("hang") {
            vec![sse_head(), token("a"), Act::UntilGone]
        } else if text.contains("\"stream\":true") {
            vec![sse_head(), token("a"), token("b"), last()]
        } else {
            vec![answer("a")]
        }
    })
    .await;
    let rig = Rig::start(&[replica.addr]).await;
    let stream = TcpStream::connect(rig.addr).await.unwrap().into_std().unwrap();
    let socket = stream.try_clone().unwrap();
    let stream = TcpStream::from_std(stream).unwrap();
    let (sender, conn) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(conn);
    let request = |body: String| {
        http::Request::post(format!("http://r{CHAT}")).body(Full::<Bytes>::from(body)).unwrap()
    };
    let mut all = tokio::task::JoinSet::new();
    for n in 0..50 {
        let (mut sender, request) = (sender.clone(), request(chat(&n.to_string(), n % 2 == 0)));
        all.spawn(async move {
            let response = sender.send_request(request).await.unwrap();
            assert_eq!(response.status(), 200);
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let tokens = memchr::memmem::find_iter(&body, b"content").count();
            assert_eq!(tokens, if n % 2 == 0 { 2 } else { 0 });
        });
    }
    while let Some(done) = all.join_next().await {
        done.unwrap();
    }
    // One stream is given up; the connection goes on.
    let mut one = sender.clone();
    let mut response = one.send_request(request(chat("hang", true))).await.unwrap();
    assert!(response.frame().await.unwrap().is_ok());
    drop(response);
    replica.gone(1).await;
    let response = one.send_request(request(chat("x", false))).await.unwrap();
    assert_eq!(response.status(), 200);
    rig.quiet().await;
    // The connection is given up as a whole, with one request before and one behind its first byte.
    let mut response = one.send_request(request(chat("hang", true))).await.unwrap();
    assert!(response.frame().await.unwrap().is_ok());
    let waiting = tokio::spawn(one.send_request(request(chat("mute", false))));
    eventually("both are in flight", || rig.router.load() == (2, 0)).await;
    socket.shutdown(std::net::Shutdown::Both).unwrap();
    replica.gone(3).await;
    drop((response, waiting));
    rig.quiet().await;
}

#[tokio::test]
async fn a_client_that_closes_its_sending_side_has_left() {
    let mut replica = Double::always(vec![Act::UntilGone]).await;
    let rig = Rig::start(&[replica.addr]).await;
    let mut client = TcpStream::connect(rig.addr).await.unwrap();
    let body = chat("x", false);
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: r\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    client.write_all(head.as_bytes()).await.unwrap();
    replica.asked(1).await;
    client.shutdown().await.unwrap();
    replica.gone(1).await;
    rig.quiet().await;
}
