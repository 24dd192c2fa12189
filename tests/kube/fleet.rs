//! Who is in the fleet when all goes well: pods, ranks, readiness, ends, objectives, rewrites.

use crate::api::{Api, OBJECTIVES, PODS, POOLS, REWRITES};
use crate::scene::{Scene, pod, pool, settings};
use crate::watch_double::{Double, until};
use homing::config::Kubernetes;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

#[tokio::test]
async fn pods_of_the_pool_join_and_leave() {
    let (api, scene) = Scene::with_pods(&[("a", "10.0.0.1"), ("b", "10.0.0.2")]).await;
    assert_eq!(scene.urls(), ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]);
    api.put(
        PODS,
        json!({"metadata": {"name": "other", "labels": {"app": "redis"}}, "status": {"podIP": "10.0.0.9"}}),
    );
    api.put(PODS, pod("c", "10.0.0.3"));
    api.delete(PODS, "a");
    scene.until_names(&["b", "c"]).await;
    // A label that no longer fits.
    let mut gone = pod("b", "10.0.0.2");
    gone["metadata"]["labels"]["app"] = json!("quarantine");
    api.put(PODS, gone);
    scene.until_names(&["c"]).await;
    assert!(scene.loud.degradations().iter().all(|d| d.what != "kubernetes"));
    // Least rights: one pool by its name, the pods by its selector.
    assert!(
        api.asked(POOLS).iter().all(|q| q.contains("fieldSelector=metadata.name%3Dp")),
        "{:?}",
        api.asked(POOLS)
    );
    assert!(api.asked(PODS).iter().all(|q| q.contains("labelSelector=app%3Dvllm")), "{:?}", api.asked(PODS));
    assert_eq!(api.tokens().into_iter().collect::<Vec<_>>(), ["Bearer a-token"]);
}

#[tokio::test]
async fn each_target_port_is_a_rank_and_the_pools_changes_are_followed() {
    let (api, scene) = Scene::with_pods(&[("a", "10.0.0.1")]).await;
    api.put(POOLS, pool("vllm", &[8000, 8001]));
    scene.until_names(&["a-rank-0", "a-rank-1"]).await;
    let mut one = pod("a", "10.0.0.1");
    one["metadata"]["annotations"] = json!({"llm-d.ai/active-ports": "8001"});
    api.put(PODS, one);
    scene.until_names(&["a-rank-1"]).await;
    // Another selector: other pods, from a watch of its own.
    let mut sglang = pod("s", "10.0.0.7");
    sglang["metadata"]["labels"] = json!({"app": "sglang"});
    api.put(PODS, sglang);
    api.put(POOLS, pool("sglang", &[9000]));
    scene.until_names(&["s"]).await;
    api.put(PODS, pod("b", "10.0.0.2"));
    api.delete(PODS, "s");
    scene.until_names(&[]).await;
}

#[tokio::test]
async fn a_terminating_pod_drains_until_it_is_gone() {
    let (api, scene) = Scene::with_pods(&[("a", "10.0.0.1"), ("b", "10.0.0.2")]).await;
    let mut going = pod("a", "10.0.0.1");
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T01:00:00Z");
    api.put(PODS, going);
    let draining =
        || scene.router.replicas().into_iter().filter(|v| v.draining).map(|v| v.name).collect::<Vec<_>>();
    until("a drains", || draining() == ["a"]).await;
    assert_eq!(scene.names(), ["a", "b"]);
    api.delete(PODS, "a");
    scene.until_names(&["b"]).await;
}

#[tokio::test]
async fn readiness_of_the_pod_is_needed_besides_its_health() {
    let server = Double::start();
    let api = Api::start().await;
    api.put(POOLS, pool("vllm", &[server.addr.port()]));
    let mut starting = pod("a", "127.0.0.1");
    starting["status"]["conditions"][0]["status"] = json!("False");
    api.put(PODS, starting.clone());
    let scene = Scene::new(&api, settings());
    scene.until_names(&["a"]).await;
    until("its health was asked for", || server.count("/health") > 3).await;
    assert_eq!(scene.router.replicas()[0].state, "starting", "healthy, but not ready");
    api.put(PODS, pod("a", "127.0.0.1"));
    until("it serves", || scene.router.ready()).await;
    api.put(PODS, starting);
    until("it is out", || !scene.router.ready()).await;
    assert_eq!(scene.names(), ["a"], "what is known of its cache stays");
    api.put(PODS, pod("a", "127.0.0.1"));
    until("it is back", || scene.router.ready()).await;
}

#[tokio::test]
async fn a_pod_without_an_address_leaves() {
    let (api, scene) = Scene::with_pods(&[("a", "10.0.0.1"), ("b", "10.0.0.2")]).await;
    let mut bare = pod("a", "");
    bare["status"].as_object_mut().unwrap().remove("podIP");
    api.put(PODS, bare);
    scene.until_names(&["b"]).await;
    api.put(PODS, pod("a", "10.0.0.5"));
    scene.until_names(&["a", "b"]).await;
    assert_eq!(scene.urls(), ["http://10.0.0.2:8000", "http://10.0.0.5:8000"]);
}

#[tokio::test]
async fn an_address_reused_by_another_model_is_a_new_life() {
    let server = Double::start();
    server.serves(&["first"]);
    let api = Api::start().await;
    api.put(POOLS, pool("vllm", &[server.addr.port()]));
    api.put(PODS, pod("a", "127.0.0.1"));
    let scene = Scene::new(&api, settings());
    until("it serves the first model", || scene.router.knows_model("first")).await;
    let life = scene.router.replicas()[0].replica;
    server.serves(&["second"]);
    let mut next = pod("b", "127.0.0.1");
    next["metadata"]["creationTimestamp"] = json!("2026-01-02T00:00:00Z");
    api.put(PODS, next);
    scene.until_names(&["b"]).await;
    let now = scene.router.replicas()[0].replica;
    assert_ne!(now, life, "nothing that was believed of the old pod's cache holds");
    until("it serves the second model", || scene.router.knows_model("second")).await;
    assert!(!scene.router.knows_model("first"));
    // The end of the old pod comes late.
    api.delete(PODS, "a");
    api.put(PODS, pod("c", "10.0.0.3"));
    scene.until_names(&["b", "c"]).await;
    assert!(scene.router.replicas().iter().any(|v| v.replica == now));
}

