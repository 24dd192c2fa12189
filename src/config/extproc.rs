//! The endpoint picker for gateways built on Envoy.

use super::units::Size;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// The endpoint picker (`ext_proc`). Replicas need numbers for addresses: a gateway can't be sent to a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExtProc {
    /// Where Envoy comes in (gRPC), usually 0.0.0.0:9002. Null: no endpoint picker.
    pub listen: Option<SocketAddr>,
    /// The gRPC health service, without TLS. Null: only beside the picker itself.
    pub health: Option<SocketAddr>,
    /// Only the picker: the proxy's data port stays closed.
    pub alone: bool,
    /// Without TLS.
    pub plaintext: bool,
    /// Certificate chain (PEM), read again when it changes; null: one is made at the start. Envoy doesn't check it unless
    /// it is told to.
    pub cert_file: Option<PathBuf>,
    /// Its private key (PEM).
    pub key_file: Option<PathBuf>,
    /// Bytes of a body after which it is decided where it goes, though its end hasn't come. What comes first of a prompt
    /// is what caches hold. If the model isn't named in them, it is waited for up to `limits.body_bytes`.
    pub decide_bytes: Size,
    /// How many endpoints are named beside the choice, for gateways that try the next one.
    pub fallbacks: u32,
    /// Do the headers count by which gateways steer (objective, fairness, model rewrite, SLO)? If clients reach the
    /// gateway directly, it should remove these from what they send, or this should be false.
    pub trust_headers: bool,
    /// Priorities by the objective's name; below zero: shed first.
    pub objectives: BTreeMap<String, i32>,
    /// Models that replicas are asked for by another name: what clients say, and what replicas are asked for.
    pub rewrites: BTreeMap<String, String>,
    /// Follow `test-epp-endpoint-selection` and echo who served, as conformance tests want. Never in production: any client
    /// could choose.
    pub conformance: bool,
}

impl Default for ExtProc {
    fn default() -> Self {
        ExtProc {
            listen: None,
            health: Some((Ipv4Addr::UNSPECIFIED, 9003).into()),
            alone: false,
            plaintext: false,
            cert_file: None,
            key_file: None,
            decide_bytes: Size::bytes(4 << 20),
            fallbacks: 2,
            trust_headers: true,
            objectives: BTreeMap::new(),
            rewrites: BTreeMap::new(),
            conformance: false,
        }
    }
}
