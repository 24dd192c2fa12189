//! What is chosen, and what is refused.

use super::rig::*;
use homing::config::{ReplicaSpec, Seconds};
use homing::router::{ModelInfo, Page};

fn page(waiting: u32, kv_usage: f64) -> Page {
    Page {
        running: Some(4),
        waiting: Some(waiting),
        kv_usage: Some(kv_usage),
        capacity: Some(100_000),
        ..Page::default()
    }
}

/// Two pages: what only one page shows may be a request of our own that has just ended.
fn told(rig: &Rig, n: usize, page: Page) {
    rig.router.page(rig.ids[n], page);
    rig.router.page(rig.ids[n], page);
}

#[tokio::test]
async fn lower_queue_and_cache_use_win() {
    let rig = Rig::start(3).await;
    told(&rig, 0, page(10, 0.9));
    told(&rig, 1, page(0, 0.1));
    told(&rig, 2, page(6, 0.6));
    let picked = rig.stream().await.chat(CHAT).await;
    assert_eq!(
        picked.destination, "10.0.0.2:8000,10.0.0.3:8000,10.0.0.1:8000",
        "and the others follow by price"
    );
}

#[tokio::test]
async fn an_adapter_that_is_loaded_wins_over_a_lower_cache_use() {
    let rig = Rig::of(
        (1..4)
            .map(|n| ReplicaSpec {
                models: Some(["base", "chat", "sql"].map(String::from).to_vec()),
                ..ReplicaSpec::new(format!("http://10.0.0.{n}:8000"))
            })
            .collect(),
        |_| {},
    );
    for (n, &id) in rig.ids.iter().enumerate() {
        let info = |id: &str, parent: Option<&str>| ModelInfo {
            id: id.into(),
            parent: parent.map(Into::into),
            max_model_len: None,
        };
        rig.router
            .models(id, vec![info("base", None), info("sql", Some("base")), info("chat", Some("base"))]);
        told(&rig, n, page(0, [0.1, 0.3, 0.1][n]));
        rig.router.adapters(id, 2, [["chat"], ["sql"], ["chat"]][n]);
    }
    let body = CHAT.replace("\"m\"", "\"sql\"");
    assert!(rig.stream().await.chat(&body).await.destination.starts_with("10.0.0.2:8000,"));
    let told = rig.router.explain(&homing::router::Ask {
        model: Some("sql".into()),
        generates: true,
        ..homing::router::Ask::default()
    });
    assert!(told.candidates.iter().any(|c| c.price_ms.adapter > 0.0));
}

#[tokio::test]
async fn a_subset_of_one_wins_despite_its_load() {
    let rig = Rig::start(3).await;
    told(&rig, 1, page(10, 0.9));
    for context in [subset(&["10.0.0.2:8000"]), subset_text("10.0.0.2:8000"), subset(&["10.0.0.2"])] {
        let mut envoy = rig.stream().await;
        envoy.post(context, &[], CHAT).await;
        assert_eq!(envoy.picked().await.destination, "10.0.0.2:8000");
    }
}

#[tokio::test]
async fn a_subset_without_anybody_is_a_503_and_never_opens() {
    let rig = Rig::start(2).await;
    for context in [
        subset(&["10.0.0.2:9999"]),
        subset(&["10.9.9.9:8000"]),
        subset(&[]),
        subset_text("10.0.0.2:9999"),
        subset_text("nonsense"),
    ] {
        for get in [false, true] {
            let mut envoy = rig.stream().await;
            if get {
                envoy.head(context.clone(), &[(":method", "GET"), (":path", "/v1/models")], true).await;
            } else {
                envoy.post(context.clone(), &[], CHAT).await;
            }
            let no = envoy.refused().await;
            assert_eq!(no.status.as_ref().unwrap().code, 503);
            let reason = header(&no, "x-llm-d-request-dropped-reason");
            assert_eq!(reason.as_deref(), Some("rejected-no-endpoints"));
            assert!(header(&no, "retry-after").is_some());
        }
    }
    assert_eq!(rig.router.load(), (0, 0));
}

#[tokio::test]
async fn a_get_is_decided_on_its_headers_within_the_subset() {
    let rig = Rig::start(3).await;
    let mut envoy = rig.stream().await;
    let context = subset(&["10.0.0.3:8000"]);
    envoy.head(context, &[(":method", "GET"), (":path", "/v1/models")], true).await;
    assert_eq!(envoy.picked().await.destination, "10.0.0.3:8000");
}

#[tokio::test]
async fn ipv6_is_in_brackets_and_ports_are_ranks() {
    let spec = |url: &str| ReplicaSpec::new(url);
    let rig = Rig::of(
        vec![spec("http://[fd00::1]:8000"), spec("http://[fd00::1]:8001"), spec("http://vllm:8000")],
        |_| {},
    );
    let mut envoy = rig.stream().await;
    envoy.post(subset(&["[fd00::1]:8001"]), &[], CHAT).await;
    assert_eq!(envoy.picked().await.destination, "[fd00::1]:8001");
    let both = rig.stream().await.chat(CHAT).await.destination;
    assert!(
        both == "[fd00::1]:8000,[fd00::1]:8001" || both == "[fd00::1]:8001,[fd00::1]:8000",
        "{both}: no names"
    );
}

