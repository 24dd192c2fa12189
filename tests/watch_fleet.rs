//! Watching a fleet: what a replica shows is what the router knows, and what it doesn't show is unknown.

#![expect(clippy::unwrap_used, reason = "a broken expectation ends the test")]

mod watch_double;

use homing::config::{Config, ReplicaSpec, Seconds, Secret};
use homing::core::{Outcome, ReplicaId};
use homing::observe::{Loud, Metrics};
use homing::router::{Ask, Member, ReplicaView, Router};
use homing::watch::Watch;
use parking_lot::Mutex;
use std::sync::Arc;
use watch_double::{Double, IDLE, Reserved, until};

struct Scene {
    router: Arc<Router>,
    metrics: Arc<Metrics>,
    loud: Loud,
    _watch: Watch,
}

impl Scene {
    fn new(config: Config) -> Self {
        let router = Router::new(&config, 1);
        let metrics = Arc::new(Metrics::new());
        let loud = Loud::new(metrics.clone());
        let watch = Watch::start(&config, router.clone(), metrics.clone(), loud.clone()).unwrap();
        Scene { router, metrics, loud, _watch: watch }
    }

    fn join(&self, spec: ReplicaSpec) -> ReplicaId {
        self.router.join(Member::new(spec).unwrap()).unwrap()
    }

    fn view(&self, id: ReplicaId) -> ReplicaView {
        self.router.replicas().into_iter().find(|v| v.replica == id).unwrap()
    }

    async fn state(&self, id: ReplicaId, state: &str) {
        until(state, || self.view(id).state == state).await;
    }

    fn degraded(&self, what: &str) -> bool {
        self.loud.degradations().iter().any(|d| d.what == what)
    }
}

fn quick() -> Config {
    let mut config = Config::default();
    config.health.interval = "15ms".parse().unwrap();
    config.health.timeout = "5s".parse().unwrap();
    config.poll.interval = "15ms".parse().unwrap();
    config.poll.timeout = "5s".parse().unwrap();
    config
}

/// A page of a process that started at `started` and has done `n` requests.
fn page(started: u32, n: u32) -> String {
    format!(
        "process_start_time_seconds {started}\nvllm:num_requests_running 0\nvllm:num_requests_waiting 0\n\
         vllm:prompt_tokens_total {n}\nvllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"100\"}} 1\n"
    )
}

#[tokio::test]
async fn one_that_loads_is_not_dead_and_becomes_ready_with_all_that_it_shows() {
    let scene = Scene::new(quick());
    let port = Reserved::new();
    let id = scene.join(ReplicaSpec::new(port.url()));
    until("it was looked at", || scene.metrics.render().contains("state=\"starting\"")).await;
    let server = port.open();
    server.answer("/health", 503, "");
    until("it was asked", || server.count("/health") > 5).await;
    assert_eq!(scene.view(id).state, "starting");
    assert_eq!(server.count("/metrics"), 0, "what isn't healthy isn't asked for its page");
    server.answer("/health", 200, "");
    scene.state(id, "ready").await;
    // Known from the first moment in which it can be given requests.
    let view = scene.view(id);
    assert_eq!(view.models.as_deref(), Some(&["base".to_owned()][..]));
    assert_eq!(view.max_model_len, Some(4096));
    assert_eq!((view.running, view.waiting), (Some(0), Some(0)));
    assert!(view.kv_capacity_tokens.is_some_and(|n| n > 0));
    assert!(scene.loud.degradations().is_empty());
    until("its gauge is up", || {
        scene.metrics.render().contains(&format!("_up{{replica=\"{}\"}} 1", view.name))
    })
    .await;
}

#[tokio::test]
async fn dead_after_three_and_back_after_two() {
    let scene = Scene::new(quick());
    let server = Double::start();
    let id = scene.join(ReplicaSpec::new(server.url()));
    scene.state(id, "ready").await;
    let before = server.count("/health");
    server.answer("/health", 500, "");
    scene.state(id, "down").await;
    assert!(server.count("/health") >= before + 3);
    assert_eq!(scene.view(id).waiting, None, "what its page said before doesn't hold");
    server.answer("/health", 200, "");
    scene.state(id, "ready").await;
    server.kill();
    scene.state(id, "down").await;
}

#[tokio::test]
async fn one_that_hangs_is_dead_too() {
    let mut config = quick();
    config.health.timeout = "30ms".parse().unwrap();
    let scene = Scene::new(config);
    let server = Double::start();
    let id = scene.join(ReplicaSpec::new(server.url()));
    scene.state(id, "ready").await;
    server.hang(true);
    scene.state(id, "down").await;
    server.hang(false);
    scene.state(id, "ready").await;
}

