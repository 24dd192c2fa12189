//! Placement: what users of other routers suffered from, each as a test.

use super::*;
use crate::core::admission::LaneRules;
use crate::core::fleet::{Failure, Outcome, Settings};
use crate::core::health::Probe;
use crate::core::ids::{ModelId, ReplicaId, RequestId};
use crate::core::ledger::Polled;
use crate::core::replica::Facts;
use crate::core::speed::Shape;

const MODEL: ModelId = ModelId(1);

fn fleet(n: u16, settings: Settings) -> (Fleet, Vec<ReplicaId>) {
    // Where requests go is the matter here; how they wait is that of `waiting_tests.rs`.
    let mut f = Fleet::new(Settings { lanes: LaneRules::OFF, ..settings });
    let ids: Vec<_> = (0..n).map(|i| join(&mut f, Time(0), u64::from(i) + 1, Facts::default())).collect();
    (f, ids)
}

fn join(f: &mut Fleet, now: Time, key: u64, facts: Facts) -> ReplicaId {
    let id = f.join(Facts { key, models: Some(vec![MODEL]), ..facts }).unwrap();
    f.probe(now, id, Probe::Ok);
    id
}

fn cold(id: u64, tokens: u64) -> Request {
    Request { head: id.wrapping_mul(0x9E37_79B9_7F4A_7C15), ..Request::text(id, MODEL, tokens * 4) }
}

fn place(f: &mut Fleet, now: Time, req: &Request, matched: &[u32]) -> Placed {
    match f.arrive(now, req, &Seen { matched, space: &[], continues: false }) {
        Arrival::Placed(p) => p,
        other => panic!("not placed: {other:?}"),
    }
}

fn done(f: &mut Fleet, now: Time, id: u64) {
    f.finish(now, RequestId(id), Outcome { output_tokens: Some(100), ..Outcome::default() });
    f.check_invariants().unwrap();
}

#[test]
fn a_burst_spreads_evenly_because_choosing_reserves() {
    for n in [200u64, 10_000] {
        let (mut f, ids) = fleet(8, Settings::default());
        let mut counts = vec![0u64; 8];
        for i in 0..n {
            counts[usize::from(place(&mut f, Time(5), &cold(i, 1000), &[]).replica.slot)] += 1;
        }
        assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
        assert_eq!(ids.len(), 8);
        f.check_invariants().unwrap();
    }
}

/// A hot prefix of 6,000 tokens arriving faster than one replica can prefill even its uncached part and decode: it must
/// spread, and once spread both holders share it.
fn hot_prefix(replicas: u16) -> Vec<u64> {
    let (mut f, _) = fleet(replicas, Settings::default());
    let mut held = vec![0u32; usize::from(replicas)];
    let mut counts = vec![0u64; usize::from(replicas)];
    let mut running: Vec<(Time, u64)> = Vec::new();
    // 40 a second, each decoding about 10 s: 400 in flight, where one replica holds a batch of 256.
    for i in 0..2000u64 {
        let now = Time::from_secs(1.0 + i as f64 * 0.025);
        running.retain(|&(end, id)| {
            if end <= now {
                f.finish(end, RequestId(id), Outcome { output_tokens: Some(500), ..Outcome::default() });
            }
            end > now
        });
        let p = place(&mut f, now, &Request { max_output: Some(500), ..cold(i, 6200) }, &held);
        let slot = usize::from(p.replica.slot);
        held[slot] = 6000 / 64;
        counts[slot] += 1;
        let own = Shape::DENSE_32B.prefill(6200.0 - f64::from(p.cached), f64::from(p.cached));
        f.first_token(now.plus(own), RequestId(i));
        running.push((now.plus(10.0), i));
    }
    f.check_invariants().unwrap();
    counts
}

#[test]
fn a_hot_prefix_spreads_to_a_second_replica() {
    let counts = hot_prefix(4);
    assert!(counts.iter().filter(|&&c| c > 100).count() >= 2, "{counts:?}");
}

#[test]
fn a_hot_prefix_spreads_among_500_replicas_without_a_default() {
    let counts = hot_prefix(500);
    assert!(counts.iter().filter(|&&c| c > 5).count() >= 2, "{counts:?}");
    assert!(*counts.iter().max().unwrap() < 1200);
}

