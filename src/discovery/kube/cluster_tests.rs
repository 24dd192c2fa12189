//! The cluster's state, event by event and by random histories.

use super::*;
use crate::discovery::board::Standing;
use proptest::prelude::*;
use serde_json::{Value, json};

const GRACE: Duration = Duration::from_secs(60);
const T0: Duration = Duration::ZERO;

fn of<T: Watched>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn pool(label: &str, port: u16) -> Pool {
    of(json!({"metadata": {"name": "p", "uid": "1"},
        "spec": {"selector": {"matchLabels": {"app": label}}, "targetPorts": [{"number": port}]}}))
}

fn pod(name: &str, uid: &str, ip: &str) -> Pod {
    of(json!({"metadata": {"name": name, "uid": uid}, "status": {"phase": "Running", "podIP": ip,
        "conditions": [{"type": "Ready", "status": "True"}]}}))
}

fn cluster() -> Cluster {
    let mut c = Cluster::of_pool("p".into(), GRACE);
    c.pools(T0, Change::All(vec![pool("vllm", 8000)]));
    c
}

fn urls(c: &Cluster) -> Vec<String> {
    c.listings(T0).into_iter().map(|l| l.spec.url).collect()
}

#[test]
fn the_pool_says_which_pods_and_ports() {
    let mut c = Cluster::of_pool("p".into(), GRACE);
    assert!(c.wish().is_none() && c.listings(T0).is_empty());
    let other: Pool = of(json!({"metadata": {"name": "q"}}));
    c.pools(T0, Change::All(vec![other, pool("vllm", 8000)]));
    assert_eq!(c.wish().unwrap().selector(), "app=vllm");
    c.pods(Change::All(vec![pod("a", "1", "10.0.0.1"), pod("b", "2", "10.0.0.2")]));
    assert_eq!(urls(&c), ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]);
    c.pools(T0, Change::Put(pool("vllm", 9000)));
    assert_eq!(urls(&c), ["http://10.0.0.1:9000", "http://10.0.0.2:9000"]);
}

#[test]
fn a_list_removes_ghosts_and_events_change_single_ones() {
    let mut c = cluster();
    c.pods(Change::All(vec![pod("a", "1", "10.0.0.1"), pod("b", "2", "10.0.0.2")]));
    c.pods(Change::All(vec![pod("b", "2", "10.0.0.2"), pod("c", "3", "10.0.0.3")]));
    assert_eq!(urls(&c), ["http://10.0.0.2:8000", "http://10.0.0.3:8000"]);
    c.pods(Change::Gone(pod("b", "2", "10.0.0.2")));
    assert_eq!(urls(&c), ["http://10.0.0.3:8000"]);
}

#[test]
fn a_pod_that_lost_its_address_leaves() {
    let mut c = cluster();
    c.pods(Change::All(vec![pod("a", "1", "10.0.0.1")]));
    c.pods(Change::Put(pod("a", "1", "")));
    assert!(urls(&c).is_empty());
    c.pods(Change::Put(pod("a", "1", "10.0.0.7")));
    assert_eq!(urls(&c), ["http://10.0.0.7:8000"]);
}

#[test]
fn an_address_that_another_pod_got_is_another_incarnation() {
    let mut c = cluster();
    c.pods(Change::All(vec![pod("a", "1", "10.0.0.1")]));
    let first = c.listings(T0)[0].incarnation;
    c.pods(Change::Put(pod("b", "2", "10.0.0.1")));
    let second = c.listings(T0);
    assert_eq!((second.len(), second[0].spec.label()), (1, "b"));
    assert_ne!(second[0].incarnation, first);
    // The end of the old one is told late and changes nothing.
    c.pods(Change::Gone(pod("a", "1", "10.0.0.1")));
    assert_eq!(c.listings(T0), second);
}

