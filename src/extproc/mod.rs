//! Door two: an endpoint picker for gateways built on Envoy.
//!
//! Envoy opens a gRPC stream for each HTTP request (`ext_proc`), says what comes and goes, and is told where to send it. The
//! brain, the metrics and the explanations are those of the proxy; what the proxy does with sockets, Envoy does here.
//!
//! - `exchange`: the state machine of one stream, without I/O; `request` and `response` are its two directions
//! - `message`: what is said, in plain types; `effect`: what is to be done; `wire`: Envoy's own messages
//! - `intent`: what headers ask for; `policies`: what names in them stand for; `address`: how gateways write addresses
//! - `body`, `truncated`, `model_name`, `restore`: bodies held, read from their beginning, renamed, and named back
//! - `session`: one stream with its reservation; `record`: what is told of it; `kept`: reservations whose end isn't seen
//! - `server`: ports, threads, the way out; `conn`: a connection; `tls`: certificates; `health`: the gRPC health service

mod address;
mod body;
mod conn;
mod effect;
mod exchange;
mod health;
mod intent;
mod kept;
mod message;
mod model_name;
mod names;
mod policies;
mod record;
mod refuse;
mod request;
mod response;
mod restore;
mod server;
mod session;
mod tls;
mod truncated;
pub mod wire;

pub use address::Wanted;
pub use effect::{Effect, Effects, Release, Wish};
pub use exchange::{Exchange, Facts};
pub use intent::{Rules, Wishes};
pub use message::{Head, Immediate, In, Mode, Notes, Out, Set};
pub use policies::{Feed, Policies, Target};
pub use refuse::Refused;
pub use request::Context;
pub use server::{ExtProc, PickerDoors};

#[cfg(test)]
mod exchange_tests;
#[cfg(test)]
mod random_tests;
