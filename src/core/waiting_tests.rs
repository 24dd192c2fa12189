//! Waiting in lanes: who goes when, who is refused, and that nobody is forgotten.

use super::*;
use crate::core::admission::LaneRules;
use crate::core::fleet::{Failure, Outcome, Settings};
use crate::core::health::Probe;
use crate::core::ids::ModelId;
use crate::core::place::Seen;
use crate::core::replica::Facts;

const MODEL: ModelId = ModelId(1);

fn fleet(n: u16, settings: Settings) -> (Fleet, Vec<ReplicaId>) {
    let mut f = Fleet::new(settings);
    let ids = (0..n).map(|i| join(&mut f, u64::from(i) + 1, None)).collect();
    (f, ids)
}

fn join(f: &mut Fleet, key: u64, cap: Option<u32>) -> ReplicaId {
    let facts = Facts { key, models: Some(vec![MODEL]), max_in_flight: cap, ..Facts::default() };
    let id = f.join(facts).unwrap();
    f.probe(Time(0), id, Probe::Ok);
    id
}

fn prompt(id: u64, tokens: u64) -> Request {
    Request { head: id.wrapping_mul(0x9E37_79B9_7F4A_7C15), ..Request::text(id, MODEL, tokens * 4) }
}

fn at(s: f64) -> Time {
    Time::from_secs(s)
}

fn arrive(f: &mut Fleet, now: f64, req: &Request) -> Arrival {
    let arrival = f.arrive(at(now), req, &Seen::default());
    f.check_invariants().unwrap();
    arrival
}

fn waits(f: &mut Fleet, now: f64, req: &Request) -> ReplicaId {
    match arrive(f, now, req) {
        Arrival::Waiting(Ticket { lane: Some(lane) }) => lane,
        other => panic!("doesn't wait in a lane: {other:?}"),
    }
}

fn goes(f: &mut Fleet, now: f64, req: &Request) -> ReplicaId {
    match arrive(f, now, req) {
        Arrival::Placed(p) => p.replica,
        other => panic!("isn't placed: {other:?}"),
    }
}

fn done(f: &mut Fleet, now: f64, id: u64) {
    f.finish(at(now), RequestId(id), Outcome { output_tokens: Some(100), ..Outcome::default() });
    f.check_invariants().unwrap();
}

/// Lets everybody go one after the other, each ending before the next; the order.
fn serve_all(f: &mut Fleet, mut now: f64, mut all: Vec<Request>, first: u64) -> Vec<u64> {
    let (mut order, mut running) = (Vec::new(), Some(first));
    for _ in 0..10_000 {
        now += 0.3;
        if let Some(id) = running.take() {
            done(f, now, id);
        }
        let go = f.turns(at(now)).go;
        for id in go {
            let k = all.iter().position(|r| r.id == id).expect("one that waits");
            if let Arrival::Placed(_) = arrive(f, now, &all[k].clone()) {
                order.push(id.0);
                running = Some(id.0);
                all.remove(k);
            }
        }
        if all.is_empty() {
            return order;
        }
    }
    panic!("{} requests wait for ever", all.len());
}

#[test]
fn a_request_waits_until_its_replica_can_start_it_soon() {
    let (mut f, ids) = fleet(1, Settings::default());
    goes(&mut f, 0.0, &prompt(1, 20_000));
    assert_eq!(waits(&mut f, 0.0, &prompt(2, 500)), ids[0]);
    assert_eq!((f.waiting(), f.in_lane(ids[0]), f.in_flight()), (1, 1, 1));
    let turns = f.turns(at(0.01));
    assert!(turns.go.is_empty() && turns.look.is_some_and(|t| t > at(0.01) && t <= at(1.02)), "{turns:?}");
    assert!(f.looks_at(at(0.01), RequestId(2)).is_some_and(|t| t > at(0.01)));
    // Its prefill is done: the engine is free for the next.
    f.first_token(at(0.4), RequestId(1));
    assert_eq!(f.turns(at(0.4)).go.as_slice(), [RequestId(2)]);
    assert!(f.looks_at(at(0.4), RequestId(2)).is_some_and(|t| t <= at(0.4)));
    goes(&mut f, 0.4, &prompt(2, 500));
    assert_eq!((f.waiting(), f.turns(at(0.4))), (0, Turns::default()));
}

