//! What can be seen from outside: metrics, the access log, the program's own log.
//!
//! The hot path pays an atomic or two for a measurement: a request asks once for the handles of its model and its
//! replica, and writes through them. Names that come from outside become labels only up to a cap, then they share the
//! label `other`: nobody can grow the registry by inventing models.
//!
//! - `cells`: counter, gauge, histogram; `family`: one metric with its series; `cap`: the bound on label values
//! - `metrics`: every metric of the router by name; `process`: what the system says of the process
//! - `access`: one line a request; `blocks`: the keyed identities of prompt blocks in it
//! - `log`: the program's own log; `loud`: a degradation is told once, not once a request
//! - `ids`: request ids

mod access;
mod blocks;
mod cap;
mod cells;
mod family;
mod ids;
mod log;
mod loud;
mod metrics;
mod process;

pub use access::{AccessLine, AccessLog, Blocks, now_unix};
pub use blocks::{BLOCK_TOKENS, BlockKey};
pub use cap::{LabelCap, OTHER};
pub use cells::{Counter, Gauge, Histogram};
pub use family::{Cell, Family};
pub use ids::{MAX_REQUEST_ID, request_id, valid_request_id};
pub use log::{LogHandle, init as init_log};
pub use loud::{Degradation, Flag, Loud};
pub use metrics::{CONTENT_TYPE, Metrics, ModelMetrics, ReplicaMetrics};
