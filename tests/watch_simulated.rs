//! Watch and control over a simulated server: what the router learns of it while it loads, sleeps, wakes and restarts,
//! and what `/explain` makes of that, with the proxy's own reader of prompts.

#![expect(clippy::unwrap_used, reason = "tests")]

mod watch_double;

use homing::config::{Config, ReplicaSpec, Seconds, Secret};
use homing::control::{Context, Control};
use homing::core::Outcome;
use homing::discovery::{Discovery, EVERY};
use homing::observe::{Loud, Metrics};
use homing::openai::{Problem, Shape};
use homing::proxy::PromptReader;
use homing::router::{Ask, Router};
use homing::sim::http::{Adapter, Faults, Mock, MockConfig};
use homing::watch::Watch;
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use watch_double::{ask, until};

fn simulated() -> MockConfig {
    MockConfig {
        models: vec!["base".into()],
        adapters: vec![Adapter { name: "ada".into(), parent: "base".into() }],
        api_key: Some("sk-1".into()),
        ..MockConfig::default()
    }
}

#[tokio::test]
async fn a_simulated_server_through_its_life() {
    let server = Mock::start(MockConfig {
        startup: Duration::from_millis(100),
        refuse_while_starting: true,
        ..simulated()
    })
    .await
    .unwrap();
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    let mut config = Config {
        metrics: any,
        admin: Some(any),
        replicas: vec![ReplicaSpec {
            api_key: Some(Secret::new("sk-1")),
            name: Some("one".into()),
            ..ReplicaSpec::new(server.url())
        }],
        ..Config::default()
    };
    config.health.interval = Seconds::from_millis(15);
    config.poll.interval = Seconds::from_millis(15);
    let config = Arc::new(config);
    let router = Router::new(&config, 1);
    let metrics = Arc::new(Metrics::new());
    let loud = Loud::new(metrics.clone());
    let _discovery = Discovery::start(&config, router.clone(), &loud, EVERY).unwrap();
    let _watch = Watch::start(&config, router.clone(), metrics.clone(), loud.clone()).unwrap();
    let reading = router.clone();
    let control = Control::start(Context {
        config: Arc::new(arc_swap::ArcSwap::new(config)),
        reload: None,
        router: router.clone(),
        metrics,
        loud: loud.clone(),
        draining: Arc::new(|| false),
        read_prompt: Arc::new(move |path, body| {
            let shape = Shape::of_path(path).ok_or_else(Problem::not_found)?;
            let read = PromptReader::new(&reading).read(shape, body);
            Ok(read.map_err(|bad| Problem::bad_json(&bad))?.ask)
        }),
    })
    .unwrap();
    let state = || router.replicas()[0].state;

    assert_eq!(state(), "starting");
    until("it has loaded", || state() == "ready").await;
    let view = &router.replicas()[0];
    assert_eq!(view.models.as_deref(), Some(&["base".to_owned(), "ada".to_owned()][..]));
    assert_eq!((view.max_model_len, view.kv_capacity_tokens), (Some(32_768), Some(1 << 18)));
    assert_eq!((view.running, view.waiting), (Some(0), Some(0)));
    assert!(loud.degradations().is_empty(), "{:?}", loud.degradations());

    let admin = control.admin_addr().unwrap();
    let explain = async |body: &str| {
        let (status, _, text) = ask(admin, "POST /explain", "", body).await;
        (status, serde_json::from_str::<Value>(&text).unwrap())
    };
    let prompt = "word ".repeat(400);
    let body = format!("{{\"model\":\"ada\",\"messages\":[{{\"role\":\"user\",\"content\":\"{prompt}\"}}]}}");
    let (status, told) = explain(&body).await;
    assert_eq!((status, told["chosen"].as_str()), (200, Some("one")), "{told}");
    assert!(told["blocks"].as_u64().unwrap() >= 7, "{told}");
    let (status, told) = explain("{\"model\": nonsense}").await;
    assert!(status == 400 && told["error"]["message"].as_str().unwrap().contains("line 1"), "{told}");

    assert!(ask(server.addr(), "POST /sleep", "authorization: Bearer sk-1\r\n", "").await.0 < 300);
    until("it sleeps", || state() == "asleep").await;
    let (status, _, why) = ask(control.metrics_addr(), "GET /readyz", "", "").await;
    assert!(status == 503 && why.contains("1 asleep"), "{why}");
    assert!(ask(server.addr(), "POST /wake_up", "authorization: Bearer sk-1\r\n", "").await.0 < 300);
    until("it is awake", || state() == "ready").await;

    server.set_faults(Faults { empty_metrics: true, ..Faults::default() });
    until("its load is unknown", || !loud.degradations().is_empty()).await;
    assert_eq!((state(), router.replicas()[0].waiting), ("ready", None));
    server.set_faults(Faults::default());
    until("its load is known", || loud.degradations().is_empty()).await;

    let addr = server.addr();
    drop(server);
    until("it is dead", || state() == "down").await;
    assert_eq!(ask(control.metrics_addr(), "GET /readyz", "", "").await.0, 503);
    let again = MockConfig { adapters: Vec::new(), listen: addr, ..simulated() };
    let _server = Mock::start(again).await.unwrap();
    until("it is back", || state() == "ready").await;
    assert_eq!(router.replicas()[0].models.as_deref(), Some(&["base".to_owned()][..]));
}

#[tokio::test]
async fn the_blocks_of_an_engine_that_restarts_at_its_address_are_gone() {
    let server =
        Mock::start(MockConfig { models: vec!["base".into()], ..MockConfig::default() }).await.unwrap();
    let mut config = Config { replicas: vec![ReplicaSpec::new(server.url())], ..Config::default() };
    config.health.interval = Seconds::from_millis(15);
    config.poll.interval = Seconds::from_millis(15);
    let router = Router::new(&config, 1);
    let metrics = Arc::new(Metrics::new());
    let loud = Loud::new(metrics.clone());
    let _discovery = Discovery::start(&config, router.clone(), &loud, EVERY).unwrap();
    let _watch = Watch::start(&config, router.clone(), metrics, loud).unwrap();
    until("it serves", || router.replicas()[0].state == "ready").await;

    let prompt = Ask {
        model: Some("base".into()),
        chain: (1..=40).collect(),
        text_bytes: 40 * 256 + 9,
        generates: true,
        ..Ask::default()
    };
    let believed = || router.explain(&prompt).candidates[0].matched_blocks;
    let learn = async || router.place(&prompt).await.unwrap().finish(Outcome::default());
    learn().await;
    assert_eq!(believed(), 40);
    let id = router.replicas()[0].replica;

    // Whether the watch sees it down in between is a matter of luck; both must do.
    let addr = server.addr();
    drop(server);
    // Start times are told apart from half a second on; no real engine is back that soon.
    tokio::time::sleep(Duration::from_millis(600)).await;
    let again = MockConfig { models: vec!["base".into()], listen: addr, ..MockConfig::default() };
    let mut server = Mock::start(again.clone()).await;
    while server.is_err() {
        // The address is free when the last of its connections is.
        tokio::time::sleep(Duration::from_millis(5)).await;
        server = Mock::start(again.clone()).await;
    }
    until("its blocks are gone", || believed() == 0).await;
    until("it serves again", || router.replicas()[0].state == "ready").await;
    assert_eq!(router.replicas()[0].replica, id, "it never left the fleet");
    learn().await;
    assert_eq!(believed(), 40, "learned anew");
}
