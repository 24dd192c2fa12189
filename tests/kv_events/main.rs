//! KV events from a simulated engine, over real sockets, into the index.

#![expect(clippy::unwrap_used, reason = "tests")]

mod interop;
mod rig;

use homing::engine::kv::Layout;
use homing::sim::http::{KvEvents, KvFaults, Mock, MockConfig};
use homing::sim::text::Prompt;
use rig::{Rig, complete, faults, load, prompts, small, spec, until};
use std::time::Duration;

#[tokio::test]
async fn what_the_cache_holds_is_known_to_the_block() {
    for layout in [Layout::Maps, Layout::Arrays, Layout::ByteHashes] {
        let events = KvEvents { layout, ..KvEvents::default() };
        let mock = Mock::start(MockConfig { kv_events: Some(events), ..small(1024) }).await.unwrap();
        let rig = Rig::new(vec![spec(&mock)]);
        rig.source(0, "events").await;
        let all = prompts(40, 1);
        load(&mock, &all).await;
        rig.agrees(0, &mock, &all).await;
        let view = rig.view(0);
        assert!(view.index_blocks > 10 && view.index_blocks <= 64, "{view:?}");
        assert!(view.events[0].events > 40 && view.events[0].unreadable == 0, "{view:?}");
        let page = rig.metrics.render();
        let name = &view.name;
        assert!(
            until(Duration::from_secs(5), || rig.metrics.render().contains(&format!(
                "homing_replica_cache_source{{replica=\"{name}\",source=\"events\"}} 1\n"
            )))
            .await,
            "{page}"
        );
    }
}

#[tokio::test]
async fn case_7_salts_are_kept_apart_by_events_too() {
    let mock = Mock::start(small(4096)).await.unwrap();
    let rig = Rig::new(vec![spec(&mock)]);
    rig.source(0, "events").await;
    let text = prompts(1, 3).remove(0);
    let body = serde_json::json!({"model": "mock", "prompt": text, "max_tokens": 2, "cache_salt": "tenant"});
    rig::post(mock.addr(), &body.to_string()).await;
    let prompt = Prompt::plain(&text);
    let replica = rig.view(0).replica;
    assert!(until(Duration::from_secs(10), || rig.believed(replica, &prompt, Some("tenant")) > 0).await);
    assert_eq!(rig.believed(replica, &prompt, Some("tenant")), mock.cached(&prompt, "mock", Some("tenant")));
    assert_eq!(rig.believed(replica, &prompt, None), 0);
    assert_eq!(rig.believed(replica, &prompt, Some("other")), 0);
}

