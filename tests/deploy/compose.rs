//! The example fleet: services, ports, Prometheus' targets, and the dashboard's metrics.

use crate::yaml::{list, read, root, yaml};
use homing::cli::check_command_line;
use homing::config::{Config, Overrides, parse};
use homing::observe::{Loud, Metrics};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const DIR: &str = "examples/compose";

fn services() -> BTreeMap<String, Value> {
    let compose = yaml(&read(&format!("{DIR}/compose.yaml")));
    compose["services"].as_object().unwrap().clone().into_iter().collect()
}

fn config() -> Config {
    let text = read(&format!("{DIR}/homing.yaml"));
    let (config, report) = parse(&text, &Overrides::default(), &|_| None).unwrap();
    assert_eq!(report.to_string(), "");
    config
}

fn words(service: &Value) -> Vec<&str> {
    std::iter::once("homing").chain(list(&service["command"]).iter().filter_map(Value::as_str)).collect()
}

#[test]
fn the_router_finds_the_four_replicas() {
    let (services, config) = (services(), config());
    assert_eq!(config.replicas.len(), 4);
    for replica in &config.replicas {
        let (host, port) = replica.url.strip_prefix("http://").unwrap().rsplit_once(':').unwrap();
        let words = words(&services[host]);
        assert!(words.contains(&format!("0.0.0.0:{port}").as_str()), "{host}: {words:?}");
    }
    let names: Vec<&str> = list(&services["router"]["depends_on"]).iter().filter_map(Value::as_str).collect();
    assert_eq!(names, config.replicas.iter().map(|r| r.label()).collect::<Vec<_>>());
    let grace: f64 =
        services["router"]["stop_grace_period"].as_str().unwrap().trim_end_matches('s').parse().unwrap();
    assert!(grace > config.drain.delay.secs() + config.drain.grace.secs());
}

#[test]
fn every_service_runs_what_it_can_and_shows_itself_to_this_machine_only() {
    for (name, service) in services() {
        if service["image"].as_str().unwrap().starts_with("homing:") {
            check_command_line(&words(&service)).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(service["read_only"], true, "{name}");
            assert_eq!(service["cap_drop"][0], "ALL", "{name}");
        }
        for port in list(&service["ports"]) {
            assert!(port.as_str().unwrap().starts_with("127.0.0.1:"), "{name}: {port}");
        }
        for volume in list(&service["volumes"]) {
            let (from, rest) = volume.as_str().unwrap().split_once(':').unwrap();
            assert!(root().join(DIR).join(from).exists(), "{name}: {from}");
            assert!(rest.ends_with(":ro"), "{name}: {volume}");
        }
    }
    let config = config();
    let services = services();
    let published: Vec<&str> = list(&services["router"]["ports"]).iter().filter_map(Value::as_str).collect();
    for port in [config.listen.port(), config.metrics.port()] {
        assert!(published.contains(&format!("127.0.0.1:{port}:{port}").as_str()), "{published:?}");
    }
}

#[test]
fn prometheus_reads_the_router_and_the_replicas() {
    let (services, config) = (services(), config());
    let prometheus = yaml(&read(&format!("{DIR}/prometheus.yml")));
    let mut targets = BTreeSet::new();
    for job in list(&prometheus["scrape_configs"]) {
        targets.extend(
            list(&job["static_configs"][0]["targets"]).iter().map(|t| t.as_str().unwrap().to_owned()),
        );
    }
    let mut wanted = BTreeSet::from([format!("router:{}", config.metrics.port())]);
    wanted.extend(config.replicas.iter().map(|r| r.url.replace("http://", "")));
    assert_eq!(targets, wanted);
    let source = yaml(&read(&format!("{DIR}/grafana/provisioning/datasources/prometheus.yaml")));
    let url = source["datasources"][0]["url"].as_str().unwrap();
    assert!(services.contains_key(url.strip_prefix("http://").unwrap().split(':').next().unwrap()), "{url}");
    let provider = yaml(&read(&format!("{DIR}/grafana/provisioning/dashboards/homing.yaml")));
    let path = provider["providers"][0]["options"]["path"].as_str().unwrap();
    assert!(read(&format!("{DIR}/compose.yaml")).contains(&format!("./grafana/dashboards:{path}:ro")));
}

/// Every series that there can be, with its labels.
fn series() -> BTreeMap<String, BTreeSet<String>> {
    let metrics = Arc::new(Metrics::new());
    let model = metrics.model(Some("m"));
    metrics.finished(&model, 500, "upstream");
    metrics.retried("connect");
    let replica = metrics.replica("r");
    metrics.set_state(&replica, "ready");
    for gauge in [&replica.in_flight, &replica.up, &replica.waiting, &replica.kv_usage, &metrics.queue_length]
    {
        gauge.set(1.0);
    }
    Loud::new(metrics.clone()).flag("metrics_stale", "r").raise(|| "no answer");
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let page = metrics.render();
    for line in page.lines().filter(|l| !l.starts_with('#')) {
        let (series, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels.trim_end_matches('}').split(',').filter_map(|l| l.split_once('='));
        all.entry(name.to_owned()).or_default().extend(labels.map(|(k, _)| k.to_owned()));
    }
    all
}

#[test]
fn the_dashboard_asks_for_metrics_and_labels_that_exist() {
    let board: Value = serde_json::from_str(&read(&format!("{DIR}/grafana/dashboards/homing.json"))).unwrap();
    let source = yaml(&read(&format!("{DIR}/grafana/provisioning/datasources/prometheus.yaml")));
    let series = series();
    let mut seen = 0;
    for panel in list(&board["panels"]) {
        assert_eq!(panel["datasource"]["uid"], source["datasources"][0]["uid"], "{panel}");
        for target in list(&panel["targets"]) {
            let query = target["expr"].as_str().unwrap();
            let mut labels = BTreeSet::new();
            for word in
                query.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| w.starts_with("homing_"))
            {
                labels
                    .extend(series.get(word).unwrap_or_else(|| panic!("no metric {word}: {query}")).clone());
                seen += 1;
            }
            let grouped = query.split_once("by (").map(|(_, rest)| rest.split(')').next().unwrap());
            let legend = target["legendFormat"].as_str().unwrap();
            let shown = legend.split("{{").skip(1).map(|l| l.split("}}").next().unwrap());
            for label in grouped.into_iter().flat_map(|g| g.split(", ")).chain(shown) {
                assert!(labels.contains(label), "no label {label}: {query}");
            }
        }
    }
    assert!(seen >= 15, "{seen} metrics on the dashboard");
}