#[tokio::test]
async fn sleeping_is_seen_on_the_page_and_waking_too() {
    let scene = Scene::new(quick());
    let server = Double::start();
    let awake = "vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 1\n";
    let asleep = "vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 0\n\
                  vllm:engine_sleep_state{engine=\"0\",sleep_state=\"weights_offloaded\"} 1\n";
    server.answer("/metrics", 200, &(page(1, 1) + asleep));
    let id = scene.join(ReplicaSpec::new(server.url()));
    scene.state(id, "asleep").await;
    server.answer("/metrics", 200, &(page(1, 1) + awake));
    scene.state(id, "ready").await;
    server.answer("/metrics", 200, &(page(1, 1) + asleep));
    scene.state(id, "asleep").await;
}

#[tokio::test]
async fn a_restart_is_noticed_and_the_models_are_asked_anew() {
    let scene = Scene::new(quick());
    let server = Double::start();
    server.answer("/metrics", 200, &page(100, 50));
    let id = scene.join(ReplicaSpec::new(server.url()));
    scene.state(id, "ready").await;
    until("pages were read", || server.count("/metrics") > 3).await;
    assert_eq!(server.count("/v1/models"), 1, "models are asked rarely");
    server.serves(&["other"]);
    let pages = server.count("/metrics");
    server.answer("/metrics", 200, &page(200, 1));
    until("the new list came", || scene.router.knows_model("other")).await;
    assert!(server.count("/metrics") < pages + 50, "it came at its regular time, half a minute later");
    assert!(!scene.router.knows_model("base"));
    assert_eq!(scene.view(id).state, "ready");
}

#[tokio::test]
async fn a_missing_page_is_unknown_and_loud_and_keeps_nobody_out() {
    let scene = Scene::new(quick());
    let server = Double::start();
    let id = scene.join(ReplicaSpec::new(server.url()));
    scene.state(id, "ready").await;
    assert_eq!(scene.view(id).waiting, Some(0));
    server.answer("/metrics", 404, "gone");
    until("it is told", || scene.degraded("metrics_missing")).await;
    let view = scene.view(id);
    assert_eq!((view.waiting, view.running, view.kv_usage), (None, None, None));
    assert!(view.kv_capacity_tokens.is_some(), "how large its cache is doesn't change");
    assert_eq!(view.state, "ready");
    let name = view.name;
    let series = format!("homing_degraded{{replica=\"{name}\",what=\"metrics_missing\"}}");
    assert!(scene.metrics.render().contains(&format!("{series} 1\n")));
    until("the gauge is gone", || {
        !scene.metrics.render().contains(&format!("homing_replica_waiting{{replica=\"{name}\""))
    })
    .await;
    server.answer("/metrics", 200, "# a page without any series\n");
    until("more pages", || server.count("/metrics") > 10).await;
    assert_eq!(scene.view(id).waiting, None);
    server.answer("/metrics", 200, IDLE);
    until("it is over", || !scene.degraded("metrics_missing")).await;
    assert_eq!(scene.view(id).waiting, Some(0));
}

/// What the program logs, for the one test that reads it.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_degradation_is_one_line_and_one_series_however_many_requests_pass() {
    let logged = Logged::default();
    let writer = logged.clone();
    tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();
    let lines = |what: &str| {
        let text = String::from_utf8(logged.0.lock().clone()).unwrap();
        text.lines().filter(|l| l.contains("loud-one") && l.contains(what)).count()
    };
    let scene = Scene::new(quick());
    let server = Double::start();
    let id = scene.join(ReplicaSpec { name: Some("loud-one".into()), ..ReplicaSpec::new(server.url()) });
    scene.state(id, "ready").await;
    assert_eq!(lines("degraded"), 0);
    server.answer("/metrics", 404, "gone");
    until("it is told", || scene.degraded("metrics_missing")).await;
    let pages = server.count("/metrics");
    for n in 0..500 {
        let ask = Ask { model: Some("base".into()), text_bytes: 500 + n, generates: true, ..Ask::default() };
        scene.router.place(&ask).await.unwrap().finish(Outcome::default());
    }
    until("many pages were missing", || server.count("/metrics") > pages + 30).await;
    assert_eq!((lines("degraded"), lines("recovered")), (1, 0));
    let page = scene.metrics.render();
    let series =
        page.lines().filter(|l| l.starts_with("homing_degraded{replica=\"loud-one\"") && l.ends_with(" 1"));
    assert_eq!(series.count(), 1);
    assert_eq!(scene.loud.degradations().len(), 1);
    server.answer("/metrics", 200, IDLE);
    until("it is over", || !scene.degraded("metrics_missing")).await;
    until("that is told", || lines("recovered") == 1).await;
    assert_eq!(lines("degraded"), 1);
}

