use super::measure::Slo;
use super::run::replay;
use super::setup::{Restart, Setup};
use super::workload::{Ask, Plan, Session, Stage, Workload};
use super::{Measures, generate};
use crate::core::ledger::Polled;
use crate::core::policy::{Arriving, Policy, Sight};
use crate::core::{RequestId, Time};
use crate::sim::engine::Profile;
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// One after the other.
struct Turns(usize);

impl Policy for Turns {
    fn name(&self) -> &str {
        "turns"
    }

    fn place(&mut self, _: Time, _: &Arriving<'_>, sight: &Sight<'_>) -> usize {
        self.0 += 1;
        sight.up[(self.0 - 1) % sight.up.len()]
    }

    fn finish(&mut self, _: Time, _: RequestId, _: u32, _: u32) {}
}

/// To where most of the prompt is held, of equals to the one chosen least often; writes down what it was told.
#[derive(Default)]
struct Longest(Arc<Mutex<Vec<String>>>, [u32; 4]);

impl Policy for Longest {
    fn name(&self) -> &str {
        "longest"
    }

    fn knows_caches(&self) -> bool {
        true
    }

    fn place(&mut self, now: Time, r: &Arriving<'_>, sight: &Sight<'_>) -> usize {
        let best = *sight.up.iter().min_by_key(|&&i| (Reverse(sight.exact[i]), self.1[i])).unwrap();
        self.1[best] += 1;
        self.0.lock().push(format!("{:.3} place {} sees {:?}", now.secs(), r.id.0, sight.exact));
        best
    }

    fn first_token(&mut self, now: Time, id: RequestId) {
        self.0.lock().push(format!("{:.3} first {}", now.secs(), id.0));
    }

    fn progress(&mut self, now: Time, id: RequestId, output: u32) {
        self.0.lock().push(format!("{:.3} at {} {output}", now.secs(), id.0));
    }

    fn finish(&mut self, now: Time, id: RequestId, output: u32, cached: u32) {
        self.0.lock().push(format!("{:.3} end {} {output} {cached}", now.secs(), id.0));
    }

    fn polled(&mut self, now: Time, replica: usize, page: &Polled) {
        self.0.lock().push(format!("{:.3} page {replica} {:?}", now.secs(), page.running));
    }

    fn joined(&mut self, now: Time, replica: usize, kv: u64) {
        self.0.lock().push(format!("{:.3} joined {replica} {kv}", now.secs()));
    }

    fn left(&mut self, now: Time, replica: usize) {
        self.0.lock().push(format!("{:.3} left {replica}", now.secs()));
    }
}

/// 1 ms a token of prefill, 10 ms a step of decode, nothing else; 100 blocks of 10 tokens.
fn plain() -> Profile {
    Profile {
        t0: 0.0,
        a: 1e-3,
        q: 0.0,
        d: 0.01,
        e: 0.0,
        max_batched_tokens: 1000,
        kv_tokens: 1000,
        max_batch: 8,
        block_tokens: 10,
        startup: 0.0,
    }
}

fn setup(replicas: usize) -> Setup {
    Setup { poll: Some(f64::INFINITY), ..Setup::new(plain(), replicas) }
}

fn ask(chain: &[u64], prompt_tokens: u32, output_tokens: u32) -> Ask {
    Ask { chain: chain.into(), prompt_tokens, output_tokens, session: None }
}

fn open(asks: Vec<Ask>, arrivals: &[(f64, usize)]) -> Workload {
    let stage = Stage { name: "all".into(), arrivals: arrivals.to_vec() };
    Workload { name: "t".into(), block_tokens: 10, asks, plan: Plan::Open(vec![stage]) }
}

fn near(got: f64, want: f64) -> bool {
    (got - want).abs() < 1e-6
}

fn turns(workload: &Workload, setup: &Setup) -> Measures {
    replay(workload, setup, vec![Box::new(Turns(0))], &AtomicU64::new(0))
}

/// What the policy was told, and the measures.
fn longest(workload: &Workload, setup: &Setup) -> (Vec<String>, Measures) {
    let told = Arc::default();
    let measures =
        replay(workload, setup, vec![Box::new(Longest(Arc::clone(&told), [0; 4]))], &AtomicU64::new(0));
    (std::mem::take(&mut *told.lock()), measures)
}