#[tokio::test]
async fn objectives_and_rewrites_come_when_their_kinds_do() {
    let (api, scene) = Scene::with_pods(&[("a", "10.0.0.1")]).await;
    until("it has asked", || !api.asked(OBJECTIVES).is_empty() && !api.asked(REWRITES).is_empty()).await;
    assert_eq!(scene.trouble(), None, "kinds that need not be there");
    let spec = json!({"priority": 7, "poolRef": {"name": "p"}});
    api.put(OBJECTIVES, json!({"metadata": {"name": "high"}, "spec": spec}));
    let rules = json!([{"matches": [{"model": {"value": "m"}}], "targets": [{"modelRewrite": "m-v2"}]}]);
    api.put(REWRITES, json!({"metadata": {"name": "r"}, "spec": {"poolRef": {"name": "p"}, "rules": rules}}));
    api.knows(OBJECTIVES);
    api.knows(REWRITES);
    until("the objective is known", || scene.router.objectives().priority("high") == Some(7)).await;
    until("the rewrite is known", || scene.router.rewrites().target(Some("m"), 0) == Some("m-v2")).await;
    api.put(
        OBJECTIVES,
        json!({"metadata": {"name": "low"}, "spec": {"priority": -1, "poolRef": {"name": "p"}}}),
    );
    until("a new one comes by its watch", || scene.router.objectives().priority("low") == Some(-1)).await;
    // The kinds are uninstalled.
    api.forgets(OBJECTIVES);
    api.forgets(REWRITES);
    api.end_watches(true);
    until("they are gone", || scene.router.objectives().is_empty() && scene.router.rewrites().is_empty())
        .await;
    assert_eq!(scene.names(), ["a"]);
}

#[tokio::test]
async fn labels_and_ports_need_no_pool() {
    let api = Api::start().await;
    api.forgets(POOLS);
    api.put(PODS, pod("a", "10.0.0.1"));
    let selector = BTreeMap::from([("app".to_owned(), "vllm".to_owned())]);
    let scene = Scene::new(&api, Kubernetes { pool: None, selector, ports: vec![8000], ..settings() });
    scene.until_names(&["a"]).await;
    assert_eq!(scene.trouble(), None);
    assert!(api.asked("inference").is_empty(), "nothing of the inference extension is asked for");
}

/// Rights as (group, resource, verb, name): what a role gives, name by name.
fn given(role: &Value) -> BTreeSet<[String; 4]> {
    let texts =
        |v: &Value| v.as_array().unwrap().iter().map(|t| t.as_str().unwrap().to_owned()).collect::<Vec<_>>();
    let mut rights = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        let names =
            if rule["resourceNames"].is_null() { vec![String::new()] } else { texts(&rule["resourceNames"]) };
        for (group, resource) in texts(&rule["apiGroups"])
            .into_iter()
            .flat_map(|g| texts(&rule["resources"]).into_iter().map(move |r| (g.clone(), r)))
        {
            for verb in texts(&rule["verbs"]) {
                for name in &names {
                    rights.insert([group.clone(), resource.clone(), verb.clone(), name.clone()]);
                }
            }
        }
    }
    rights
}

/// The right that a request needs.
fn needed(request: &str) -> [String; 4] {
    let (path, query) = request.split_once('?').unwrap();
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let group = if parts[0] == "api" { "" } else { parts[1] };
    let verb = if query.contains("watch=true") { "watch" } else { "list" };
    let name =
        query.split('&').find_map(|p| p.strip_prefix("fieldSelector=metadata.name%3D")).unwrap_or_default();
    [group, parts[parts.len() - 1], verb, name].map(str::to_owned)
}

#[tokio::test]
async fn the_roles_of_the_manifests_give_what_is_asked_for_and_nothing_else() {
    for (mode, pool_named) in [("extproc", true), ("proxy", false)] {
        let api = Api::start().await;
        [OBJECTIVES, REWRITES].into_iter().for_each(|kind| api.knows(kind));
        let mut pool = pool("vllm", &[8000]);
        pool["metadata"]["name"] = json!("vllm");
        api.put(POOLS, pool);
        api.put(PODS, pod("a", "10.0.0.1"));
        let mut settings = Kubernetes { pool: Some("vllm".into()), ..settings() };
        if !pool_named {
            settings.pool = None;
            settings.selector = BTreeMap::from([("app".to_owned(), "vllm".to_owned())]);
            settings.ports = vec![8000];
        }
        let scene = Scene::new(&api, settings);
        scene.until_names(&["a"]).await;
        let watches = if pool_named { 4 } else { 1 };
        until("all is watched", || api.asked("watch=true").len() >= watches).await;
        let asked: BTreeSet<[String; 4]> = api.asked("").iter().map(|r| needed(r)).collect();
        for tool in ["kustomize", "helm"] {
            let file = format!("{}/deploy/rendered/{tool}-{mode}.yaml", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(&file).unwrap();
            let role = text.split("\n---\n").map(|d| serde_saphyr::from_str::<Value>(d).unwrap());
            let role = role.into_iter().find(|o| o["kind"] == "Role").unwrap();
            assert_eq!(given(&role), asked, "{file}");
        }
    }
}
