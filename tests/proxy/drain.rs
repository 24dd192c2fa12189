//! The way out: nobody who was let in is cut off.

use crate::client::{CHAT, Client, ask, chat, read};
use crate::double::{Act, Double, answer, last, sse_head, token};
use crate::rig::{Rig, eventually};
use homing::config::Seconds;
use homing::proxy::Phase;
use http_body_util::BodyExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

#[tokio::test]
async fn streams_end_normally_within_the_grace_period() {
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let replica = Double::start(move |_, seen| {
        if memchr::memmem::find(&seen.body, b"\"stream\":true").is_some() {
            vec![sse_head(), token("a"), Act::Gate(held.clone()), token("b"), last()]
        } else {
            vec![answer("x")]
        }
    })
    .await;
    let rig = Rig::start(&[replica.addr]).await;
    let mut streaming = Client::connect(rig.addr).await;
    let mut stream = streaming.post(CHAT, chat("x", true)).await.unwrap();
    assert!(stream.frame().await.unwrap().is_ok());
    let mut idle = Client::connect(rig.addr).await;
    let kept = read(idle.post(CHAT, chat("y", false)).await.unwrap()).await;
    assert!(!kept.headers.contains_key("connection"));

    // Draining: everything is still served, but who keeps a connection is asked to come back elsewhere.
    rig.phase.send(Phase::Draining).unwrap();
    // Each worker hears of it in its own time.
    let end = Instant::now() + Duration::from_secs(20);
    for heard in 0.. {
        let got = ask(rig.addr, CHAT, chat("z", false)).await;
        assert_eq!(got.status, 200);
        if got.headers.get("connection").is_some_and(|v| v == "close") {
            break;
        }
        assert!(Instant::now() < end, "never said, in {heard} answers");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let mut idle_too = Client::connect(rig.addr).await;

    rig.phase.send(Phase::Closing).unwrap();
    // Accepted before the end and silent so far: it may still ask.
    let asking = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        read(idle_too.post(CHAT, chat("in time", false)).await.unwrap()).await.status
    };
    let (status, ()) = tokio::join!(asking, eventually("the idle connection is closed", || idle.closed()));
    assert_eq!(status, 200);
    let end = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(rig.addr).await.is_ok() {
        assert!(Instant::now() < end, "the socket is closed");
    }
    gate.add_permits(1);
    let got = read(stream).await;
    assert!(got.complete && got.text().contains("\"b\""), "{}", got.text());
    tokio::time::timeout(Duration::from_secs(20), rig.ended).await.expect("over").unwrap();
}

#[tokio::test]
async fn what_outlasts_the_grace_period_is_cut() {
    let mut replica = Double::always(vec![sse_head(), token("a"), Act::UntilGone]).await;
    let rig = Rig::with(&[replica.addr], |c| c.drain.grace = Seconds::from_millis(300)).await;
    let mut client = Client::connect(rig.addr).await;
    let mut stream = client.post(CHAT, chat("x", true)).await.unwrap();
    assert!(stream.frame().await.unwrap().is_ok());
    rig.phase.send(Phase::Closing).unwrap();
    assert!(!read(stream).await.complete);
    replica.gone(1).await;
    tokio::time::timeout(Duration::from_secs(20), rig.ended).await.expect("over").unwrap();
    assert_eq!(rig.router.load(), (0, 0));
}
