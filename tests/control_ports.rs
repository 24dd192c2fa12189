//! The control ports: what probes, scrapers and people see, and who may steer.

#![expect(clippy::unwrap_used, reason = "tests")]

mod watch_double;

use homing::config::{Config, ReplicaSpec, Secret};
use homing::control::{Context, Control};
use homing::core::ReplicaId;
use homing::core::health::Probe;
use homing::observe::{Loud, Metrics};
use homing::openai::Problem;
use homing::router::{Ask, Member, ModelInfo, Router};
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use watch_double::ask;

struct Scene {
    router: Arc<Router>,
    metrics: Arc<Metrics>,
    loud: Loud,
    draining: Arc<AtomicBool>,
    control: Control,
}

fn local() -> Config {
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    Config { metrics: any, admin: Some(any), ..Config::default() }
}

/// Until this is set, reading a body for the path `/slow` takes all the time it can get.
static RELEASED: AtomicBool = AtomicBool::new(false);

/// Stands in for the proxy's reader.
fn read(path: &str, body: &[u8]) -> Result<Ask, Problem> {
    let text: Value =
        serde_json::from_slice(body).map_err(|_| Problem::bad_request("The body is not valid JSON."))?;
    if path == "/slow" {
        while !RELEASED.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
    } else if !path.starts_with("/v1/") {
        return Err(Problem::not_found());
    }
    let model = text["model"].as_str().map(str::to_owned);
    Ok(Ask { model, text_bytes: body.len() as u64, generates: true, ..Ask::default() })
}

impl Scene {
    fn new(config: Config) -> Self {
        let router = Router::new(&config, 1);
        let metrics = Arc::new(Metrics::new());
        let loud = Loud::new(metrics.clone());
        let draining = Arc::new(AtomicBool::new(false));
        let phase = draining.clone();
        let control = Control::start(Context {
            config: Arc::new(arc_swap::ArcSwap::from_pointee(config)),
            router: router.clone(),
            metrics: metrics.clone(),
            loud: loud.clone(),
            draining: Arc::new(move || phase.load(Ordering::Relaxed)),
            read_prompt: Arc::new(read),
            reload: None,
        })
        .unwrap();
        Scene { router, metrics, loud, draining, control }
    }

    fn join(&self, name: &str) -> ReplicaId {
        let spec = ReplicaSpec {
            api_key: Some(Secret::new("sk-private")),
            ..ReplicaSpec::new(format!("http://{name}"))
        };
        let id = self.router.join(Member::new(spec).unwrap()).unwrap();
        self.router.probe(id, Probe::Ok);
        self.router.models(id, vec![ModelInfo { id: "m".into(), parent: None, max_model_len: Some(4096) }]);
        id
    }

    async fn probe(&self, path: &str) -> (u16, String, String) {
        ask(self.control.metrics_addr(), &format!("GET {path}"), "", "").await
    }

    async fn admin(&self, request: &str, headers: &str, body: &str) -> (u16, Value) {
        let (status, _, text) = ask(self.control.admin_addr().unwrap(), request, headers, body).await;
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }
}

#[tokio::test]
async fn readiness_needs_a_replica_that_can_serve_and_ends_with_the_first_word_of_a_drain() {
    let s = Scene::new(local());
    assert_eq!(s.probe("/livez").await.0, 200);
    let (status, head, body) = s.probe("/readyz").await;
    assert_eq!(status, 503);
    assert!(head.contains("retry-after: 1") && body.contains("there are none"), "{head} {body}");
    let spec = ReplicaSpec::new("http://loading");
    s.router.join(Member::new(spec).unwrap()).unwrap();
    let id = s.join("a");
    assert_eq!(s.probe("/readyz").await.0, 200);
    for _ in 0..3 {
        s.router.probe(id, Probe::Unreachable);
    }
    let (status, _, body) = s.probe("/readyz").await;
    let error: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, error["error"]["code"].as_str()), (503, Some("not_ready")));
    assert!(error["error"]["message"].as_str().unwrap().contains("1 starting, 1 down"), "{body}");
    for _ in 0..2 {
        s.router.probe(id, Probe::Ok);
    }
    assert_eq!(s.probe("/readyz").await.0, 200);
    s.draining.store(true, Ordering::Relaxed);
    let (status, _, body) = s.probe("/readyz").await;
    assert!(status == 503 && body.contains("shutting down"), "{body}");
    assert_eq!(s.probe("/livez").await.0, 200);
}

