//! Workloads that are made up, from a name and a seed.
//!
//! A prompt is a list of parts, each of some content and length; equal contents at equal places make equal blocks.

use super::workload::{Ask, Plan, Session, Stage, Workload, mix};
use fastrand::Rng;
use std::sync::Arc;

/// Names that [`named`] knows, and what they are.
pub const NAMES: [(&str, &str); 6] = [
    (
        "ladder",
        "150 groups of 5 prompts, 6,000 shared + 1,200 own tokens, 1,000 out; 3 to 60 requests/s in stages",
    ),
    ("chat", "multi-turn conversations under four shared system prompts; closed loop"),
    ("agents", "coding agents: long growing contexts, tool pauses; closed loop"),
    ("rag", "questions about 400 documents, a few of them popular; 8 requests/s"),
    ("single", "prompts that share nothing; 8 requests/s"),
    ("bursts", "every 4 s 24 identical prompts of 8,000 tokens at once"),
];

/// The ladder's stages: requests a second, and seconds. The first warms up.
const LADDER: [(u32, u32); 17] = [
    (15, 50),
    (3, 20),
    (10, 20),
    (15, 20),
    (20, 38),
    (22, 34),
    (25, 30),
    (30, 25),
    (35, 21),
    (40, 38),
    (43, 36),
    (46, 33),
    (49, 30),
    (52, 29),
    (55, 27),
    (57, 26),
    (60, 25),
];

/// Tokens of a block: 6,000 shared tokens end with one.
const LADDER_BLOCK: u32 = 16;
/// Tokens of a block in the other workloads.
const BLOCK: u32 = 64;

/// The workload of a name, the same for the same seed; `None` for a name that there isn't.
pub fn named(name: &str, seed: u64) -> Option<Workload> {
    let mut made = Made { rng: Rng::with_seed(mix(seed)), ..Made::default() };
    let (block_tokens, plan) = match name {
        "ladder" => made.ladder(),
        "chat" => made.chat(),
        "agents" => made.agents(),
        "rag" => made.rag(),
        "single" => made.single(),
        "bursts" => made.bursts(),
        _ => return None,
    };
    Some(Workload { name: name.to_owned(), block_tokens, asks: made.asks, plan })
}

/// Chain of a prompt that consists of these contents, each of so many tokens.
fn chain(parts: &[(u64, u32)], block: u32) -> Arc<[u64]> {
    let mut out = Vec::new();
    let (mut hash, mut room) = (1, block);
    for &(content, tokens) in parts {
        let mut at = 0;
        while at < tokens {
            let take = room.min(tokens - at);
            hash = mix(hash ^ mix(content ^ mix(u64::from(at) << 32 | u64::from(take)))).max(1);
            (at, room) = (at + take, room - take);
            if room == 0 {
                out.push(hash);
                room = block;
            }
        }
    }
    out.into()
}

#[derive(Default)]
struct Made {
    rng: Rng,
    asks: Vec<Ask>,
    contents: u64,
}

impl Made {
    /// A content that nothing else has.
    fn content(&mut self) -> u64 {
        self.contents += 1;
        self.contents
    }

    fn ask(&mut self, parts: &[(u64, u32)], block: u32, output_tokens: u32, session: Option<u64>) -> usize {
        let prompt_tokens = parts.iter().map(|(_, n)| n).sum();
        self.asks.push(Ask { chain: chain(parts, block), prompt_tokens, output_tokens, session });
        self.asks.len() - 1
    }

    /// Seconds to the next arrival of a Poisson stream.
    fn gap(&mut self, rate: f64) -> f64 {
        -(1.0 - self.rng.f64()).ln() / rate
    }

