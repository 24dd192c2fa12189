//! What the API server does when it is unwell: it drops watches, forgets versions, is slow, refuses, or is gone.

use crate::api::{Api, OBJECTIVES, PODS, POOLS, REWRITES};
use crate::scene::{Scene, pod, pool, settings};
use crate::watch_double::until;
use homing::config::{Kubernetes, Seconds};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

#[tokio::test]
async fn an_api_server_that_is_gone_changes_nothing_and_its_return_removes_ghosts() {
    let (api, scene) = Scene::with_pods(&[("a", "10.0.0.1"), ("b", "10.0.0.2")]).await;
    api.down(true);
    scene.until_trouble(true).await;
    let told = scene.trouble();
    api.delete(PODS, "a");
    api.put(PODS, pod("c", "10.0.0.3"));
    // What happened meanwhile can't be watched any more.
    api.compact();
    assert_eq!(scene.names(), ["a", "b"], "routing goes on with what is known");
    assert_eq!(scene.trouble(), told, "it is told once");
    api.down(false);
    scene.until_names(&["b", "c"]).await;
    scene.until_trouble(false).await;
}

#[tokio::test]
async fn a_server_that_is_not_there_at_the_start_is_waited_for() {
    let api = Api::start().await;
    api.down(true);
    let scene = Scene::new(&api, settings());
    scene.until_trouble(true).await;
    api.put(POOLS, pool("vllm", &[8000]));
    api.put(PODS, pod("a", "10.0.0.1"));
    api.down(false);
    scene.until_names(&["a"]).await;
    scene.until_trouble(false).await;
}

#[tokio::test]
async fn a_dropped_watch_misses_nothing() {
    let (api, scene) = Scene::with_pods(&[("a", "10.0.0.1"), ("b", "10.0.0.2")]).await;
    for (n, cut) in [true, false, true].into_iter().enumerate() {
        until("a watch runs", || api.asked(PODS).last().is_some_and(|q| q.contains("watch=true"))).await;
        let before = api.asked(PODS).len();
        api.end_watches(cut);
        let (gone, new) = ([("a"), ("x0"), ("x1")][n], format!("x{n}"));
        api.delete(PODS, gone);
        api.put(PODS, pod(&new, &format!("10.0.1.{n}")));
        scene.until_names(&["b", &new]).await;
        until("it was asked again", || api.asked(PODS).len() > before).await;
    }
}

#[tokio::test]
async fn a_watch_that_has_died_silently_is_found_out() {
    let api = Api::start().await;
    api.put(POOLS, pool("vllm", &[8000]));
    api.put(PODS, pod("a", "10.0.0.1"));
    let scene = Scene::new(&api, Kubernetes { watch_timeout: Seconds::from_secs(1), ..settings() });
    scene.until_names(&["a"]).await;
    until("it watches", || api.asked(PODS).iter().any(|q| q.contains("watch=true"))).await;
    assert!(
        api.asked("watch=true").iter().all(|q| q.contains("timeoutSeconds=1")),
        "{:?}",
        api.asked("watch=true")
    );
    api.silence_watches();
    api.delete(PODS, "a");
    api.put(PODS, pod("b", "10.0.0.2"));
    scene.until_names(&["b"]).await;
}

