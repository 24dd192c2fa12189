//! The configuration: one YAML file, with environment and flags on top.
//!
//! A setting is looked for in a flag, then in a `HOMING_…` variable, then in the file, then in the defaults. Flags and
//! variables arrive here as [`Overrides`] (the command line reads both). A key that nobody knows is an error that names
//! its path and the nearest key that exists: a typo that is silently ignored is found months later, in production.
//!
//! - `schema`: what can be written, with the defaults; `sections`: its smaller parts
//! - `events`: where replicas publish what their caches hold
//! - `discovery`: replicas found in Kubernetes and in DNS
//! - `extproc`: the endpoint picker
//! - `speed`: the named speed profiles; `tokenizer`: models whose token ids are known
//! - `resume`: continuing broken streams, second requests
//! - `units`: `5s`, `64KiB`; `secret`: values that are never printed
//! - `load`: text → tree → variables → typed → files of secrets
//! - `reload`: what of a new configuration can hold at once; `snapshot`: what outlives the process
//! - `keys`: unknown keys; `vars`: `${VAR}`; `validate`: what types can't say

mod discovery;
mod events;
mod extproc;
mod keys;
mod lanes;
mod load;
mod reload;
mod resume;
mod schema;
mod secret;
mod sections;
mod snapshot;
mod speed;
mod tokenizer;
mod units;
mod validate;
mod vars;

pub use discovery::{Dns, DnsName, Kubernetes, MAX_PORTS};
pub use events::EventsSpec;
pub use extproc::ExtProc;
pub use lanes::Lanes;
pub use load::{ConfigError, Overrides, load, parse, parse_replicas, schema_json};
pub use reload::{Adoption, adopt};
pub use resume::{Hedge, Resume};
pub use schema::{Config, EngineKind, ReplicaDefaults, ReplicaSpec};
pub use secret::Secret;
pub use sections::{
    AccessTarget, Drain, Health, Index, Limits, Log, LogFormat, Poll, Price, Queue, Retry, Timeouts,
};
pub use snapshot::Snapshot;
pub use speed::{Profile, Speed};
pub use tokenizer::{Tokenizer, TokenizerModel};
pub use units::{Seconds, Size};
pub use validate::{Problem, Report, Severity};
