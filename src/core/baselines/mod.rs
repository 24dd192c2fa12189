//! Placement policies side by side: those of other routers, and Homing's own.
//!
//! Each is faithful to the documented default of its project (named, with its version, where the policy is written),
//! with the project's own belief about caches and load. Where a rule could be read in two ways, the reading that is
//! better for the rival was taken, and the text says so. They know what [`Policy`] tells a router and no more; the
//! replay runs them on the same traffic.
//!
//! Whatever a policy remembers is bounded: by the requests in flight, by the capacity of the caches, or by a size
//! that its project sets.

mod active;
mod books;
mod dynamo;
mod gie;
mod heads;
pub mod homing;
mod lmetric;
mod lru;
mod preble;
mod ring;
mod rng;
mod sglang;
mod simple;
mod token_load;
mod ttft;
mod view;

#[cfg(test)]
mod hand;

pub use homing::{Homing, Knowledge, Options};

use super::admission::LaneRules;
use super::policy::Policy;
use super::speed::Shape;
use gie::{WeightedSum, Weights};
use view::View;

/// What a policy is made for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Context {
    /// Replicas, numbered from 0.
    pub replicas: usize,
    /// Tokens that a replica's cache holds, as routers are told; 0 = not told.
    pub kv_tokens: u64,
    /// Times of the engine, for policies whose projects fit or are given them.
    pub shape: Shape,
    /// Seed of those that draw.
    pub seed: u64,
    /// Tokens of a block of the chains.
    pub block_tokens: u32,
}

/// The names of all policies, Homing's own first.
pub const NAMES: [&str; 29] = [
    "homing",
    "homing-no-lanes",
    "homing-exact",
    "random",
    "round-robin",
    "least-requests",
    "power-of-two",
    "pending-tokens",
    "pending-tokens-precise",
    "chwbl",
    "session",
    "sglang",
    "sglang-0.5-32",
    "dynamo",
    "dynamo-agentic",
    "gie-1-1-1",
    "gie-1-1-1-precise",
    "gie-1-1-1-polled",
    "gie-2-2-3",
    "gie-2-2-3-precise",
    "gie-2-2-3-polled",
    "gie-3-2-2-2",
    "gie-3-2-2-2-precise",
    "sticky",
    "sticky-precise",
    "lmetric",
    "lmetric-new",
    "ttft",
    "preble",
];

/// All policies, in the order of [`NAMES`].
pub fn all(ctx: &Context) -> Vec<Box<dyn Policy>> {
    NAMES.iter().filter_map(|name| named(name, ctx)).collect()
}

/// The policy of that name.
pub fn named(name: &str, ctx: &Context) -> Option<Box<dyn Policy>> {
    // The name as it is written in the list lives as long as the program.
    let name = *NAMES.iter().find(|n| **n == name)?;
    let seed = ctx.seed;
    let view = || match name.ends_with("-precise") {
        true => View::precise(),
        false => View::approximate(ctx.replicas, ctx.kv_tokens),
    };
    let sum = |prefix, queue, kv, no_hit| {
        WeightedSum::new(name, Weights { prefix, queue, kv, no_hit }, view(), seed)
    };
    let gie = |prefix, queue, kv, no_hit| Box::new(sum(prefix, queue, kv, no_hit));
    let own = |knowledge| Box::new(Homing::new(name, ctx.replicas, Options::new(ctx, knowledge)));
    Some(match name {
        "homing" => own(Knowledge::Estimate),
        "homing-no-lanes" => {
            let mut options = Options::new(ctx, Knowledge::Estimate);
            options.settings.lanes = LaneRules::OFF;
            Box::new(Homing::new(name, ctx.replicas, options))
        }
        "homing-exact" => own(Knowledge::Exact),
        "random" => Box::new(simple::Simple::random(seed)),
        "round-robin" => Box::new(simple::Simple::round_robin()),
        "least-requests" => Box::new(simple::Simple::least_requests(seed)),
        "power-of-two" => Box::new(simple::Simple::power_of_two(seed)),
        "pending-tokens" | "pending-tokens-precise" => {
            Box::new(token_load::TokenLoad::pending(name, view(), seed))
        }
        "chwbl" => Box::new(ring::BoundedHash::default()),
        "session" => Box::new(ring::Session::new(seed)),
        "sglang" => Box::new(sglang::CacheAware::current()),
        "sglang-0.5-32" => Box::new(sglang::CacheAware::earlier()),
        "dynamo" => Box::new(dynamo::KvRouter::default_preset(seed)),
        "dynamo-agentic" => Box::new(dynamo::KvRouter::agentic(seed)),
        "gie-1-1-1" | "gie-1-1-1-precise" => gie(1.0, 1.0, 1.0, 0.0),
        // Queue, KV, prefix, as the project's current defaults are listed; the next one is prefix, queue, KV, no-hit.
        "gie-2-2-3" | "gie-2-2-3-precise" => gie(3.0, 2.0, 2.0, 0.0),
        "gie-1-1-1-polled" => Box::new(sum(1.0, 1.0, 1.0, 0.0).polled_only()),
        "gie-2-2-3-polled" => Box::new(sum(3.0, 2.0, 2.0, 0.0).polled_only()),
        "gie-3-2-2-2" | "gie-3-2-2-2-precise" => gie(3.0, 2.0, 2.0, 2.0),
        "sticky" | "sticky-precise" => Box::new(token_load::TokenLoad::sticky(name, view(), seed)),
        "lmetric" => Box::new(lmetric::Product::pending_and_new(seed)),
        "lmetric-new" => Box::new(lmetric::Product::new_only(seed)),
        "ttft" => Box::new(ttft::LeastTtft::new(ctx.shape, seed)),
        "preble" => Box::new(preble::ExploitOrExplore::new(ctx.replicas, ctx.kv_tokens, ctx.shape, seed)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