#[test]
fn two_requests_by_hand() {
    let w = open(vec![ask(&[1, 2, 3], 30, 3), ask(&[1, 2, 3], 35, 1)], &[(0.0, 0), (1.0, 1)]);
    let done = AtomicU64::new(0);
    let m = replay(&w, &setup(1), vec![Box::new(Turns(0))], &done);
    assert_eq!((m.requests, m.failed, done.into_inner()), (2, 0, 2));
    // 30 tokens of prefill are 30 ms; of the second prompt 30 are cached.
    assert!(near(m.ttft.p50, 0.005) && near(m.ttft.p99, 0.030), "{:?}", m.ttft);
    // Two steps of decode; the answer of one token has none.
    assert!(near(m.tpot.mean, 0.010) && near(m.e2e.p99, 0.050) && near(m.e2e.p50, 0.005), "{m:?}");
    assert!(near(m.cached_share, 30.0 / 65.0) && near(m.infinite_bound, 30.0 / 65.0));
    assert!(near(m.pooled_share(), 1.0) && near(m.seconds, 1.005));
    assert_eq!((m.prefill_tokens, m.output_tokens, m.in_slo), (35, 4, 1.0));
    // On two replicas nothing is shared: 30 + 3 tokens computed here, 35 + 1 there.
    let two = turns(&w, &setup(2));
    assert_eq!((two.cached_share, two.prefill_tokens), (0.0, 65));
    assert!(near(two.balance, 36.0 / 34.5) && near(two.infinite_share(), 0.0));
}

#[test]
fn speedup_shortens_the_time_between_arrivals_and_objectives_count() {
    let w = open(vec![ask(&[], 100, 1)], &[(0.0, 0), (0.15, 0), (0.3, 0)]);
    let mut s = setup(1);
    s.slo = Slo { ttft: 0.12, tpot: 1.0 };
    assert_eq!(turns(&w, &s).in_slo, 1.0);
    // At 0, 50 and 100 ms: the second waits 50 ms, and both go into the step that begins at 100.
    s.speedup = 3.0;
    let m = turns(&w, &s);
    assert!(near(m.ttft.p50, 0.2) && near(m.ttft.p99, 0.25), "{:?}", m.ttft);
    assert!(near(m.in_slo, 1.0 / 3.0));
}

#[test]
fn requests_of_one_time_share_the_next_step() {
    let w = open(vec![ask(&[], 10, 1), ask(&[], 20, 1)], &[(1.0, 0), (1.0, 1)]);
    let m = turns(&w, &setup(1));
    assert!(near(m.ttft.p50, 0.030) && near(m.ttft.p99, 0.030), "{:?}", m.ttft);
}

fn closed(sessions: usize, turns: &[f64]) -> Workload {
    let session = |_| Session { turns: turns.iter().map(|&d| (d, 0)).collect() };
    let plan = Plan::Closed((0..sessions).map(session).collect());
    Workload { name: "t".into(), block_tokens: 10, asks: vec![ask(&[], 100, 1)], plan }
}

#[test]
fn a_closed_loop_waits_for_answers_and_keeps_its_number_of_sessions() {
    // Each turn takes 0.1 s, and 0.4 s pass before the second.
    let w = closed(3, &[0.0, 0.4]);
    let mut s = setup(1);
    (s.sessions, s.ramp) = (1.0, 0.0);
    let m = turns(&w, &s);
    assert_eq!(m.requests, 6);
    assert!(near(m.seconds, 3.0 * 0.6) && near(m.ttft.p99, 0.1), "{m:?}");
    // Three at once: one step of 0.3 s serves all.
    s.speedup = 3.0;
    let m = turns(&w, &s);
    assert!(near(m.seconds, 0.3 + 0.4 + 0.3) && near(m.ttft.p50, 0.3), "{m:?}");
    // Begun over 3 s they don't meet.
    s.ramp = 3.0;
    assert!(near(turns(&w, &s).ttft.p99, 0.1));
}

