//! Waiting in the lane of a replica: order, deadlines, and what happens when that replica dies.

use crate::client::{CHAT, Client, Got, ask, call, chat, post, read};
use crate::double::{Act, Double, sse_head, token};
use crate::rig::{Rig, eventually};
use homing::config::{ReplicaSpec, Seconds};
use homing::core::health::Probe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// A stream whose first token is seen and that ends when the gate lets it.
fn gated(gate: &Arc<Semaphore>) -> Vec<Act> {
    let end = Act::Send(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n".to_vec());
    vec![Act::Gate(gate.clone()), sse_head(), token("a"), end]
}

/// Takes one request at a time.
fn narrow(replica: &Double) -> ReplicaSpec {
    ReplicaSpec { max_in_flight: Some(1), ..ReplicaSpec::new(format!("http://{}", replica.addr)) }
}

fn send(rig: &Rig, what: &str, headers: &[(&'static str, &'static str)]) -> JoinHandle<Got> {
    let (addr, mut request) = (rig.addr, post(CHAT, chat(what, true)));
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    tokio::spawn(async move { call(addr, request).await })
}

/// Sends requests one after the other, each once the one before waits.
async fn line_up(rig: &Rig, all: &[(&str, &'static str)]) -> Vec<JoinHandle<Got>> {
    let mut tasks = Vec::new();
    for (n, (what, priority)) in all.iter().enumerate() {
        tasks.push(send(rig, what, &[("x-homing-priority", priority)]));
        eventually("waiting", || rig.router.load().1 == n + 1).await;
    }
    tasks
}

fn prompts(replica: &Double) -> Vec<String> {
    let what = |body: &[u8]| {
        let body: serde_json::Value = serde_json::from_slice(body).unwrap();
        body["messages"][0]["content"].as_str().unwrap().to_owned()
    };
    replica.seen().iter().map(|s| what(&s.body)).collect()
}

#[tokio::test]
async fn trusted_priorities_go_in_their_order() {
    let gate = Arc::new(Semaphore::new(0));
    let script = gated(&gate);
    let replica = Double::always(script).await;
    let rig = Rig::of(vec![narrow(&replica)], |c| c.lanes.trust_headers = true).await;
    let first = send(&rig, "first", &[]);
    replica.asked(1).await;
    let tasks = line_up(&rig, &[("usual", "0"), ("low", "-7"), ("high", "9"), ("higher", "10")]).await;
    assert_eq!(rig.router.replicas()[0].in_lane, 4);
    gate.add_permits(5);
    assert_eq!(first.await.unwrap().status, 200);
    for task in tasks {
        assert_eq!(task.await.unwrap().status, 200);
    }
    assert_eq!(prompts(&replica), ["first", "higher", "high", "usual", "low"]);
    rig.quiet().await;
    assert!(rig.metric("homing_queue_seconds_sum") > 0.0);
}

#[tokio::test]
async fn priorities_that_nobody_vouches_for_are_ignored() {
    let gate = Arc::new(Semaphore::new(0));
    let replica = Double::always(gated(&gate)).await;
    let rig = Rig::of(vec![narrow(&replica)], |_| {}).await;
    let first = send(&rig, "first", &[]);
    replica.asked(1).await;
    let tasks = line_up(&rig, &[("second", "0"), ("third!", "100")]).await;
    gate.add_permits(3);
    first.await.unwrap();
    for task in tasks {
        assert_eq!(task.await.unwrap().status, 200);
    }
    assert_eq!(prompts(&replica), ["first", "second", "third!"]);
}

#[tokio::test]
async fn a_deadline_while_waiting_is_a_504_and_leaves_nothing_behind() {
    let gate = Arc::new(Semaphore::new(0));
    let replica = Double::always(gated(&gate)).await;
    let timeout = |c: &mut homing::config::Config| c.queue.timeout = Seconds::from_millis(300);
    let rig = Rig::of(vec![narrow(&replica)], timeout).await;
    let first = send(&rig, "first", &[]);
    replica.asked(1).await;
    let got = ask(rig.addr, CHAT, chat("late", true)).await;
    assert_eq!(got.status, 504, "{}", got.text());
    assert!(got.headers.contains_key("retry-after"));
    assert_eq!(got.json()["error"]["code"], "deadline_exceeded");
    assert_eq!(rig.router.load(), (1, 0));
    assert_eq!(rig.metric("homing_shed_total{reason=\"deadline\"}"), 1.0);
    // Its wait counts, although it was never placed.
    eventually("its wait", || rig.metric("homing_queue_seconds_sum") >= 0.3).await;
    gate.add_permits(1);
    assert_eq!(first.await.unwrap().status, 200);
    rig.quiet().await;
}

#[tokio::test]
async fn a_client_that_leaves_its_lane_lets_the_next_one_pass() {
    let gate = Arc::new(Semaphore::new(0));
    let replica = Double::always(gated(&gate)).await;
    let rig = Rig::of(vec![narrow(&replica)], |c| c.lanes.trust_headers = true).await;
    let first = send(&rig, "first", &[]);
    replica.asked(1).await;
    let tasks = line_up(&rig, &[("leaves", "5"), ("stays", "0")]).await;
    let mut tasks = tasks.into_iter();
    tasks.next().unwrap().abort();
    eventually("its place is free", || rig.router.load() == (1, 1)).await;
    gate.add_permits(2);
    first.await.unwrap();
    assert_eq!(tasks.next().unwrap().await.unwrap().status, 200);
    assert_eq!(prompts(&replica), ["first", "stays"]);
    rig.quiet().await;
}

#[tokio::test]
async fn those_who_wait_for_a_replica_that_dies_go_elsewhere() {
    let (gate, other_gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let dies = Double::always(gated(&gate)).await;
    let lives = Double::always(gated(&other_gate)).await;
    let rig = Rig::of(vec![narrow(&dies), narrow(&lives)], |_| {}).await;
    let mut running = [send(&rig, "one", &[]), send(&rig, "two", &[])];
    dies.asked(1).await;
    lives.asked(1).await;
    let waiting = line_up(&rig, &[("three", "0"), ("four", "0"), ("five", "0"), ("six", "0")]).await;
    let in_lanes = |n: usize| rig.router.replicas().iter().find(|r| r.replica == rig.ids[n]).unwrap().in_lane;
    assert!(in_lanes(0) > 0 && in_lanes(0) + in_lanes(1) == 4, "{} and {}", in_lanes(0), in_lanes(1));
    for _ in 0..3 {
        rig.router.probe(rig.ids[0], Probe::Unreachable);
    }
    assert_ne!(rig.state(0), "ready");
    eventually("all wait for the other", || in_lanes(0) == 0 && in_lanes(1) == 4).await;
    other_gate.add_permits(5);
    for task in waiting {
        assert_eq!(task.await.unwrap().status, 200);
    }
    assert_eq!(lives.seen().len(), 5);
    gate.add_permits(1);
    for task in &mut running {
        assert_eq!(task.await.unwrap().status, 200);
    }
    rig.quiet().await;
}

#[tokio::test]
async fn overload_is_a_503_that_says_when_to_come_again() {
    let gate = Arc::new(Semaphore::new(0));
    let replica = Double::always(gated(&gate)).await;
    let rig = Rig::of(vec![narrow(&replica)], |c| c.queue.max = 2).await;
    let first = send(&rig, "first", &[]);
    replica.asked(1).await;
    let mut waiting = Vec::new();
    while rig.router.load().1 < 2 {
        waiting.push(send(&rig, "more", &[]));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut client = Client::connect(rig.addr).await;
    let got = read(client.post(CHAT, chat("too many", true)).await.unwrap()).await;
    assert_eq!((got.status, got.headers.contains_key("retry-after")), (503, true), "{}", got.text());
    assert!(rig.metric("homing_shed_total{reason=\"queue_full\"}") >= 1.0);
    gate.add_permits(100);
    first.await.unwrap();
    for task in waiting {
        assert!([200, 503].contains(&task.await.unwrap().status));
    }
    rig.quiet().await;
}
