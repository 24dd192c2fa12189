//! From pods to replicas.

use super::objects::Pod;
use crate::config::{EngineKind, MAX_PORTS, ReplicaSpec};
use crate::discovery::board::{Listing, Standing};
use std::collections::BTreeMap;
use std::net::IpAddr;
use xxhash_rust::xxh3::xxh3_64;

/// Which part of a request a pod serves.
const ROLE: &str = "llm-d.ai/role";
/// Which model server it runs.
const ENGINE: [&str; 2] = ["llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type"];
/// Which of the pool's ports it serves, comma-separated; without it, all.
const ACTIVE_PORTS: [&str; 2] = ["llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"];

/// The ports of a pool: each is an endpoint of its own, its place is the data-parallel rank.
#[derive(Clone, Debug)]
pub(super) struct Ports(Vec<u16>);

impl Ports {
    pub(super) fn new(ports: &[u16]) -> Self {
        let mut list: Vec<u16> = Vec::new();
        for port in ports.iter().filter(|p| **p > 0) {
            if list.len() < MAX_PORTS && !list.contains(port) {
                list.push(*port);
            }
        }
        Ports(list)
    }
}

/// The replicas that these pods are, in the order of the pods' names.
pub(super) fn listings<'a>(pods: impl Iterator<Item = &'a Pod>, ports: &Ports) -> Vec<Listing> {
    // An address belongs to one pod. After it was given to another one, the old pod may still be listed for a while.
    let mut owners: BTreeMap<IpAddr, &Pod> = BTreeMap::new();
    for pod in pods.filter(|p| alive(p)) {
        if let Some(ip) = address(pod) {
            let owner = owners.entry(ip).or_insert(pod);
            if claim(pod) > claim(owner) {
                *owner = pod;
            }
        }
    }
    let mut found: Vec<_> = owners.into_iter().flat_map(|(ip, pod)| replicas(ip, pod, ports)).collect();
    found.sort_by(|a, b| a.spec.label().cmp(b.spec.label()));
    found
}

/// Whose an address is: of those that stay rather than of those that go, then of the youngest.
fn claim(pod: &Pod) -> (bool, Option<&str>, &str) {
    let m = &pod.metadata;
    (m.deletion_timestamp.is_none(), m.creation_timestamp.as_deref(), m.uid.as_str())
}

/// Has it not ended, and can it serve whole requests?
fn alive(pod: &Pod) -> bool {
    let ended = matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed"));
    // Pods for one half of a request only must not get whole ones.
    let half = pod
        .metadata
        .labels
        .get(ROLE)
        .is_some_and(|role| !role.split('-').any(|part| matches!(part, "decode" | "both")));
    !ended && !half
}

fn address(pod: &Pod) -> Option<IpAddr> {
    pod.status.pod_ip.as_deref()?.parse().ok()
}

fn standing(pod: &Pod) -> Standing {
    if pod.metadata.deletion_timestamp.is_some() {
        Standing::Drains
    } else if pod.status.conditions.iter().any(|c| c.kind == "Ready" && c.status == "True") {
        Standing::Serves
    } else {
        Standing::Held
    }
}

fn replicas(ip: IpAddr, pod: &Pod, ports: &Ports) -> Vec<Listing> {
    let meta = &pod.metadata;
    let active = ACTIVE_PORTS.iter().find_map(|key| meta.annotations.get(*key));
    let serves = |port: u16| active.is_none_or(|list| list.split(',').any(|p| p.trim().parse() == Ok(port)));
    let host = match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    };
    let ranks = ports.0.iter().enumerate().filter(|(_, port)| serves(**port));
    ranks
        .map(|(rank, port)| {
            let name =
                if ports.0.len() == 1 { meta.name.clone() } else { format!("{}-rank-{rank}", meta.name) };
            let spec = ReplicaSpec {
                name: Some(name),
                engine: engine(pod),
                ..ReplicaSpec::new(format!("http://{host}:{port}"))
            };
            // 0 means that nobody can tell.
            Listing { spec, incarnation: xxh3_64(meta.uid.as_bytes()).max(1), standing: standing(pod) }
        })
        .collect()
}

