//! Frames of a real vLLM 0.32, captured: each must decode to what the Python decoder said of it.

use super::{Batch, decode};
use crate::core::prefix::exact::{KvEvent, Tier};
use serde_json::Value;

const CAPTURES: [(&str, &str); 5] = [
    (
        include_str!("../../../tests/fixtures/vllm-0.32/kv_events/a_connectmode.rawhex.jsonl"),
        include_str!("../../../tests/fixtures/vllm-0.32/kv_events/a_connectmode.decoded.jsonl"),
    ),
    (
        include_str!("../../../tests/fixtures/vllm-0.32/kv_events/b_evict.rawhex.jsonl"),
        include_str!("../../../tests/fixtures/vllm-0.32/kv_events/b_evict.decoded.jsonl"),
    ),
    (
        include_str!("../../../tests/fixtures/vllm-0.32/kv_events/c_clear.rawhex.jsonl"),
        include_str!("../../../tests/fixtures/vllm-0.32/kv_events/c_clear.decoded.jsonl"),
    ),
    (
        include_str!("../../../tests/fixtures/vllm-0.32/kv_events/d_lora_bytes.rawhex.jsonl"),
        include_str!("../../../tests/fixtures/vllm-0.32/kv_events/d_lora_bytes.decoded.jsonl"),
    ),
    (
        include_str!("../../../tests/fixtures/vllm-0.32/kv_events/e_bindmode.rawhex.jsonl"),
        include_str!("../../../tests/fixtures/vllm-0.32/kv_events/e_bindmode.decoded.jsonl"),
    ),
];

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// All captured payloads, with what they say.
pub(super) fn captured() -> Vec<(Vec<u8>, Value)> {
    let lines = CAPTURES.iter().flat_map(|(raw, said)| raw.lines().zip(said.lines()));
    lines
        .map(|(raw, said)| {
            let frames: Vec<String> = serde_json::from_str(raw).unwrap();
            let said: Value = serde_json::from_str(said).unwrap();
            assert_eq!(unhex(&frames[1]), said["seq"].as_u64().unwrap().to_be_bytes());
            (unhex(&frames[2]), said["payload"].clone())
        })
        .collect()
}

fn hash(value: &Value) -> u64 {
    match value.as_u64() {
        Some(int) => int,
        None => {
            let hex = value.as_str().unwrap().strip_prefix("hex:").unwrap();
            u64::from_str_radix(&hex[hex.len() - 16..], 16).unwrap()
        }
    }
}

fn hashes(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(hash).collect()
}

#[test]
fn captured_frames_decode() {
    let (mut stored, mut removed, mut cleared, mut lora) = (0, 0, 0, 0);
    for (payload, said) in captured() {
        let Batch { ts, rank, events, unknown, faulty, cut } = decode(&payload).unwrap();
        assert_eq!((unknown, faulty, cut), (0, 0, false));
        // The JSON was read in a hurry (serde_json's default): its last digit may be off.
        assert!((ts - said[0].as_f64().unwrap()).abs() < 1e-5, "{ts}");
        assert_eq!(rank.map(u64::from), said[2].as_u64());
        let expected = said[1].as_array().unwrap();
        assert_eq!(events.len(), expected.len());
        for (event, said) in events.iter().zip(expected) {
            match event {
                KvEvent::Stored(s) => {
                    stored += 1;
                    assert_eq!(said["type"], "BlockStored");
                    assert_eq!(s.hashes, hashes(&said["block_hashes"]));
                    assert_eq!(s.parent, Some(&said["parent_block_hash"]).filter(|h| !h.is_null()).map(hash));
                    let ids: Vec<u32> = serde_json::from_value(said["token_ids"].clone()).unwrap();
                    assert_eq!(s.tokens, ids);
                    assert_eq!((s.block, s.tier, s.group, s.whole), (32, Tier::Gpu, 0, true));
                    assert_eq!(s.lora.as_deref(), said["lora_name"].as_str());
                    lora += usize::from(s.lora.is_some());
                    let first = &said["extra_keys"][0];
                    let salt = first.as_array().and_then(|keys| keys.last()).and_then(Value::as_str);
                    assert_eq!(s.salt.as_deref(), salt.filter(|_| s.lora.is_none() && s.parent.is_none()));
                    assert!(s.extra.is_empty());
                }
                KvEvent::Removed(r) => {
                    removed += 1;
                    assert_eq!(said["type"], "BlockRemoved");
                    assert_eq!((r.hashes.clone(), r.tier), (hashes(&said["block_hashes"]), Tier::Gpu));
                }
                KvEvent::Cleared => {
                    cleared += 1;
                    assert_eq!(said["type"], "AllBlocksCleared");
                }
            }
        }
    }
    assert!(stored > 10 && removed > 50 && cleared > 1 && lora > 0, "{stored} {removed} {cleared} {lora}");
}
