//! Behaviour of the index, case by case.

use super::super::ids::RequestId;
use super::super::time::Time;
use super::{IndexConfig, Matches, PrefixIndex};
use crate::core::Holder;

const NOW: Time = Time(0);

/// A stand-in for a chain: hash `i` depends on everything before it.
fn chain(text: &str) -> Vec<u64> {
    let link = |h: &mut u64, b: u8| {
        *h = (*h ^ u64::from(b)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        Some(*h)
    };
    text.bytes().scan(1, link).collect()
}

/// A distinct prompt of `n` blocks that starts with `prefix`.
fn prompt(prefix: &str, serial: usize, n: usize) -> Vec<u64> {
    chain(&format!("{prefix}<{serial}>{}", "x".repeat(n)))[..prefix.len() + n].to_vec()
}

fn index(holders: u16, capacity: Option<u64>) -> PrefixIndex {
    let mut index = PrefixIndex::new(IndexConfig { ghost_sample: 1, ..IndexConfig::default() });
    (0..holders).for_each(|h| assert!(index.join(h, capacity)));
    index
}

fn got(index: &PrefixIndex, chain: &[u64], h: Holder) -> u32 {
    index.check_invariants();
    let mut out = Matches::new();
    index.matches(chain, &mut out);
    out.get(h)
}

#[test]
fn matches_end_where_prompts_part() {
    let mut index = index(3, None);
    index.insert(NOW, &chain("system:hello"), 0);
    index.insert(NOW, &chain("system:help"), 1);
    index.insert(NOW, &chain("sys"), 2);
    for (text, want) in [
        ("system:hello", [12, 10, 3]),
        ("system:help", [10, 11, 3]),
        ("system:hello, world", [12, 10, 3]),
        ("system", [6, 6, 3]),
        ("sy", [2, 2, 2]),
        ("other", [0, 0, 0]),
        ("", [0, 0, 0]),
    ] {
        assert_eq!([0, 1, 2].map(|h| got(&index, &chain(text), h)), want, "{text}");
    }
    assert_eq!(index.stats().distinct_blocks, 13);
    assert_eq!(got(&index, &chain("system:hello")[2..], 0), 0, "a chain starts at its root");
}

#[test]
fn case_10_block_order_matters() {
    let mut index = index(1, None);
    index.insert(NOW, &chain("ab"), 0);
    assert_eq!((got(&index, &chain("ab"), 0), got(&index, &chain("ba"), 0)), (2, 0));
}

#[test]
fn case_20_more_than_ten_replicas_with_a_common_prompt_none_is_forgotten() {
    let mut index = index(300, Some(200));
    let system = "s".repeat(40);
    for round in 0..30 {
        for h in 0..300 {
            index.insert(NOW, &prompt(&system, round * 300 + usize::from(h), 20), h);
        }
    }
    let mut out = Matches::new();
    index.matches(&chain(&system), &mut out);
    assert_eq!(out.iter().count(), 300);
    assert!(out.iter().all(|(_, n)| n == 40));
    index.check_invariants();
}

#[test]
fn speculation_counts_at_once_and_rolls_back_exactly() {
    let mut index = index(2, None);
    let (long, short) = (chain("system:one"), chain("system:"));
    index.insert(NOW, &short, 0);
    let before = index.stats();
    index.speculate(NOW, RequestId(1), &long, 0);
    index.speculate(NOW, RequestId(2), &long, 1);
    index.speculate(NOW, RequestId(3), &chain("system:two"), 1);
    assert_eq!([0, 1].map(|h| got(&index, &long, h)), [10, 10]);
    index.rollback(RequestId(1));
    index.rollback(RequestId(2));
    assert_eq!([0, 1].map(|h| got(&index, &long, h)), [7, 7], "request 3 still covers the common part");
    index.rollback(RequestId(3));
    index.rollback(RequestId(3));
    assert_eq!([0, 1].map(|h| got(&index, &long, h)), [7, 0]);
    let after = index.stats();
    assert_eq!((after.distinct_blocks, after.nodes, after.holds), (before.distinct_blocks, 1, before.holds));
}

#[test]
fn confirming_one_keeps_it_through_the_failure_of_its_twin() {
    let mut index = index(1, None);
    let both = chain("the same prompt");
    index.speculate(NOW, RequestId(1), &both, 0);
    index.speculate(NOW, RequestId(2), &both, 0);
    index.confirm(NOW, RequestId(1), 0);
    index.rollback(RequestId(2));
    assert_eq!(got(&index, &both, 0), 15);
    index.confirm(NOW, RequestId(2), 5);
    assert_eq!(index.held(0), 15, "a settled request changes nothing");
}

#[test]
fn a_retry_gives_up_the_first_place() {
    let mut index = index(2, None);
    index.speculate(NOW, RequestId(1), &chain("abc"), 0);
    index.speculate(NOW, RequestId(1), &chain("abc"), 1);
    assert_eq!([0, 1].map(|h| got(&index, &chain("abc"), h)), [0, 3]);
}

#[test]
fn speculations_are_bounded() {
    let mut index = PrefixIndex::new(IndexConfig { max_speculations: 3, ..IndexConfig::default() });
    index.join(0, None);
    (0..5).for_each(|i| index.speculate(Time(i), RequestId(i), &prompt("", i as usize, 8), 0));
    index.check_invariants();
    let stats = index.stats();
    assert_eq!((stats.speculations, stats.speculations_dropped), (3, 2));
    assert_eq!(stats.oldest_speculation, Some(Time(2)));
}

#[test]
fn eviction_takes_the_tail_of_the_oldest_leaf() {
    let mut index = index(1, Some(20));
    let (a, b, c) = (chain("system:aaaa"), chain("system:bbbb"), chain("system:cccccccc"));
    index.insert(NOW, &a, 0);
    index.insert(NOW, &b, 0);
    assert_eq!(index.space(0).room, Some(5));
    index.insert(NOW, &a, 0);
    index.insert(NOW, &c, 0);
    assert_eq!([&a, &b, &c].map(|x| got(&index, x, 0)), [11, 8, 15], "b was oldest, and lost its tail");
    index.set_capacity(0, Some(6));
    assert_eq!([&a, &b, &c].map(|x| got(&index, x, 0)), [6, 6, 6], "the root goes last");
    assert_eq!((index.held(0), index.stats().evicted_total), (6, 3 + 14));
    index.set_capacity(0, Some(0));
    assert_eq!(index.stats().nodes, 0);
    assert_eq!(index.stats().distinct_blocks, 0);
}

#[test]
fn what_requests_in_flight_use_is_not_evicted() {
    let mut index = index(1, Some(10));
    let (old, a, b) = (chain("idle"), chain("system:aaaaaaaa"), chain("system:bb"));
    index.insert(NOW, &old, 0);
    index.speculate(NOW, RequestId(1), &a, 0);
    assert_eq!(
        (got(&index, &old, 0), got(&index, &a, 0)),
        (0, 15),
        "the idle one makes room, as far as there is"
    );
    index.speculate(NOW, RequestId(2), &b, 0);
    let space = index.space(0);
    assert_eq!((got(&index, &a, 0), got(&index, &b, 0)), (15, 9));
    assert_eq!((space.room, space.pinned), (Some(0), Some(17)), "what both use is pinned once");
    index.check_invariants();
    // As they end, what the cache can't hold goes: the tail of the one that ended first.
    index.confirm(NOW, RequestId(1), 0);
    assert_eq!((got(&index, &a, 0), got(&index, &b, 0), index.held(0)), (8, 9, 10));
    index.rollback(RequestId(2));
    assert_eq!((index.held(0), index.space(0).pinned), (8, Some(0)));
    index.check_invariants();
}

#[test]
fn output_presses_on_capacity_and_goes_first() {
    let mut index = index(1, Some(20));
    let turn = chain("system:question");
    index.speculate(NOW, RequestId(1), &turn, 0);
    index.confirm(NOW, RequestId(1), 4);
    index.check_invariants();
    assert_eq!((index.held(0), index.space(0).room), (19, Some(1)));
    index.insert(NOW, &chain("another"), 0);
    index.insert(NOW, &chain("x"), 0);
    assert_eq!((got(&index, &turn, 0), index.held(0)), (12, 20), "output first, then the prompt's tail");
    index.insert(NOW, &turn, 0);
    index.output(NOW, &turn, 0, 5);
    index.check_invariants();
    index.insert(NOW, &chain("system:questionANSW"), 0);
    assert_eq!(got(&index, &chain("system:questionANSW"), 0), 19, "output became prompt: counted once");
    assert_eq!(index.held(0), 20);
}

#[test]
fn output_of_one_hot_prompt_ages_like_anything_else() {
    let mut index = index(1, Some(100));
    index.insert(NOW, &prompt("", 1, 30), 0);
    for i in 0..1000 {
        index.speculate(NOW, RequestId(i), &chain("hot"), 0);
        index.confirm(NOW, RequestId(i), 3);
        index.check_invariants();
    }
    assert_eq!(got(&index, &prompt("", 1, 30), 0), 0, "a thousand answers have gone through the cache");
    assert_eq!((got(&index, &chain("hot"), 0), index.held(0)), (3, 100));
    assert!(index.stats().holds < 10, "neighbouring stretches are one");
}

#[test]
fn feedback_lowers_and_raises_belief() {
    let mut index = index(2, None);
    let (a, b) = (chain("system:aaaa"), chain("system:bbbb"));
    index.insert(NOW, &a, 0);
    index.insert(NOW, &b, 0);
    index.correct(NOW, &a, 0, 9);
    assert_eq!((got(&index, &a, 0), got(&index, &b, 0)), (9, 11));
    index.correct(NOW, &a, 0, 3);
    assert_eq!((got(&index, &a, 0), got(&index, &b, 0)), (3, 3));
    index.correct(NOW, &chain("system:"), 0, 7);
    assert_eq!((got(&index, &a, 0), got(&index, &b, 0)), (7, 11), "b hung below the gap");
    index.correct(NOW, &a, 1, 5);
    assert_eq!(got(&index, &a, 1), 5);
    index.correct(NOW, &a, 0, 0);
    index.correct(NOW, &b, 0, 0);
    assert_eq!(index.held(0), 0);
}

#[test]
fn one_block_removed_makes_an_exact_hole() {
    for exact_removal in [false, true] {
        let mut index = PrefixIndex::new(IndexConfig { exact_removal, ..IndexConfig::default() });
        index.join(0, None);
        index.join(1, None);
        let text = chain("system:aaaa");
        index.insert(NOW, &text, 0);
        index.insert(NOW, &text, 1);
        assert!(index.remove(0, text[4]));
        assert!(!index.remove(0, text[4]) && !index.remove(0, 12345) && !index.remove(7, text[0]));
        assert_eq!([0, 1].map(|h| got(&index, &text, h)), [4, 11]);
        assert_eq!(index.held(0), 10);
        index.insert(NOW, &chain("sysxyz"), 1);
        assert_eq!(got(&index, &text, 0), 4, "a split keeps the hole");
        index.speculate(NOW, RequestId(1), &text, 0);
        assert_eq!(got(&index, &text, 0), 11);
        index.rollback(RequestId(1));
        assert_eq!(got(&index, &text, 0), 4);
        index.insert(NOW, &text[..5], 0);
        assert_eq!(got(&index, &text, 0), 11, "the hole is filled, and what is behind counts again");
    }
}

#[test]
fn leave_and_clear_forget_everything() {
    let mut index = index(2, Some(100));
    for h in [0, 1] {
        index.insert(NOW, &chain("system:a"), h);
        index.speculate(NOW, RequestId(u64::from(h)), &chain("system:b"), h);
        index.output(NOW, &chain("system:a"), h, 3);
    }
    index.clear(0);
    assert_eq!([0, 1].map(|h| got(&index, &chain("system:b"), h)), [0, 8]);
    index.confirm(NOW, RequestId(0), 3);
    assert_eq!((index.held(0), index.space(0).room), (0, Some(100)));
    index.leave(1);
    index.insert(NOW, &chain("late"), 1);
    index.speculate(NOW, RequestId(9), &chain("late"), 1);
    index.check_invariants();
    let stats = index.stats();
    assert_eq!((stats.nodes, stats.holds, stats.speculations), (0, 0, 0));
    assert!(!index.join(5000, None), "out of range");
}

#[test]
fn a_growing_conversation_stays_one_run() {
    let mut index = index(1, None);
    let all = prompt("", 0, 1000);
    for turn in 1..=100 {
        index.speculate(NOW, RequestId(turn), &all[..turn as usize * 10], 0);
        index.confirm(NOW, RequestId(turn), 2);
    }
    assert_eq!(got(&index, &all, 0), 1000);
    assert_eq!(index.stats().nodes, 1);
}

#[test]
fn runs_join_again_when_what_split_them_is_gone() {
    let mut index = index(2, None);
    let long = prompt("", 0, 100);
    index.insert(NOW, &long, 0);
    index.insert(NOW, &long, 1);
    for at in 1..100 {
        let mut other = long[..at].to_vec();
        other.push(at as u64);
        index.speculate(NOW, RequestId(at as u64), &other, 0);
    }
    assert!(index.stats().nodes > 190);
    (1..100).for_each(|id| index.rollback(RequestId(id)));
    index.insert(NOW, &long, 0);
    index.insert(NOW, &long, 1);
    assert_eq!(got(&index, &long, 0), 100);
    assert_eq!(index.stats().nodes, 1);
}

#[test]
fn evicted_blocks_that_return_are_regretted() {
    let mut thrash = index(1, Some(100));
    let mut calm = index(1, Some(100));
    for round in 0..40 {
        for i in 0..5 {
            thrash.insert(NOW, &prompt("", i, 30), 0);
            calm.insert(NOW, &prompt("", round * 5 + i, 30), 0);
        }
    }
    assert!(thrash.reuse() > 0.8, "{}", thrash.reuse());
    assert!(calm.reuse() < 0.01, "{}", calm.reuse());
    assert_eq!(index(1, None).reuse(), 0.0);
}

#[test]
fn a_hash_in_two_places_does_no_harm() {
    let mut index = index(1, None);
    for chain in [&[1, 2, 3][..], &[9, 2], &[1, 7], &[2, 5], &[1, 2, 3, 3], &[3, 1], &[7, 7, 7], &[7, 8]] {
        index.insert(NOW, chain, 0);
        index.check_invariants();
        index.remove(0, 3);
        index.check_invariants();
    }
}

#[test]
fn case_21_memory_stays_flat_over_distinct_prompts() {
    let prompts = 1_000_000;
    let mut index = PrefixIndex::new(IndexConfig { max_blocks: 100_000, ..IndexConfig::default() });
    (0..16).for_each(|h| assert!(index.join(h, None)));
    let mut early = 0;
    let mut chain = [0u64; 32];
    for i in 0..prompts {
        let base = (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        chain
            .iter_mut()
            .enumerate()
            .for_each(|(k, hash)| *hash = base ^ (k as u64).wrapping_mul(0xD6E8_FEB8));
        index.speculate(NOW, RequestId(i as u64), &chain, (i % 16) as Holder);
        index.confirm(NOW, RequestId(i as u64), 1);
        if i == prompts / 5 {
            early = index.stats().bytes;
        }
    }
    let stats = index.stats();
    assert!(stats.distinct_blocks <= 100_000 && stats.distinct_blocks > 99_000);
    assert!(stats.bytes <= early + early / 20, "{} bytes, then {}", early, stats.bytes);
    assert!(stats.bytes < 100_000 * 64, "{} bytes", stats.bytes);
    index.check_invariants();
}
