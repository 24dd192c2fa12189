//! The follower against an engine that is modelled naively.

use super::*;
use crate::core::Time;
use crate::core::prefix::{IndexConfig, Matches, PrefixIndex, Root, TokenChain};
use std::collections::{BTreeMap, HashMap};

const SEED: u64 = 11;

fn follower(block: u32) -> Follower {
    Follower::new(FollowerConfig {
        seed: SEED,
        block,
        model: "m".into(),
        max_blocks: 100_000,
        max_orphan_tokens: 100_000,
    })
}

/// A holder under test: follower and index, fed with events, asked with token ids.
struct Rig {
    follower: Follower,
    index: PrefixIndex,
    ours: u32,
    clock: u64,
}

impl Rig {
    fn new(ours: u32) -> Self {
        let mut index = PrefixIndex::new(IndexConfig::default());
        index.join(0, None);
        index.follow(0, true);
        Rig { follower: follower(ours), index, ours, clock: 0 }
    }

    fn feed(&mut self, event: KvEvent) {
        let mut changes = Vec::new();
        self.follower.apply(event, &mut changes);
        self.clock += 1;
        self.index.apply(Time(self.clock), 0, &changes);
        self.index.check_invariants();
    }

    fn matched(&self, keys: &Root<'_>, ids: &[u32]) -> u32 {
        let mut chain = TokenChain::new(SEED, self.ours, keys);
        chain.extend(ids);
        let mut out = Matches::new();
        self.index.matches(chain.hashes(), &mut out);
        out.get(0)
    }
}

const KEYS: Root<'static> = Root { model: "m", lora: None, cache_salt: None };

/// The engine's name of the block that ends these ids.
fn name(ids: &[u32], lora: Option<&str>, salt: Option<&str>) -> u64 {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let root = format!("{lora:?}{salt:?}{}", ids.len());
    xxhash_rust::xxh3::xxh3_64_with_seed(&bytes, xxhash_rust::xxh3::xxh3_64(root.as_bytes()))
}

/// The announcement of blocks `from..to` of `size` of a prompt.
fn store(ids: &[u32], size: u32, from: usize, to: usize) -> Stored {
    let size_ = size as usize;
    Stored {
        hashes: (from..to).map(|i| name(&ids[..(i + 1) * size_], None, None)).collect(),
        parent: (from > 0).then(|| name(&ids[..from * size_], None, None)),
        tokens: ids[from * size_..to * size_].to_vec(),
        block: size,
        whole: true,
        ..Stored::default()
    }
}

fn gone(ids: &[u32], size: u32, blocks: &[usize]) -> KvEvent {
    let hashes = blocks.iter().map(|i| name(&ids[..(i + 1) * size as usize], None, None)).collect();
    KvEvent::Removed(Removed { hashes, ..Removed::default() })
}

#[test]
fn stored_blocks_are_found_by_their_ids_until_they_are_removed() {
    let mut rig = Rig::new(4);
    let ids: Vec<u32> = (0..40).collect();
    rig.feed(KvEvent::Stored(store(&ids, 4, 0, 6)));
    rig.feed(KvEvent::Stored(store(&ids, 4, 6, 10)));
    assert_eq!((rig.matched(&KEYS, &ids), rig.matched(&KEYS, &ids[..22])), (10, 5));
    rig.feed(gone(&ids, 4, &[9, 7]));
    assert_eq!(rig.matched(&KEYS, &ids), 7);
    rig.feed(KvEvent::Stored(store(&ids, 4, 7, 8)));
    assert_eq!(rig.matched(&KEYS, &ids), 9, "what lies behind is found again");
}

#[test]
fn case_17_all_blocks_cleared_clears() {
    let mut rig = Rig::new(4);
    let ids: Vec<u32> = (0..40).collect();
    rig.feed(KvEvent::Stored(store(&ids, 4, 0, 10)));
    rig.feed(KvEvent::Stored(store(&(100..140).collect::<Vec<_>>(), 4, 3, 10)));
    rig.feed(KvEvent::Cleared);
    let tally = rig.follower.tally();
    assert_eq!((rig.matched(&KEYS, &ids), rig.index.held(0), tally.known, tally.orphans), (0, 0, 0, 0));
    rig.feed(KvEvent::Stored(store(&ids, 4, 0, 2)));
    assert_eq!(rig.matched(&KEYS, &ids), 2);
}

