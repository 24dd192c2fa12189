//! The whole router in virtual time: the production shell and brain (`Router`, reservations, the line, deadlines, membership by
//! discovery's plan, reconfiguration, snapshots) among simulated replicas that die, hang, slow down, lose their metrics or can't
//! be probed, and clients that leave, wait, retry and give up.
//!
//! Each seed is a schedule. After each step the books are compared with the simulation's own; a failing seed prints how to
//! run it again. Time is tokio's, paused: it jumps from event to event, so that a minute takes milliseconds and is the same each
//! time.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a broken invariant ends the test")]

mod replica;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// One schedule, in a runtime of its own.
fn run(seed: u64) -> world::Report {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, world::run(seed))
}

/// Schedules of a part in an ordinary test run.
const ENOUGH: u64 = 250;

/// `HOMING_SEED` alone, or `HOMING_SEEDS` of this part.
fn seeds(part: u64) {
    let one = number("HOMING_SEED", u64::MAX);
    let range = if one == u64::MAX {
        let count = number("HOMING_SEEDS", ENOUGH);
        part * 1_000_000..part * 1_000_000 + count
    } else {
        one..one + 1
    };
    let mut total = world::Report::default();
    for seed in range {
        match catch_unwind(AssertUnwindSafe(|| run(seed))) {
            Ok(report) => total.add(&report),
            Err(why) => {
                eprintln!("seed {seed} fails: HOMING_SEED={seed} cargo test --test router_simulation part_0");
                std::panic::resume_unwind(why);
            }
        }
    }
    eprintln!("{total:?}");
    if one == u64::MAX && number("HOMING_SEEDS", ENOUGH) >= ENOUGH {
        // A schedule in which nothing happens proves nothing.
        for (what, n) in [
            ("answers", total.answered),
            ("cancellations", total.cancelled),
            ("deadlines", total.refused),
            ("attempts again", total.retried),
            ("broken streams", total.broken),
            ("reloads", total.reloads),
        ] {
            assert!(n > 50, "only {n} {what}: {total:?}");
        }
    }
}

#[test]
fn schedules_hold_all_promises_part_0() {
    seeds(0);
}

#[test]
fn schedules_hold_all_promises_part_1() {
    seeds(1);
}

#[test]
fn the_same_seed_is_the_same_run() {
    let (a, b, c) = (run(42), run(42), run(43));
    assert_eq!(a.trace, b.trace);
    assert_ne!(a.trace, c.trace, "the trace says what happened");
}
