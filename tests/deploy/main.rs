//! deploy/ and examples/compose: what can be known of them without a cluster.
//!
//! deploy/rendered holds what kubectl and Helm make of the sources (deploy/render.py); the hash in each file tells whether it is
//! still that. Everything else is checked on those files: names, labels, ports, rights, limits, and the configurations.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod compose;
#[cfg(feature = "kubernetes")]
mod manifests;
mod sources;
mod yaml;