#[tokio::test]
async fn metrics_are_in_prometheus_format() {
    let s = Scene::new(local());
    s.metrics.queue_length.set(7.0);
    let (status, head, body) = s.probe("/metrics").await;
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(body.contains("\nhoming_queue_length 7\n"));
}

#[tokio::test]
async fn nothing_of_the_admin_port_is_on_the_open_one() {
    let s = Scene::new(local());
    for path in ["/", "/replicas", "/config"] {
        let (status, head, body) = s.probe(path).await;
        assert_eq!(status, 404, "{path}");
        let error: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(error["error"]["code"], "not_found");
        assert!(head.contains("x-request-id: "));
    }
    let (status, ..) = ask(s.control.metrics_addr(), "POST /livez", "", "").await;
    assert_eq!(status, 405);
}

#[tokio::test]
async fn replicas_are_shown_with_the_banner() {
    let s = Scene::new(local());
    s.join("a:1");
    let flag = s.loud.flag("metrics_missing", "a:1");
    flag.raise(|| "no page");
    let (status, page) = s.admin("GET /replicas", "", "").await;
    assert_eq!(status, 200);
    assert_eq!(page["degraded"][0]["what"], "metrics_missing");
    assert_eq!(page["degraded"][0]["detail"], "no page");
    assert_eq!(page["replicas"][0]["name"], "a:1");
    assert_eq!(page["replicas"][0]["state"], "ready");
    assert_eq!(page["models"][0], "m");
    assert_eq!((&page["in_flight"], &page["index"]["distinct_blocks"]), (&0.into(), &0.into()));
    assert!(!page.to_string().contains("sk-private"));
    let (_, front) = s.admin("GET /", "", "").await;
    let front = front.as_str().unwrap();
    assert!(front.contains("DEGRADED: a:1: metrics_missing") && front.contains("POST /explain"), "{front}");
}

#[tokio::test]
async fn explain_says_where_and_why() {
    let s = Scene::new(local());
    s.join("a");
    let (status, told) = s.admin("POST /explain", "", "{\"model\":\"m\"}").await;
    assert_eq!((status, told["chosen"].as_str()), (200, Some("a")), "{told}");
    assert!(told["candidates"][0]["price_ms"]["total"].is_number(), "{told}");
    assert_eq!(s.router.load(), (0, 0), "nothing was reserved");
    let (status, told) = s.admin("POST /explain", "", "{\"model\":").await;
    assert_eq!((status, told["error"]["type"].as_str()), (400, Some("invalid_request_error")));
    let (status, _) = s.admin("POST /explain?path=/nowhere", "", "{}").await;
    assert_eq!(status, 404);
    let (status, told) = s.admin("POST /explain", "", "{\"model\":\"made-up\"}").await;
    assert!(status == 200 && told["chosen"].is_null(), "{told}");
    assert_eq!(s.admin("GET /explain", "", "").await.0, 405);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let mut config = local();
    config.limits.body_bytes = "1KiB".parse().unwrap();
    let s = Scene::new(config);
    assert_eq!(s.admin("POST /explain", "", &" ".repeat(2000)).await.0, 413);
}

