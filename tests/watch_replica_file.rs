//! The replica file while traffic and watch go on: joins, leaves, bad files, a source that is away, changed keys.

#![expect(clippy::unwrap_used, reason = "tests")]

mod watch_double;

use homing::config::{Config, ReplicaSpec, Seconds};
use homing::discovery::Discovery;
use homing::observe::{Loud, Metrics};
use homing::router::{Ask, Router};
use homing::watch::Watch;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use watch_double::{Double, Reserved, until};

struct Scene {
    dir: PathBuf,
    router: Arc<Router>,
    loud: Loud,
    _discovery: Discovery,
    _watch: Watch,
}

impl Scene {
    fn new(name: &str, fixed: &[&str], text: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("homing-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("replicas.yaml"), text).unwrap();
        let mut config = Config {
            replicas: fixed.iter().map(|u| ReplicaSpec::new(*u)).collect(),
            replica_file: Some(dir.join("replicas.yaml")),
            ..Config::default()
        };
        config.health.interval = Seconds::from_millis(15);
        config.poll.interval = Seconds::from_millis(15);
        let router = Router::new(&config, 1);
        let metrics = Arc::new(Metrics::new());
        let loud = Loud::new(metrics.clone());
        let every = Duration::from_millis(10);
        let discovery = Discovery::start(&config, router.clone(), &loud, every).unwrap();
        let watch = Watch::start(&config, router.clone(), metrics, loud.clone()).unwrap();
        Scene { dir, router, loud, _discovery: discovery, _watch: watch }
    }

    fn write(&self, text: &str) {
        // As a careful writer does it: the file is never half there.
        fs::write(self.dir.join("next"), text).unwrap();
        fs::rename(self.dir.join("next"), self.dir.join("replicas.yaml")).unwrap();
    }

    fn urls(&self) -> Vec<String> {
        let mut urls: Vec<String> = self.router.replicas().into_iter().map(|v| v.url).collect();
        urls.sort();
        urls
    }

    fn reason(&self) -> Option<String> {
        self.loud.degradations().into_iter().find(|d| d.what == "replica_file").map(|d| d.detail)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[tokio::test]
async fn replicas_join_and_leave_as_the_file_changes_without_a_cut_request() {
    let (a, b) = (Double::start(), Double::start());
    let scene = Scene::new("joins", &[], &format!("- url: {}\n", a.url()));
    assert_eq!(scene.urls(), [a.url()]);
    until("a serves", || scene.router.ready()).await;
    let running = scene.router.place(&Ask::default()).await.unwrap();
    scene.write(&format!("[{{\"url\": \"{}\"}}]", b.url()));
    until("b has taken a's place", || scene.urls() == [b.url()]).await;
    until("b serves", || scene.router.ready()).await;
    assert_eq!(scene.router.load().0, 1, "what a is doing goes on");
    let next = scene.router.place(&Ask::default()).await.unwrap();
    assert_eq!(next.endpoint().unwrap().port, b.addr.port());
    drop((running, next));
    assert_eq!(scene.router.load().0, 0);
}

#[tokio::test]
async fn a_bad_file_is_refused_with_its_reason_and_the_old_list_stays() {
    let a = Double::start();
    let scene = Scene::new("bad", &[], &format!("- url: {}\n", a.url()));
    for (text, why) in [("- url: [", "replicas.yaml"), ("- ulr: http://x\n", "url"), ("", "empty")] {
        scene.write(text);
        until("it is refused", || scene.reason().is_some()).await;
        assert!(scene.reason().unwrap().contains(why), "{:?}", scene.reason());
        assert_eq!(scene.urls(), [a.url()]);
        scene.write(&format!("- url: {}\n", a.url()));
        until("it is good again", || scene.reason().is_none()).await;
    }
}

#[tokio::test]
async fn while_the_source_is_away_routing_goes_on_and_then_ghosts_are_removed() {
    let (a, b) = (Double::start(), Double::start());
    let scene = Scene::new("away", &[], &format!("- url: {}\n- url: {}\n", a.url(), b.url()));
    until("they serve", || scene.router.ready()).await;
    fs::remove_file(scene.dir.join("replicas.yaml")).unwrap();
    until("it is told", || scene.reason().is_some()).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(scene.urls().len(), 2);
    assert!(scene.router.place(&Ask::default()).await.is_ok());
    scene.write(&format!("- url: {}\n", b.url()));
    until("the ghost is gone", || scene.urls() == [b.url()]).await;
    assert_eq!(scene.reason(), None);
}

#[tokio::test]
async fn those_of_the_configuration_stay_whatever_the_file_says() {
    let (a, b) = (Double::start(), Double::start());
    let scene = Scene::new("both", &[&a.url()], &format!("- url: {}\n", b.url()));
    assert_eq!(scene.urls().len(), 2);
    scene.write("[]");
    until("b is gone", || scene.urls() == [a.url()]).await;
}

#[tokio::test]
async fn a_changed_key_never_leaves_the_fleet_without_the_replica() {
    let a = Double::start();
    let scene = Scene::new("key", &[], &format!("- url: {}\n  api_key: one\n", a.url()));
    until("it serves", || scene.router.ready()).await;
    let old = scene.router.replicas()[0].replica;
    a.answer("/health", 200, "");
    scene.write(&format!("- url: {}\n  api_key: two\n", a.url()));
    until("the old one is gone", || {
        assert!(scene.router.ready(), "there was a gap");
        let views = scene.router.replicas();
        views.len() == 1 && views[0].replica != old
    })
    .await;
    let new = scene.router.replicas()[0].replica;
    assert_eq!(scene.router.member(new).unwrap().spec.api_key.unwrap().expose(), "two");
}

#[tokio::test]
async fn one_that_does_not_answer_is_replaced_at_once() {
    let port = Reserved::new();
    let scene = Scene::new("dead", &[], &format!("- url: {}\n", port.url()));
    let old = scene.router.replicas()[0].replica;
    scene.write(&format!("- url: {}\n  max_in_flight: 3\n", port.url()));
    until("the old one is gone", || {
        let views = scene.router.replicas();
        views.len() == 1 && views[0].replica != old
    })
    .await;
    assert_eq!(scene.router.replicas()[0].cap, Some(3));
}
