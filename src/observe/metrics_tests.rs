//! The registry: what is exported, and that strangers can't grow it.

use super::*;

#[test]
fn a_hundred_thousand_invented_models_are_a_constant_number_of_series() {
    let m = Metrics::new();
    let invent = |from: usize, to: usize| {
        for i in from..to {
            let model = m.model(Some(&format!("invented-{i}")));
            model.ttft.observe(0.1);
            model.usage(10, 10);
            m.finished(&model, 200, "ok");
            m.finished(&model, 404, "model_not_found");
        }
    };
    invent(0, 1000);
    let (series, bytes) = (m.families.series(), m.render().len());
    invent(1000, 100_000);
    assert_eq!(m.families.series(), series);
    // Numbers grow, lines don't become more.
    assert!(m.render().len() < bytes + 2000);
    assert_eq!(m.model(Some("one more")).label(), super::super::OTHER);
    let page = m.render();
    let other = "homing_requests_total{model=\"other\",code=\"200\",reason=\"ok\"} 99800\n";
    assert!(page.contains(other));
}

#[test]
fn replicas_that_come_and_go_leave_nothing_behind() {
    let m = Arc::new(Metrics::new());
    let before = m.families.series();
    for i in 0..5000 {
        let name = format!("10.0.{}.{}:8000", i / 256, i % 256);
        let r = m.replica(&name);
        assert_eq!(r.label(), name, "places are given back");
        r.in_flight.set(1.0);
        r.actual_cached.add(3);
        m.set_state(&r, "ready");
        let flag = super::super::Loud::new(m.clone()).flag("metrics_stale", &name);
        flag.raise(|| "test");
        m.replica_gone(&name);
        // A request that ends late writes into nothing.
        r.in_flight.add(-1.0);
        flag.clear();
    }
    assert_eq!(m.families.series(), before);
    let m2 = m.model(Some("adapter"));
    m2.usage(1, 1);
    m.model_gone("adapter");
    assert_eq!(m.families.series(), before);
}

#[test]
fn replicas_beyond_the_cap_share_counters_and_have_no_gauges() {
    let m = Metrics::new();
    for i in 0..MAX_REPLICAS {
        m.replica(&i.to_string());
    }
    let (a, b) = (m.replica("beyond-a"), m.replica("beyond-b"));
    a.actual_cached.add(2);
    b.actual_cached.add(3);
    a.in_flight.set(7.0);
    m.set_state(&a, "ready");
    let page = m.render();
    assert!(page.contains("homing_actual_cached_tokens_total{replica=\"other\"} 5\n"));
    assert!(!page.contains("homing_replica_in_flight{replica=\"other\"}"));
    assert!(!page.contains("homing_replica_state{replica=\"other\""));
}

#[test]
fn a_replica_is_in_one_state() {
    let m = Metrics::new();
    let r = m.replica("a");
    for state in ["starting", "ready", "ready", "suspect"] {
        m.set_state(&r, state);
    }
    let page = m.render();
    for (state, value) in [("starting", 0), ("ready", 0), ("suspect", 1)] {
        let line = format!("homing_replica_state{{replica=\"a\",state=\"{state}\"}} {value}\n");
        assert!(page.contains(&line), "{line}");
    }
}

#[test]
fn what_is_unknown_of_a_replica_is_not_exported_as_zero() {
    let m = Metrics::new();
    let r = m.replica("a");
    assert!(!m.render().contains("homing_replica_waiting{"));
    r.waiting.set_known(Some(0.0));
    assert!(m.render().contains("homing_replica_waiting{replica=\"a\"} 0\n"));
    r.waiting.set_known(None);
    assert!(!m.render().contains("homing_replica_waiting{"));
}

#[test]
fn odd_codes_share_a_label() {
    let m = Metrics::new();
    let model = m.model(None);
    for code in 600..=u16::MAX {
        m.finished(&model, code, "replica_failed");
    }
    m.finished(&model, 0, "client_gone");
    let page = m.render();
    assert!(page.contains(
        "homing_requests_total{model=\"unknown\",code=\"other\",reason=\"replica_failed\"} 64936\n"
    ));
    assert!(page.contains("homing_requests_total{model=\"unknown\",code=\"0\",reason=\"client_gone\"} 1\n"));
}

#[test]
fn opentelemetry_names_show_the_same_numbers() {
    let m = Metrics::new();
    let model = m.model(Some("m"));
    model.ttft.observe(0.3);
    model.request.observe(3.0);
    model.usage(100, 20);
    let page = m.render();
    for line in [
        "homing_ttft_seconds_count{model=\"m\"} 1\n",
        "gen_ai_server_time_to_first_token_seconds_count{gen_ai_request_model=\"m\"} 1\n",
        "gen_ai_server_request_duration_seconds_sum{gen_ai_request_model=\"m\"} 3\n",
        "gen_ai_client_token_usage_sum{gen_ai_request_model=\"m\",gen_ai_token_type=\"input\"} 100\n",
        "homing_output_tokens_total{model=\"m\"} 20\n",
    ] {
        assert!(page.contains(line), "{line}");
    }
}

/// Each line is a comment or `name{labels} number`, and each metric is announced once, before its series.
#[test]
fn the_page_is_well_formed() {
    let m = Metrics::new();
    let model = m.model(Some("a\"b"));
    m.finished(&model, 502, "reset");
    m.retried("reset");
    m.queue.observe(0.2);
    m.replica("r").up.set(1.0);
    let page = m.render();
    let mut announced = std::collections::HashSet::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            assert!(announced.insert(rest.split(' ').next().unwrap()), "{line}");
        } else if !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').unwrap();
            assert!(value == "+Inf" || value.parse::<f64>().is_ok(), "{line}");
            let name = series.split('{').next().unwrap();
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|s| name.strip_suffix(s));
            assert!(announced.contains(name) || base.is_some_and(|b| announced.contains(b)), "{line}");
        }
    }
    assert!(announced.contains("homing_build_info") && announced.contains("homing_requests_total"));
}
