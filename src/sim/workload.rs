//! Conversations: what the demo's clients say.
//!
//! A workload is a small file: groups of conversations that share a system prompt, with ranges for the number and
//! length of turns. A seed turns it into sessions, the same each time. What is said is pseudo words; what is answered
//! comes from the server and becomes part of the next turn's prompt.

use super::engine::HashTable;
use super::text::{Prompt, TOKEN, mix};
use fastrand::Rng;
use serde::Deserialize;
use std::sync::Arc;

/// A range of whole numbers, both ends included.
type Range = [u32; 2];

/// Groups of conversations.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// What it is called.
    pub name: String,
    /// The conversations begin at random within so many seconds.
    pub arrive_seconds: f64,
    /// Its groups.
    pub groups: Vec<Group>,
}

/// Conversations that share a system prompt.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// What it is called.
    pub name: String,
    /// How many there are.
    pub conversations: u32,
    /// Length of the system prompt in tokens (of four bytes).
    pub system_tokens: u32,
    /// Turns a conversation.
    pub turns: Range,
    /// Tokens of the first thing the user says.
    pub first_tokens: Range,
    /// Tokens of each later one.
    pub user_tokens: Range,
    /// Tokens of an answer.
    pub answer_tokens: Range,
    /// Seconds between an answer and the next turn.
    pub think_seconds: [f64; 2],
}

/// One conversation, from the client's side.
#[derive(Clone, Debug)]
pub struct Session {
    /// Its number.
    pub id: usize,
    /// Its group's name.
    pub group: Arc<str>,
    /// When it begins, seconds from the start.
    pub arrive: f64,
    /// The system prompt, shared within the group.
    pub system: Arc<str>,
    /// What the user says.
    pub turns: Vec<Turn>,
}

/// One turn of the user.
#[derive(Clone, Debug)]
pub struct Turn {
    /// What is said.
    pub user: String,
    /// Length of the answer that is asked for, tokens.
    pub max_tokens: u32,
    /// Seconds to wait before, after the last answer.
    pub think: f64,
}

impl Workload {
    /// The demo's workload.
    pub fn demo() -> Workload {
        #[expect(clippy::expect_used, reason = "the file is part of the program, and a test reads it")]
        Workload::from_json(include_str!("workloads/demo.json"))
            .expect("the built-in workload is well formed")
    }

    /// Read a workload file.
    ///
    /// # Errors
    /// When it isn't the JSON of a workload.
    pub fn from_json(text: &str) -> Result<Workload, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// The sessions of one seed, in order of arrival.
    pub fn sessions(&self, seed: u64) -> Vec<Session> {
        let mut rng = Rng::with_seed(mix(seed));
        let mut sessions = Vec::new();
        for group in &self.groups {
            let name: Arc<str> = group.name.as_str().into();
            let system: Arc<str> = words(&mut rng, group.system_tokens).into();
            for _ in 0..group.conversations {
                let turns = (0..pick(&mut rng, group.turns)).map(|i| Turn {
                    think: if i == 0 { 0.0 } else { between(&mut rng, group.think_seconds) },
                    max_tokens: pick(&mut rng, group.answer_tokens).max(1),
                    user: {
                        let tokens = if i == 0 { group.first_tokens } else { group.user_tokens };
                        let tokens = pick(&mut rng, tokens);
                        words(&mut rng, tokens)
                    },
                });
                let turns = turns.collect();
                let arrive = between(&mut rng, [0.0, self.arrive_seconds]);
                sessions.push(Session {
                    id: 0,
                    group: Arc::clone(&name),
                    arrive,
                    system: Arc::clone(&system),
                    turns,
                });
            }
        }
        sessions.sort_by(|a, b| a.arrive.total_cmp(&b.arrive));
        sessions.iter_mut().enumerate().for_each(|(id, session)| session.id = id);
        sessions
    }
}

fn pick(rng: &mut Rng, [low, high]: Range) -> u32 {
    rng.u32(low..=high.max(low))
}

fn between(rng: &mut Rng, [low, high]: [f64; 2]) -> f64 {
    low + rng.f64() * (high - low)
}

/// Pseudo words, `tokens` tokens long.
fn words(rng: &mut Rng, tokens: u32) -> String {
    let mut text = String::with_capacity(tokens as usize * TOKEN);
    for _ in 0..tokens {
        (0..3).for_each(|_| text.push(rng.lowercase()));
        text.push(' ');
    }
    text
}

