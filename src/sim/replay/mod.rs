//! Replay in virtual time: an hour of traffic against a fleet of simulated engines, in seconds.
//!
//! The placement is done by a [`Policy`](crate::core::policy::Policy): the production code or a rival's, on the same
//! traffic, engines and clock. A replay is a function of its arguments, so the same seed gives the same figures.
//!
//! - [`workload`]: what is replayed. [`read`] gets it from trace files, [`generate`] makes it up.
//! - [`setup`]: the fleet, the load, and what isn't perfect.
//! - [`run`]: one replay. [`cells`]: many on all cores, and the search for a fleet's capacity.
//! - [`measure`] and [`bounds`]: what comes out, and what could have at most.

pub mod bounds;
pub mod cells;
mod fleet;
pub mod generate;
pub mod measure;
pub mod read;
pub mod run;
#[cfg(test)]
mod run_tests;
pub mod setup;
mod tally;
mod view;
pub mod workload;

pub use measure::{Measures, Slo};
pub use run::replay;
pub use setup::{Restart, Setup, Trouble};
pub use workload::Workload;
