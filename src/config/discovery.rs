//! Where replicas are found besides the list and the file: Kubernetes and DNS.

use super::units::Seconds;
use super::validate::{Check, valid_host};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Most ports of a pod that are endpoints: what an InferencePool allows.
pub const MAX_PORTS: usize = 8;
/// Most names looked up in DNS.
const MAX_NAMES: usize = 64;

/// Replicas are the pods of an InferencePool, or those that labels select.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Kubernetes {
    /// Name of the InferencePool (`inference.networking.k8s.io/v1`): its selector and its ports count. Null: `selector` and
    /// `ports` below.
    pub pool: Option<String>,
    /// Labels that pods must have, all of them. Only without `pool`.
    pub selector: BTreeMap<String, String>,
    /// Ports of each pod; each is a replica of its own (a data-parallel rank). Only without `pool`.
    pub ports: Vec<u16>,
    /// Namespace of pool, pods and objectives; null: the one that this program runs in (or that of the kubeconfig's context).
    pub namespace: Option<String>,
    /// Follow InferenceObjective and InferenceModelRewrite objects of this API group; null: don't. That the cluster
    /// doesn't know them is no fault: they are looked for again.
    pub extensions: Option<String>,
    /// A kubeconfig file; null: the service account of the pod, or else `$KUBECONFIG` and `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; null: its current one.
    pub context: Option<String>,
    /// How long the API server may take to answer a list.
    pub timeout: Seconds,
    /// Pause after a failure; doubles with each further one, up to 30 s.
    pub retry: Seconds,
    /// After this time a watch is asked for anew; that one has died silently is found out 5 s later.
    pub watch_timeout: Seconds,
    /// How often to look whether optional kinds, or a pool that isn't there, exist by now.
    pub look_again: Seconds,
    /// When the pool is deleted, its replicas stay for this long: an upgrade may be replacing it.
    pub pool_grace: Seconds,
}

impl Default for Kubernetes {
    fn default() -> Self {
        Kubernetes {
            pool: None,
            selector: BTreeMap::new(),
            ports: Vec::new(),
            namespace: None,
            extensions: Some("llm-d.ai".into()),
            kubeconfig: None,
            context: None,
            timeout: Seconds::from_secs(10),
            retry: Seconds::from_millis(500),
            watch_timeout: Seconds::from_secs(120),
            look_again: Seconds::from_secs(60),
            pool_grace: Seconds::from_secs(60),
        }
    }
}

/// Replicas are the addresses of names in DNS.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Dns {
    /// The names.
    pub names: Vec<DnsName>,
    /// Name servers, `ip:port`; empty: those of /etc/resolv.conf.
    pub servers: Vec<SocketAddr>,
    /// An answer is believed for its time to live, but at least this long.
    pub min_ttl: Seconds,
    /// And at most this long.
    pub max_ttl: Seconds,
    /// How long an address stays after good answers no longer list it, and all of them after a good answer that is empty.
    pub grace: Seconds,
    /// How long a server may take to answer.
    pub timeout: Seconds,
}

impl Default for Dns {
    fn default() -> Self {
        Dns {
            names: Vec::new(),
            servers: Vec::new(),
            min_ttl: Seconds::from_secs(1),
            max_ttl: Seconds::from_secs(30),
            grace: Seconds::from_secs(10),
            timeout: Seconds::from_secs(2),
        }
    }
}

/// One name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DnsName {
    /// A name with A or AAAA records, as a headless service has; without `port`, a name with SRV records
    /// (`_http._tcp.vllm.default.svc.cluster.local`).
    pub name: String,
    /// Port of the replicas. Null: SRV records are asked for, which say it.
    #[serde(default)]
    pub port: Option<u16>,
}

pub(super) fn check(kubernetes: Option<&Kubernetes>, dns: &Dns, c: &mut Check) {
    if let Some(k) = kubernetes {
        check_kubernetes(k, c);
    }
    if dns.names.len() > MAX_NAMES {
        c.error("dns.names", format!("more than {MAX_NAMES} names"));
    }
    for (i, n) in dns.names.iter().enumerate() {
        if !valid_host(n.name.trim_end_matches('.')) {
            c.error(&format!("dns.names[{i}].name"), format!("`{}` is not a name in DNS", n.name));
        }
        if n.port == Some(0) {
            c.error(&format!("dns.names[{i}].port"), "must be 1 to 65535; null means as SRV records say");
        }
    }
    c.positive("dns.timeout", dns.timeout);
    c.positive("dns.min_ttl", dns.min_ttl);
    if dns.max_ttl < dns.min_ttl {
        c.error("dns.max_ttl", format!("is less than `dns.min_ttl`, which is {}", dns.min_ttl));
    }
}

