//! The decoder against random bytes, and against real frames that were damaged.

use super::fixtures::captured;
use super::{Batch, Layout, decode, encode};
use crate::core::prefix::exact::{KvEvent, Removed, Stored, Tier};
use proptest::prelude::*;

fn tier() -> impl Strategy<Value = Tier> {
    prop_oneof![Just(Tier::Gpu), Just(Tier::Cpu), Just(Tier::Storage)]
}

fn event() -> impl Strategy<Value = KvEvent> {
    let stored = (1usize..4, 1u32..5, any::<[u64; 4]>(), any::<Option<u64>>(), any::<[u32; 16]>(), tier());
    let stored = (stored, any::<u8>(), any::<bool>(), any::<Option<bool>>(), any::<bool>()).prop_map(
        |((n, block, hashes, parent, tokens, tier), group, whole, lora, salted)| {
            KvEvent::Stored(Stored {
                hashes: hashes[..n].to_vec(),
                parent,
                tokens: tokens[..(n * block as usize).min(16)].to_vec(),
                block: if n * block as usize > 16 { (16 / n) as u32 } else { block },
                tier,
                group,
                whole,
                lora: lora.map(|b| if b { "adapter".into() } else { "other".into() }),
                salt: (salted && parent.is_none()).then(|| "tenant".into()),
                extra: if whole { vec![(0, vec![0x92, 0xa1, b'i', 7].into())] } else { Vec::new() },
            })
        },
    );
    let stored = stored.prop_filter("whole blocks", |e| match e {
        KvEvent::Stored(s) => s.tokens.len() == s.hashes.len() * s.block as usize,
        _ => true,
    });
    let removed = (prop::collection::vec(any::<u64>(), 0..9), tier(), any::<u8>())
        .prop_map(|(hashes, tier, group)| KvEvent::Removed(Removed { hashes, tier, group }));
    prop_oneof![4 => stored, 2 => removed, 1 => Just(KvEvent::Cleared)]
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(
        events in prop::collection::vec(event(), 0..6),
        rank in any::<Option<u32>>(),
        layout in prop_oneof![Just(Layout::Maps), Just(Layout::Arrays), Just(Layout::ByteHashes)],
    ) {
        let payload = encode(12.5, &events, rank, layout);
        let want = Batch { ts: 12.5, rank, events, ..Batch::default() };
        prop_assert_eq!(decode(&payload), Some(want));
    }

    #[test]
    fn random_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Some(batch) = decode(&bytes) {
            prop_assert!(batch.events.len() + (batch.faulty + batch.unknown) as usize <= bytes.len());
        }
        // As the events of a batch that is whole otherwise.
        let mut framed = vec![0x92, 1, 0x91];
        framed.extend(&bytes);
        if let Some(batch) = decode(&framed) {
            prop_assert!(batch.events.len() <= 1);
        }
    }

    #[test]
    fn damage_costs_no_more_than_what_it_hit(
        which in any::<prop::sample::Index>(),
        hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<Option<prop::sample::Index>>(),
    ) {
        let all = captured();
        let (payload, _) = &all[which.index(all.len())];
        let whole = decode(payload).unwrap();
        let mut bytes = payload.clone();
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
            if let Some(batch) = decode(&bytes) {
                prop_assert!(batch.cut || batch.events == whole.events, "a cut is noticed");
                prop_assert_eq!(&batch.events[..], &whole.events[..batch.events.len()]);
            }
        }
        for (at, value) in hits {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
        }
        if let Some(batch) = decode(&bytes) {
            let named: usize = batch.events.iter().map(KvEvent::blocks).sum();
            prop_assert!(named <= bytes.len() + batch.events.len());
        }
    }
}

#[test]
fn fields_end_anywhere_and_more_may_follow() {
    let s = |n: usize, more: &[u8]| {
        // ["BlockStored", [7], nil, [1, 2], 2, nil, "CPU", nil, nil, 3, "full_attention", 9, …]
        let mut fields: Vec<Vec<u8>> = vec![
            [&[0xab][..], b"BlockStored"].concat(),
            vec![0x91, 7],
            vec![0xc0],
            vec![0x92, 1, 2],
            vec![2],
            vec![0xc0],
            [&[0xa3][..], b"CPU"].concat(),
            vec![0xc0],
            vec![0xc0],
            vec![3],
            [&[0xae][..], b"full_attention"].concat(),
            vec![9],
        ];
        fields.truncate(n);
        let count = n + usize::from(!more.is_empty());
        let event = [&[0x90 + count as u8][..], &fields.concat(), more].concat();
        decode(&[&[0x92, 1, 0x91][..], &event].concat()).unwrap()
    };
    for n in 5..=12 {
        let batch = s(n, &[]);
        let [KvEvent::Stored(stored)] = &batch.events[..] else { panic!("{n} fields: {batch:?}") };
        assert_eq!((stored.tier == Tier::Cpu, stored.group), (n >= 7, if n >= 10 { 3 } else { 0 }));
        assert!(stored.whole, "a layout without the field has only such groups");
    }
    assert_eq!(s(4, &[]).faulty, 1, "no block size");
    assert_eq!(s(3, &[]).faulty, 1, "no tokens");
    let more = s(12, &[0x81, 0xa1, b'x', 0x91, 0xc3]);
    assert_eq!((more.events.len(), more.faulty), (1, 0));
}

#[test]
fn case_18_unknown_types_and_faults_cost_that_event_only() {
    let good = KvEvent::Removed(Removed { hashes: vec![5], ..Removed::default() });
    let payload = |bad: &[u8]| {
        let one = encode(1.0, std::slice::from_ref(&good), None, Layout::Maps);
        let event = &one[11..];
        [&one[..10], &[0x93], event, bad, event].concat()
    };
    let unknown = decode(&payload(b"\x91\xa7Rotated")).unwrap();
    assert_eq!((unknown.events, unknown.unknown, unknown.faulty), (vec![good.clone(), good.clone()], 1, 0));
    for bad in [&b"\x05"[..], b"\x90", b"\x80", b"\x81\xa1x\x01", b"\x92\xacBlockRemoved\xa1x"] {
        let batch = decode(&payload(bad)).unwrap();
        assert_eq!((batch.events.len(), batch.unknown, batch.faulty), (2, 0, 1), "{bad:x?}");
    }
}
