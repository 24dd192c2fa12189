//! The shell: reservations are given back once, waiting works, membership changes under load.

use super::*;
use crate::config::ReplicaSpec;
use crate::core::health::Probe;
use crate::core::{Failure, Outcome};

fn router(config: &Config) -> Arc<Router> {
    Router::new(config, 7)
}

fn join(r: &Router, port: u16, cap: Option<u32>) -> ReplicaId {
    let spec = ReplicaSpec { max_in_flight: cap, ..ReplicaSpec::new(format!("http://127.0.0.1:{port}")) };
    let id = r.join(Member::new(spec).unwrap()).unwrap();
    r.models(id, vec![ModelInfo { id: "m".into(), parent: None, max_model_len: Some(8192) }]);
    r.probe(id, Probe::Ok);
    id
}

fn ask(n: u64) -> Ask {
    Ask {
        model: Some("m".into()),
        chain: (0..8).map(|i| (n + 1) * 1000 + i).collect(),
        head: n,
        text_bytes: 2100,
        choices: 1,
        generates: true,
        streams: true,
        ..Ask::default()
    }
}

#[tokio::test]
async fn every_ending_gives_everything_back_once() {
    let r = router(&Config::default());
    let ids = [join(&r, 1, None), join(&r, 2, None)];
    for n in 0..300u64 {
        let mut held = r.place(&ask(n % 40)).await.unwrap();
        assert!(ids.contains(&held.replica()));
        match n % 5 {
            0 => held.finish(Outcome { output_tokens: Some(10), ..Outcome::default() }),
            1 => held.fail(Failure::Reset),
            2 => drop(held),
            3 => {
                held.first_token();
                held.progress(300);
                drop(held);
            }
            _ => {
                held.first_token();
                held.finish(Outcome {
                    prompt_tokens: Some(525),
                    cached_tokens: Some(0),
                    output_tokens: Some(3),
                });
            }
        }
        if n % 10 == 9 {
            ids.iter().for_each(|&id| r.probe(id, Probe::Ok));
        }
        r.fleet.lock().check_invariants().unwrap();
        r.index.read().check_invariants();
        if r.replicas().iter().all(|v| v.state != "ready") {
            break;
        }
    }
    assert_eq!(r.load(), (0, 0));
    assert_eq!(r.index_stats().speculations, 0);
}