fn check_kubernetes(k: &Kubernetes, c: &mut Check) {
    if !cfg!(feature = "kubernetes") {
        c.error("kubernetes", "this program was built without it: build with the feature `kubernetes`");
    }
    if k.pool.is_some() {
        if !k.selector.is_empty() || !k.ports.is_empty() {
            c.error("kubernetes.pool", "the pool has a selector and ports of its own: leave those out here");
        }
    } else {
        if k.selector.is_empty() {
            c.error("kubernetes", "name a `pool`, or give a `selector` and `ports`");
        }
        if k.ports.is_empty() || k.ports.len() > MAX_PORTS || k.ports.contains(&0) {
            c.error("kubernetes.ports", format!("must be 1 to {MAX_PORTS} ports above 0"));
        }
    }
    for (key, value) in &k.selector {
        // What a selector's syntax would read as something else never gets there.
        let plain = |s: &str| s.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./".contains(&b));
        if key.is_empty() || !plain(key) || !plain(value) {
            c.error("kubernetes.selector", format!("`{key}: {value}` is not a label"));
        }
    }
    for (path, name) in [
        ("kubernetes.pool", &k.pool),
        ("kubernetes.namespace", &k.namespace),
        ("kubernetes.extensions", &k.extensions),
    ] {
        if name.as_ref().is_some_and(|n| !valid_host(n)) {
            c.error(path, "is not a name in Kubernetes");
        }
    }
    for (path, span) in [
        ("kubernetes.timeout", k.timeout),
        ("kubernetes.retry", k.retry),
        ("kubernetes.look_again", k.look_again),
    ] {
        c.positive(path, span);
    }
    if k.watch_timeout < Seconds::from_secs(1) {
        c.error("kubernetes.watch_timeout", "must be at least 1s");
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Overrides, parse};

    fn problems(text: &str) -> String {
        match parse(text, &Overrides::default(), &|_| None) {
            Ok((_, report)) => report.to_string(),
            Err(e) => e.to_string(),
        }
    }

    fn config(text: &str) -> Config {
        parse(text, &Overrides::default(), &|_| None).unwrap().0
    }

    #[test]
    #[cfg(feature = "kubernetes")]
    fn a_pool_or_a_selector_is_enough_to_have_replicas() {
        assert_eq!(config("kubernetes: {pool: p}").kubernetes.unwrap().pool.unwrap(), "p");
        let k = config("kubernetes: {selector: {app: vllm}, ports: [8000]}").kubernetes.unwrap();
        assert_eq!((k.ports, k.extensions.as_deref()), (vec![8000], Some("llm-d.ai")));
        assert!(problems("kubernetes: {}").contains("name a `pool`"));
        assert!(problems("kubernetes: {pool: p, ports: [1]}").contains("of its own"));
        assert!(problems("kubernetes: {selector: {app: vllm}}").contains("kubernetes.ports"));
        assert!(problems("kubernetes: {selector: {app: 'a,b!=c'}, ports: [1]}").contains("not a label"));
        assert!(problems("kubernetes: {pool: ../x}").contains("kubernetes.pool"));
        assert!(problems("kubernetes: {pool: p, retry: 0}").contains("kubernetes.retry"));
    }

    #[test]
    #[cfg(not(feature = "kubernetes"))]
    fn a_program_without_it_says_so() {
        assert!(problems("kubernetes: {pool: p}").contains("built without it"));
    }

    #[test]
    fn names_in_dns() {
        let dns =
            config("dns: {names: [{name: vllm.ns.svc, port: 8000}, {name: _http._tcp.vllm.ns.svc}]}").dns;
        assert_eq!((dns.names[0].port, dns.names[1].port), (Some(8000), None));
        assert!(problems("dns: {names: [{name: 'a b', port: 1}]}").contains("dns.names[0].name"));
        assert!(problems("dns: {names: [{name: a, port: 0}]}").contains("dns.names[0].port"));
        assert!(problems("dns: {names: [{name: a}], max_ttl: 0}").contains("dns.max_ttl"));
        assert!(problems("dns: {names: []}").contains("there are none"));
    }
}
