//! A decision in words and milliseconds.

use super::{Ask, Router, SCRATCH};
use crate::core::cost::Price;
use crate::core::{ReplicaId, RequestId, Seen};
use serde::Serialize;

/// What would be decided for a request, and why.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// Name of the replica that it would go to.
    pub chosen: Option<String>,
    /// The reason, in words.
    pub why: String,
    /// Prompt tokens, estimated.
    pub prompt_tokens: u32,
    /// Output tokens expected.
    pub expected_output_tokens: u32,
    /// Blocks of the prompt's chain.
    pub blocks: usize,
    /// Every replica, cheapest first, those that aren't eligible last.
    pub candidates: Vec<CandidateView>,
}

/// One replica in it.
#[derive(Clone, Debug, Serialize)]
pub struct CandidateView {
    /// Its name.
    pub replica: String,
    /// Why it isn't eligible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excluded: Option<&'static str>,
    /// Prompt tokens believed to be cached there.
    pub matched_tokens: u32,
    /// Blocks of the chain held there.
    pub matched_blocks: u32,
    /// The price.
    pub price_ms: PriceView,
}

/// The price, term by term, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PriceView {
    /// Prefill queued ahead.
    pub wait: f64,
    /// Own prefill.
    pub prefill: f64,
    /// Own prefill holding up those in flight.
    pub harm: f64,
    /// Decoding, and slowing the decoding of others.
    pub decode: f64,
    /// Cache overcommitted.
    pub memory: f64,
    /// What gets pushed out of the cache.
    pub regret: f64,
    /// Failures and late prefills.
    pub trouble: f64,
    /// Loading the LoRA adapter.
    pub adapter: f64,
    /// The sum.
    pub total: f64,
}

impl From<&Price> for PriceView {
    fn from(p: &Price) -> Self {
        let ms = |s: f64| (s * 1e6).round() / 1e3;
        PriceView {
            wait: ms(p.wait),
            prefill: ms(p.prefill),
            harm: ms(p.harm),
            decode: ms(p.decode),
            memory: ms(p.memory),
            regret: ms(p.regret),
            trouble: ms(p.trouble),
            adapter: ms(p.adapter),
            total: ms(p.total()),
        }
    }
}

impl Router {
    /// What would be decided for `ask` now. Reserves nothing.
    pub fn explain(&self, ask: &Ask) -> Explanation {
        let decision = SCRATCH.with_borrow_mut(|s| {
            self.look(ask, s);
            let request = self.request(RequestId(0), ask);
            let seen =
                Seen { matched: s.matches.as_slice(), space: &s.space, continues: s.matches.at_leaf() };
            self.fleet.lock().explain(self.now(), &request, &seen)
        });
        let slots = self.slots.load();
        let name = |id: ReplicaId| slots.get(id).map_or_else(|| "(gone)".to_owned(), |e| e.name.to_string());
        let mut candidates: Vec<CandidateView> = decision
            .candidates
            .iter()
            .map(|c| CandidateView {
                replica: name(c.replica),
                excluded: c.excluded.map(|e| e.label()),
                matched_tokens: c.cached as u32,
                matched_blocks: c.blocks,
                price_ms: PriceView::from(&c.price),
            })
            .collect();
        candidates.sort_by(|a, b| {
            let key = |c: &CandidateView| c.excluded.is_some();
            key(a).cmp(&key(b)).then(a.price_ms.total.total_cmp(&b.price_ms.total))
        });
        let chosen = decision.chosen.map(name);
        let why = match (&chosen, decision.tied) {
            (None, _) => "no replica can take it now".to_owned(),
            (Some(n), 0 | 1) => format!("{n} is the cheapest"),
            (Some(n), tied) => {
                format!(
                    "{tied} are equally cheap; {n} has the fewest in flight, or went longest without a cold prompt"
                )
            }
        };
        Explanation {
            chosen,
            why,
            prompt_tokens: decision.prompt as u32,
            expected_output_tokens: decision.output as u32,
            blocks: ask.blocks().len(),
            candidates,
        }
    }
}