#[tokio::test]
async fn the_second_turn_goes_home() {
    let r = router(&Config::default());
    for port in 1..5 {
        join(&r, port, None);
    }
    for n in 0..20 {
        let mut first = r.place(&ask(n)).await.unwrap();
        let home = first.replica();
        assert_eq!(first.predicted_cached(), 0);
        first.first_token();
        first.finish(Outcome::default());
        let second = r.place(&ask(n)).await.unwrap();
        assert_eq!(second.replica(), home);
        assert!(second.predicted_cached() > 400);
        second.finish(Outcome::default());
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_when_room_comes_or_time_is_over() {
    let mut config = Config::default();
    config.queue.timeout = crate::config::Seconds::from_secs(3);
    let r = router(&config);
    join(&r, 1, Some(1));
    let first = r.place(&ask(1)).await.unwrap();
    let waiting = tokio::spawn({
        let r = r.clone();
        async move { r.place(&ask(2)).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(r.load(), (1, 1));
    first.finish(Outcome::default());
    let second = waiting.await.unwrap().unwrap();
    assert_eq!(r.load(), (1, 0));
    assert!(matches!(r.place(&ask(3)).await, Err(Refusal::Deadline { .. })));
    assert_eq!(r.load(), (1, 0));
    drop(second);
    assert_eq!(r.load(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn giving_up_a_place_in_line_wakes_the_next() {
    let r = router(&Config::default());
    join(&r, 1, Some(1));
    let first = r.place(&ask(1)).await.unwrap();
    let spawn = |n| {
        let r = r.clone();
        tokio::spawn(async move { r.place(&ask(n)).await })
    };
    let (second, third) = (spawn(2), spawn(3));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(r.load(), (1, 2));
    second.abort();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(r.load(), (1, 1));
    drop(first);
    third.await.unwrap().unwrap();
    assert_eq!(r.load(), (0, 0));
}

#[tokio::test]
async fn a_replica_that_leaves_mid_request_takes_nothing_along() {
    let r = router(&Config::default());
    let a = join(&r, 1, None);
    let held = r.place(&ask(1)).await.unwrap();
    r.leave(a);
    assert!(held.endpoint().unwrap().gone());
    let b = join(&r, 1, None);
    assert_ne!(a, b);
    assert_eq!(r.place(&ask(1)).await.unwrap().predicted_cached(), 0, "its cache left with it");
    held.finish(Outcome::default());
    assert_eq!(r.load(), (0, 0));
    r.index.read().check_invariants();
}

#[tokio::test]
async fn unknown_models_list_the_known() {
    let r = router(&Config::default());
    join(&r, 1, None);
    let refused = r.place(&Ask { model: Some("nope".into()), ..ask(1) }).await.err().unwrap();
    assert_eq!(refused, Refusal::UnknownModel { known: Arc::from([Arc::from("m")]) });
    let page: serde_json::Value = serde_json::from_slice(&r.models_page()).unwrap();
    assert_eq!(page["data"][0]["id"], "m");
    assert_eq!(page["data"][0]["max_model_len"], 8192);
}

#[tokio::test]
async fn a_cache_that_was_reset_is_noticed() {
    let r = router(&Config::default());
    join(&r, 1, None);
    let long = |n| Ask { chain: (0..40).map(|i| n * 1000 + i).collect(), text_bytes: 40 * 256 + 9, ..ask(n) };
    for n in 1..30 {
        r.place(&long(n)).await.unwrap().finish(Outcome::default());
    }
    for n in 1..4 {
        let held = r.place(&long(n)).await.unwrap();
        assert!(held.predicted_cached() > 2000);
        held.finish(Outcome { cached_tokens: Some(0), ..Outcome::default() });
    }
    assert_eq!(r.place(&long(20)).await.unwrap().predicted_cached(), 0);
    r.place(&long(3)).await.unwrap().finish(Outcome::default());
    assert!(r.place(&long(3)).await.unwrap().predicted_cached() > 2000, "learned anew");
}

#[tokio::test]
async fn explain_says_who_and_why() {
    let r = router(&Config::default());
    join(&r, 1, None);
    join(&r, 2, None);
    let home = r.place(&ask(5)).await.unwrap();
    let name = home.endpoint().unwrap().name.clone();
    home.finish(Outcome::default());
    let e = r.explain(&ask(5));
    assert_eq!(e.chosen.as_deref(), Some(&*name));
    assert_eq!(e.candidates[0].matched_blocks, 8);
    assert!(e.candidates[0].price_ms.total < e.candidates[1].price_ms.total);
    assert!(serde_json::to_string(&e).unwrap().contains("price_ms"));
    assert_eq!(r.load(), (0, 0));
}

#[tokio::test]
async fn a_hot_prefix_ends_up_held_by_a_second_replica() {
    let r = router(&Config::default());
    for port in 1..5 {
        join(&r, port, None);
    }
    let hot =
        |n: u64| Ask { chain: (0..100).chain([n << 32]).collect(), head: 1, text_bytes: 101 * 256, ..ask(n) };
    let mut held = Vec::new();
    // Twice what an engine decodes at once.
    for n in 1..512 {
        let mut one = r.place(&hot(n)).await.unwrap();
        one.first_token();
        held.push(one);
    }
    let told = r.explain(&hot(9999));
    let holders = told.candidates.iter().filter(|c| c.matched_blocks == 100).count();
    assert!(holders >= 2, "{:?}", told.candidates.iter().map(|c| c.matched_blocks).collect::<Vec<_>>());
    let mut loads: Vec<_> = r.replicas().iter().map(|v| v.in_flight).collect();
    loads.sort_unstable();
    assert!(loads[2] > 50, "both are used: {loads:?}");
}

#[test]
fn the_list_of_models_is_the_same_whoever_joined_first() {
    let lists = [
        vec![("base", None), ("base-ada", Some("base"))],
        vec![("other", None)],
        vec![("base", None), ("base-bob", Some("base"))],
    ];
    let page = |order: [usize; 3]| {
        let r = router(&Config::default());
        for at in order {
            let spec = ReplicaSpec::new(format!("http://127.0.0.1:{}", at + 1));
            let id = r.join(Member::new(spec).unwrap()).unwrap();
            let info = |&(id, parent): &(&str, Option<&str>)| ModelInfo {
                id: id.into(),
                parent: parent.map(Into::into),
                max_model_len: Some(4096),
            };
            r.models(id, lists[at].iter().map(info).collect());
        }
        r.models_page()
    };
    let first = page([0, 1, 2]);
    for order in [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        assert_eq!(page(order), first, "{order:?}");
    }
    let told: serde_json::Value = serde_json::from_slice(&first).unwrap();
    let ids: Vec<_> = told["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["base", "base-ada", "base-bob", "other"]);
    assert_eq!(told["data"][1]["parent"], "base");
}

#[tokio::test]
async fn adapters_that_come_and_go_for_ever_are_served_to_the_last() {
    let r = router(&Config::default());
    let id = join(&r, 1, None);
    for n in 0..10_000 {
        let name = format!("adapter-{n}");
        let info = |id: &str| ModelInfo { id: id.into(), parent: None, max_model_len: None };
        r.models(id, vec![info("m"), info(&name)]);
        let one = Ask { model: Some(name), ..ask(n) };
        r.place(&one).await.unwrap().finish(Outcome { prompt_tokens: Some(700), ..Outcome::default() });
    }
    let gone = r.place(&Ask { model: Some("adapter-5".into()), ..ask(5) }).await.err().unwrap();
    assert!(matches!(gone, Refusal::UnknownModel { .. }), "{gone:?}");
    let last = r.names.read().get("adapter-9999").unwrap();
    assert!(r.fleet.lock().model(last).is_some_and(|m| m.prompts_seen() > 0.0), "it is still learned");
    assert!(r.names.read().get("m").is_some());
}

#[tokio::test]
async fn a_prompt_that_may_be_refused_for_its_length_pushes_nothing_out() {
    let r = router(&Config::default());
    let id = join(&r, 1, None);
    r.page(id, Page { capacity: Some(8192), ..Page::default() });
    r.tick();
    r.place(&ask(1)).await.unwrap().finish(Outcome::default());
    let long = Ask { chain: (0..300).map(|i| 77_000 + i).collect(), text_bytes: 300 * 256, ..ask(9) };
    r.place(&long).await.unwrap().fail(Failure::Blameless);
    assert!(r.place(&ask(1)).await.unwrap().predicted_cached() > 400, "what was there is still believed");
}
