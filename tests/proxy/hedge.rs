//! A second request, because the first is slow to begin.

use crate::client::{CHAT, ask, chat};
use crate::double::{Act, Double, chunk, json, last, sse_head, token};
use crate::rig::{Rig, eventually};
use homing::config::{Config, Seconds};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

fn hedging(c: &mut Config) {
    c.hedge.after = Some(Seconds::from_millis(60));
    c.hedge.budget = 1.0;
    // Nobody is taken out for being slow.
    c.health.suspect_after = 1_000_000;
}

fn stream() -> Vec<Act> {
    vec![sse_head(), token("well"), chunk("data: [DONE]\n\n"), last()]
}

#[tokio::test]
async fn the_first_to_begin_wins_and_the_other_is_given_up() {
    let mut slow = Double::always(vec![Act::UntilGone]).await;
    let well = Double::always(stream()).await;
    let rig = Rig::with(&[slow.addr, well.addr], hedging).await;
    let mut n = 0;
    while slow.seen().len() < 3 {
        let got = ask(rig.addr, CHAT, chat(&format!("{n}"), true)).await;
        assert!(got.complete && got.text().contains("well") && got.text().ends_with("data: [DONE]\n\n"));
        slow.gone(slow.seen().len()).await;
        n += 1;
        assert!(n < 100, "the slow one is never asked");
    }
    rig.quiet().await;
    assert_eq!(rig.metric("homing_hedges_total{outcome=\"won\"}"), slow.seen().len() as f64);
    assert_eq!(rig.metric("homing_retries_total"), 0.0, "it is no retry");
    assert_eq!((rig.state(0), rig.state(1)), ("ready", "ready"));
}

#[tokio::test]
async fn what_has_begun_or_comes_as_a_whole_is_not_asked_for_twice() {
    let pause = || Act::Pause(Duration::from_millis(200));
    let script = move |_: usize, seen: &crate::double::Seen| {
        if memchr::memmem::find(&seen.body, b"\"stream\":true").is_some() {
            vec![sse_head(), token("a"), pause(), chunk("data: [DONE]\n\n"), last()]
        } else {
            vec![pause(), json(200, "{}")]
        }
    };
    let (a, b) = (Double::start(script).await, Double::start(script).await);
    let rig = Rig::with(&[a.addr, b.addr], hedging).await;
    for n in 0..6 {
        assert_eq!(ask(rig.addr, CHAT, chat(&format!("{n}"), n % 2 == 0)).await.status, 200);
    }
    assert_eq!(a.seen().len() + b.seen().len(), 6);
}

#[tokio::test]
async fn no_more_second_requests_than_their_budget() {
    let slow = || {
        vec![
            Act::Pause(Duration::from_millis(150)),
            sse_head(),
            token("a"),
            chunk("data: [DONE]\n\n"),
            last(),
        ]
    };
    let (a, b) = (Double::always(slow()).await, Double::always(slow()).await);
    let rig = Rig::with(&[a.addr, b.addr], |c| {
        hedging(c);
        c.hedge.budget = 0.25;
    })
    .await;
    for n in 0..12 {
        assert_eq!(ask(rig.addr, CHAT, chat(&format!("{n}"), true)).await.status, 200);
    }
    assert_eq!(a.seen().len() + b.seen().len(), 12 + 3);
    assert_eq!(rig.metric("homing_hedges_total{outcome=\"no_budget\"}"), 9.0);
}

#[tokio::test]
async fn when_one_of_the_two_fails_the_other_answers() {
    let late = vec![
        Act::Pause(Duration::from_millis(250)),
        sse_head(),
        token("well"),
        chunk("data: [DONE]\n\n"),
        last(),
    ];
    let bad = Double::always(vec![Act::Pause(Duration::from_millis(120)), json(500, "{}")]).await;
    let well = Double::always(late).await;
    let rig = Rig::with(&[bad.addr, well.addr], hedging).await;
    for n in 0..6 {
        let got = ask(rig.addr, CHAT, chat(&format!("{n}"), true)).await;
        assert!(got.status == 200 && got.text().contains("well"), "{}", got.text());
    }
    assert!(!bad.seen().is_empty());
    rig.quiet().await;
}

#[tokio::test]
async fn client_leaving_while_two_are_asked_is_seen_by_both_engines() {
    let mut both = [Double::always(vec![Act::UntilGone]).await, Double::always(vec![Act::UntilGone]).await];
    let addrs: Vec<SocketAddr> = both.iter().map(|d| d.addr).collect();
    let rig = Rig::with(&addrs, hedging).await;
    let body = chat("x", true);
    let mut client = TcpStream::connect(rig.addr).await.unwrap();
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: r\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    client.write_all(head.as_bytes()).await.unwrap();
    eventually("both are asked", || both.iter().all(|d| d.seen().len() == 1)).await;
    drop(client);
    for engine in &mut both {
        engine.gone(1).await;
    }
    rig.quiet().await;
}