    fn ladder(&mut self) -> (u32, Plan) {
        for _ in 0..150 {
            let shared = self.content();
            for _ in 0..5 {
                let own = self.content();
                self.ask(&[(shared, 6000), (own, 1200)], LADDER_BLOCK, 1000, None);
            }
        }
        let mut order: Vec<usize> = (0..self.asks.len()).collect();
        self.rng.shuffle(&mut order);
        let mut next = order.into_iter().cycle();
        let mut stages = Vec::new();
        for (k, (rate, seconds)) in LADDER.into_iter().enumerate() {
            let mut at = 0.0;
            let mut arrivals = Vec::new();
            for ask in next.by_ref().take((rate * seconds) as usize) {
                at += self.gap(f64::from(rate));
                arrivals.push((at, ask));
            }
            let name = if k == 0 { "warm-up".to_owned() } else { format!("{rate}/s") };
            stages.push(Stage { name, arrivals });
        }
        (LADDER_BLOCK, Plan::Open(stages))
    }

    /// The next turn of a session: what was said so far (`parts`), then `user` new tokens. The answer becomes a part too.
    fn turn(&mut self, parts: &mut Vec<(u64, u32)>, session: u64, user: u32, output: u32) -> usize {
        parts.push((self.content(), user));
        let ask = self.ask(parts, BLOCK, output, Some(session));
        parts.push((self.content(), output));
        ask
    }

    fn chat(&mut self) -> (u32, Plan) {
        let systems: Vec<u64> = (0..4).map(|_| self.content()).collect();
        let mut sessions = Vec::new();
        for i in 0..600 {
            let mut parts = vec![(systems[i % systems.len()], 1200)];
            let mut turns = Vec::new();
            for turn in 0..self.rng.u32(3..=9) {
                let think = if turn == 0 { 0.0 } else { 3.0 + self.gap(1.0 / 12.0) };
                let (user, output) = (self.rng.u32(30..=500), self.rng.u32(60..=500));
                turns.push((think, self.turn(&mut parts, i as u64, user, output)));
            }
            sessions.push(Session { turns });
        }
        (BLOCK, Plan::Closed(sessions))
    }

    fn agents(&mut self) -> (u32, Plan) {
        let tools = self.content();
        let repositories: Vec<u64> = (0..20).map(|_| self.content()).collect();
        let mut sessions = Vec::new();
        for i in 0..300 {
            let repository = repositories[self.rng.usize(..repositories.len())];
            let mut parts = vec![(tools, 9000), (repository, 16_000)];
            let mut turns = Vec::new();
            for turn in 0..self.rng.u32(6..=24) {
                // Most tool calls return at once; some run a test suite.
                let mean = if self.rng.u32(..8) == 0 { 30.0 } else { 3.0 };
                let pause = if turn == 0 { 0.0 } else { 0.5 + self.gap(1.0 / mean) };
                let (result, output) = (self.rng.u32(200..=6000), self.rng.u32(60..=1500));
                turns.push((pause, self.turn(&mut parts, i, result, output)));
            }
            sessions.push(Session { turns });
        }
        (BLOCK, Plan::Closed(sessions))
    }

    /// One stage of a Poisson stream of `n` requests that `next` makes.
    fn stream(&mut self, rate: f64, n: usize, mut next: impl FnMut(&mut Self) -> usize) -> (u32, Plan) {
        let mut at = 0.0;
        let mut arrivals = Vec::with_capacity(n);
        for _ in 0..n {
            at += self.gap(rate);
            arrivals.push((at, next(self)));
        }
        (BLOCK, Plan::Open(vec![Stage { name: "all".into(), arrivals }]))
    }

    fn rag(&mut self) -> (u32, Plan) {
        let system = self.content();
        let documents: Vec<(u64, u32)> =
            (0..400).map(|_| (self.content(), self.rng.u32(1500..=6000))).collect();
        self.stream(8.0, 6000, |made| {
            // The k-th most popular is asked for about 1/k as often as the first.
            let rank = (documents.len() as f64).powf(made.rng.f64()) as usize - 1;
            let document = documents[rank.min(documents.len() - 1)];
            let question = (made.content(), made.rng.u32(20..=200));
            let output = made.rng.u32(50..=400);
            made.ask(&[(system, 400), document, question], BLOCK, output, None)
        })
    }