#[test]
fn case_19_blocks_whose_beginning_comes_later_are_joined() {
    let ids: Vec<u32> = (0..80).collect();
    // In any order: each run waits for the one before it.
    let runs = [(0, 3), (3, 7), (7, 8), (8, 20)];
    for order in [[3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1], [0, 3, 2, 1]] {
        let mut rig = Rig::new(4);
        for at in order {
            rig.feed(KvEvent::Stored(store(&ids, 4, runs[at].0, runs[at].1)));
        }
        assert_eq!(rig.matched(&KEYS, &ids), 20, "{order:?}");
        assert!(!rig.follower.joined_late());
    }
    // What was removed meanwhile isn't there when it is joined.
    let mut rig = Rig::new(4);
    rig.feed(KvEvent::Stored(store(&ids, 4, 5, 20)));
    rig.feed(gone(&ids, 4, &[19, 12]));
    assert!(rig.follower.joined_late());
    rig.feed(KvEvent::Stored(store(&ids, 4, 0, 5)));
    assert_eq!(rig.matched(&KEYS, &ids), 12);
    assert_eq!(rig.follower.tally().joined, 15);
}

#[test]
fn a_report_of_what_is_cached_is_no_second_copy() {
    let ids: Vec<u32> = (0..40).collect();
    let mut rig = Rig::new(4);
    rig.feed(KvEvent::Stored(store(&ids, 4, 6, 10)));
    rig.follower.expect_reports(true);
    rig.feed(KvEvent::Stored(store(&ids, 4, 0, 8)));
    assert_eq!(rig.matched(&KEYS, &ids), 10, "the report brought what was stored before we listened");
    rig.feed(KvEvent::Stored(store(&ids, 4, 0, 10)));
    rig.follower.expect_reports(false);
    for block in (0..10).rev() {
        rig.feed(gone(&ids, 4, &[block]));
        assert_eq!(rig.matched(&KEYS, &ids), block as u32);
    }
    assert_eq!((rig.follower.tally().known, rig.follower.tally().unknown_removals), (0, 0));
}

#[test]
fn two_copies_in_two_tiers_take_three_removals() {
    let ids: Vec<u32> = (0..16).collect();
    let mut rig = Rig::new(4);
    rig.feed(KvEvent::Stored(store(&ids, 4, 0, 4)));
    rig.feed(KvEvent::Stored(store(&ids, 4, 3, 4)));
    // Moved to the host without telling what is in it, as an offloading engine does.
    let last = store(&ids, 4, 3, 4).hashes;
    let moved = Stored { hashes: last.clone(), tier: Tier::Cpu, whole: true, ..Stored::default() };
    rig.feed(KvEvent::Stored(moved));
    assert_eq!(rig.follower.tally().tiers, [4, 1, 0]);
    rig.feed(gone(&ids, 4, &[3]));
    rig.feed(gone(&ids, 4, &[3]));
    assert_eq!((rig.matched(&KEYS, &ids), rig.follower.tally().tiers), (4, [3, 1, 0]), "the host has it");
    rig.feed(KvEvent::Removed(Removed { hashes: last, tier: Tier::Cpu, group: 0 }));
    assert_eq!((rig.matched(&KEYS, &ids), rig.follower.tally().known), (3, 3));
}

#[test]
fn only_groups_that_attend_to_everything_count() {
    let ids: Vec<u32> = (0..16).collect();
    let mut rig = Rig::new(4);
    let window = Stored { group: 1, whole: false, ..store(&ids, 4, 0, 4) };
    rig.feed(KvEvent::Stored(window));
    assert_eq!(rig.matched(&KEYS, &ids), 0);
    rig.feed(KvEvent::Stored(store(&ids, 4, 0, 4)));
    let mut removed = Removed { hashes: store(&ids, 4, 0, 4).hashes, group: 1, ..Removed::default() };
    rig.feed(KvEvent::Removed(removed.clone()));
    assert_eq!(rig.matched(&KEYS, &ids), 4, "a window's removal says nothing");
    // A second whole group: what it lacks can't be used.
    rig.feed(KvEvent::Stored(Stored { group: 2, ..store(&ids, 4, 0, 4) }));
    assert_eq!(rig.matched(&KEYS, &ids), 4);
    removed.group = 2;
    removed.hashes.drain(..2);
    rig.feed(KvEvent::Removed(removed));
    assert_eq!(rig.matched(&KEYS, &ids), 2);
}