#[test]
fn what_waits_counts_in_the_price() {
    let (mut f, ids) = fleet(2, Settings::default());
    let pinned = |id| Request { pinned: Some(ids[0]), ..prompt(id, 8000) };
    goes(&mut f, 0.0, &pinned(1));
    let price = |f: &Fleet| {
        let d = f.explain(at(0.0), &prompt(99, 30_000), &Seen::default());
        d.candidates.iter().find(|c| c.replica == ids[0]).unwrap().price
    };
    let before = price(&f);
    waits(&mut f, 0.0, &pinned(2));
    let after = price(&f);
    assert!(after.wait > before.wait + 0.3, "{} and {}", before.wait, after.wait);
    // A shorter one goes before it: it pays for the harm instead.
    let short = f.explain(at(0.0), &prompt(98, 100), &Seen::default());
    let there = short.candidates.iter().find(|c| c.replica == ids[0]).unwrap().price;
    assert!(there.wait < after.wait && there.harm > there.prefill, "{there:?}");
}

#[test]
fn bands_first_then_tenants_in_turn_then_short_prompts() {
    let (mut f, _) = fleet(1, Settings::default());
    goes(&mut f, 0.0, &prompt(1, 20_000));
    let of = |id, priority, tenant, tokens| Request { priority, tenant, ..prompt(id, tokens) };
    let mut all: Vec<Request> = (10..30).map(|i| of(i, 0, 7, 4000)).collect();
    all.extend((30..33).map(|i| of(i, 0, 8, 4000)));
    all.extend([of(40, -5, 9, 10), of(50, 3, 7, 30_000), of(51, 3, 7, 1000)]);
    for r in &all {
        waits(&mut f, 0.0, r);
    }
    let order = serve_all(&mut f, 0.0, all, 1);
    assert_eq!(order[..2], [51, 50], "the high band, short first: {order:?}");
    assert_eq!(order.last(), Some(&40), "the low band last, however short");
    // 50 and 51 are on the account of tenant 7, so 8 has its three served first, or nearly.
    let last_of_8 = order.iter().rposition(|i| (30..33).contains(i)).unwrap();
    assert!(last_of_8 <= 7, "{order:?}");
}

#[test]
fn aging_keeps_a_long_prompt_from_starving() {
    let (mut f, _) = fleet(1, Settings::default());
    goes(&mut f, 0.0, &prompt(1, 20_000));
    let long = prompt(2, 20_000);
    waits(&mut f, 0.0, &long);
    let (mut now, mut id, mut running) = (0.0, 100u64, 1u64);
    // A short one is always there as well.
    loop {
        id += 1;
        let short = prompt(id, 4000);
        waits(&mut f, now, &short);
        now += 0.25;
        done(&mut f, now, running);
        let go = f.turns(at(now)).go;
        if go.contains(&long.id) && matches!(arrive(&mut f, now, &long), Arrival::Placed(_)) {
            break;
        }
        goes(&mut f, now, &short);
        running = id;
        assert!(now < 25.0, "overtaken for longer than its prefill over α");
    }
    assert!(now > 3.0, "short ones went first for a while");
}

#[test]
fn who_waits_moves_when_another_place_is_cheaper_and_when_its_own_is_gone() {
    let (mut f, ids) = fleet(2, Settings::default());
    goes(&mut f, 0.0, &Request { pinned: Some(ids[0]), ..prompt(1, 30_000) });
    goes(&mut f, 0.0, &Request { pinned: Some(ids[1]), ..prompt(2, 20_000) });
    let (a, b) = (prompt(3, 9000), prompt(4, 9000));
    assert_eq!(waits(&mut f, 0.0, &a), ids[1]);
    waits(&mut f, 0.0, &b);
    // Replica 0 is free at once: whoever waits elsewhere is priced again before long, and goes there.
    done(&mut f, 0.1, 1);
    assert!(f.turns(at(0.2)).go.contains(&a.id));
    assert_eq!(goes(&mut f, 0.2, &a), ids[0]);
    // Replica 1 is taken out: the other one leaves its lane.
    for _ in 0..3 {
        f.probe(at(0.3), ids[1], Probe::Unreachable);
    }
    assert_eq!(f.looks_at(at(0.3), b.id), Some(at(0.3)));
    arrive(&mut f, 0.3, &b);
    assert_eq!(f.waits_at(b.id), Some(ids[0]));
    // And with the last one gone it is told.
    for _ in 0..3 {
        f.probe(at(0.4), ids[0], Probe::Unreachable);
    }
    assert!(f.turns(at(0.4)).go.contains(&b.id));
    assert_eq!(arrive(&mut f, 0.4, &b), Arrival::Rejected(Rejection::NoReplica));
    assert_eq!(f.waiting(), 0);
}

