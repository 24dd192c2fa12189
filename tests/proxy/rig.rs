//! A router and its proxy in front of given replicas.

use homing::config::{Config, ReplicaSpec, Seconds};
use homing::core::ReplicaId;
use homing::core::health::Probe;
use homing::observe::{AccessLog, Metrics};
use homing::proxy::{Phase, Proxy, Settings};
use homing::router::{Member, Router};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What runs.
pub(crate) struct Rig {
    pub(crate) addr: SocketAddr,
    pub(crate) router: Arc<Router>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) ids: Vec<ReplicaId>,
    pub(crate) phase: watch::Sender<Phase>,
    pub(crate) ended: JoinHandle<()>,
}

impl Rig {
    /// A proxy with two workers before `replicas`, all serving the model `m`.
    pub(crate) async fn start(replicas: &[SocketAddr]) -> Rig {
        Rig::with(replicas, |_| {}).await
    }

    /// The same with a changed configuration.
    pub(crate) async fn with(replicas: &[SocketAddr], tweak: impl FnOnce(&mut Config)) -> Rig {
        let specs = replicas.iter().map(|a| ReplicaSpec::new(format!("http://{a}"))).collect();
        Rig::of(specs, tweak).await
    }

    /// The same before replicas that are described in full.
    pub(crate) async fn of(replicas: Vec<ReplicaSpec>, tweak: impl FnOnce(&mut Config)) -> Rig {
        Rig::tuned(replicas, tweak, |_| {}).await
    }

    /// The same with the proxy's own settings changed as well.
    pub(crate) async fn tuned(
        replicas: Vec<ReplicaSpec>,
        tweak: impl FnOnce(&mut Config),
        tune: impl FnOnce(&mut Settings),
    ) -> Rig {
        let mut config = Config { workers: Some(2), ..Config::default() };
        config.health.slow_start = Seconds::from_secs(0);
        tweak(&mut config);
        let router = Router::new(&config, 7);
        let mut ids = Vec::new();
        for mut spec in replicas {
            spec.models.get_or_insert_with(|| vec!["m".into()]);
            let id = router.join(Member::new(spec).unwrap()).unwrap();
            for _ in 0..config.health.recover_after.max(1) {
                router.probe(id, Probe::Ok);
            }
            ids.push(id);
        }
        let metrics = Arc::new(Metrics::new());
        let mut settings = Settings::new(&config);
        tune(&mut settings);
        let address = "127.0.0.1:0".parse().unwrap();
        let proxy =
            Proxy::bind(address, settings, router.clone(), metrics.clone(), AccessLog::off()).unwrap();
        let addr = proxy.local_addr().unwrap();
        let (phase, watching) = watch::channel(Phase::Running);
        let ended = tokio::spawn(async move { proxy.run(watching).await.unwrap() });
        Rig { addr, router, metrics, ids, phase, ended }
    }

    /// Resolves when nothing is in flight or waiting any more.
    pub(crate) async fn quiet(&self) {
        eventually("nothing in flight", || self.router.load() == (0, 0)).await;
    }

    /// The state of a replica, by its place in the list.
    pub(crate) fn state(&self, n: usize) -> &'static str {
        let id = self.ids[n];
        self.router.replicas().into_iter().find(|r| r.replica == id).unwrap().state
    }

    /// The value of a series, by the line that it begins with.
    pub(crate) fn metric(&self, series: &str) -> f64 {
        let page = self.metrics.render();
        let line = page.lines().find(|l| l.starts_with(series));
        line.and_then(|l| l.rsplit(' ').next()).map_or(0.0, |v| v.parse().unwrap())
    }
}

/// Resolves when `what` is so. How long that takes doesn't matter, only that it comes true.
pub(crate) async fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !so() {
        assert!(Instant::now() < end, "waited for: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