#[test]
fn a_replica_that_rejoins_under_its_address_is_another_life() {
    let (mut f, ids) = fleet(2, Settings::default());
    for i in 0..10 {
        place(&mut f, Time(1), &cold(i, 100), &[]);
    }
    f.leave(ids[0]);
    let again = join(&mut f, Time(2), 1, Facts::default());
    assert_ne!(again, ids[0]);
    for i in 10..20 {
        place(&mut f, Time(3), &cold(i, 100), &[]);
    }
    for i in 0..20 {
        match i % 3 {
            0 => done(&mut f, Time(9), i),
            1 => f.cancel(Time(9), RequestId(i)),
            _ => drop(f.fail(Time(9), RequestId(i), Failure::Reset)),
        }
        f.check_invariants().unwrap();
    }
    assert_eq!(f.in_flight(), 0);
    assert!(f.replicas().all(|r| r.ledger.in_flight() == 0));
    assert!(f.get(ids[0]).is_none(), "the first life is off the books");
}

#[test]
fn a_hundred_thousand_mixed_outcomes_end_at_exactly_zero() {
    let (mut f, mut ids) = fleet(6, Settings::default());
    let mut running = std::collections::VecDeque::new();
    for i in 0..100_000u64 {
        let now = Time(i * 1000);
        if let Arrival::Placed(_) = f.arrive(now, &cold(i, 200 + i % 900), &Seen::default()) {
            running.push_back(i);
        }
        if i % 3 == 0 {
            f.first_token(now, RequestId(i));
            f.progress(RequestId(i), 50);
        }
        if i % 997 == 0 {
            // A replica is gone, and comes again under its address with requests still in flight.
            let at = (i / 997) as usize % ids.len();
            f.leave(ids[at]);
            ids[at] = join(&mut f, now, at as u64 + 1, Facts::default());
        }
        while running.len() > 50 || (i == 99_999 && !running.is_empty()) {
            let id = running.pop_front().unwrap();
            match id % 7 {
                0 => drop(f.fail(now, RequestId(id), Failure::Reset)),
                1 => drop(f.fail(now, RequestId(id), Failure::Timeout)),
                2 => drop(f.fail(now, RequestId(id), Failure::Status(500))),
                3 => drop(f.fail(now, RequestId(id), Failure::Blameless)),
                4 => drop(f.fail(now, RequestId(id), Failure::BackPressure { retry_after: None })),
                5 => f.cancel(now, RequestId(id)),
                _ => f.finish(now, RequestId(id), Outcome::default()),
            }
            // Told twice, it counts once.
            f.cancel(now, RequestId(id));
        }
        if i % 100 == 0 {
            ids.iter().for_each(|&id| {
                f.probe(now, id, Probe::Ok);
            });
            f.check_invariants().unwrap();
        }
    }
    for i in 0..100_000 {
        f.cancel(Time(1 << 40), RequestId(i));
    }
    assert_eq!((f.in_flight(), f.waiting()), (0, 0));
    for r in f.replicas() {
        assert_eq!((r.ledger.in_flight(), r.ledger.sequences(Time(1 << 40))), (0, 0.0));
    }
    f.check_invariants().unwrap();
}

#[test]
fn a_request_of_thirty_minutes_keeps_its_accounting() {
    let (mut f, _) = fleet(1, Settings::default());
    place(&mut f, Time(1), &cold(1, 100), &[]);
    f.first_token(Time::from_secs(1.0), RequestId(1));
    for s in 0..1800 {
        f.progress(RequestId(1), s * 10);
        f.tick(Time(0), 0.0);
    }
    assert_eq!(f.replicas().next().unwrap().ledger.in_flight(), 1);
    done(&mut f, Time::from_secs(1800.0), 1);
    assert_eq!(f.in_flight(), 0);
}

#[test]
fn missing_pages_are_neither_idle_nor_full() {
    // For one, some, all replicas: the ledger goes on.
    for unknown in [1u16, 3, 4] {
        let (mut f, ids) = fleet(4, Settings::default());
        for &id in &ids[usize::from(unknown)..] {
            f.load(Time(1), id, Polled { running: Some(0), waiting: Some(0), kv_usage: Some(0.0) });
        }
        let mut counts = [0; 4];
        for i in 0..400 {
            counts[usize::from(place(&mut f, Time::from_secs(60.0), &cold(i, 500), &[]).replica.slot)] += 1;
        }
        assert_eq!(counts, [100; 4], "{unknown} unknown");
    }
}

#[test]
fn what_other_routers_sent_there_counts() {
    let (mut f, ids) = fleet(2, Settings::default());
    for t in 1..3 {
        f.load(Time(t), ids[0], Polled { running: Some(50), waiting: Some(0), kv_usage: None });
    }
    let first = place(&mut f, Time(3), &cold(1, 500), &[]);
    assert_eq!(first.replica, ids[1]);
}

