//! The proxy at the level of sockets: real connections, replicas that misbehave on command.

mod bodies;
mod cancel;
mod client;
mod double;
mod drain;
mod failures;
mod headers;
mod limits;
mod protocols;
mod rig;
mod streams;
