//! A router that was stopped and started again.

use crate::load::Client;
use crate::process::{Dir, Router, config, replica};
use std::fs;

#[test]
fn a_restarted_router_has_the_same_matches() {
    let dir = Dir::new("snapshot");
    let file = dir.path("index.snapshot");
    let text = config(replica(), &format!("snapshot: {{path: '{}'}}", file.display()));
    let prompts: Vec<String> = (0..5).map(|n| format!("prompt number {n} ").repeat(100 + 60 * n)).collect();
    let router = Router::start(&dir, &text);
    for p in &prompts {
        Client::new(router.data).chat(p, 2).unwrap();
    }
    let known: Vec<u64> = prompts.iter().map(|p| router.matched(p)).collect();
    assert!(known.iter().all(|n| *n > 3), "{known:?}");
    assert!(router.stop().success());
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600, "it holds the seed");
    let router = Router::start(&dir, &text);
    assert_eq!(prompts.iter().map(|p| router.matched(p)).collect::<Vec<_>>(), known);
    assert_eq!(router.metric("homing_snapshots_total{outcome=\"restored\"}"), 1.0);
    assert!(router.stop().success());
    // Changed on disk: refused loudly, and the router starts cold.
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).unwrap();
    let router = Router::start(&dir, &text);
    assert!(prompts.iter().all(|p| router.matched(p) == 0));
    assert_eq!(router.lines("its checksum is wrong").len(), 1);
    assert_eq!(router.metric("homing_snapshots_total{outcome=\"refused\"}"), 1.0);
    Client::new(router.data).chat(&prompts[0], 2).unwrap();
}
