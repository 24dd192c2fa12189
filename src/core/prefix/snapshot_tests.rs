use super::super::ids::RequestId;
use super::super::time::Time;
use super::snapshot::{Corrupt, Header, Saved};
use super::*;

const HEADER: Header = Header { seed: 7, block_bytes: 256, written: 1_800_000_000 };

/// A chain whose blocks are shared with those of the same `forks` up to where they differ.
fn chain(forks: &[u64], len: usize) -> Vec<u64> {
    let mut hash = 1u64;
    (0..len)
        .map(|i| {
            let fork = forks.get(i / 8).copied().unwrap_or(0);
            hash = xxhash_rust::xxh3::xxh3_64_with_seed(&hash.to_le_bytes(), fork);
            hash
        })
        .collect()
}

fn index() -> PrefixIndex {
    let mut index = PrefixIndex::new(IndexConfig { max_blocks: 100_000, ..IndexConfig::default() });
    for h in 0..6 {
        index.join(h, None);
    }
    index
}

/// A few hundred prompts on six holders, with forks, holes, output, and speculations that are still open.
fn busy(seed: u64) -> (PrefixIndex, Vec<Vec<u64>>) {
    let (mut index, mut chains, mut rng) = (index(), Vec::new(), seed | 1);
    let mut next = move |n: u64| {
        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        rng % n
    };
    for i in 0..400u64 {
        let c = chain(&[next(3), next(4), next(5), next(6)], 1 + next(40) as usize);
        let (now, h) = (Time::from_secs(i as f64), next(6) as u16);
        match next(6) {
            0 => index.speculate(now, RequestId(i), &c, h),
            1 => index.correct(now, &c, h, next(c.len() as u64 + 1) as u32),
            2 => drop(index.remove(h, c[next(c.len() as u64) as usize])),
            _ => index.insert(now, &c, h),
        }
        index.output(now, &c, h, next(4) as u32);
        chains.push(c);
    }
    for i in 0..400 {
        index.rollback(RequestId(i));
    }
    index.check_invariants();
    (index, chains)
}

fn matches(index: &PrefixIndex, chain: &[u64], holders: impl Fn(u16) -> u16) -> Vec<u32> {
    let mut out = Matches::default();
    index.matches(chain, &mut out);
    (0..6).map(|h| out.as_slice().get(usize::from(holders(h))).copied().unwrap_or(0)).collect()
}

fn name(h: u16) -> Option<String> {
    Some(format!("replica-{h}"))
}

#[test]
fn a_restored_index_has_the_same_matches_also_under_other_numbers() {
    for seed in 1..30 {
        let (old, chains) = busy(seed * 7919);
        let bytes = old.snapshot(HEADER, name, b"speeds").seal();
        let mut saved = Saved::decode(&bytes).unwrap();
        assert_eq!((saved.header(), saved.extra()), (&HEADER, &b"speeds"[..]));
        let mut new = index();
        for h in 0..6 {
            saved.restore(&mut new, Time(0), &format!("replica-{h}"), 5 - h).unwrap();
        }
        new.check_invariants();
        for c in &chains {
            assert_eq!(matches(&new, c, |h| 5 - h), matches(&old, c, |h| h), "seed {seed}");
        }
        assert_eq!(saved.waiting().count(), 0);
    }
}

#[test]
fn recency_survives() {
    let mut old = index();
    let (a, b) = (chain(&[1], 20), chain(&[2], 20));
    old.insert(Time(1), &a, 0);
    old.insert(Time(2), &b, 0);
    old.insert(Time(3), &a, 0);
    let mut saved = Saved::decode(&old.snapshot(HEADER, name, &[]).seal()).unwrap();
    let mut new = index();
    saved.restore(&mut new, Time(0), "replica-0", 0);
    new.set_capacity(0, Some(20));
    assert_eq!(matches(&new, &a, |h| h)[0], 20, "used last");
    assert_eq!(matches(&new, &b, |h| h)[0], 0, "used longest ago");
}

#[test]
fn what_is_unknown_is_left_out() {
    let (old, chains) = busy(5);
    let mut saved = Saved::decode(&old.snapshot(HEADER, |h| name(h).filter(|_| h != 2), &[]).seal()).unwrap();
    let mut new = index();
    assert_eq!(saved.restore(&mut new, Time(0), "replica-2", 2), None);
    assert_eq!(saved.restore(&mut new, Time(0), "stranger", 2), None);
    assert!(saved.restore(&mut new, Time(0), "replica-1", 1).is_some());
    for c in &chains {
        assert_eq!(matches(&new, c, |h| h)[1], matches(&old, c, |h| h)[1]);
    }
}

#[test]
fn one_life_s_cache_is_copied_to_the_next() {
    let (mut index, chains) = busy(11);
    index.clear(5);
    index.copy(Time::from_secs(500.0), 3, 5);
    index.check_invariants();
    for c in &chains {
        let m = matches(&index, c, |h| h);
        assert_eq!(m[5], m[3]);
    }
}

/// Every single byte: whatever is changed, added or missing is seen.
#[test]
fn a_corrupt_file_is_refused() {
    let mut small = index();
    small.insert(Time(1), &chain(&[1], 9), 0);
    small.insert(Time(1), &chain(&[1, 2], 19), 1);
    let good = small.snapshot(HEADER, name, b"x").seal();
    for at in 0..good.len() {
        for flip in [1, 0x80] {
            let mut bad = good.clone();
            bad[at] ^= flip;
            assert!(Saved::decode(&bad).is_err(), "byte {at}");
        }
        assert!(Saved::decode(&good[..at]).is_err(), "cut at {at}");
    }
    assert_eq!(Saved::decode(&[&good[..], b"x"].concat()).unwrap_err(), Corrupt::Checksum);
    assert_eq!(Saved::decode(b"").unwrap_err(), Corrupt::Foreign);
    let mut newer = good.clone();
    newer[8] = 2;
    assert_eq!(Saved::decode(&newer).unwrap_err(), Corrupt::Version(2));
}

/// With a right checksum over nonsense: no panic, whatever the numbers say.
#[test]
fn nonsense_with_a_right_checksum_is_refused_or_harmless() {
    let mut small = index();
    small.insert(Time(1), &chain(&[1], 9), 0);
    small.insert(Time(1), &chain(&[1, 2], 19), 1);
    let good = small.snapshot(HEADER, name, b"x").seal();
    for at in 12..good.len() - 8 {
        for value in [0, 1, 0x7F, 0xFF] {
            let mut bad = good[..good.len() - 8].to_vec();
            bad[at] = value;
            let sum = xxhash_rust::xxh3::xxh3_64(&bad);
            bad.extend_from_slice(&sum.to_le_bytes());
            let Ok(mut saved) = Saved::decode(&bad) else { continue };
            let mut new = index();
            for h in 0..6 {
                saved.restore(&mut new, Time(0), &format!("replica-{h}"), h);
            }
            new.check_invariants();
        }
    }
}
