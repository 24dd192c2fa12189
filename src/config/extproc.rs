//! The endpoint picker for gateways built on Envoy.

use super::schema::Config;
use super::units::Size;
use super::validate::Check;
use http::Uri;
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

/// What types can't say of the picker.
pub(super) fn check(config: &Config, c: &mut Check) {
    let p = &config.extproc;
    if p.cert_file.is_some() != p.key_file.is_some() {
        c.error("extproc", "`cert_file` and `key_file` go together: name both or none");
    }
    if p.plaintext && p.cert_file.is_some() {
        c.error("extproc.plaintext", "with a certificate there is TLS: take one of them out");
    }
    if p.decide_bytes.get() == 0 {
        c.error("extproc.decide_bytes", "must be more than 0");
    }
    if p.listen.is_none() {
        if p.alone {
            c.error("extproc.alone", "there would be no door at all: set `extproc.listen`");
        }
        return;
    }
    for (i, r) in config.replicas.iter().enumerate() {
        let host = r.url.parse::<Uri>().ok().and_then(|u| u.host().map(str::to_owned)).unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.parse::<std::net::IpAddr>().is_err() {
            let why = "its host is a name, which a gateway can't be sent to: it gets nothing from the endpoint picker";
            c.warning(&format!("replicas[{i}].url"), why);
        }
    }
    if p.conformance {
        c.warning("extproc.conformance", "any client can choose its replica: for conformance tests only");
    }
}
