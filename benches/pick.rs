//! What a pick costs: match the prompt's chain, price every replica, choose, reserve, and tell the index.
//!
//! `cargo bench --bench pick` prints percentiles over single picks, since a pick's tail is what stands in the way of
//! others; `-- --json` ends with one object. Hashing the prompt isn't in it: `cargo bench --bench scan` has that.

#![expect(clippy::expect_used, reason = "a bench that can't be set up has failed")]

use homing::core::health::Probe;
use homing::core::prefix::{IndexConfig, Matches, PrefixIndex};
use homing::core::replica::Facts;
use homing::core::{Arrival, Fleet, Length, ModelId, Outcome, Request, RequestId, Seen, Settings, Time};
use std::time::Instant;

const BLOCK: u32 = 256;
const PICKS: u64 = 40_000;

/// Percentiles of one cell, in microseconds.
struct Cell {
    replicas: u16,
    tokens: u64,
    pick: [f64; 3],
    price: [f64; 3],
}

fn percentiles(mut ns: Vec<u64>) -> [f64; 3] {
    ns.sort_unstable();
    let at = |q: f64| ns[((ns.len() - 1) as f64 * q) as usize] as f64 / 1e3;
    [at(0.5), at(0.99), at(0.999)]
}

/// Conversations over four system prompts of 2,000 tokens, each on its way to `tokens`.
fn chain(rng: &mut fastrand::Rng, blocks: u64) -> Vec<u64> {
    let system = rng.u64(1..5);
    let conversation = rng.u64(1..2000);
    let mut hash = system;
    (0..blocks)
        .map(|i| {
            // Uniform, as real block hashes are: the index's tables rely on it.
            let content = if i < 32 { i } else { conversation << 32 | i };
            hash = xxhash_rust::xxh3::xxh3_64_with_seed(&content.to_le_bytes(), hash);
            hash
        })
        .collect()
}

fn cell(replicas: u16, tokens: u64) -> Cell {
    let blocks = tokens * 4 / u64::from(BLOCK);
    let mut rng = fastrand::Rng::with_seed(5);
    let mut fleet = Fleet::new(Settings::default());
    let mut index = PrefixIndex::new(IndexConfig::default());
    for key in 0..u64::from(replicas) {
        let facts =
            Facts { key, models: Some(vec![ModelId(1)]), capacity: Some(2_000_000), ..Facts::default() };
        let id = fleet.join(facts).expect("room");
        fleet.probe(Time(0), id, Probe::Ok);
        index.join(id.slot, Some(2_000_000 / 64));
    }
    let (mut matches, mut space) = (Matches::new(), Vec::new());
    let (mut picks, mut prices) = (Vec::new(), Vec::new());
    let mut flying = std::collections::VecDeque::new();
    for n in 0..PICKS {
        let now = Time(n * 2_000_000);
        let chain = chain(&mut rng, blocks);
        let request = Request {
            length: Length::Text { bytes: tokens * 4, block: BLOCK },
            head: chain[0],
            ..Request::text(n + 1, ModelId(1), 0)
        };
        let begun = Instant::now();
        index.matches(&chain, &mut matches);
        space.clear();
        space.extend((0..replicas).map(|h| index.space(h)));
        let seen = Seen { matched: matches.as_slice(), space: &space, continues: matches.at_leaf() };
        let priced = Instant::now();
        let arrival = fleet.arrive(now, &request, &seen);
        prices.push(priced.elapsed().as_nanos() as u64);
        let Arrival::Placed(placed) = arrival else { continue };
        index.speculate(now, request.id, &chain, placed.replica.slot);
        picks.push(begun.elapsed().as_nanos() as u64);
        flying.push_back(request.id);
        fleet.first_token(now, request.id);
        if flying.len() > usize::from(replicas) * 16 {
            let id: RequestId = flying.pop_front().expect("just seen");
            fleet.finish(now, id, Outcome { output_tokens: Some(200), ..Outcome::default() });
            index.confirm(now, id, 4);
        }
    }
    Cell { replicas, tokens, pick: percentiles(picks), price: percentiles(prices) }
}

fn main() {
    let json = std::env::args().any(|a| a == "--json");
    let cells: Vec<Cell> = [(4, 32_000), (16, 32_000), (64, 32_000), (64, 128_000), (512, 32_000)]
        .map(|(r, t)| cell(r, t))
        .into();
    println!(
        "replicas   prompt |   pick p50      p99    p99.9 | pricing p50      p99    p99.9   (µs, {PICKS} picks)"
    );
    for c in &cells {
        let ([a, b, d], [e, f, g]) = (c.pick, c.price);
        println!(
            "{:>8} {:>8} | {a:>10.2} {b:>8.2} {d:>8.2} | {e:>11.2} {f:>8.2} {g:>8.2}",
            c.replicas, c.tokens
        );
    }
    if json {
        let rows: Vec<_> = cells
            .iter()
            .map(|c| {
                serde_json::json!({
                    "replicas": c.replicas, "prompt_tokens": c.tokens,
                    "pick_us": {"p50": c.pick[0], "p99": c.pick[1], "p999": c.pick[2]},
                    "pricing_us": {"p50": c.price[0], "p99": c.price[1], "p999": c.price[2]},
                })
            })
            .collect();
        println!("{}", serde_json::json!({ "cells": rows }));
    }
}
