//! Restarts under load: nobody is refused, nothing is cut.

use crate::load::{Client, Crowd};
use crate::process::{Dir, Router, config, replica, until};
use std::fs;

/// Restarts of the test; `HOMING_RESTARTS` says otherwise.
const RESTARTS: u64 = 5;

fn restarts() -> u64 {
    std::env::var("HOMING_RESTARTS").ok().and_then(|n| n.parse().ok()).unwrap_or(RESTARTS)
}

#[test]
fn case_33_rolling_restarts_under_load_refuse_nobody_and_cut_nothing() {
    let dir = Dir::new("restart");
    let mut router = Router::start(&dir, &config(replica(), ""));
    let prompt = "a prompt that is remembered ".repeat(200);
    Client::new(router.data).chat(&prompt, 2).unwrap();
    let known = router.matched(&prompt);
    assert!(known > 10);
    let crowd = Crowd::new(router.data, 8);
    crowd.wait(8);
    for round in 1..=restarts() {
        router.hand_over();
        assert_eq!(router.matched(&prompt), known, "round {round}: the successor knows what the caches hold");
        crowd.wait(30);
    }
    assert!(router.first_ended().success());
    crowd.wait(8);
    let (answers, faults) = crowd.end();
    eprintln!("{} restarts, {answers} answers, {} faults", restarts(), faults.len());
    assert!(
        faults.is_empty(),
        "{} of {answers} went wrong: {:?}",
        faults.len(),
        &faults[..faults.len().min(5)]
    );
    let stopped = || router.lines("stopped").len();
    until("all predecessors have ended", || stopped() as u64 == restarts());
}

#[test]
fn a_successor_that_cannot_start_changes_nothing() {
    let dir = Dir::new("stillborn");
    let mut router = Router::start(&dir, &config(replica(), ""));
    let crowd = Crowd::new(router.data, 4);
    crowd.wait(4);
    let good = fs::read_to_string(&router.config).unwrap();
    fs::write(&router.config, "nonsense: true\n").unwrap();
    router.signal("USR2");
    until("it is told", || !router.lines("no successor").is_empty());
    crowd.wait(10);
    fs::write(&router.config, good).unwrap();
    router.hand_over();
    assert!(router.first_ended().success());
    crowd.wait(4);
    let (_, faults) = crowd.end();
    assert!(faults.is_empty(), "{faults:?}");
}

/// A stream that began before the hand-over and takes much longer than it ends normally.
#[test]
fn a_long_stream_outlives_the_hand_over() {
    let dir = Dir::new("long");
    let mut router = Router::start(&dir, &config(replica(), ""));
    let to = router.data;
    let stream = std::thread::spawn(move || Client::new(to).chat("a long story", 1500));
    until("it has begun", || router.admin("GET", "/replicas", "").1["in_flight"] == 1);
    router.hand_over();
    assert!(!stream.is_finished(), "it should have been longer");
    assert!(router.first_ended().success());
    stream.join().unwrap().unwrap();
}
