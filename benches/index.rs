//! The prefix index: matching, placing, settling and evicting.
//!
//! Every figure is one operation on a chain of the given number of blocks; `items` counts its blocks.

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use homing::core::prefix::snapshot::{Header, Saved};
use homing::core::prefix::{Blocks, IndexConfig, Matches, Part, PrefixIndex, Root};
use homing::core::{Holder, RequestId, Time};

fn main() {
    divan::main();
}

const CASES: [(u16, usize); 4] = [(16, 512), (16, 2000), (64, 512), (64, 2000)];
const NOW: Time = Time(0);

/// A chain of `n` blocks: those of a system prompt (`shared` of them), then its own.
fn chain(shared: usize, own: u64, n: usize) -> Vec<u64> {
    let mix =
        |a: u64, b: u64| (a ^ b.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (0..n as u64)
        .scan(7u64, |hash, i| {
            let word = if (i as usize) < shared { 0 } else { own + 1 };
            *hash = mix(hash.rotate_left(23), word ^ i);
            Some(*hash)
        })
        .collect()
}

/// A fleet in use: every holder has the first half of the chain, some go farther, and each has its own prompts.
fn fleet(holders: u16, blocks: usize, capacity: Option<u64>) -> (PrefixIndex, Vec<u64>) {
    let mut index = PrefixIndex::new(IndexConfig::default());
    let target = chain(blocks / 2, 0, blocks);
    for h in 0..holders {
        index.join(h, capacity);
        for own in 1..20 {
            index.insert(NOW, &chain(blocks / 2 - 7 * own as usize, u64::from(h) * 1000 + own, blocks), h);
        }
        let part = blocks / 2 + blocks / 2 * usize::from(h) / usize::from(holders);
        index.insert(NOW, &target[..part], h);
    }
    index.insert(NOW, &target, holders - 1);
    (index, target)
}

#[divan::bench(args = CASES)]
fn matches(bencher: Bencher<'_, '_>, (holders, blocks): (u16, usize)) {
    let (index, target) = fleet(holders, blocks, None);
    let mut out = Matches::new();
    index.matches(&target, &mut out);
    assert_eq!(out.best() as usize, blocks);
    assert_eq!(out.iter().count(), usize::from(holders));
    bencher.counter(ItemsCount::new(blocks)).bench_local(|| index.matches(black_box(&target), &mut out));
}

/// A new prompt of which half is known: placed, then its first token comes, under a full cache.
#[divan::bench(args = CASES)]
fn speculate_confirm_evict(bencher: Bencher<'_, '_>, (holders, blocks): (u16, usize)) {
    let (mut index, _) = fleet(holders, blocks, Some(20 * blocks as u64 / 2));
    let mut serial = 1_000_000;
    bencher
        .counter(ItemsCount::new(blocks))
        .with_inputs(|| {
            serial += 1;
            (serial, chain(blocks / 2, serial, blocks))
        })
        .bench_local_values(|(serial, chain)| {
            let h = (serial % u64::from(holders)) as Holder;
            index.speculate(NOW, RequestId(serial), &chain, h);
            index.confirm(NOW, RequestId(serial), 4);
        });
}

/// The same chain over and over, as for one hot prompt.
#[divan::bench(args = CASES)]
fn speculate_rollback(bencher: Bencher<'_, '_>, (holders, blocks): (u16, usize)) {
    let (mut index, target) = fleet(holders, blocks, None);
    let mut serial = 0;
    bencher.counter(ItemsCount::new(blocks)).bench_local(|| {
        serial += 1;
        index.speculate(NOW, RequestId(serial), &target, 0);
        index.rollback(RequestId(serial));
    });
}

/// Ten thousand requests of one prompt in flight at once; one operation is all of them placed and settled.
#[divan::bench(sample_count = 10)]
fn ten_thousand_alike(bencher: Bencher<'_, '_>) {
    bencher
        .counter(ItemsCount::new(10_000u32))
        .with_inputs(|| fleet(16, 2000, Some(40_000)))
        .bench_local_values(|(mut index, target)| {
            (0..10_000).for_each(|id| index.speculate(NOW, RequestId(id), &target, (id % 2) as Holder));
            (0..5_000).for_each(|id| index.rollback(RequestId(id)));
            (5_000..10_000).for_each(|id| index.confirm(NOW, RequestId(id), 1));
            index
        });
}

/// Distinct prompts of 32 blocks against the bound of the whole index.
#[divan::bench]
fn distinct_under_the_bound(bencher: Bencher<'_, '_>) {
    let mut index = PrefixIndex::new(IndexConfig { max_blocks: 1_000_000, ..IndexConfig::default() });
    (0..16).for_each(|h| assert!(index.join(h, None)));
    let mut serial = 0;
    let mut next = move || {
        serial += 1;
        (serial, chain(0, serial, 32))
    };
    for (serial, chain) in (0..40_000).map(|_| next()) {
        index.insert(NOW, &chain, (serial % 16) as Holder);
    }
    bencher
        .counter(ItemsCount::new(32u32))
        .with_inputs(next)
        .bench_local_values(|(serial, chain)| index.insert(NOW, &chain, (serial % 16) as Holder));
}

/// The whole index as bytes: the part for which its lock is held.
#[divan::bench(args = CASES)]
fn snapshot(bencher: Bencher<'_, '_>, (holders, blocks): (u16, usize)) {
    let (index, _) = fleet(holders, blocks, None);
    let header = Header { seed: 1, block_bytes: 256, written: 0 };
    let count = ItemsCount::new(index.stats().distinct_blocks);
    bencher.counter(count).bench_local(|| index.snapshot(header, |h| Some(h.to_string()), &[]));
}

/// From bytes to an index.
#[divan::bench(args = CASES)]
fn restore(bencher: Bencher<'_, '_>, (holders, blocks): (u16, usize)) {
    let (index, _) = fleet(holders, blocks, None);
    let header = Header { seed: 1, block_bytes: 256, written: 0 };
    let count = ItemsCount::new(index.stats().distinct_blocks);
    let bytes = index.snapshot(header, |h| Some(h.to_string()), &[]).seal();
    bencher.counter(count).bench_local(|| {
        let mut index = PrefixIndex::new(IndexConfig::default());
        let Ok(mut saved) = Saved::decode(&bytes) else { return index };
        for h in 0..holders {
            index.join(h, None);
            saved.restore(&mut index, NOW, &h.to_string(), h);
        }
        index
    });
}

/// From text to chain, 128k tokens' worth in parts of 4 KB.
#[divan::bench]
fn hash_512_kb(bencher: Bencher<'_, '_>) {
    let text = vec![b'x'; 512 * 1024];
    let mut blocks = Blocks::new(1, 256);
    let mut out = Vec::new();
    let root = Root { model: "model", lora: None, cache_salt: None };
    bencher.bench_local(|| {
        blocks.clear();
        for part in text.chunks(4096) {
            blocks.mark(Part::Role(b"user"));
            blocks.push(part);
        }
        blocks.chain_into(&root, &mut out)
    });
}
