//! A router with Kubernetes discovery and a watch, in front of the double.

use crate::api::{Api, POOLS};
use crate::watch_double::until;
use homing::config::{Config, Kubernetes, Seconds};
use homing::discovery::Discovery;
use homing::observe::{Loud, Metrics};
use homing::router::Router;
use homing::watch::Watch;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub(crate) struct Scene {
    pub(crate) router: Arc<Router>,
    pub(crate) loud: Loud,
    file: PathBuf,
    _discovery: Discovery,
    _watch: Watch,
}

/// A pod that is ready.
pub(crate) fn pod(name: &str, ip: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": "vllm"}, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"phase": "Running", "podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]}})
}

/// The pool, with that label and those ports.
pub(crate) fn pool(label: &str, ports: &[u16]) -> Value {
    let ports: Vec<Value> = ports.iter().map(|p| json!({"number": p})).collect();
    json!({"metadata": {"name": "p"}, "spec": {"selector": {"matchLabels": {"app": label}}, "targetPorts": ports,
        "endpointPickerRef": {"name": "homing", "port": {"number": 9002}}}})
}

pub(crate) fn settings() -> Kubernetes {
    Kubernetes {
        pool: Some("p".into()),
        retry: Seconds::from_millis(5),
        look_again: Seconds::from_millis(20),
        timeout: Seconds::from_secs(5),
        pool_grace: Seconds::from_millis(30),
        ..Kubernetes::default()
    }
}

impl Scene {
    /// With a kubeconfig for this server, in the namespace `ns`.
    pub(crate) fn new(api: &Api, settings: Kubernetes) -> Self {
        Self::of(&json!({"server": format!("http://{}", api.addr)}), settings)
    }

    pub(crate) fn of(cluster: &Value, mut settings: Kubernetes) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let file = std::env::temp_dir().join(format!("homing-kubeconfig-{}-{number}", std::process::id()));
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "k", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": "a-token"}}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "ns"}}],
        });
        std::fs::write(&file, kubeconfig.to_string()).unwrap();
        settings.kubeconfig = Some(file.clone());
        let mut config = Config { kubernetes: Some(settings), ..Config::default() };
        config.health.interval = Seconds::from_millis(15);
        config.poll.interval = Seconds::from_millis(15);
        assert!(!config.validate().has_errors(), "{}", config.validate());
        let router = Router::new(&config, 1);
        let metrics = Arc::new(Metrics::new());
        let loud = Loud::new(metrics.clone());
        let discovery = Discovery::start(&config, router.clone(), &loud, Duration::from_millis(10)).unwrap();
        let watch = Watch::start(&config, router.clone(), metrics, loud.clone()).unwrap();
        Scene { router, loud, file, _discovery: discovery, _watch: watch }
    }

    /// A server with the pool and these pods, and a scene that has found them.
    pub(crate) async fn with_pods(pods: &[(&str, &str)]) -> (Api, Scene) {
        let api = Api::start().await;
        api.put(POOLS, pool("vllm", &[8000]));
        for (name, ip) in pods {
            api.put(crate::api::PODS, pod(name, ip));
        }
        let scene = Scene::new(&api, settings());
        let mut names: Vec<&str> = pods.iter().map(|p| p.0).collect();
        names.sort_unstable();
        scene.until_names(&names).await;
        (api, scene)
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.router.replicas().into_iter().map(|v| v.name).collect();
        names.sort();
        names
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        let mut urls: Vec<String> = self.router.replicas().into_iter().map(|v| v.url).collect();
        urls.sort();
        urls
    }

    pub(crate) async fn until_names(&self, names: &[&str]) {
        until(&format!("the fleet is {names:?}"), || self.names() == names).await;
    }

    /// What is degraded of Kubernetes, and why.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.loud.degradations().into_iter().find(|d| d.what == "kubernetes").map(|d| d.detail)
    }

    pub(crate) async fn until_trouble(&self, is: bool) {
        until(&format!("trouble is {is}"), || self.trouble().is_some() == is).await;
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}