#[test]
fn a_stage_begins_when_the_one_before_is_drained() {
    let mut w = open(vec![ask(&[], 100, 1)], &[]);
    let stage =
        |name: &str, at: &[f64]| Stage { name: name.into(), arrivals: at.iter().map(|&t| (t, 0)).collect() };
    w.plan = Plan::Open(vec![stage("a", &[0.0, 0.01, 0.02]), stage("none", &[]), stage("b", &[0.5])]);
    let m = turns(&w, &setup(1));
    // The first begins its step at once, the two others share the next: 0.1, then 0.3.
    assert!(near(m.stages[0].seconds, 0.3) && near(m.seconds, 0.3 + 0.5 + 0.1), "{m:?}");
    assert_eq!(
        m.stages.iter().map(|s| (s.name.as_str(), s.requests)).collect::<Vec<_>>(),
        [("a", 3), ("none", 0), ("b", 1)]
    );
    assert!(near(m.stages[0].output_rate, 10.0) && near(m.stages[2].ttft.p50, 0.1));
}

#[test]
fn a_policy_hears_all_that_a_router_would() {
    let w = open(vec![ask(&[1, 2], 25, 4)], &[(0.0, 0), (0.1, 0)]);
    let mut s = setup(2);
    s.poll = Some(0.11);
    s.stride = 3;
    s.trouble.capacity = 0.5;
    let (told, _) = longest(&w, &s);
    assert_eq!(
        told,
        [
            "0.000 joined 0 500",
            "0.000 joined 1 500",
            "0.000 place 0 sees [0, 0]",
            "0.025 first 0",
            "0.045 at 0 3",
            "0.055 end 0 4 0",
            "0.100 place 1 sees [2, 0]",
            "0.105 first 1",
            "0.110 page 0 Some(1)",
            "0.110 page 1 Some(0)",
            "0.125 at 1 3",
            "0.135 end 1 4 20",
        ]
    );
}