#[test]
fn case_7_adapter_salt_and_images_are_part_of_the_prefix() {
    let ids: Vec<u32> = (0..16).collect();
    let mut rig = Rig::new(4);
    let tagged = |tag: u64| {
        let mut s = store(&ids, 4, 0, 4);
        s.hashes.iter_mut().for_each(|hash| *hash ^= tag);
        s
    };
    rig.feed(KvEvent::Stored(Stored { lora: Some("l".into()), ..tagged(1) }));
    rig.feed(KvEvent::Stored(Stored { salt: Some("s".into()), ..tagged(2) }));
    rig.feed(KvEvent::Stored(Stored { extra: vec![(1, b"image"[..].into())], ..tagged(3) }));
    let lora = Root { lora: Some("l"), ..KEYS };
    let salt = Root { cache_salt: Some("s"), ..KEYS };
    assert_eq!((rig.matched(&lora, &ids), rig.matched(&salt, &ids)), (4, 4));
    assert_eq!(rig.matched(&KEYS, &ids), 1, "up to the image");
    assert_eq!(rig.matched(&Root { cache_salt: Some("t"), ..KEYS }, &ids), 0);
    assert_eq!(rig.matched(&Root { lora: Some("l"), cache_salt: Some("s"), ..KEYS }, &ids), 0);
}

#[test]
fn case_18_a_name_for_two_contents_and_a_wrong_size_do_no_harm() {
    let ids: Vec<u32> = (0..16).collect();
    let other: Vec<u32> = (100..116).collect();
    let mut rig = Rig::new(4);
    rig.feed(KvEvent::Stored(store(&ids, 4, 0, 4)));
    rig.feed(KvEvent::Stored(Stored { hashes: store(&ids, 4, 0, 4).hashes, ..store(&other, 4, 0, 4) }));
    rig.feed(KvEvent::Stored(Stored { block: 3, ..store(&other, 4, 0, 4) }));
    assert_eq!((rig.matched(&KEYS, &ids), rig.matched(&KEYS, &other)), (4, 0));
    assert_eq!(rig.follower.tally().conflicts, 5);
    let mut tight = Rig::new(4);
    tight.follower = Follower::new(FollowerConfig { max_blocks: 3, ..follower(4).config() });
    tight.feed(KvEvent::Stored(store(&ids, 4, 0, 4)));
    assert_eq!((tight.matched(&KEYS, &ids), tight.follower.tally().refused), (3, 1));
}

/// Random engines with blocks of another size than ours, checked against what they really have.
fn sizes(seed: u64, engine: u32, ours: u32) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut rig = Rig::new(ours);
    // What the engine has: copies by prefix.
    let mut cache: BTreeMap<Vec<u32>, u32> = BTreeMap::new();
    let mut names: HashMap<u64, Vec<u32>> = HashMap::new();
    let size = engine as usize;
    let prompt = |rng: &mut fastrand::Rng| -> Vec<u32> {
        let mut symbol = rng.u32(0..2);
        (0..rng.usize(1..12 * size))
            .map(|i| {
                if i % 5 == 0 && rng.usize(0..6) == 0 {
                    symbol = rng.u32(0..2);
                }
                symbol
            })
            .collect()
    };
    for step in 0..400 {
        let ids = prompt(&mut rng);
        let full = ids.len() / size;
        if rng.usize(0..5) < 3 {
            // A request: what is cached in front stays, the rest is stored (sometimes the last of it once more).
            let mut from = (0..full).take_while(|i| cache.contains_key(&ids[..(i + 1) * size])).count();
            if from == full && from > 0 && rng.bool() {
                from -= 1;
            }
            if from < full {
                for i in from..full {
                    let prefix = ids[..(i + 1) * size].to_vec();
                    names.insert(name(&prefix, None, None), prefix.clone());
                    *cache.entry(prefix).or_default() += 1;
                }
                rig.feed(KvEvent::Stored(store(&ids, engine, from, full)));
            }
        } else if !cache.is_empty() {
            let at = rng.usize(0..cache.len());
            let prefix = cache.keys().nth(at).cloned().unwrap();
            let hashes = vec![name(&prefix, None, None)];
            rig.feed(KvEvent::Removed(Removed { hashes, ..Removed::default() }));
            let copies = cache.get_mut(&prefix).unwrap();
            *copies -= 1;
            if *copies == 0 {
                cache.remove(&prefix);
            }
        }
        for _ in 0..4 {
            let probe = prompt(&mut rng);
            let full = probe.len() / size;
            let there = (0..full).take_while(|i| cache.contains_key(&probe[..(i + 1) * size])).count();
            let found = (rig.matched(&KEYS, &probe) * ours) as usize;
            let (ours, there) = (ours as usize, there * size);
            let what = format!("seed {seed}, step {step}, blocks of {engine} and {ours}");
            if ours.is_multiple_of(size) {
                assert_eq!(found, there / ours * ours, "{what}");
            } else {
                // Nothing of a block of the engine that a request doesn't fill is of use to it.
                assert_eq!(found.min(full * size) / size * size, there, "{what}");
            }
        }
        // Parts are kept while something leans on them, so there may be more names than blocks.
        assert!(rig.follower.tally().known >= cache.len() as u64);
        assert_eq!(rig.follower.tally().tiers[0], cache.len() as u64);
    }
}

