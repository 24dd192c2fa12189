//! Conversations against simulated engines in virtual time: how good can a placement be, and how good is round robin?

use super::engine::{Engine, EventKind, Job, Profile, Reason};
use super::histogram::{Histogram, Quantiles};
use super::text::{Prompt, Voice};
use super::workload::{InfiniteCache, Session, Talk};
use crate::core::Time;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A request to be placed.
pub struct Choice<'a> {
    /// How many came before.
    pub number: usize,
    /// Its session.
    pub session: usize,
    /// Its turn within the session, from 0.
    pub turn: usize,
    /// Its chain, in the engines' blocks.
    pub chain: &'a [u64],
    /// The engines to choose from.
    pub engines: &'a [Engine],
}

/// How it went.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Time to first token, seconds.
    pub ttft: Quantiles,
    /// Cached share of prompt tokens, 0..=1.
    pub cached_share: f64,
    /// The share that one infinite cache would have reached.
    pub infinite_cache_share: f64,
    /// Requests.
    pub requests: usize,
    /// When the last one ended, seconds.
    pub seconds: f64,
}

/// A session under way.
struct Client<'a> {
    session: &'a Session,
    talk: Talk,
    turn: usize,
    sent: Time,
    asked: Prompt,
    answer: String,
}

/// Run all sessions on `replicas` engines, each request placed by `pick`.
pub fn run(
    sessions: &[Session],
    profile: &Profile,
    replicas: usize,
    mut pick: impl FnMut(&Choice<'_>) -> usize,
) -> Outcome {
    let mut engines: Vec<Engine> = (0..replicas.max(1)).map(|_| Engine::new(profile.clone())).collect();
    let mut clients: Vec<Client<'_>> = sessions
        .iter()
        .map(|session| Client {
            session,
            talk: Talk::new(session),
            turn: 0,
            sent: Time(0),
            asked: Prompt::default(),
            answer: String::new(),
        })
        .collect();
    let mut turns: BinaryHeap<Reverse<(Time, usize)>> =
        sessions.iter().enumerate().map(|(i, s)| Reverse((Time::from_secs(s.arrive), i))).collect();
    let (mut bound, mut ttft, mut outcome) =
        (InfiniteCache::default(), Histogram::default(), Outcome::default());
    let mut events = Vec::new();
    loop {
        let engine = (0..engines.len()).filter_map(|i| engines[i].next().map(|t| (t, i))).min();
        let turn = turns.peek().map(|Reverse(next)| *next);
        match (engine, turn) {
            (None, None) => break,
            (Some((t, i)), next) if next.is_none_or(|(at, _)| t <= at) => engines[i].advance(t, &mut events),
            (_, next) => {
                let Some((now, i)) = next else { break };
                turns.pop();
                let client = &mut clients[i];
                let Some(turn) = client.session.turns.get(client.turn) else { continue };
                let prompt = client.talk.ask(&turn.user);
                bound.ask(&prompt);
                client.answer = Voice::of(&prompt, 0).text(turn.max_tokens, 0);
                let chain = prompt.chain(1, &client.answer, profile.block_tokens);
                let choice = Choice {
                    number: outcome.requests,
                    session: i,
                    turn: client.turn,
                    chain: &chain,
                    engines: &engines,
                };
                let to = pick(&choice).min(engines.len() - 1);
                outcome.requests += 1;
                client.sent = now;
                let job = Job {
                    id: i as u64,
                    chain: chain.into(),
                    prompt_tokens: prompt.tokens(),
                    output_tokens: turn.max_tokens,
                    choices: 1,
                    ends: Reason::Length,
                };
                client.asked = prompt;
                engines[to].submit(now, job);
            }
        }
        for event in events.drain(..) {
            let client = &mut clients[event.id as usize];
            match event.kind {
                EventKind::FirstToken => ttft.observe(event.at.since(client.sent)),
                EventKind::Finished(_) => {
                    let answer = std::mem::take(&mut client.answer);
                    bound.answered(&client.asked, &answer);
                    client.talk.answered(&answer);
                    client.turn += 1;
                    outcome.seconds = event.at.secs();
                    if let Some(next) = client.session.turns.get(client.turn) {
                        turns.push(Reverse((event.at.plus(next.think), event.id as usize)));
                    }
                }
                _ => {}
            }
        }
    }
    let counters: Vec<_> = engines.iter().map(Engine::snapshot).collect();
    let (hits, queries): (u64, u64) =
        counters.iter().fold((0, 0), |(h, q), c| (h + c.cache_hits, q + c.cache_queries));
    outcome.cached_share = hits as f64 / queries.max(1) as f64;
    outcome.infinite_cache_share = bound.share();
    outcome.ttft = ttft.quantiles();
    outcome
}

/// Place each request on the next engine.
pub fn round_robin(choice: &Choice<'_>) -> usize {
    choice.number % choice.engines.len()
}

/// Place a session's first turn on the engine with the fewest sessions so far, and the others where the first went.
pub fn sticky() -> impl FnMut(&Choice<'_>) -> usize {
    let mut homes: Vec<Option<usize>> = Vec::new();
    move |choice| {
        if homes.len() <= choice.session {
            homes.resize(choice.session + 1, None);
        }
        let count = |e: usize| homes.iter().filter(|h| **h == Some(e)).count();
        let fewest = (0..choice.engines.len()).min_by_key(|&e| count(e)).unwrap_or(0);
        *homes[choice.session].get_or_insert(fewest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::workload::Workload;

    #[test]
    fn the_demo_workload_tells_affinity_from_round_robin() {
        let profile = Profile::named("demo").unwrap();
        for seed in [1, 2, 3] {
            let sessions = Workload::demo().sessions(seed);
            let home = run(&sessions, &profile, 4, sticky());
            let plain = run(&sessions, &profile, 4, round_robin);
            println!("seed {seed}\n  sticky      {home:?}\n  round robin {plain:?}");
            assert!(home.cached_share >= 0.93 * home.infinite_cache_share, "{home:?}");
            assert!(home.ttft.mean <= 0.4 * plain.ttft.mean, "{} {}", home.ttft.mean, plain.ttft.mean);
            assert!(plain.cached_share < 0.8 * plain.infinite_cache_share, "{plain:?}");
            assert!((15.0..32.0).contains(&home.seconds) && plain.seconds < 45.0);
        }
    }

    #[test]
    fn virtual_time_is_deterministic() {
        let profile = Profile::named("demo").unwrap();
        let sessions = Workload::demo().sessions(5);
        let one = format!("{:?}", run(&sessions, &profile, 3, round_robin));
        assert_eq!(one, format!("{:?}", run(&sessions, &profile, 3, round_robin)));
    }
}