    fn single(&mut self) -> (u32, Plan) {
        self.stream(8.0, 6000, |made| {
            let own = (made.content(), made.rng.u32(200..=6000));
            let output = made.rng.u32(50..=500);
            made.ask(&[own], BLOCK, output, None)
        })
    }

    fn bursts(&mut self) -> (u32, Plan) {
        let mut arrivals = Vec::new();
        for burst in 0..150 {
            let own = self.content();
            let ask = self.ask(&[(own, 8000)], BLOCK, 200, None);
            arrivals.extend((0..24).map(|_| (4.0 * f64::from(burst), ask)));
        }
        (BLOCK, Plan::Open(vec![Stage { name: "all".into(), arrivals }]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::replay::bounds::Bound;

    #[test]
    fn every_name_makes_the_same_workload_for_the_same_seed() {
        for (name, _) in NAMES {
            let (a, b, c) = (named(name, 1).unwrap(), named(name, 1).unwrap(), named(name, 2).unwrap());
            assert_eq!(a, b, "{name}");
            assert!(a.plan != c.plan || name == "bursts", "{name}");
            for ask in &a.asks {
                assert_eq!(ask.chain.len() as u32, ask.prompt_tokens / a.block_tokens, "{name}");
                assert!(ask.output_tokens > 0 && !ask.chain.contains(&0), "{name}");
            }
        }
        assert!(named("nonesuch", 1).is_none());
    }

    #[test]
    fn equal_contents_make_equal_blocks_up_to_where_they_part() {
        let (a, b) = (chain(&[(1, 25), (2, 20)], 10), chain(&[(1, 25), (3, 20)], 10));
        assert_eq!((a.len(), &a[..2]), (4, &b[..2]));
        assert_ne!(a[2], b[2], "the third block has five tokens of each");
        assert_ne!(a[3], b[3]);
        assert_eq!(chain(&[(1, 10), (2, 10)], 10)[0], a[0]);
    }

    #[test]
    fn the_ladder_is_as_it_is_published() {
        let ladder = named("ladder", 1).unwrap();
        assert_eq!(ladder.asks.len(), 750);
        assert_eq!(ladder.requests(), LADDER.iter().map(|(r, s)| (r * s) as usize).sum::<usize>());
        // 6,000 tokens are 375 blocks of 16: prompts of a group share exactly these.
        let shared = |a: usize, b: usize| {
            let (a, b) = (&ladder.asks[a].chain, &ladder.asks[b].chain);
            a.iter().zip(b.iter()).take_while(|(x, y)| x == y).count()
        };
        assert_eq!((shared(0, 4), shared(4, 5), ladder.asks[0].chain.len()), (375, 0, 450));
        let Plan::Open(stages) = &ladder.plan else { panic!("not open") };
        let last = &stages[16];
        assert_eq!((last.name.as_str(), last.arrivals.len()), ("60/s", 1500));
        assert!((20.0..30.0).contains(&last.arrivals[1499].0), "{:?}", last.arrivals[1499]);
    }

    #[test]
    fn a_conversations_next_turn_begins_with_all_that_was_said() {
        let chat = named("chat", 1).unwrap();
        let mut bound = Bound::infinite(chat.block_tokens);
        chat.asks.iter().for_each(|a| bound.ask(&a.chain, a.prompt_tokens));
        assert!((0.6..0.95).contains(&bound.share()), "{}", bound.share());
        let single = named("single", 1).unwrap();
        let mut bound = Bound::infinite(single.block_tokens);
        single.asks.iter().for_each(|a| bound.ask(&a.chain, a.prompt_tokens));
        assert_eq!(bound.share(), 0.0);
    }
}