#[tokio::test]
async fn draining_by_name_and_by_id() {
    let s = Scene::new(local());
    s.join("a:1/base");
    let draining = || s.router.replicas()[0].draining;
    let (status, told) = s.admin("POST /replicas/a:1%2Fbase/drain", "", "").await;
    assert_eq!((status, told["draining"].as_bool()), (200, Some(true)));
    assert!(draining());
    assert!(s.probe("/readyz").await.2.contains("1 draining"));
    let id = told["id"].as_str().unwrap();
    assert_eq!(s.admin(&format!("POST /replicas/{id}/undrain"), "", "").await.0, 200);
    assert!(!draining());
    assert_eq!(s.admin("POST /replicas/9.9/drain", "", "").await.0, 404);
    assert_eq!(s.admin("GET /replicas/9.9/drain", "", "").await.0, 405);
}

#[tokio::test]
async fn the_configuration_is_shown_without_its_secrets() {
    let mut config = local();
    config.replicas =
        vec![ReplicaSpec { api_key: Some(Secret::new("sk-private")), ..ReplicaSpec::new("http://a") }];
    let s = Scene::new(config);
    let (status, shown) = s.admin("GET /config", "", "").await;
    assert_eq!((status, &shown["replicas"][0]["api_key"]), (200, &"***".into()));
    assert!(!shown.to_string().contains("private"));
}

#[tokio::test]
async fn with_a_token_only_who_shows_it_may_come_in() {
    let s = Scene::new(Config { admin_token: Some(Secret::new("tok")), ..local() });
    let with = async |header: &str| s.admin("GET /replicas", header, "").await;
    for wrong in ["", "authorization: Bearer toc\r\n", "authorization: tok\r\n", "x-token: tok\r\n"] {
        let (status, told) = with(wrong).await;
        assert_eq!((status, told["error"]["code"].as_str()), (401, Some("invalid_api_key")), "{wrong}");
    }
    assert_eq!(with("authorization: Bearer tok\r\n").await.0, 200);
    // Not even which paths there are is told to strangers.
    assert_eq!(s.admin("GET /nowhere", "", "").await.0, 401);
    assert_eq!(s.probe("/livez").await.0, 200, "probes need none");
}

#[tokio::test]
async fn without_a_token_web_pages_are_kept_out() {
    let s = Scene::new(local());
    let id = s.join("a");
    let drain = format!("POST /replicas/{}.{}/drain", id.slot, id.life);
    assert_eq!(s.admin(&drain, "origin: https://evil.example\r\n", "").await.0, 401);
    assert!(!s.router.replicas()[0].draining);
}

#[test]
fn an_admin_port_open_to_strangers_is_refused() {
    let config = Config { admin: Some(([0, 0, 0, 0], 0).into()), ..local() };
    let router = Router::new(&config, 1);
    let metrics = Arc::new(Metrics::new());
    let refused = Control::start(Context {
        config: Arc::new(arc_swap::ArcSwap::from_pointee(config)),
        router,
        loud: Loud::new(metrics.clone()),
        metrics,
        draining: Arc::new(|| false),
        read_prompt: Arc::new(read),
        reload: None,
    });
    assert!(refused.unwrap_err().to_string().contains("loopback"));
}

#[tokio::test]
async fn liveness_is_told_while_every_core_is_busy_and_a_prompt_is_read() {
    let s = Scene::new(local());
    let busy = Arc::new(AtomicBool::new(true));
    let cores = std::thread::available_parallelism().unwrap().get();
    let threads: Vec<_> = (0..cores)
        .map(|_| {
            let busy = busy.clone();
            std::thread::spawn(move || {
                while busy.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    let addr = s.control.admin_addr().unwrap();
    let explaining = tokio::spawn(async move { ask(addr, "POST /explain?path=/slow", "", "{}").await.0 });
    let mut times: Vec<Duration> = Vec::new();
    while times.len() < 40 {
        let begun = Instant::now();
        assert_eq!(s.probe("/livez").await.0, 200);
        times.push(begun.elapsed());
    }
    assert!(!explaining.is_finished(), "it was still being read");
    RELEASED.store(true, Ordering::Relaxed);
    busy.store(false, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(explaining.await.unwrap(), 200);
    times.sort();
    // The best ones: how long the others take depends on what else runs on the machine.
    assert!(times[times.len() / 4] < Duration::from_millis(50), "{times:?}");
}
