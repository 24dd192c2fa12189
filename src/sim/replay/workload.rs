//! What is replayed: requests, and when they come.
//!
//! An open loop sends at the times of the trace, whatever the fleet does. A closed loop is a number of sessions at once, each
//! of which waits for its answer before it goes on, so a slow fleet is asked less.

use std::sync::Arc;

/// Spreads block ids over 64 bits; distinct ids stay distinct.
pub(super) fn mix(id: u64) -> u64 {
    let mut x = id.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The chain hash for a block id. 0 means "no content" to an engine, so it isn't given.
pub(super) fn chain_hash(id: u64) -> u64 {
    mix(id).max(1)
}

/// One request: lengths and block identities, no text.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// One hash for each full block of the prompt, over the block and all before it.
    pub chain: Arc<[u64]>,
    /// Prompt tokens, at least 1.
    pub prompt_tokens: u32,
    /// Tokens of the answer, at least 1.
    pub output_tokens: u32,
    /// Session that it belongs to, if known.
    pub session: Option<u64>,
}

/// Requests at given times. The next stage begins when this one's last request has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// What it is called in reports.
    pub name: String,
    /// Seconds after the stage's beginning, and which of [`Workload::asks`]; in order of time.
    pub arrivals: Vec<(f64, usize)>,
}

/// The turns of one client.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Session {
    /// Seconds to wait after the last turn ended (for the first: after the session began), and which of
    /// [`Workload::asks`] comes then.
    pub turns: Vec<(f64, usize)>,
}

/// When requests come.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// Open loop.
    Open(Vec<Stage>),
    /// Closed loop: so many sessions at once as the setup says; the others begin in this order as those end.
    Closed(Vec<Session>),
}

/// A trace or a generated workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// What it is called in reports.
    pub name: String,
    /// Tokens of a block of the chains.
    pub block_tokens: u32,
    /// The distinct requests.
    pub asks: Vec<Ask>,
    /// When they come.
    pub plan: Plan,
}

impl Workload {
    /// Requests that a replay of it sends.
    pub fn requests(&self) -> usize {
        match &self.plan {
            Plan::Open(stages) => stages.iter().map(|s| s.arrivals.len()).sum(),
            Plan::Closed(sessions) => sessions.iter().map(|s| s.turns.len()).sum(),
        }
    }

    /// `n` copies side by side, each with block ids and sessions of its own: the same traffic, `n` times as much.
    pub fn copies(&self, n: usize) -> Workload {
        let mut asks = Vec::with_capacity(self.asks.len() * n);
        for copy in 0..n as u64 {
            let own = |id: u64| if copy == 0 { id } else { mix(id ^ mix(copy)).max(1) };
            asks.extend(self.asks.iter().map(|ask| Ask {
                chain: ask.chain.iter().map(|&h| own(h)).collect(),
                session: ask.session.map(own),
                ..*ask
            }));
        }
        let len = self.asks.len();
        let plan = match &self.plan {
            Plan::Open(stages) => Plan::Open(
                stages
                    .iter()
                    .map(|stage| {
                        let all = stage.arrivals.iter();
                        let arrivals = all.flat_map(|&(t, a)| (0..n).map(move |c| (t, a + c * len)));
                        Stage { name: stage.name.clone(), arrivals: arrivals.collect() }
                    })
                    .collect(),
            ),
            Plan::Closed(sessions) => Plan::Closed(
                sessions
                    .iter()
                    .flat_map(|session| {
                        (0..n).map(|c| Session {
                            turns: session.turns.iter().map(|&(d, a)| (d, a + c * len)).collect(),
                        })
                    })
                    .collect(),
            ),
        };
        Workload { name: self.name.clone(), block_tokens: self.block_tokens, asks, plan }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_share_nothing_and_come_together() {
        let ask = |ids: &[u64]| Ask {
            chain: ids.iter().map(|&i| chain_hash(i)).collect(),
            prompt_tokens: 1024,
            output_tokens: 1,
            session: Some(7),
        };
        let one = Workload {
            name: "w".into(),
            block_tokens: 512,
            asks: vec![ask(&[0, 1]), ask(&[0, 2])],
            plan: Plan::Open(vec![Stage { name: "all".into(), arrivals: vec![(0.0, 0), (1.0, 1)] }]),
        };
        let three = one.copies(3);
        assert_eq!(three.requests(), 6);
        assert_eq!(three.asks[..2], one.asks[..]);
        let heads: std::collections::HashSet<u64> = three.asks.iter().map(|a| a.chain[0]).collect();
        assert_eq!(heads.len(), 3, "copies share a head only within themselves");
        assert_eq!(three.asks[2].chain[0], three.asks[3].chain[0]);
        assert_ne!(three.asks[2].session, three.asks[0].session);
        let Plan::Open(stages) = &three.plan else { panic!("the plan has changed its kind") };
        assert_eq!(stages[0].arrivals, [(0.0, 0), (0.0, 2), (0.0, 4), (1.0, 1), (1.0, 3), (1.0, 5)]);
    }

    #[test]
    fn no_id_becomes_the_reserved_hash() {
        assert!((0..10_000).all(|id| chain_hash(id) != 0));
        // The one number that the mixing turns to 0.
        assert_eq!(chain_hash(0u64.wrapping_sub(0x9e37_79b9_7f4a_7c15)), 1);
    }
}