/// A conversation so far, as the server renders it.
#[derive(Clone, Debug)]
pub struct Talk {
    said: Prompt,
}

impl Talk {
    /// A conversation that begins with the system prompt.
    pub fn new(session: &Session) -> Self {
        let mut said = Prompt::default();
        said.message("system", &session.system);
        Talk { said }
    }

    /// The user speaks; returns the prompt that the server will read.
    pub fn ask(&mut self, user: &str) -> Prompt {
        self.said.message("user", user);
        let mut prompt = self.said.clone();
        prompt.open_answer();
        prompt
    }

    /// The server has answered.
    pub fn answered(&mut self, text: &str) {
        self.said.message("assistant", text);
    }
}

/// What one cache without bounds would have held: the most that any placement can reach.
///
/// It is asked with the chains of the requests as they are sent, and knows each prompt from then on and each answer
/// once it is there.
#[derive(Clone, Debug, Default)]
pub struct InfiniteCache {
    seen: HashTable<()>,
    prompt: u64,
    cached: u64,
}

/// Tokens a block of the infinite cache, as vLLM's default.
pub const BOUND_BLOCK: u32 = 16;

impl InfiniteCache {
    /// A prompt is sent.
    pub fn ask(&mut self, prompt: &Prompt) {
        let tokens = prompt.tokens();
        let chain = prompt.chain(1, "", BOUND_BLOCK);
        let held = chain.iter().take_while(|hash| self.seen.contains_key(hash)).count() as u32;
        // As in an engine, the last token is always computed.
        let most = tokens.saturating_sub(1) / BOUND_BLOCK;
        self.prompt += u64::from(tokens);
        self.cached += u64::from(held.min(most) * BOUND_BLOCK);
        self.seen.extend(chain.into_iter().map(|hash| (hash, ())));
    }

    /// `prompt` was answered.
    pub fn answered(&mut self, prompt: &Prompt, answer: &str) {
        self.seen.extend(prompt.chain(1, answer, BOUND_BLOCK).into_iter().map(|hash| (hash, ())));
    }

    /// Cached share of all prompt tokens so far, 0..=1.
    pub fn share(&self) -> f64 {
        self.cached as f64 / self.prompt.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_sessions_and_another_makes_others() {
        let demo = Workload::demo();
        let (a, b, c) = (demo.sessions(1), demo.sessions(1), demo.sessions(2));
        assert_eq!(a.len(), demo.groups.iter().map(|g| g.conversations as usize).sum::<usize>());
        for (x, y) in a.iter().zip(&b) {
            assert_eq!((x.arrive, &x.system, &x.turns[0].user), (y.arrive, &y.system, &y.turns[0].user));
        }
        assert!(a.iter().zip(&c).all(|(x, y)| x.turns[0].user != y.turns[0].user));
        assert!(a.windows(2).all(|w| w[0].arrive <= w[1].arrive));
        for s in &a {
            let group = demo.groups.iter().find(|g| *g.name == *s.group).unwrap();
            assert_eq!(s.system.len(), group.system_tokens as usize * TOKEN);
            assert!(a.iter().filter(|o| o.group == s.group).all(|o| Arc::ptr_eq(&o.system, &s.system)));
        }
    }

    #[test]
    fn the_infinite_cache_by_hand() {
        let session = Session {
            id: 0,
            group: "g".into(),
            arrive: 0.0,
            system: "x".repeat(56 * TOKEN).into(),
            turns: Vec::new(),
        };
        let mut cache = InfiniteCache::default();
        let mut talk = Talk::new(&session);
        // 2 + 56 + 2 of the system prompt, 2 + 14 + 2 + 2 of user and opening: 80 tokens.
        let first = talk.ask(&"y".repeat(14 * TOKEN));
        assert_eq!(first.tokens(), 80);
        cache.ask(&first);
        assert_eq!(cache.share(), 0.0);
        cache.answered(&first, &"z".repeat(16 * TOKEN));
        talk.answered(&"z".repeat(16 * TOKEN));
        // 96 tokens are known; 2 + 2 + 42 + 2 + 2 come behind them, less the opening that was there.
        let second = talk.ask(&"w".repeat(42 * TOKEN));
        assert_eq!(second.tokens(), 80 + 16 + 2 + 2 + 42 + 2 + 2);
        cache.ask(&second);
        assert!((cache.share() - 96.0 / (80.0 + 146.0)).abs() < 1e-12);
    }
}
