//! Homing: a cache-aware router for LLM inference.
//!
//! A request goes *home*: to the replica that already holds the longest part of its prompt in the KV cache, unless
//! waiting there would cost more than computing the prefix again elsewhere. The map of the house:
//!
//! - [`core`]: the brain. Sans-I/O; time and randomness come in as arguments. It knows prefixes, prices and places.
//! - [`router`]: the shell around the core: locks, clock, wake-ups; hands out reservations.
//! - [`openai`]: what must be understood of OpenAI-shaped traffic, read where it lies: bodies, streams, errors.
//! - [`tokenize`]: a model's own tokenizer and chat template: from a body to the engine's token ids.
//! - [`proxy`]: door one, an OpenAI-compatible HTTP server: accept, place, forward, retry.
//! - [`extproc`]: door two, an endpoint picker for gateways built on Envoy.
//! - [`door`]: listening sockets that can be moved and handed over while they are in use.
//! - [`discovery`]: who is in the fleet: a list, and a file that is watched.
//! - [`watch`]: keeps looking at the fleet: health, load, models.
//! - [`control`]: the ports beside the traffic: health, metrics, admin.
//! - [`config`]: one YAML file, environment and flags on top; everything that is wrong with it is told at once.
//! - [`engine`]: what each model server calls its numbers; a page is scanned for the few that are needed.
//! - [`observe`]: metrics, the access log, the program's own log.
//! - [`sim`]: a model of an engine, in virtual time and over HTTP; workloads; a client that drives them.
//! - [`cli`]: one file a command.

pub mod cli;
pub mod config;
pub mod control;
pub mod core;
pub mod discovery;
pub mod door;
pub mod engine;
pub mod extproc;
pub mod observe;
pub mod openai;
pub mod proxy;
pub mod router;
pub mod sim;
pub mod tokenize;
pub mod watch;
