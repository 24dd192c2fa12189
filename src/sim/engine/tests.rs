//! The engine by hand, and thousands of random schedules.

use super::*;
use proptest::prelude::*;

fn profile() -> Profile {
    Profile {
        t0: 0.01,
        a: 1e-3,
        q: 0.0,
        d: 1e-3,
        e: 1e-6,
        max_batched_tokens: 100,
        kv_tokens: 1000,
        max_batch: 8,
        block_tokens: 10,
        startup: 0.0,
    }
}

/// A request whose blocks are `tag`'s own.
fn job(id: u64, tag: u64, prompt: u32, output: u32) -> Job {
    let blocks = (prompt + output) / 10;
    let chain: Vec<u64> = (1..=u64::from(blocks)).map(|b| tag * 10_000 + b).collect();
    Job {
        id,
        chain: chain.into(),
        prompt_tokens: prompt,
        output_tokens: output,
        choices: 1,
        ends: Reason::Length,
    }
}

fn drain(engine: &mut Engine) -> Vec<Event> {
    let mut out = Vec::new();
    while let Some(t) = engine.next() {
        engine.advance(t, &mut out);
        engine.pool.check();
    }
    out
}

fn when(events: &[Event], id: u64, kind: EventKind) -> f64 {
    let event = events.iter().find(|e| e.id == id && e.kind == kind);
    event.unwrap_or_else(|| panic!("{id} never {kind:?}: {events:?}")).at.secs()
}

fn near(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-6, "{a} is not {b}");
}

const DONE: EventKind = EventKind::Finished(Reason::Length);

#[test]
fn a_lone_request_takes_what_the_formula_says() {
    let mut engine = Engine::new(profile());
    engine.submit(Time::from_secs(1.0), job(1, 1, 150, 4));
    let events = drain(&mut engine);
    near(when(&events, 1, EventKind::Started { cached_tokens: 0 }), 1.0);
    // Two chunks, 100 and 50 tokens: 2·10 ms + 150·1 ms.
    near(when(&events, 1, EventKind::FirstToken), 1.17);
    // Three decode steps at contexts 151, 152 and 153: 11 ms + context · 1 µs each.
    near(when(&events, 1, DONE), 1.17 + 0.033 + 456e-6);
    let c = engine.snapshot();
    assert_eq!((c.running, c.waiting, c.blocks_used, c.blocks_cached), (0, 0, 0, 15));
    assert_eq!((c.prompt_tokens, c.generation_tokens, c.length), (150, 4, 1));
    near(c.ttft.mean(), 0.17);
    near(c.prefill_time.sum, 0.17);
    near(c.decode_time.sum, 0.033 + 456e-6);
    near(c.queue_time.sum, 0.0);
    assert_eq!((c.inter_token.count, c.iteration_tokens.count, c.iteration_tokens.sum), (3, 5, 153.0));
}

#[test]
fn prefill_and_decode_disturb_each_other() {
    let mut engine = Engine::new(profile());
    engine.submit(Time(0), job(1, 1, 50, 20));
    engine.submit(Time::from_secs(0.065), job(2, 2, 120, 1));
    let events = drain(&mut engine);
    // Request 1: first token at 60 ms, then a step of 11.051 ms, in which request 2 arrives.
    // Then one step with a chunk of 99 tokens beside the decode: 10 + 1.052 + 99 ms, and one with 21.
    near(when(&events, 2, EventKind::Started { cached_tokens: 0 }), 0.071051);
    near(when(&events, 2, EventKind::FirstToken), 0.071051 + 0.110052 + 0.032053);
    // 16 more steps from context 54 on.
    near(when(&events, 1, DONE), 0.213156 + 16.0 * 0.011 + 1e-6 * (54..70).sum::<u64>() as f64);
}

#[test]
fn the_next_turn_finds_prompt_and_answer() {
    let mut engine = Engine::new(profile());
    engine.submit(Time(0), job(1, 7, 45, 16));
    drain(&mut engine);
    // The KV of 45 + 15 tokens was computed: the last one's never is.
    engine.submit(Time::from_secs(9.0), job(2, 7, 100, 1));
    let events = drain(&mut engine);
    assert_eq!(when(&events, 2, EventKind::Started { cached_tokens: 60 }), 9.0);
    engine.submit(Time::from_secs(10.0), job(3, 7, 60, 1));
    let events = drain(&mut engine);
    assert_eq!(
        when(&events, 3, EventKind::Started { cached_tokens: 50 }),
        10.0,
        "the last token is computed"
    );
    let c = engine.snapshot();
    assert_eq!((c.cache_queries, c.cache_hits), (205, 110));
}