#[test]
fn ties_are_uniform_over_ten_thousand_prompts() {
    let (mut f, _) = fleet(8, Settings::default());
    let mut counts = [0f64; 8];
    for i in 0..10_000 {
        counts[usize::from(place(&mut f, Time(i + 1), &cold(i, 500), &[]).replica.slot)] += 1.0;
        done(&mut f, Time(i + 1), i);
    }
    let chi: f64 = counts.iter().map(|c| (c - 1250.0) * (c - 1250.0) / 1250.0).sum();
    assert!(chi < 24.3, "{counts:?}"); // 7 degrees of freedom, p = 0.001
}

#[test]
fn independent_routers_agree_on_the_order_of_equals() {
    let pick = |order: [u64; 4]| {
        let mut f = Fleet::new(Settings { lanes: LaneRules::OFF, ..Settings::default() });
        let keys: Vec<_> = order.iter().map(|&k| (k, join(&mut f, Time(0), k, Facts::default()))).collect();
        (0..50u64)
            .map(|i| {
                let p = f.explain(Time(0), &cold(i, 10), &Seen::default()).chosen;
                keys.iter().find(|k| Some(k.1) == p).map(|k| k.0)
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(pick([1, 2, 3, 4]), pick([4, 2, 1, 3]));
}

#[test]
fn one_prompt_at_a_time_spreads_over_all() {
    let (mut f, _) = fleet(4, Settings::default());
    let mut counts = [0; 4];
    for i in 0..80 {
        counts
            [usize::from(place(&mut f, Time::from_secs(i as f64 + 1.0), &cold(i, 800), &[]).replica.slot)] +=
            1;
        done(&mut f, Time::from_secs(i as f64 + 1.5), i);
    }
    assert_eq!(counts, [20; 4]);
}

#[test]
fn a_replica_that_fails_fast_does_not_attract_traffic() {
    let (mut f, ids) = fleet(2, Settings::default());
    let warm = [1000u32, 0];
    let mut to_bad = 0;
    for i in 0..100 {
        let now = Time::from_secs(1.0 + i as f64 * 0.1);
        let p = place(&mut f, now, &cold(i, 2000), &warm);
        if p.replica == ids[0] {
            to_bad += 1;
            f.fail(now.plus(0.001), RequestId(i), Failure::Status(500));
        } else {
            done(&mut f, now.plus(0.05), i);
        }
    }
    assert!(to_bad <= 3, "{to_bad} requests went to the failing one");
    assert!(f.get(ids[0]).unwrap().trouble(Time::from_secs(2.0)) > 0.1 || to_bad == 3);
}

#[test]
fn three_failures_in_a_row_make_a_suspect() {
    let (mut f, ids) = fleet(1, Settings::default());
    for i in 0..3 {
        place(&mut f, Time(10 * i + 1), &cold(i, 10), &[]);
        assert_eq!(f.fail(Time(10 * i + 2), RequestId(i), Failure::Connect), i == 2);
    }
    let refused = f.arrive(Time(40), &cold(9, 10), &Seen::default());
    assert_eq!(refused, Arrival::Rejected(Rejection::NoReplica));
    assert_eq!(f.get(ids[0]).unwrap().health.state(), State::Suspect);
}

#[test]
fn requests_that_crash_every_engine_do_not_end_the_service() {
    let (mut f, ids) = fleet(4, Settings::default());
    for i in 0..200 {
        place(&mut f, Time(i + 1), &cold(i, 10), &[]);
        f.fail(Time(i + 1), RequestId(i), Failure::Status(500));
    }
    let ready =
        |f: &Fleet| ids.iter().filter(|&&id| f.get(id).unwrap().health.state() == State::Ready).count();
    assert_eq!(ready(&f), 2, "half of them stay");
    // What can't be connected to goes, floor or no floor.
    for i in 200..212 {
        if let Arrival::Placed(_) = f.arrive(Time(300), &cold(i, 10), &Seen::default()) {
            f.fail(Time(300), RequestId(i), Failure::Connect);
        }
    }
    assert_eq!(ready(&f), 0);
}

#[test]
fn client_errors_and_back_pressure_are_no_failures() {
    let (mut f, ids) = fleet(2, Settings::default());
    for i in 0..60 {
        place(&mut f, Time(1), &cold(i, 10), &[]);
        f.fail(Time(2), RequestId(i), Failure::Blameless);
    }
    assert!(ids.iter().all(|&id| f.get(id).unwrap().health.state() == State::Ready));
    let p = place(&mut f, Time(3), &cold(100, 10), &[]);
    f.fail(Time(3), RequestId(100), Failure::BackPressure { retry_after: Some(5.0) });
    for i in 200..220 {
        let other = place(&mut f, Time::from_secs(2.0), &cold(i, 10), &[]);
        assert_ne!(other.replica, p.replica, "asked for patience");
    }
    assert!(ids.iter().all(|&id| f.get(id).unwrap().health.state() == State::Ready));
}

#[test]
fn a_new_replica_grows_into_its_share() {
    let (mut f, ids) = fleet(3, Settings::default());
    for i in 0..30 {
        place(&mut f, Time::from_secs(100.0), &cold(i, 1000), &[]);
    }
    let new = join(&mut f, Time::from_secs(100.0), 9, Facts::default());
    for i in 30..60 {
        place(&mut f, Time::from_secs(101.0), &cold(i, 1000), &[]);
    }
    let early = f.get(new).unwrap().ledger.in_flight();
    assert!(early <= 2, "{early} at once on a replica that is a second old");
    for i in 60..200 {
        place(&mut f, Time::from_secs(131.0), &cold(i, 1000), &[]);
    }
    assert!(f.get(new).unwrap().ledger.in_flight() >= 40);
    assert_eq!(ids.len(), 3);
}

#[test]
fn loading_replicas_make_requests_wait_dead_ones_dont() {
    let mut f = Fleet::new(Settings { lanes: LaneRules::OFF, ..Settings::default() });
    let id = f.join(Facts { key: 1, ..Facts::default() }).unwrap();
    assert_eq!(f.arrive(Time(1), &cold(1, 10), &Seen::default()), Arrival::Waiting(Ticket { lane: None }));
    assert_eq!(f.turns(Time(2)).go.as_slice(), [RequestId(1)]);
    f.probe(Time(2), id, Probe::Ok);
    assert!(matches!(f.arrive(Time(2), &cold(1, 10), &Seen::default()), Arrival::Placed(_)));
    assert_eq!(f.waiting(), 0);
    for t in 3..6 {
        f.probe(Time(t), id, Probe::Unreachable);
    }
    assert_eq!(f.arrive(Time(7), &cold(2, 10), &Seen::default()), Arrival::Rejected(Rejection::NoReplica));
    f.check_invariants().unwrap();
}

#[test]
fn a_full_fleet_makes_a_line_and_the_line_is_bounded() {
    let mut f = Fleet::new(Settings { queue: 5, lanes: LaneRules::OFF, ..Settings::default() });
    join(&mut f, Time(0), 1, Facts { max_in_flight: Some(2), ..Facts::default() });
    for i in 0..2 {
        place(&mut f, Time(1), &cold(i, 10), &[]);
    }
    for i in 2..7 {
        assert_eq!(
            f.arrive(Time(1), &cold(i, 10), &Seen::default()),
            Arrival::Waiting(Ticket { lane: None })
        );
    }
    let full = f.arrive(Time(1), &cold(7, 10), &Seen::default());
    assert_eq!(full, Arrival::Rejected(Rejection::QueueFull));
    done(&mut f, Time(2), 0);
    assert_eq!(
        f.arrive(Time(2), &cold(3, 10), &Seen::default()),
        Arrival::Waiting(Ticket { lane: None }),
        "2 is first"
    );
    assert!(matches!(f.arrive(Time(2), &cold(2, 10), &Seen::default()), Arrival::Placed(_)));
    f.cancel(Time(3), RequestId(3));
    assert_eq!(f.turns(Time(2)).go.as_slice(), [RequestId(4)]);
}

#[test]
fn unknown_model_and_too_long_prompts() {
    let (mut f, ids) = fleet(2, Settings::default());
    let other = Request::text(1, ModelId(77), 100);
    assert_eq!(f.arrive(Time(1), &other, &Seen::default()), Arrival::Rejected(Rejection::UnknownModel));
    f.facts(ids[0], |x| x.max_model_len = Some(1000));
    f.facts(ids[1], |x| x.max_model_len = Some(4000));
    for i in 0..10 {
        let p = place(&mut f, Time(1), &cold(i, 2000), &[500, 0]);
        assert_eq!(p.replica, ids[1], "the short one is left out, however warm");
    }
    // An estimate a little over everybody's limit goes to an engine, which knows; one far over is refused.
    assert!(matches!(f.arrive(Time(1), &cold(20, 5000), &Seen::default()), Arrival::Placed(_)));
    let long = f.arrive(Time(1), &cold(21, 20_000), &Seen::default());
    assert_eq!(long, Arrival::Rejected(Rejection::TooLong { prompt: 20_000, max: 4000 }));
}

#[test]
fn a_pinned_request_goes_to_its_replica_or_nowhere() {
    let (mut f, ids) = fleet(3, Settings::default());
    let pinned = |id| Request { pinned: Some(ids[1]), ..cold(id, 100) };
    for i in 0..10 {
        assert_eq!(place(&mut f, Time(1), &pinned(i), &[99, 0, 99]).replica, ids[1]);
    }
    f.leave(ids[1]);
    assert_eq!(f.arrive(Time(2), &pinned(50), &Seen::default()), Arrival::Rejected(Rejection::PinnedGone));
}

#[test]
fn prefix_wins_until_waiting_there_costs_more() {
    let (mut f, ids) = fleet(2, Settings::default());
    let warm = [8000 / 64, 0];
    assert_eq!(place(&mut f, Time(1), &cold(0, 8100), &warm).replica, ids[0]);
    // Queue prefill at the home until computing elsewhere is cheaper.
    let mut i = 1;
    while place(&mut f, Time(1), &cold(i, 8000), &[0, 0]).replica == ids[0] || i < 8 {
        i += 1;
        assert!(i < 100);
    }
    let d = f.explain(Time(1), &cold(900, 8100), &Seen { matched: &warm, space: &[], continues: false });
    assert_eq!(d.candidates.len(), 2);
    assert!(d.candidates[0].price.prefill < d.candidates[1].price.prefill);
    assert!(d.candidates[0].cached > 7000.0);
    assert!(d.chosen.is_some());
}

#[test]
fn explain_reserves_nothing_and_prices_the_excluded_too() {
    let (mut f, ids) = fleet(2, Settings::default());
    f.drain(ids[0], true);
    let d = f.explain(Time(1), &cold(1, 500), &Seen::default());
    assert_eq!(d.chosen, Some(ids[1]));
    assert_eq!(d.candidates[0].excluded, Some(Excluded::Draining));
    assert!(d.candidates[0].price.total() > 0.0);
    assert_eq!(f.in_flight(), 0);
}

#[test]
fn calls_go_to_the_least_loaded() {
    let (mut f, _) = fleet(3, Settings::default());
    let mut counts = [0; 3];
    for i in 0..30 {
        let call = Request { generates: false, model: None, ..cold(i, 0) };
        counts[usize::from(place(&mut f, Time(1), &call, &[]).replica.slot)] += 1;
    }
    assert_eq!(counts, [10; 3]);
}

#[test]
fn a_request_of_half_an_hour_keeps_its_place_on_the_books() {
    let (mut f, ids) = fleet(2, Settings::default());
    let home = place(&mut f, Time(0), &cold(1, 1000), &[]).replica;
    f.first_token(Time::from_secs(1.0), RequestId(1));
    // Half an hour of other traffic and of housekeeping: nothing ends by its age.
    for n in 0..1800u64 {
        let now = Time::from_secs(1.0 + n as f64);
        place(&mut f, now, &cold(2 + n, 100), &[]);
        done(&mut f, now, 2 + n);
        f.tick(Time(0), 0.0);
        assert_eq!(f.in_flight(), 1);
    }
    let there = |f: &Fleet| f.get(home).unwrap().ledger.in_flight();
    assert_eq!(there(&f), 1);
    done(&mut f, Time::from_secs(1802.0), 1);
    assert_eq!((there(&f), f.in_flight(), ids.len()), (0, 0, 2));
}

#[test]
fn server_errors_never_take_out_more_than_half_of_the_fleet() {
    for (failure, left) in [(Failure::Status(500), 2), (Failure::Connect, 0)] {
        let (mut f, _) = fleet(4, Settings::default());
        for n in 0..200u64 {
            let now = Time::from_secs(1.0 + n as f64 * 0.01);
            let Arrival::Placed(_) = f.arrive(now, &cold(n, 100), &Seen::default()) else { break };
            f.fail(now.plus(0.001), RequestId(n), failure);
        }
        let ready = f.replicas().filter(|r| r.health.state() == crate::core::health::State::Ready).count();
        // What may be the requests' own doing ends no service; a replica that can't be reached serves nobody.
        assert_eq!(ready, left, "{failure:?}");
        f.check_invariants().unwrap();
    }
}