#[tokio::test]
async fn models_that_can_not_be_read_stay_unknown_until_they_can() {
    let scene = Scene::new(quick());
    let server = Double::start();
    server.answer("/v1/models", 401, "no");
    let id = scene.join(ReplicaSpec::new(server.url()));
    scene.state(id, "ready").await;
    assert!(scene.degraded("models_unknown"));
    assert_eq!(scene.view(id).models, None);
    server.serves(&["base"]);
    until("they are known", || scene.router.knows_model("base")).await;
    until("it is over", || !scene.degraded("models_unknown")).await;
}

#[tokio::test]
async fn an_unknown_capacity_is_loud_unless_the_configuration_says_it() {
    let scene = Scene::new(quick());
    let server = Double::start();
    server.answer("/metrics", 200, "vllm:num_requests_waiting 0\n");
    let id = scene.join(ReplicaSpec::new(server.url()));
    until("it is told", || scene.degraded("capacity_unknown")).await;
    scene.router.leave(id);
    until("it went with the replica", || scene.loud.degradations().is_empty()).await;
    let told = scene.join(ReplicaSpec { kv_tokens: Some(1000), ..ReplicaSpec::new(server.url()) });
    scene.state(told, "ready").await;
    assert_eq!(scene.view(told).kv_capacity_tokens, Some(1000));
    assert!(scene.loud.degradations().is_empty());
}

#[tokio::test]
async fn key_headers_and_base_path_go_with_each_look_over_one_connection() {
    let scene = Scene::new(quick());
    let server = Double::start();
    for path in ["/health", "/metrics"] {
        server.answer(&format!("/pool/a{path}"), 200, IDLE);
    }
    server.answer("/pool/a/v1/models", 200, "{\"data\":[{\"id\":\"m\"}]}");
    let id = scene.join(ReplicaSpec {
        api_key: Some(Secret::new("sk-1")),
        headers: [("x-tenant".to_owned(), Secret::new("t1"))].into(),
        ..ReplicaSpec::new(format!("{}/pool/a/", server.url()))
    });
    scene.state(id, "ready").await;
    until("some rounds", || server.count("/pool/a/metrics") > 10).await;
    for head in server.asked() {
        assert!(head.starts_with("GET /pool/a/"), "{head}");
        let lower = head.to_ascii_lowercase();
        assert!(lower.contains("authorization: bearer sk-1\r\n"), "{head}");
        assert!(lower.contains("x-tenant: t1\r\n"), "{head}");
        assert!(lower.contains(&format!("host: {}\r\n", server.addr)), "{head}");
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn one_that_left_is_not_looked_at_any_more_and_its_series_go() {
    let scene = Scene::new(quick());
    let server = Double::start();
    let id = scene.join(ReplicaSpec { name: Some("short".into()), ..ReplicaSpec::new(server.url()) });
    scene.state(id, "ready").await;
    until("it has series", || scene.metrics.render().contains("replica=\"short\"")).await;
    scene.router.leave(id);
    until("they are gone", || !scene.metrics.render().contains("replica=\"short\"")).await;
    let asked = server.asked().len();
    let other = Double::start();
    scene.join(ReplicaSpec::new(other.url()));
    until("others are", || other.count("/metrics") > 20).await;
    assert!(server.asked().len() <= asked + 2, "a round that had begun may end");
}

#[tokio::test]
async fn an_endless_answer_is_cut_off() {
    let scene = Scene::new(quick());
    let server = Double::start();
    server.answer("/metrics", 200, &"x".repeat(5 << 20));
    let id = scene.join(ReplicaSpec::new(server.url()));
    until("it is told", || {
        scene.loud.degradations().iter().any(|d| d.what == "metrics_missing" && d.detail.contains("bytes"))
    })
    .await;
    assert_eq!(scene.view(id).state, "ready");
}

#[test]
fn the_default_pace_is_a_second() {
    let config = Config::default();
    assert_eq!(
        (config.health.interval, config.poll.interval),
        (Seconds::from_secs(1), Seconds::from_secs(1))
    );
}