#[tokio::test]
async fn versions_that_are_too_old_lead_to_a_new_list() {
    let (api, scene) = Scene::with_pods(&[("a", "10.0.0.1"), ("b", "10.0.0.2")]).await;
    let lists = |api: &Api| api.asked(PODS).iter().filter(|q| !q.contains("watch=true")).count();
    // 410 as the answer to a watch.
    api.forgets(PODS);
    api.end_watches(true);
    api.delete(PODS, "a");
    api.compact();
    api.knows(PODS);
    scene.until_names(&["b"]).await;
    // 410 as an event of a watch that runs.
    until("a watch runs", || api.asked(PODS).last().is_some_and(|q| q.contains("watch=true"))).await;
    let before = lists(&api);
    let gone = json!({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old", "reason": "Expired"}});
    api.line(PODS, &gone.to_string());
    until("it lists anew", || lists(&api) > before).await;
    // A line that can't be read may have said anything.
    until("a watch runs", || api.asked(PODS).last().is_some_and(|q| q.contains("watch=true"))).await;
    let before = lists(&api);
    api.line(PODS, "{\"type\":\"MODIFIED\",\"object\":{\"metadata\":7}}");
    until("it lists anew", || lists(&api) > before).await;
    api.put(PODS, pod("c", "10.0.0.3"));
    scene.until_names(&["b", "c"]).await;
}

#[tokio::test]
async fn a_bookmark_is_where_the_next_watch_begins() {
    let (api, scene) = Scene::with_pods(&[("a", "10.0.0.1")]).await;
    until("a watch runs", || api.asked(PODS).iter().any(|q| q.contains("watch=true"))).await;
    assert!(api.asked(PODS).iter().any(|q| q.contains("allowWatchBookmarks=true")));
    let version = api.bookmark(PODS);
    // Anything after it shows that the bookmark has been read.
    api.put(PODS, pod("b", "10.0.0.2"));
    scene.until_names(&["a", "b"]).await;
    let version_of_b = version + 1;
    api.end_watches(false);
    until("it goes on from there", || {
        api.asked(PODS).last().is_some_and(|q| q.contains(&format!("resourceVersion={version_of_b}")))
    })
    .await;
    let again = api.bookmark(PODS);
    api.compact();
    api.line(
        PODS,
        &json!({"type": "BOOKMARK", "object": {"kind": "Pod", "apiVersion": "v1",
        "metadata": {"resourceVersion": (again + 1).to_string()}}})
        .to_string(),
    );
    api.put(PODS, pod("c", "10.0.0.3"));
    scene.until_names(&["a", "b", "c"]).await;
    let lists = api.asked(PODS).iter().filter(|q| !q.contains("watch=true")).count();
    api.end_watches(false);
    api.put(PODS, pod("d", "10.0.0.4"));
    scene.until_names(&["a", "b", "c", "d"]).await;
    let now = api.asked(PODS).iter().filter(|q| !q.contains("watch=true")).count();
    assert_eq!(now, lists, "no list was needed");
}

#[tokio::test]
async fn long_lists_come_in_pages() {
    let api = Api::start().await;
    api.put(POOLS, pool("vllm", &[8000]));
    let names: Vec<String> = (0..25).map(|n| format!("p{n:02}")).collect();
    for (n, name) in names.iter().enumerate() {
        api.put(PODS, pod(name, &format!("10.0.0.{n}")));
    }
    // The second page's token is too old the first time: from the beginning, then.
    api.pages(10, true);
    let scene = Scene::new(&api, settings());
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    scene.until_names(&all).await;
    let pages = api.asked(PODS).iter().filter(|q| q.contains("continue=")).count();
    assert_eq!(pages, 3, "one in vain, then the second and the third: {:?}", api.asked(PODS));
}

#[tokio::test]
async fn a_slow_answer_is_given_up_and_a_missing_right_is_told() {
    let (api, scene) = {
        let api = Api::start().await;
        api.put(POOLS, pool("vllm", &[8000]));
        api.put(PODS, pod("a", "10.0.0.1"));
        api.delay(Duration::from_secs(3600));
        let scene = Scene::new(&api, Kubernetes { timeout: Seconds::from_millis(20), ..settings() });
        (api, scene)
    };
    scene.until_trouble(true).await;
    assert!(scene.trouble().unwrap().contains("no answer to a list"), "{:?}", scene.trouble());
    api.delay(Duration::ZERO);
    scene.until_names(&["a"]).await;
    scene.until_trouble(false).await;
    // The right is taken away, and given back.
    api.refuse(PODS, Some(403));
    api.end_watches(true);
    scene.until_trouble(true).await;
    assert!(scene.trouble().unwrap().contains("pods: 403"), "{:?}", scene.trouble());
    api.delete(PODS, "a");
    api.put(PODS, pod("b", "10.0.0.2"));
    assert_eq!(scene.names(), ["a"]);
    api.refuse(PODS, None);
    scene.until_names(&["b"]).await;
    scene.until_trouble(false).await;
}

#[tokio::test]
async fn a_missing_right_to_optional_kinds_is_told_and_hurts_nobody() {
    let api = Api::start().await;
    api.put(POOLS, pool("vllm", &[8000]));
    api.put(PODS, pod("a", "10.0.0.1"));
    for kind in [OBJECTIVES, REWRITES] {
        api.knows(kind);
        api.refuse(kind, Some(403));
    }
    let scene = Scene::new(&api, settings());
    scene.until_names(&["a"]).await;
    scene.until_trouble(true).await;
    assert!(scene.trouble().unwrap().contains("403"), "{:?}", scene.trouble());
}

#[tokio::test]
async fn a_pool_that_is_not_there_is_told_and_a_deleted_one_takes_its_replicas_along() {
    let api = Api::start().await;
    api.put(PODS, pod("a", "10.0.0.1"));
    let scene = Scene::new(&api, settings());
    let missing = || scene.loud.degradations().iter().any(|d| d.what == "kubernetes_pool_missing");
    until("it is told", missing).await;
    api.put(POOLS, pool("vllm", &[8000]));
    scene.until_names(&["a"]).await;
    until("no longer", || !missing()).await;
    api.delete(POOLS, "p");
    until("it is told", missing).await;
    scene.until_names(&[]).await;
    // An API server that has forgotten the kind isn't one that says that the pool is gone.
    api.put(POOLS, pool("vllm", &[8000]));
    scene.until_names(&["a"]).await;
    api.forgets(POOLS);
    api.end_watches(true);
    scene.until_trouble(true).await;
    assert!(scene.trouble().unwrap().contains("CRD"), "{:?}", scene.trouble());
    assert_eq!(scene.names(), ["a"]);
    api.knows(POOLS);
    scene.until_trouble(false).await;
}

#[tokio::test]
async fn tls_with_the_clusters_own_authority() {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let key = rustls_pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .unwrap();
    let api = Api::with_tls(Some(tokio_rustls::TlsAcceptor::from(Arc::new(server)))).await;
    api.put(POOLS, pool("vllm", &[8000]));
    api.put(PODS, pod("a", "10.0.0.1"));
    let authority = std::env::temp_dir().join(format!("homing-kube-ca-{}.pem", std::process::id()));
    std::fs::write(&authority, made.cert.pem()).unwrap();
    let url = format!("https://127.0.0.1:{}", api.addr.port());
    let trusted = Scene::of(&json!({"server": url, "certificate-authority": authority}), settings());
    trusted.until_names(&["a"]).await;
    let stranger = Scene::of(&json!({"server": url}), settings());
    stranger.until_trouble(true).await;
    assert!(stranger.names().is_empty());
    std::fs::remove_file(&authority).unwrap();
}