#[test]
fn late_and_lost_events_blur_what_is_seen() {
    let w = open(vec![ask(&[1, 2], 25, 1)], &[(0.0, 0), (0.1, 0), (0.6, 0)]);
    let mut s = setup(2);
    let seen = |s: &Setup| {
        let (told, _) = longest(&w, s);
        told.iter().filter_map(|t| t.split_once("sees ")).map(|(_, v)| v.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(seen(&s), ["[0, 0]", "[2, 0]", "[2, 0]"]);
    s.trouble.event_delay = 0.5;
    assert_eq!(seen(&s), ["[0, 0]", "[0, 0]", "[2, 0]"]);
    (s.trouble.event_delay, s.trouble.event_loss) = (0.0, 1.0);
    assert_eq!(seen(&s), ["[0, 0]", "[0, 0]", "[0, 0]"]);
}

#[test]
fn a_slow_replica_takes_longer() {
    let w = open(vec![ask(&[], 100, 1)], &[(0.0, 0), (0.0, 0)]);
    let mut s = setup(2);
    s.trouble.slow = vec![(1, 2.0)];
    let m = turns(&w, &s);
    assert!(near(m.ttft.p50, 0.1) && near(m.ttft.p99, 0.2), "{:?}", m.ttft);
}

#[test]
fn a_restart_loses_streams_and_cache_and_sends_the_rest_elsewhere() {
    // Request 0 is decoding on replica 0 and request 1 in prefill behind it when that restarts at 0.1.
    let w =
        open(vec![ask(&[1, 2], 25, 100), ask(&[1, 2, 9], 80, 1)], &[(0.0, 0), (0.09, 1), (0.5, 1), (3.0, 1)]);
    let mut s = setup(2);
    s.trouble.restarts = vec![Restart { at: 0.1, replica: 0, down: 1.0 }];
    let (told, m) = longest(&w, &s);
    let want = [
        "0.000 joined 0 1000",
        "0.000 joined 1 1000",
        "0.000 place 0 sees [0, 0]",
        "0.025 first 0",
        "0.090 place 1 sees [2, 0]",
        "0.100 left 0",
        "0.100 end 0 0 0",
        "0.100 end 1 0 0",
        "0.100 place 2 sees [0, 0]",
        "0.180 first 2",
        "0.180 end 2 1 0",
        "0.500 place 3 sees [0, 3]",
        "0.550 first 3",
        "0.550 end 3 1 30",
        "1.100 joined 0 1000",
        "3.000 place 4 sees [0, 3]",
        "3.050 first 4",
        "3.050 end 4 1 30",
    ];
    assert_eq!(told, want);
    assert_eq!((m.requests, m.failed), (4, 1));
    assert!(near(m.in_slo, 0.75) && near(m.ttft.p99, 0.09), "the time before the restart counts: {m:?}");
}

#[test]
fn the_last_replica_stays() {
    let w = open(vec![ask(&[], 10, 1)], &[(1.0, 0)]);
    let mut s = setup(1);
    s.trouble.restarts = vec![Restart { at: 0.5, replica: 0, down: 1.0 }];
    assert_eq!(turns(&w, &s).failed, 0);
}

#[test]
fn what_no_engine_can_hold_has_failed() {
    let w = open(vec![ask(&[], 2000, 1), ask(&[], 10, 1)], &[(0.0, 0), (0.0, 1)]);
    let m = turns(&w, &setup(1));
    assert_eq!((m.requests, m.failed, m.in_slo), (2, 1, 0.5));
}

#[test]
fn routers_take_turns_and_know_only_their_own() {
    let w = open(vec![ask(&[], 10, 1)], &[(0.0, 0), (1.0, 0), (2.0, 0)]);
    let told: [Arc<Mutex<Vec<String>>>; 2] = Default::default();
    let policies: Vec<Box<dyn Policy>> =
        told.iter().map(|t| Box::new(Longest(Arc::clone(t), [0; 4])) as Box<dyn Policy>).collect();
    replay(&w, &setup(1), policies, &AtomicU64::new(0));
    let placed = |i: usize| told[i].lock().iter().filter(|t| t.contains("place")).count();
    let ended = |i: usize| told[i].lock().iter().filter(|t| t.contains("end")).count();
    assert_eq!([(placed(0), ended(0)), (placed(1), ended(1))], [(2, 2), (1, 1)]);
}

#[test]
fn the_same_arguments_give_the_same_measures() {
    for name in ["chat", "bursts"] {
        let w = generate::named(name, 3).unwrap();
        let mut s = Setup::new(Profile::named("dense-32b").unwrap(), 4);
        s.trouble.event_loss = 0.3;
        let one = longest(&w, &s);
        assert!(one == longest(&w, &s), "{name}");
        assert!(one.1.timeline.loads.len() > 10 && one.1.timeline.loads.len() < 512);
        s.seed = 2;
        if name == "chat" {
            assert!(one.1 != longest(&w, &s).1, "the seed decides which events are lost");
        }
    }
}

#[test]
fn no_placement_beats_the_bounds_and_affinity_comes_closer() {
    let w = generate::named("rag", 1).unwrap();
    let mut s = Setup::new(Profile::named("dense-32b").unwrap(), 4);
    s.profile.kv_tokens = 400_000;
    let (_, near) = longest(&w, &s);
    let far = turns(&w, &s);
    for m in [&near, &far] {
        assert!(m.pooled_bound <= m.infinite_bound);
        assert!(m.cached_share <= m.pooled_bound, "{} > {}", m.cached_share, m.pooled_bound);
    }
    assert_eq!((near.infinite_bound, near.pooled_bound), (far.infinite_bound, far.pooled_bound));
    assert!(near.cached_share > far.cached_share);
}

#[test]
fn pages_can_be_read_before_each_placement() {
    let w = open(vec![ask(&[], 100, 1)], &[(0.0, 0), (0.0, 0), (0.05, 0)]);
    let mut s = setup(1);
    s.poll = Some(0.0);
    let (told, _) = longest(&w, &s);
    let pages: Vec<&String> = told.iter().filter(|t| t.contains("page")).collect();
    // The two that came together are taken into the same step; only then do they run.
    assert_eq!(pages, ["0.000 page 0 Some(0)", "0.000 page 0 Some(0)", "0.050 page 0 Some(2)"]);
}

#[test]
fn looking_changes_nothing() {
    let w = generate::named("bursts", 1).unwrap();
    let mut s = Setup::new(Profile::named("dense-32b-small").unwrap(), 2);
    let often = turns(&w, &s);
    s.poll = Some(f64::INFINITY);
    assert!(turns(&w, &s) == often, "a policy that ignores the pages does the same without them");
    s.stride = 0;
    assert!(turns(&w, &s) == often, "and so it is with news of tokens");
}