#[test]
fn the_batch_is_bounded_and_the_queue_in_order() {
    let mut engine = Engine::new(Profile { max_batch: 2, ..profile() });
    for id in 1..=4 {
        engine.submit(Time(0), job(id, id, 10, 5));
    }
    let mut out = Vec::new();
    engine.advance(Time::from_secs(0.001), &mut out);
    let c = engine.snapshot();
    assert_eq!((c.running, c.waiting), (2, 2));
    out.extend(drain(&mut engine));
    let order: Vec<u64> = out.iter().filter(|e| e.kind == DONE).map(|e| e.id).collect();
    assert_eq!(order, [1, 2, 3, 4]);
    assert!(engine.snapshot().queue_time.sum > 0.0);
}

#[test]
fn a_full_cache_preempts_the_latest_and_loses_nothing() {
    let mut engine = Engine::new(Profile { kv_tokens: 200, ..profile() });
    engine.submit(Time(0), job(1, 1, 90, 60));
    engine.submit(Time(0), job(2, 2, 90, 60));
    let events = drain(&mut engine);
    let preempted: Vec<u64> =
        events.iter().filter(|e| e.kind == EventKind::Preempted).map(|e| e.id).collect();
    assert!(!preempted.is_empty() && preempted.iter().all(|&id| id == 2), "{events:?}");
    assert!(when(&events, 1, DONE) < when(&events, 2, DONE));
    let c = engine.snapshot();
    assert_eq!((c.generation_tokens, c.length), (120, 2));
    assert_eq!(c.preemptions as usize, preempted.len());
    assert_eq!(events.iter().filter(|e| e.kind == EventKind::FirstToken).count(), 2, "told once");
}

#[test]
fn what_can_never_fit_is_rejected() {
    let mut engine = Engine::new(profile());
    engine.submit(Time(0), job(1, 1, 990, 20));
    engine.submit(Time(0), Job { choices: 9, ..job(2, 2, 10, 2) });
    let events = drain(&mut engine);
    assert!(events.iter().all(|e| e.kind == EventKind::Rejected) && events.len() == 2);
}

#[test]
fn cancelling_frees_in_every_phase() {
    let mut engine = Engine::new(Profile { max_batch: 2, ..profile() });
    for id in 1..=3 {
        engine.submit(Time(0), job(id, id, 95, 50));
    }
    let mut out = Vec::new();
    engine.advance(Time::from_secs(0.15), &mut out);
    assert!(engine.cancel(Time::from_secs(0.15), 3), "waiting");
    assert!(engine.cancel(Time::from_secs(0.15), 2), "prefilling");
    engine.advance(Time::from_secs(0.5), &mut out);
    assert!(engine.cancel(Time::from_secs(0.5), 1), "decoding");
    assert!(!engine.cancel(Time::from_secs(0.5), 1), "gone");
    engine.pool.check();
    let c = engine.snapshot();
    assert_eq!((c.running, c.waiting, c.blocks_used, c.aborted), (0, 0, 0, 3));
    drain(&mut engine);
    assert!(out.iter().all(|e| !matches!(e.kind, EventKind::Finished(_))));
}

#[test]
fn choices_share_the_prompt_and_decode_apart() {
    let mut engine = Engine::new(profile());
    engine.submit(Time(0), Job { choices: 3, ..job(1, 1, 45, 20) });
    let mut out = Vec::new();
    engine.advance(Time::from_secs(0.2), &mut out);
    // 4 shared blocks and, for each choice, what lies behind token 40.
    assert_eq!((engine.snapshot().blocks_used - 4) % 3, 0);
    drain(&mut engine);
    let c = engine.snapshot();
    assert_eq!((c.generation_tokens, c.blocks_cached), (60, 4));
}

#[test]
fn faults_and_sleep() {
    let mut engine = Engine::new(profile());
    engine.fault(Time(0), Fault::Slow(3.0));
    engine.submit(Time(0), job(1, 1, 50, 1));
    near(when(&drain(&mut engine), 1, EventKind::FirstToken), 0.18);
    engine.fault(Time::from_secs(1.0), Fault::Hang);
    engine.submit(Time::from_secs(1.0), job(2, 1, 50, 1));
    assert_eq!(engine.next(), None);
    engine.fault(Time::from_secs(2.0), Fault::Recover);
    // 40 tokens are cached.
    near(when(&drain(&mut engine), 2, EventKind::FirstToken), 2.02);
    engine.sleep(Time::from_secs(3.0));
    engine.submit(Time::from_secs(3.0), job(3, 1, 50, 1));
    assert_eq!((engine.next(), engine.is_asleep()), (None, true));
    engine.wake(Time::from_secs(4.0));
    near(when(&drain(&mut engine), 3, EventKind::FirstToken), 4.06);
}

