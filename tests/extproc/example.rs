//! The example of an Envoy around Homing says what the protocol needs.

use serde_json::Value;
use std::path::Path;

fn example() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/envoy/envoy.yaml");
    serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The first object under `at` whose `name` is this.
fn named<'a>(at: &'a Value, name: &str) -> Option<&'a Value> {
    if at["name"] == name {
        return Some(at);
    }
    match at {
        Value::Array(list) => list.iter().find_map(|v| named(v, name)),
        Value::Object(map) => map.values().find_map(|v| named(v, name)),
        _ => None,
    }
}

#[test]
fn the_filter_speaks_the_protocol() {
    let example = example();
    let filter = &named(&example, "envoy.filters.http.ext_proc").unwrap()["typed_config"];
    let mode = &filter["processing_mode"];
    for side in ["request", "response"] {
        assert_eq!(mode[format!("{side}_header_mode")], "SEND");
        assert_eq!(mode[format!("{side}_body_mode")], "FULL_DUPLEX_STREAMED");
        assert_eq!(mode[format!("{side}_trailer_mode")], "SEND", "full duplex needs trailers");
    }
    let forward = &filter["metadata_options"]["forwarding_namespaces"]["untyped"];
    assert_eq!(*forward, serde_json::json!(["envoy.lb", "envoy.lb.subset_hint"]));
    assert_eq!(
        filter["metadata_options"]["receiving_namespaces"]["untyped"],
        serde_json::json!(["envoy.lb"])
    );
}

#[test]
fn the_clusters_take_a_list_tell_who_served_and_have_room() {
    let example = example();
    let policy = &named(&example, "envoy.load_balancing_policies.override_host").unwrap()["typed_config"];
    let metadata = &policy["override_host_sources"][0]["metadata"];
    assert_eq!(
        (&metadata["key"], &metadata["path"][0]["key"]),
        (&"envoy.lb".into(), &"x-gateway-destination-endpoint".into())
    );
    assert_eq!(policy["selected_host_key"]["path"][0]["key"], "x-gateway-destination-endpoint-served");
    for cluster in ["replicas", "homing"] {
        let room = &named(&example, cluster).unwrap()["circuit_breakers"]["thresholds"][0];
        assert!(room["max_requests"].as_u64().unwrap() > 10_000, "{cluster}");
    }
    assert!(
        named(&example, "envoy.transport_sockets.tls").is_some(),
        "Homing's port has TLS unless it is told otherwise"
    );
}