#[tokio::test]
async fn case_16_an_engine_that_restarts_in_place_has_nothing_left() {
    let first = Mock::start(small(4096)).await.unwrap();
    let rig = Rig::new(vec![spec(&first)]);
    rig.source(0, "events").await;
    let (old, new) = (prompts(12, 1), prompts(4, 99));
    load(&first, &old).await;
    rig.agrees(0, &first, &old).await;
    let (addr, (events, replay)) = (first.addr(), first.kv_endpoints().unwrap());
    let config = small(4096);
    let again = KvEvents { listen: events, replay, ..KvEvents::default() };
    first.kill();
    drop(first);
    let mut second = None;
    for _ in 0..200 {
        second = Mock::start(MockConfig { listen: addr, kv_events: Some(again.clone()), ..config.clone() })
            .await
            .ok();
        if second.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let second = second.unwrap();
    load(&second, &new).await;
    let all: Vec<String> = [old, new].concat();
    rig.agrees(0, &second, &all).await;
    rig.source(0, "events").await;
    assert!(rig.view(0).events[0].restarts > 0);
}

#[tokio::test]
async fn case_17_a_reset_of_the_cache_clears_what_is_believed() {
    let mock = Mock::start(small(4096)).await.unwrap();
    let rig = Rig::new(vec![spec(&mock)]);
    rig.source(0, "events").await;
    let all = prompts(12, 1);
    load(&mock, &all).await;
    rig.agrees(0, &mock, &all).await;
    assert!(rig.view(0).index_blocks > 0);
    mock.clear_cache();
    rig.agrees(0, &mock, &all).await;
    assert_eq!(rig.view(0).index_blocks, 0);
}

#[tokio::test]
async fn case_18_lost_late_repeated_foreign_cut_and_strange_messages_are_made_up_for() {
    let all = [
        ("loss", KvFaults { loss: 0.3, ..KvFaults::default() }),
        ("duplicate", KvFaults { duplicate: 0.5, ..KvFaults::default() }),
        ("reorder", KvFaults { reorder: 0.3, ..KvFaults::default() }),
        ("truncate", KvFaults { truncate: 0.3, ..KvFaults::default() }),
        ("wrong topic", KvFaults { wrong_topic: 0.3, ..KvFaults::default() }),
        ("strange", KvFaults { strange: 0.3, ..KvFaults::default() }),
        ("delay", KvFaults { delay: 0.05, ..KvFaults::default() }),
        (
            "all",
            KvFaults {
                loss: 0.1,
                duplicate: 0.1,
                reorder: 0.1,
                truncate: 0.1,
                wrong_topic: 0.1,
                strange: 0.1,
                delay: 0.01,
                silent: false,
            },
        ),
    ];
    for (what, kv) in all {
        let mock = Mock::start(small(1024)).await.unwrap();
        let mut replica = spec(&mock);
        replica.events.as_mut().unwrap().topic = "kv@".into();
        let rig = Rig::new(vec![replica]);
        rig.source(0, "events").await;
        faults(&mock, kv.clone());
        let prompts = prompts(60, 5);
        load(&mock, &prompts).await;
        // Faults go on: what brings it right again is asking for what was missed.
        rig.agrees(0, &mock, &prompts).await;
        let e = rig.view(0).events[0];
        match what {
            "loss" | "wrong topic" => assert!(e.gaps > 0 && e.replayed > 0, "{what}: {e:?}"),
            "duplicate" | "reorder" => assert!(e.repeated > 0, "{what}: {e:?}"),
            "truncate" | "strange" => assert!(e.unreadable > 0 && e.replayed > 0, "{what}: {e:?}"),
            _ => {}
        }
        assert_eq!((e.lost_batches, rig.view(0).source), (0, "events"), "{what}: {e:?}");
    }
}

#[tokio::test]
async fn case_19_who_joins_late_is_told_what_was_before() {
    let mock = Mock::start(small(1024)).await.unwrap();
    let all = prompts(60, 7);
    load(&mock, &all).await;
    let rig = Rig::new(vec![spec(&mock)]);
    rig.source(0, "events").await;
    rig.agrees(0, &mock, &all).await;
    assert!(rig.view(0).events[0].replayed > 10);
}

#[tokio::test]
async fn case_19_what_the_replay_no_longer_has_is_reported_again_or_found_by_answers() {
    let events = KvEvents { kept: 3, ..KvEvents::default() };
    let mock = Mock::start(MockConfig { kv_events: Some(events), ..small(1 << 16) }).await.unwrap();
    let system = "A system prompt that everybody shares, told before the router came. ".repeat(10);
    let turn =
        |n: usize| format!("{system}{}", format!("And this is what conversation {n} is about. ").repeat(6));
    load(&mock, &(0..6).map(turn).collect::<Vec<_>>()).await;
    let rig = Rig::new(vec![spec(&mock)]);
    rig.source(0, "events_partial").await;
    assert!(
        rig.loud.degradations().iter().any(|d| d.what == "events_partial"),
        "{:?}",
        rig.loud.degradations()
    );
    let replica = rig.view(0).replica;
    let old = Prompt::plain(&turn(1));
    assert_eq!(rig.believed(replica, &old, None), 0, "nobody told of it");
    // A request that asks for a report, as the proxy makes one in eight ask.
    complete(mock.addr(), &turn(1), true).await;
    let there = mock.cached(&old, "mock", None);
    assert!(until(Duration::from_secs(10), || rig.believed(replica, &old, None) == there).await);
    let new = Prompt::plain(&turn(77));
    assert_eq!(rig.believed(replica, &new, None), mock.cached(&new, "mock", None), "the shared part");
}

#[tokio::test]
async fn events_that_stop_fall_back_to_the_estimate_loudly_and_come_back() {
    let mock = Mock::start(small(1 << 14)).await.unwrap();
    let rig = Rig::new(vec![spec(&mock)]);
    rig.source(0, "events").await;
    let all = prompts(30, 11);
    for text in &all[..10] {
        rig.through(&[&mock], text).await;
    }
    rig.agrees(0, &mock, &all).await;
    faults(&mock, KvFaults { silent: true, ..KvFaults::default() });
    let fallen = async {
        for text in all[10..20].iter().cycle() {
            rig.through(&[&mock], &format!("{text} {}", fastrand::u64(..))).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            if rig.view(0).source == "estimate" {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), fallen).await.unwrap();
    let loud = || rig.loud.degradations().iter().any(|d| d.what == "events_lost");
    assert!(until(Duration::from_secs(60), loud).await);
    // The estimate serves: what was just sent there is believed to be there.
    let (predicted, actual) = {
        rig.through(&[&mock], &all[20]).await;
        rig.through(&[&mock], &all[20]).await
    };
    assert!(predicted > 0 && predicted == actual, "{predicted} {actual}");
    faults(&mock, KvFaults::default());
    for text in &all[20..] {
        rig.through(&[&mock], text).await;
    }
    rig.source(0, "events").await;
    assert!(rig.loud.degradations().iter().all(|d| d.what != "events_lost"));
    rig.agrees(0, &mock, &all).await;
}

/// Two engines on four ports in a row: publisher and replay of rank 0, then of rank 1.
async fn two_ranks() -> (u16, [Mock; 2]) {
    loop {
        let first = fastrand::u16(20_000..60_000);
        let at = |port: u16| std::net::SocketAddr::from(([127, 0, 0, 1], port));
        let rank = |n: u16| {
            let (listen, replay) = (at(first + 2 * n), at(first + 2 * n + 1));
            let events = KvEvents { listen, replay, rank: Some(n.into()), ..KvEvents::default() };
            MockConfig { kv_events: Some(events), ..small(1 << 14) }
        };
        if let (Ok(zero), Ok(one)) = (Mock::start(rank(0)).await, Mock::start(rank(1)).await) {
            return (first, [zero, one]);
        }
    }
}

#[tokio::test]
async fn the_rank_that_holds_a_prompt_is_the_one_it_is_sent_to() {
    let (first, ranks) = two_ranks().await;
    let mut replica = spec(&ranks[0]);
    let events = replica.events.as_mut().unwrap();
    events.endpoint = format!("tcp://{{host}}:{first}");
    events.replay = Some(format!("tcp://{{host}}:{}", first + 1));
    (events.ranks, events.rank_stride) = (2, 2);
    let rig = Rig::new(vec![replica]);
    rig.source(0, "events").await;
    assert!(
        until(Duration::from_secs(10), || rig.view(0).state == "ready" && rig.view(0).events.len() == 2)
            .await
    );
    let (here, there) = (prompts(1, 21).remove(0), prompts(1, 22).remove(0) + "and more of it");
    load(&ranks[0], std::slice::from_ref(&here)).await;
    load(&ranks[1], std::slice::from_ref(&there)).await;
    let placed = |text: &str| {
        let (router, ask) = (rig.router.clone(), rig.ask(text));
        async move { router.place(&ask).await.ok().unwrap() }
    };
    for (text, mock, rank) in [(&here, &ranks[0], 0), (&there, &ranks[1], 1)] {
        let has = mock.cached(&Prompt::plain(text), "mock", None);
        let mut last = None;
        let end = tokio::time::Instant::now() + Duration::from_secs(10);
        while last != Some((Some(rank), has)) && tokio::time::Instant::now() < end {
            let reservation = placed(text).await;
            last = Some((reservation.rank(), reservation.predicted_cached()));
            drop(reservation);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(last, Some((Some(rank), has)));
    }
    // A death of one rank takes what that one held, and leaves the other's.
    ranks[1].clear_cache();
    let gone = until(Duration::from_secs(10), || {
        rig.router.replicas()[0].index_blocks <= u64::from(ranks[0].counters().blocks_cached)
    });
    assert!(gone.await);
    let reservation = placed(&here).await;
    assert!(reservation.rank() == Some(0) && reservation.predicted_cached() > 0);
}

#[tokio::test]
async fn predictions_are_the_engines_own_numbers_while_its_cache_overflows() {
    let mocks = [Mock::start(small(2048)).await.unwrap(), Mock::start(small(2048)).await.unwrap()];
    let rig = Rig::new(mocks.iter().map(spec).collect());
    rig.source(0, "events").await;
    rig.source(1, "events").await;
    let ready = || rig.router.replicas().iter().all(|v| v.state == "ready");
    assert!(until(Duration::from_secs(10), ready).await);
    let all = prompts(300, 13);
    let mut equal = 0;
    for text in &all {
        let (predicted, actual) = rig.through(&[&mocks[0], &mocks[1]], text).await;
        equal += usize::from(predicted == actual);
        // The event of the last step is on its way.
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    assert!(equal * 100 >= all.len() * 98, "{equal} of {}", all.len());
}