#[test]
fn the_end_of_an_old_pod_does_not_remove_its_successor_of_the_same_name() {
    let mut c = cluster();
    c.pods(Change::Put(pod("a", "1", "10.0.0.1")));
    c.pods(Change::Put(pod("a", "2", "10.0.0.2")));
    c.pods(Change::Gone(pod("a", "1", "10.0.0.1")));
    assert_eq!(urls(&c), ["http://10.0.0.2:8000"]);
}

#[test]
fn a_deleted_pool_keeps_its_pods_for_a_while() {
    let mut c = cluster();
    c.pods(Change::All(vec![pod("a", "1", "10.0.0.1")]));
    let t = Duration::from_secs(100);
    c.pools(t, Change::Gone(pool("vllm", 8000)));
    assert!(c.pool_missing());
    // Hearing it again doesn't prolong it.
    c.pools(t + GRACE / 2, Change::All(Vec::new()));
    assert_eq!(c.deadline(), Some(t + GRACE));
    assert_eq!((c.listings(t + GRACE / 2).len(), c.listings(t + GRACE).len()), (1, 0));
    c.pools(t + GRACE, Change::Put(pool("vllm", 8000)));
    assert_eq!((c.pool_missing(), c.listings(t + GRACE).len()), (false, 1));
}

#[test]
fn labels_of_the_configuration_need_no_pool() {
    let labels = BTreeMap::from([("app".to_owned(), "vllm".to_owned()), ("tier".to_owned(), "x".to_owned())]);
    let mut c = Cluster::of_labels(Wish { labels, ports: vec![8000] });
    assert_eq!(c.wish().unwrap().selector(), "app=vllm,tier=x");
    c.pods(Change::All(vec![pod("a", "1", "10.0.0.1")]));
    assert_eq!(urls(&c).len(), 1);
    let mut everything = Cluster::of_labels(Wish { labels: BTreeMap::new(), ports: vec![8000] });
    everything.pods(Change::All(vec![pod("a", "1", "10.0.0.1")]));
    assert!(urls(&everything).is_empty(), "no selector selects nothing");
}

#[test]
fn objectives_of_this_pool_count() {
    let objective = |name: &str, pool: &str, priority: Value| {
        of::<Objective>(json!({"metadata": {"name": name, "uid": name},
            "spec": {"priority": priority, "poolRef": {"name": pool}}}))
    };
    let mut c = cluster();
    c.objectives(Change::All(vec![
        objective("high", "p", json!(10)),
        objective("plain", "p", Value::Null),
        objective("foreign", "q", json!(99)),
    ]));
    let table = c.table();
    assert_eq!(
        (table.priority("high"), table.priority("plain"), table.priority("foreign")),
        (Some(10), Some(0), None)
    );
    c.objectives(Change::Gone(objective("high", "p", json!(10))));
    assert_eq!(c.table().priority("high"), None);
}

#[test]
fn the_oldest_rewrite_wins_and_matches_that_say_nothing_are_no_rule() {
    let rewrite = |name: &str, born: &str, rules: Value| {
        of::<ModelRewrite>(json!({"metadata": {"name": name, "uid": name, "creationTimestamp": born},
            "spec": {"poolRef": {"name": "p"}, "rules": rules}}))
    };
    let exact = |model: &str, to: &str| json!([{"matches": [{"model": {"type": "Exact", "value": model}}], "targets": [{"modelRewrite": to}]}]);
    let mut c = cluster();
    c.rewrites(Change::All(vec![
        rewrite("a", "2026-02-01T00:00:00Z", exact("m", "young")),
        rewrite("b", "2026-01-01T00:00:00Z", exact("m", "old")),
        rewrite("c", "2026-01-01T00:00:00Z", json!([{"matches": [{}], "targets": [{"modelRewrite": "no"}]}])),
    ]));
    assert_eq!(c.rules().target(Some("m"), 0), Some("old"));
    assert_eq!(c.rules().target(Some("x"), 0), None);
    c.rewrites(Change::Put(rewrite(
        "d",
        "2026-03-01T00:00:00Z",
        json!([{"targets": [{"modelRewrite": "v1", "weight": 3}, {"modelRewrite": "v2", "weight": 1}]}]),
    )));
    let share = (0..8).filter(|d| c.rules().target(Some("x"), *d) == Some("v2")).count();
    assert_eq!(share, 2);
}

