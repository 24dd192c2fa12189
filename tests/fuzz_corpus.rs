//! The fuzz targets on their committed corpora and on mutations of them, with the stable compiler: a short look in each test run, and
//! as long as wanted with `HOMING_FUZZ_SECONDS`. The long, coverage-guided runs are those of `fuzz/` (cargo-fuzz).

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a target panics when it finds something")]

#[path = "../fuzz/src/targets.rs"]
#[expect(unreachable_pub, reason = "public where it is a crate of its own")]
mod targets;

use fastrand::Rng;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

/// Mutated inputs a target in an ordinary test run.
const INPUTS: u32 = 3_000;
/// Longest input.
const MOST: usize = 16 << 10;

/// Pieces that mean something to one of the parsers.
const WORDS: &[&str] = &[
    "\"",
    "\\",
    "\\u",
    "\\ud83d",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "null",
    "true",
    "1e999",
    "-0",
    "\n\n",
    "\r\n",
    "data: ",
    "[DONE]",
    "event: ",
    "\"stream_options\":",
    "\"stream\":true",
    "\"messages\":",
    "\"usage\":{",
    "NaN",
    "+Inf",
    "vllm:",
    "${A}",
    "- ",
    "&a",
    "*a",
    "\"hash_ids\":[",
    "18446744073709551615",
    "\u{0}",
    "\u{feff}",
];

fn mutate(seeds: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let pick = |rng: &mut Rng| seeds[rng.usize(..seeds.len())].clone();
    let mut input = pick(rng);
    for _ in 0..rng.u32(1..6) {
        let at = rng.usize(..=input.len());
        let to = (at + rng.usize(..32)).min(input.len());
        match rng.u8(..8) {
            0 if at < input.len() => input[at] ^= 1 << rng.u8(..8),
            1 if at < input.len() => input[at] = rng.u8(..),
            2 => drop(input.drain(at..to)),
            3 => input.truncate(at),
            4 => {
                let copy = input[at..to].to_vec();
                input.splice(at..at, copy);
            }
            5 => {
                let other = pick(rng);
                let from = rng.usize(..=other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            _ => drop(input.splice(at..at, WORDS[rng.usize(..WORDS.len())].bytes())),
        }
    }
    input.truncate(MOST);
    input
}

fn drive(name: &str, target: fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let mut files: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let seeds: Vec<Vec<u8>> = files.iter().map(|f| fs::read(f).unwrap()).collect();
    assert!(!seeds.is_empty(), "no corpus in {}", dir.display());
    let try_one = |input: &[u8]| {
        if let Err(why) = catch_unwind(AssertUnwindSafe(|| target(input))) {
            let saved = std::env::temp_dir()
                .join(format!("homing-fuzz-{name}-{:016x}", xxhash_rust::xxh3::xxh3_64(input)));
            fs::write(&saved, input).unwrap();
            eprintln!("{name}: the input is in {}", saved.display());
            std::panic::resume_unwind(why);
        }
    };
    seeds.iter().for_each(|s| try_one(s));
    let seconds = std::env::var("HOMING_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok());
    let mut rng = Rng::with_seed(if seconds.is_some() { fastrand::u64(..) } else { 1 });
    let (begun, mut count) = (Instant::now(), 0);
    while seconds.map_or(count < INPUTS, |s| begun.elapsed() < Duration::from_secs(s)) {
        try_one(&mutate(&seeds, &mut rng));
        count += 1;
    }
    eprintln!("{name}: {count} inputs");
}

#[test]
fn request_bodies() {
    drive("body", targets::body);
}

#[test]
fn event_streams() {
    drive("sse", targets::sse);
}

#[test]
fn metrics_pages() {
    drive("prometheus", targets::prometheus);
}

#[test]
fn configurations() {
    drive("config", targets::config);
}

#[test]
fn trace_files() {
    drive("trace", targets::trace);
}

#[test]
fn kv_events() {
    drive("kv_events", targets::kv_events);
}

#[test]
fn snapshots() {
    drive("snapshot", targets::snapshot);
}