/// What the label says; `None` leaves it to the defaults.
fn engine(pod: &Pod) -> Option<EngineKind> {
    match ENGINE.iter().find_map(|key| pod.metadata.labels.get(*key))?.as_str() {
        "vllm" => Some(EngineKind::Vllm),
        "sglang" => Some(EngineKind::Sglang),
        "trtllm" | "trtllm-serve" => Some(EngineKind::Trtllm),
        "llamacpp" | "llama.cpp" => Some(EngineKind::Llamacpp),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(value: Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    fn simple(name: &str, ip: &str) -> Value {
        json!({"metadata": {"name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "status": {"phase": "Running", "podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]}})
    }

    fn with(mut value: Value, pointer: &str, new: Value) -> Value {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        value.pointer_mut(parent).unwrap()[key] = new;
        value
    }

    fn of(values: Vec<Value>, ports: &[u16]) -> Vec<(String, String, Standing)> {
        let pods: Vec<Pod> = values.into_iter().map(pod).collect();
        let list = listings(pods.iter(), &Ports::new(ports));
        list.into_iter().map(|l| (l.spec.label().to_owned(), l.spec.url, l.standing)).collect()
    }

    #[test]
    fn each_port_of_a_pod_is_a_rank() {
        let all = of(vec![simple("a", "10.0.0.1")], &[8000, 8001, 8000, 0]);
        assert_eq!(all[0], ("a-rank-0".into(), "http://10.0.0.1:8000".into(), Standing::Serves));
        assert_eq!((all[1].0.as_str(), all.len()), ("a-rank-1", 2));
        assert_eq!(of(vec![simple("a", "fd00::1")], &[8000])[0].1, "http://[fd00::1]:8000");
        assert_eq!(of(vec![simple("a", "10.0.0.1")], &[8000])[0].0, "a");
        assert!(of(vec![simple("a", "10.0.0.1")], &[]).is_empty());
        assert_eq!(of(vec![simple("a", "10.0.0.1")], &(1..20).collect::<Vec<_>>()).len(), MAX_PORTS);
    }

    #[test]
    fn active_ports_choose_the_ranks_and_leave_their_numbers() {
        for key in ACTIVE_PORTS {
            let notes =
                |value: &str| with(simple("a", "10.0.0.1"), "/metadata/annotations", json!({key: value}));
            let some = of(vec![notes(" 8001 ,9999")], &[8000, 8001]);
            assert_eq!((some.len(), some[0].0.as_str()), (1, "a-rank-1"));
            assert!(of(vec![notes("")], &[8000, 8001]).is_empty());
            assert!(of(vec![notes("none")], &[8000]).is_empty());
        }
    }

    #[test]
    fn readiness_end_and_address_decide() {
        let a = || simple("a", "10.0.0.1");
        let standing = |v| of(vec![v], &[1]).first().map(|l| l.2);
        assert_eq!(standing(with(a(), "/status/conditions", Value::Null)), Some(Standing::Held));
        assert_eq!(standing(with(a(), "/status/conditions/0/status", json!("False"))), Some(Standing::Held));
        assert_eq!(standing(with(a(), "/metadata/deletionTimestamp", json!("x"))), Some(Standing::Drains));
        for phase in ["Failed", "Succeeded"] {
            assert_eq!(standing(with(a(), "/status/phase", json!(phase))), None);
        }
        for ip in [Value::Null, json!(""), json!("nonsense")] {
            assert_eq!(standing(with(a(), "/status/podIP", ip)), None);
        }
    }

    #[test]
    fn an_address_belongs_to_the_younger_pod_that_stays() {
        let young =
            with(simple("b", "10.0.0.1"), "/metadata/creationTimestamp", json!("2026-01-02T00:00:00Z"));
        assert_eq!(of(vec![simple("a", "10.0.0.1"), young.clone()], &[1])[0].0, "b");
        let going = with(young, "/metadata/deletionTimestamp", json!("x"));
        let list = of(vec![going, simple("a", "10.0.0.1")], &[1]);
        assert_eq!((list.len(), list[0].0.as_str()), (1, "a"));
    }

    #[test]
    fn roles_and_engines() {
        for (role, whole) in [
            ("decode", true),
            ("both", true),
            ("prefill-decode", true),
            ("prefill", false),
            ("encode", false),
        ] {
            let list = of(vec![with(simple("a", "10.0.0.1"), "/metadata/labels", json!({ROLE: role}))], &[1]);
            assert_eq!(!list.is_empty(), whole, "{role}");
        }
        let kind =
            |label: &str, v: &str| engine(&pod(with(simple("a", ""), "/metadata/labels", json!({label: v}))));
        assert_eq!(kind(ENGINE[0], "sglang"), Some(EngineKind::Sglang));
        assert_eq!(kind(ENGINE[1], "trtllm-serve"), Some(EngineKind::Trtllm));
        assert_eq!(kind(ENGINE[0], "something"), None);
    }

    #[test]
    fn two_pods_are_two_incarnations_of_an_address() {
        let list = |v| listings([pod(v)].iter(), &Ports::new(&[1]))[0].incarnation;
        assert_ne!(list(simple("a", "10.0.0.1")), list(simple("b", "10.0.0.1")));
    }
}