#[tokio::test]
async fn bad_json_and_a_missing_model_are_400() {
    let rig = Rig::start(1).await;
    for body in ["{\"model\":", "{\"messages\":[]}"] {
        let mut envoy = rig.stream().await;
        envoy.post(None, &[("x-request-id", "same-id")], body).await;
        let no = envoy.refused().await;
        assert_eq!(no.status.as_ref().unwrap().code, 400);
        assert_eq!(header(&no, "x-request-id").as_deref(), Some("same-id"));
        assert!(String::from_utf8(no.body).unwrap().contains("same-id"));
    }
    rig.quiet().await;
    assert_eq!(rig.metric("homing_requests_total{model=\"unknown\",code=\"400\",reason=\"bad_json\"}"), 1.0);
}

#[tokio::test]
async fn a_full_fleet_is_waited_for_while_envoy_waits() {
    let spec = ReplicaSpec { max_in_flight: Some(1), ..ReplicaSpec::new("http://10.0.0.1:8000") };
    let rig = Rig::of(vec![spec], |_| {});
    let mut first = rig.stream().await;
    first.chat(CHAT).await;
    let mut second = rig.stream().await;
    second.post(None, &[], CHAT).await;
    eventually("it waits", || rig.router.load() == (1, 1)).await;
    first.finish().await;
    assert_eq!(second.picked().await.destination, "10.0.0.1:8000");
    second.passed_on().await;
    second.finish().await;
    rig.quiet().await;
}

#[tokio::test]
async fn whoever_waits_too_long_or_finds_the_line_full_is_told_why() {
    for (max, code, reason) in [(8, 503, "rejected-ttl-expired"), (0, 429, "rejected-saturated")] {
        let spec = ReplicaSpec { max_in_flight: Some(1), ..ReplicaSpec::new("http://10.0.0.1:8000") };
        let rig = Rig::of(vec![spec], |c| {
            c.queue.max = max;
            c.queue.timeout = Seconds::from_millis(50);
        });
        let mut first = rig.stream().await;
        first.chat(CHAT).await;
        let mut second = rig.stream().await;
        second.post(None, &[], CHAT).await;
        let no = second.refused().await;
        assert_eq!(no.status.as_ref().unwrap().code, code);
        assert_eq!(header(&no, "x-llm-d-request-dropped-reason").as_deref(), Some(reason));
        assert!(header(&no, "retry-after").is_some());
    }
}

#[tokio::test]
async fn the_cache_is_come_home_to() {
    let rig = Rig::start(4).await;
    let long = "a sentence that is long enough to fill blocks of the chain. ".repeat(200);
    for n in 0..8 {
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{n} {long}"}}]}}"#);
        let mut first = rig.stream().await;
        let home = first.chat(&body).await.destination;
        first.finish().await;
        let mut second = rig.stream().await;
        let again = second.chat(&body).await.destination;
        second.finish().await;
        assert_eq!(home.split(',').next(), again.split(',').next());
    }
}

#[tokio::test]
async fn a_conformance_test_chooses_and_hears_who_served() {
    let rig = Rig::with(3, |c| c.extproc.conformance = true).await;
    for (list, expected) in [
        ("10.0.0.3:8000", "10.0.0.3:8000"),
        ("10.0.0.2", "10.0.0.2:8000"),
        ("10.0.0.3,10.0.0.1:8000", "10.0.0.3:8000,10.0.0.1:8000"),
        ("10.0.0.3,10.0.0.1,10.0.0.2", "10.0.0.3:8000,10.0.0.1:8000,10.0.0.2:8000"),
    ] {
        let mut envoy = rig.stream().await;
        envoy.post(None, &[("test-epp-endpoint-selection", list)], CHAT).await;
        assert_eq!(envoy.picked().await.destination, expected);
        envoy.passed_on().await;
        let by = expected.rsplit(',').next().unwrap();
        envoy.answer_head(served(by), &[(":status", "200")]).await;
        let set = envoy.answered().await.header_mutation.unwrap().set_headers;
        let echo = set[0].header.as_ref().unwrap();
        assert_eq!(echo.key, "x-conformance-test-served-endpoint");
        assert_eq!(echo.raw_value, by.as_bytes());
    }
    let mut envoy = rig.stream().await;
    envoy.post(None, &[("test-epp-endpoint-selection", "10.7.7.7")], CHAT).await;
    assert_eq!(envoy.refused().await.status.unwrap().code, 503);
    let plain = Rig::start(1).await;
    let mut envoy = plain.stream().await;
    envoy.post(None, &[("test-epp-endpoint-selection", "10.7.7.7")], CHAT).await;
    assert_eq!(envoy.picked().await.destination, "10.0.0.1:8000", "only where it is allowed");
}

#[tokio::test]
async fn the_number_of_fallbacks_is_configured() {
    let rig = Rig::with(5, |c| c.extproc.fallbacks = 0).await;
    assert!(!rig.stream().await.chat(CHAT).await.destination.contains(','));
    let rig = Rig::with(5, |c| c.extproc.fallbacks = 9).await;
    assert_eq!(rig.stream().await.chat(CHAT).await.destination.split(',').count(), 5);
}