#[test]
fn an_instant_engine_answers_at_once() {
    let mut engine = Engine::new(Profile::named("instant").unwrap()).tell_tokens(true);
    engine.submit(Time(5), job(1, 1, 5000, 30));
    let mut out = Vec::new();
    engine.advance(Time(5), &mut out);
    assert_eq!(out.last(), Some(&Event { at: Time(5), id: 1, kind: DONE }));
    assert_eq!((out.len(), engine.next()), (2 + 29 + 1, None));
}

#[derive(Clone, Debug)]
enum Act {
    Submit { tag: u64, prompt: u32, output: u32, choices: u32 },
    Cancel(u64),
    Clear,
    Sleep,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (0..6u64, 1..300u32, 1..80u32, prop_oneof![9 => Just(1u32), 1 => Just(2)])
            .prop_map(|(tag, prompt, output, choices)| Act::Submit { tag, prompt, output, choices }),
        2 => (0..40u64).prop_map(Act::Cancel),
        1 => Just(Act::Clear),
        1 => Just(Act::Sleep),
    ]
}

/// Runs a schedule and checks that blocks are conserved all along and that each request ends exactly once.
fn schedule(acts: &[(u64, Act)], tokens: bool) -> (Vec<Event>, Counters) {
    let mut engine = Engine::new(Profile { kv_tokens: 600, max_batch: 4, ..profile() }).tell_tokens(tokens);
    let (mut now, mut id, mut out, mut cancelled) = (Time(0), 0, Vec::new(), 0);
    for (gap, act) in acts {
        now = now.plus(*gap as f64 * 1e-3);
        while let Some(t) = engine.next().filter(|&t| t <= now) {
            engine.advance(t, &mut out);
        }
        match act {
            Act::Submit { tag, prompt, output, choices } => {
                engine.submit(now, Job { choices: *choices, ..job(id, *tag, *prompt, *output) });
                id += 1;
            }
            Act::Cancel(id) => cancelled += usize::from(engine.cancel(now, *id)),
            Act::Clear => engine.clear_cache(now),
            Act::Sleep => {
                engine.sleep(now);
                engine.wake(now.plus(0.02));
            }
        }
        engine.pool.check();
        let c = engine.snapshot();
        assert!(c.running <= 4 && c.blocks_used + c.blocks_cached <= c.blocks_total);
        let held: usize = engine.running.iter().map(|s| s.blocks.len()).sum();
        assert!(held >= c.blocks_used as usize, "blocks in use that no request holds");
    }
    out.extend(drain(&mut engine));
    let ended = out.iter().filter(|e| matches!(e.kind, EventKind::Finished(_) | EventKind::Rejected)).count();
    assert_eq!(ended + cancelled, id as usize, "a request is lost");
    let c = engine.snapshot();
    assert_eq!((c.running, c.waiting, c.blocks_used), (0, 0, 0));
    (out, c)
}

proptest! {
    #[test]
    fn random_schedules_lose_neither_blocks_nor_requests(acts in prop::collection::vec((0..200u64, act()), 1..60)) {
        let (events, counters) = schedule(&acts, false);
        prop_assert_eq!(schedule(&acts, false), (events.clone(), counters), "not deterministic");
        prop_assert!(events.windows(2).all(|w| w[0].at <= w[1].at), "out of order");
    }

    #[test]
    fn telling_tokens_changes_no_time(acts in prop::collection::vec((0..200u64, act()), 1..40)) {
        // Every request its own blocks: which of two equal blocks is kept may depend on the order of booking.
        let own = acts.into_iter().enumerate().map(|(i, (gap, act))| (gap, match act {
            Act::Submit { prompt, output, choices, .. } => Act::Submit { tag: i as u64, prompt, output, choices },
            other => other,
        })).collect::<Vec<_>>();
        let (all, with) = schedule(&own, true);
        let (leaps, without) = schedule(&own, false);
        let kept: Vec<Event> =
            all.into_iter().filter(|e| !matches!(e.kind, EventKind::Tokens(_))).collect();
        prop_assert_eq!(kept, leaps);
        prop_assert_eq!((with.generation_tokens, with.preemptions), (without.generation_tokens, without.preemptions));
    }
}