#[test]
fn tables_are_bounded() {
    let mut c = cluster();
    c.pods(Change::All((0..MAX_OBJECTS + 9).map(|n| pod(&format!("p{n:05}"), "1", "10.0.0.1")).collect()));
    assert_eq!(c.pods.0.len(), MAX_OBJECTS);
    c.pods(Change::Put(pod("p00000", "2", "10.0.0.2")));
    c.pods(Change::Put(pod("z", "2", "10.0.0.3")));
    assert_eq!(urls(&c), ["http://10.0.0.2:8000", "http://10.0.0.1:8000"]);
}

#[test]
fn what_go_writes_as_null_is_read() {
    let p: Pod = of(
        json!({"metadata": {"name": "a", "labels": null, "annotations": null}, "status": {"conditions": null}}),
    );
    assert_eq!((p.metadata.name.as_str(), p.status.conditions.len()), ("a", 0));
    let list: super::super::objects::List<Pod> =
        serde_json::from_value(json!({"metadata": {"resourceVersion": "5"}, "items": null})).unwrap();
    assert!(list.items.is_empty());
    let bare: Pool = of(json!({"metadata": {"name": "p"}, "spec": {"selector": {}, "targetPorts": null}}));
    assert!(bare.spec.target_ports.is_empty());
}

#[derive(Clone, Debug)]
enum Op {
    Put(u8, u8, u8, u8),
    Gone(u8),
    List,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0u8..5, 0u8..4, 0u8..4, 0u8..4).prop_map(|(n, uid, ip, what)| Op::Put(n, uid, ip, what)),
        2 => (0u8..5).prop_map(Op::Gone),
        1 => Just(Op::List),
    ]
}

fn made(n: u8, uid: u8, ip: u8, what: u8) -> Pod {
    let ip = if ip == 0 { String::new() } else { format!("10.0.0.{ip}") };
    let mut p = pod(&n.to_string(), &format!("{n}-{uid}"), &ip);
    match what {
        1 => p.metadata.deletion_timestamp = Some("x".into()),
        2 => p.status.conditions.clear(),
        3 => p.status.phase = Some("Failed".into()),
        _ => {}
    }
    p
}

proptest! {
    /// Whatever happened on the way: after a list the replicas are those of the list, each address is there once, and nobody is
    /// listed who has no address or has ended.
    #[test]
    fn any_history_ends_in_what_is_true(ops in prop::collection::vec(op(), 0..60)) {
        let mut truth: BTreeMap<u8, Pod> = BTreeMap::new();
        let mut c = cluster();
        let mut missed = false;
        for (i, op) in ops.into_iter().enumerate() {
            // Every third event is lost on the way.
            let lost = i % 3 == 2;
            match op {
                Op::Put(n, uid, ip, what) => {
                    truth.insert(n, made(n, uid, ip, what));
                    if lost { missed = true } else { c.pods(Change::Put(made(n, uid, ip, what))) }
                }
                Op::Gone(n) => if let Some(old) = truth.remove(&n) {
                    if lost { missed = true } else { c.pods(Change::Gone(old)) }
                },
                Op::List => {
                    c.pods(Change::All(truth.values().cloned().collect()));
                    missed = false;
                }
            }
            let list = c.listings(T0);
            let mut seen: Vec<_> = list.iter().map(|l| l.spec.url.clone()).collect();
            seen.sort();
            seen.dedup();
            prop_assert_eq!(seen.len(), list.len(), "an address twice");
            if !missed {
                let mut fresh = cluster();
                fresh.pods(Change::All(truth.values().cloned().collect()));
                prop_assert_eq!(&list, &fresh.listings(T0));
                let drains = list.iter().filter(|l| l.standing == Standing::Drains).count();
                prop_assert!(drains <= truth.values().filter(|p| p.metadata.deletion_timestamp.is_some()).count());
            }
        }
    }
}
