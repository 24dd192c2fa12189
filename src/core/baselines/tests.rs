//! What holds for every policy.

use super::hand::{ask, context, page};
use super::rng::Rng;
use super::*;
use crate::core::ids::RequestId;
use crate::core::policy::{Arriving, Sight};
use crate::core::time::Time;

/// Random traffic with replicas that come and go: where each request went.
fn run(policy: &mut dyn Policy, requests: u64) -> Vec<usize> {
    let mut rng = Rng::new(42);
    let mut up: Vec<usize> = (0..4).collect();
    let mut open: Vec<(u64, usize)> = Vec::new();
    let mut went = Vec::new();
    for id in 0..requests {
        let now = Time::from_secs(id as f64 * 0.05);
        let head = rng.below(12) as u64;
        let chain: Vec<u64> = (0..rng.below(30) as u64).map(|b| head * 1000 + b + 1).collect();
        let exact: Vec<u32> = (0..4).map(|_| rng.below(chain.len() + 1) as u32).collect();
        let tokens = chain.len() as u32 * 512 + rng.below(512) as u32;
        let arriving = Arriving { session: (head > 5).then_some(head), ..ask(id, &chain, tokens.max(1)) };
        let exact: &[u32] = if policy.knows_caches() { &exact } else { &[] };
        let replica = policy.place(now, &arriving, &Sight { up: &up, exact });
        assert!(up.contains(&replica), "{} sent {id} to {replica} of {up:?}", policy.name());
        went.push(replica);
        open.push((id, replica));
        if rng.below(3) > 0 {
            policy.first_token(now, RequestId(open[rng.below(open.len())].0));
            policy.progress(now, RequestId(open[rng.below(open.len())].0), 128);
        }
        while open.len() > 40 || (rng.below(2) == 0 && !open.is_empty()) {
            let (id, _) = open.swap_remove(rng.below(open.len()));
            policy.finish(now, RequestId(id), rng.below(300) as u32, rng.below(5000) as u32);
            policy.finish(now, RequestId(id), 1, 0);
        }
        let any = rng.below(4);
        policy.polled(now, any, &page(rng.below(9) as u32, 0.1 * rng.below(11) as f64));
        if rng.below(60) == 0 && up.len() > 1 {
            let gone = up.remove(rng.below(up.len()));
            policy.left(now, gone);
            open.iter().filter(|o| o.1 == gone).for_each(|o| policy.finish(now, RequestId(o.0), 0, 0));
            open.retain(|o| o.1 != gone);
        } else if rng.below(20) == 0 && up.len() < 4 {
            let back = (0..4).find(|i| !up.contains(i)).unwrap();
            policy.joined(now, back, 300_000);
            up.push(back);
            up.sort_unstable();
        }
    }
    open.iter().for_each(|o| policy.finish(Time::from_secs(1e6), RequestId(o.0), 9, 0));
    went
}

#[test]
fn each_chooses_one_that_is_up_and_the_same_for_the_same_seed() {
    let ctx = context(4);
    for (mut policy, name) in all(&ctx).into_iter().zip(NAMES) {
        assert_eq!(policy.name(), name);
        let went = run(policy.as_mut(), 2000);
        assert_eq!(went, run(named(name, &ctx).unwrap().as_mut(), 2000), "{name}");
        assert!((0..4).all(|i| went.contains(&i)), "{name} never used one");
    }
}

#[test]
fn names_are_complete_and_distinct() {
    let ctx = context(2);
    assert_eq!(all(&ctx).len(), NAMES.len());
    assert_eq!(NAMES.iter().collect::<std::collections::BTreeSet<_>>().len(), NAMES.len());
    assert!(named("", &ctx).is_none() && named("gie", &ctx).is_none());
    let knowing: Vec<&str> = NAMES.into_iter().filter(|n| named(n, &ctx).unwrap().knows_caches()).collect();
    assert_eq!(
        knowing,
        [
            "homing-exact",
            "pending-tokens-precise",
            "dynamo",
            "dynamo-agentic",
            "gie-1-1-1-precise",
            "gie-2-2-3-precise",
            "gie-3-2-2-2-precise",
            "sticky-precise",
            "lmetric",
            "lmetric-new",
            "ttft"
        ]
    );
}

#[test]
fn what_is_remembered_is_bounded_by_the_caches() {
    let ctx = Context { kv_tokens: 512 * 100, ..context(2) };
    let mut h = Homing::new("homing", 2, Options::new(&ctx, Knowledge::Exact));
    run(&mut h, 3000);
    h.check().unwrap();
    // Replicas that came back were told of 300,000 tokens.
    assert!(h.index().stats().held_blocks <= 4 * 586, "{:?}", h.index().stats());
    assert_eq!(h.fleet().in_flight(), 0);
}
