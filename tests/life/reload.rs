//! Reloads under load.

use crate::load::{Client, Crowd};
use crate::process::{Dir, Router, config, replica, until};
use std::fs;

/// Reloads of the test; `HOMING_RELOADS` says otherwise.
const RELOADS: u64 = 50;

fn reloads() -> u64 {
    std::env::var("HOMING_RELOADS").ok().and_then(|n| n.parse().ok()).unwrap_or(RELOADS)
}

/// Each reload changes the list of replicas (one of three comes and goes), a time-out, the line and a weight.
#[test]
fn case_37_reloads_under_load_lose_nothing_and_a_bad_configuration_is_refused() {
    let dir = Dir::new("reload");
    let (a, b) = (replica(), replica());
    let with = |n: u64| {
        let second = if n.is_multiple_of(2) { String::new() } else { format!(", {{url: 'http://{b}'}}") };
        config(a, "").replace("'}]", &format!("'}}{second}]"))
            + &format!(
                "timeouts: {{connect: {}s}}\nqueue: {{max: {}}}\nprice: {{harm: 0.{}}}\n",
                2 + n % 2,
                500 + n,
                1 + n % 3
            )
    };
    let router = Router::start(&dir, &with(0));
    let crowd = Crowd::new(router.data, 8);
    crowd.wait(10);
    for n in 1..=reloads() {
        fs::write(&router.config, with(n)).unwrap();
        let (status, told) = router.admin("POST", "/reload", "");
        // The file's own watch may have been faster.
        assert!(
            status == 200 && ["applied", "unchanged"].contains(&told["outcome"].as_str().unwrap()),
            "{told}"
        );
        assert_eq!(told["restart_needed"].as_array().unwrap().len(), 0, "{told}");
        if n % 10 == 0 {
            fs::write(&router.config, "replicas: [{url: 'http://a', nmae: x}]\n").unwrap();
            let (status, told) = router.admin("POST", "/reload", "");
            assert_eq!((status, told["outcome"].as_str()), (422, Some("refused")), "{told}");
            assert!(told["reason"].as_str().unwrap().contains("did you mean `name`?"), "{told}");
            assert_eq!(router.admin("GET", "/config", "").1["queue"]["max"], 500 + n, "the old one stays");
            assert_eq!(router.admin("GET", "/reload", "").1["outcome"], "refused");
        }
    }
    crowd.wait(20);
    let (answers, faults) = crowd.end();
    assert!(
        faults.is_empty(),
        "{} of {answers} went wrong: {:?}",
        faults.len(),
        &faults[..faults.len().min(5)]
    );
    let applied = router.metric("homing_config_reloads_total{outcome=\"applied\"}");
    eprintln!("{} reloads ({applied} applied), {answers} answers, {} faults", reloads(), faults.len());
    assert!(applied >= 10.0);
    assert!(router.metric("homing_config_reloads_total{outcome=\"refused\"}") >= 1.0);
    assert_eq!(router.matched(&"x".repeat(4000)), 0);
    assert!(router.stop().success());
}

#[test]
fn a_reload_by_signal_and_by_file_names_what_needs_a_restart_and_keeps_what_is_known() {
    let dir = Dir::new("signal");
    let at = replica();
    let router = Router::start(&dir, &config(at, ""));
    let prompt = "what is known of caches ".repeat(200);
    Client::new(router.data).chat(&prompt, 2).unwrap();
    let known = router.matched(&prompt);
    assert!(known > 10);
    // By signal: the cap of a replica is a new specification of the same replica, and its cache is the same.
    let text = config(at, "index: {block_bytes: 128}").replace("'}]", "', max_in_flight: 7}]");
    fs::write(&router.config, &text).unwrap();
    router.signal("HUP");
    until("it is reloaded", || router.admin("GET", "/config", "").1["replicas"][0]["max_in_flight"] == 7);
    until("the reload is told", || {
        router.admin("GET", "/reload", "").1["restart_needed"][0] == "index.block_bytes"
    });
    until("the new life serves alone", || {
        let replicas = router.admin("GET", "/replicas", "").1["replicas"].clone();
        replicas.as_array().unwrap().len() == 1 && replicas[0]["cap"] == 7 && replicas[0]["state"] == "ready"
    });
    assert_eq!(router.matched(&prompt), known);
    // By file: nobody is told, it is seen.
    fs::write(&router.config, text.replace("max_in_flight: 7", "max_in_flight: 9")).unwrap();
    until("it is seen", || router.admin("GET", "/config", "").1["replicas"][0]["max_in_flight"] == 9);
    assert_eq!(router.admin("GET", "/reload", "").1["by"], "file");
    fs::write(&router.config, "listen: nowhere\n").unwrap();
    until("a bad one is refused", || router.admin("GET", "/reload", "").1["outcome"] == "refused");
    let (_, front) = router.admin("GET", "/", "");
    assert!(front.as_str().unwrap().contains("RELOAD REFUSED (by file)"), "{front}");
    assert!(!router.lines("the new configuration is refused").is_empty());
    Client::new(router.data).chat(&prompt, 2).unwrap();
}

#[test]
fn a_listener_moves_when_its_address_changes_and_what_it_serves_goes_on() {
    let dir = Dir::new("move");
    let at = replica();
    let router = Router::start(&dir, &config(at, ""));
    let crowd = Crowd::new(router.data, 4);
    crowd.wait(4);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    // An address that is taken: refused as a whole.
    fs::write(&router.config, config(at, &format!("listen: '{}'\nqueue: {{max: 3}}", router.admin))).unwrap();
    let (status, told) = router.admin("POST", "/reload", "");
    assert!(status == 422 && told["reason"].as_str().unwrap().contains("data port"), "{told}");
    assert_ne!(router.admin("GET", "/config", "").1["queue"]["max"], 3);
    // The crowd's connections go on; only new ones find the door elsewhere.
    let (answers, faults) = crowd.end();
    assert!(faults.is_empty(), "{answers}: {faults:?}");
    let mut old = Client::new(router.data);
    old.chat("before", 2).unwrap();
    fs::write(&router.config, config(at, &format!("listen: '{free}'"))).unwrap();
    let (status, told) = router.admin("POST", "/reload", "");
    assert_eq!((status, &told["changed"][0]), (200, &serde_json::json!("listen")), "{told}");
    old.chat("the connection is still served", 2).unwrap();
    until("the new address answers", || Client::new(free).chat("after", 2).is_ok());
    assert!(Client::new(router.data).chat("nobody is there", 2).is_err());
}