#[test]
fn blocks_of_every_size_agree_with_the_engine() {
    for seed in 0..6 {
        for (engine, ours) in [(4, 4), (8, 4), (4, 8), (2, 8), (12, 4), (16, 2), (1, 6)] {
            sizes(seed, engine, ours);
        }
    }
}

#[test]
fn case_21_churn_of_blocks_adapters_and_lives_leaves_nothing_behind() {
    let mut follower = follower(4);
    let mut index = PrefixIndex::new(IndexConfig::default());
    index.join(0, None);
    index.follow(0, true);
    let (mut sizes, mut changes) = (Vec::new(), Vec::new());
    for n in 0..60_000u32 {
        // A prompt comes, stays for a thousand others and goes, each under another adapter.
        let ids: Vec<u32> = (0..8).map(|i| n.wrapping_mul(31) ^ i).collect();
        let mut run = store(&ids, 4, 0, 2);
        run.hashes = vec![u64::from(n) * 2 + 1, u64::from(n) * 2 + 2];
        run.lora = Some(format!("adapter-{n}").into());
        follower.apply(KvEvent::Stored(run), &mut changes);
        if let Some(old) = n.checked_sub(1000) {
            let hashes = vec![u64::from(old) * 2 + 2, u64::from(old) * 2 + 1];
            follower.apply(KvEvent::Removed(Removed { hashes, ..Removed::default() }), &mut changes);
        }
        index.apply(Time(n.into()), 0, &changes);
        changes.clear();
        if n % 20_000 == 19_999 {
            index.check_invariants();
            sizes.push((follower.tally().bytes, index.stats().bytes, index.held(0)));
        }
    }
    assert_eq!(follower.tally().known, 2000);
    // Tables keep the size of their fullest moment; a hundred times as many blocks don't make them larger.
    let (first, last): (&(u64, usize, u64), _) = (&sizes[0], &sizes[2]);
    assert!(last.0 * 2 <= first.0 * 3 && last.1 * 2 <= first.1 * 3 && first.2 == last.2, "{sizes:?}");
}

#[test]
fn case_18_blocks_that_name_each_other_as_parents_end() {
    let part = |hash: u64, parent: Option<u64>, n: u32| {
        let tokens = vec![7; n as usize];
        KvEvent::Stored(Stored {
            hashes: vec![hash],
            parent,
            tokens,
            block: n,
            whole: true,
            ..Stored::default()
        })
    };
    let gone = |hash: u64| KvEvent::Removed(Removed { hashes: vec![hash], ..Removed::default() });
    let mut rig = Rig::new(16);
    // Its own parent; and two that are each other's, one under a name that was something else before.
    rig.feed(part(1, None, 4));
    rig.feed(part(1, Some(1), 4));
    rig.feed(part(2, Some(1), 4));
    rig.feed(part(1, Some(2), 4));
    rig.feed(part(10, None, 16));
    rig.feed(part(11, Some(10), 4));
    rig.feed(gone(10));
    rig.feed(part(10, Some(11), 4));
    rig.feed(part(11, Some(10), 4));
    rig.feed(part(12, Some(10), 8));
    for hash in [12, 11, 10, 2, 1, 10, 11, 12, 1, 2] {
        rig.feed(gone(hash));
    }
    rig.feed(KvEvent::Cleared);
    assert_eq!((rig.index.held(0), rig.follower.tally().known), (0, 0));
}

#[test]
fn a_group_that_is_learned_of_late_leaves_nothing_behind() {
    let ids: Vec<u32> = (0..16).collect();
    let mut rig = Rig::new(4);
    rig.feed(KvEvent::Stored(store(&ids, 4, 0, 4)));
    rig.feed(KvEvent::Stored(Stored { group: 1, ..store(&(50..54).collect::<Vec<_>>(), 4, 0, 1) }));
    rig.feed(gone(&ids, 4, &[3, 2, 1, 0]));
    assert_eq!((rig.matched(&KEYS, &ids), rig.index.held(0)), (0, 0));
}
