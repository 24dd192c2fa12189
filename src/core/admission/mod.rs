//! Requests that wait: in the lane of the replica that they chose, or in one line because nothing can take them now.

mod lanes;
mod queue;
mod rules;
mod shed;
mod tenants;

pub(super) use lanes::{Entry, Lanes, Rank};
pub use queue::{Full, Queue};
pub use rules::LaneRules;
pub(super) use shed::{dice, share};
pub(super) use tenants::Tenants;