#[test]
fn a_full_replica_is_waited_for_rather_than_left() {
    let mut f = Fleet::new(Settings::default());
    let full = join(&mut f, 1, Some(1));
    join(&mut f, 2, None);
    let home = |id| Request {
        length: crate::core::request::Length::Tokens { tokens: 60_000, block: 64 },
        ..prompt(id, 0)
    };
    let seen = Seen { matched: &[900], space: &[], continues: true };
    let first = f.arrive(at(0.0), &home(1), &seen);
    assert!(matches!(first, Arrival::Placed(p) if p.replica == full), "{first:?}");
    // 57,600 of its 60,000 tokens are there, and elsewhere it would cost seconds.
    assert_eq!(f.arrive(at(0.0), &home(2), &seen), Arrival::Waiting(Ticket { lane: Some(full) }));
    done(&mut f, 1.0, 1);
    assert_eq!(f.turns(at(1.0)).go.as_slice(), [RequestId(2)]);
    assert!(matches!(f.arrive(at(1.0), &home(2), &seen), Arrival::Placed(p) if p.replica == full));
}

#[test]
fn a_deadline_ends_the_waiting() {
    let (mut f, ids) = fleet(1, Settings::default());
    goes(&mut f, 0.0, &prompt(1, 20_000));
    let hurried = Request { deadline: Some(at(0.3)), ..prompt(2, 100) };
    waits(&mut f, 0.0, &hurried);
    assert!(f.turns(at(0.01)).look.is_some_and(|t| t <= at(0.3)));
    assert!(f.turns(at(0.3)).go.contains(&hurried.id));
    assert_eq!(arrive(&mut f, 0.3, &hurried), Arrival::Rejected(Rejection::Deadline));
    assert_eq!((f.waiting(), f.in_lane(ids[0])), (0, 0));
    f.fail(at(0.4), RequestId(1), Failure::Reset);
    f.check_invariants().unwrap();
}

#[test]
fn overload_sheds_the_lowest_band_first_and_ever_more() {
    let settings = Settings { queue: 400, ..Settings::default() };
    let (mut f, _) = fleet(1, settings);
    goes(&mut f, 0.0, &prompt(1, 20_000));
    let (mut refused, mut full) = (Vec::new(), 0);
    for id in 2..2000 {
        match arrive(&mut f, 0.0, &Request { priority: 0, ..prompt(id, 100) }) {
            Arrival::Waiting(_) => {}
            Arrival::Rejected(Rejection::Shed) => refused.push(f.waiting()),
            Arrival::Rejected(Rejection::QueueFull) => full += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(f.waiting() <= 400 && refused.iter().all(|w| *w >= 200));
    let between = |from, to| refused.iter().filter(|w| (from..to).contains(*w)).count();
    assert!(
        between(200, 250) < between(250, 300) && between(250, 300) < between(300, 350),
        "gently at first"
    );
    // A higher band still comes in, at the cost of one below.
    let before = f.waiting() + full;
    assert!(before > 0);
    for id in 5000..5050 {
        waits(&mut f, 0.0, &Request { priority: 1, ..prompt(id, 100) });
    }
    let shed: Vec<RequestId> = f.turns(at(0.0)).go.to_vec();
    assert!(shed.len() >= 30 && shed.iter().all(|id| id.0 < 2000), "{shed:?}");
    assert_eq!(arrive(&mut f, 0.0, &prompt(shed[0].0, 100)), Arrival::Rejected(Rejection::Shed));
    // One that gave up before it was told is forgotten as well.
    f.unqueue(shed[1]);
    assert!(!f.turns(at(0.0)).go.contains(&shed[1]));
}

#[test]
fn without_lanes_nobody_waits_while_something_can_take_it() {
    for settings in [
        Settings { lanes: LaneRules::OFF, ..Settings::default() },
        Settings { queue: 0, ..Settings::default() },
    ] {
        let (mut f, _) = fleet(2, settings);
        for id in 0..200 {
            goes(&mut f, 0.0, &prompt(id, 5000));
        }
        assert_eq!((f.waiting(), f.turns(at(0.0))), (0, Turns::default()));
    }
}
