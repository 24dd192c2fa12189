//! From events to the bytes that an engine publishes: for the simulated engine, and for tests of the decoder.

use crate::core::prefix::exact::{KvEvent, Removed, Stored, Tier};
use rmp::encode::{RmpWrite, ValueWriteError};
use rmp::encode::{write_array_len, write_bin, write_f64, write_map_len, write_nil, write_str, write_uint};

/// How an event is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// A map with a `type`: vLLM from 0.24 on.
    #[default]
    Maps,
    /// An array with the type first: vLLM before that, SGLang.
    Arrays,
    /// The same with hashes of 32 bytes instead of integers.
    ByteHashes,
}

/// A batch as an engine would publish it.
pub fn encode(ts: f64, events: &[KvEvent], rank: Option<u32>, layout: Layout) -> Vec<u8> {
    let mut out = Vec::new();
    // Writing to memory can't fail; if it did, what there is would be a cut message, which readers must stand anyhow.
    let _ = batch(&mut out, ts, events, rank, layout);
    out
}

type Done<W> = Result<(), ValueWriteError<<W as RmpWrite>::Error>>;

fn batch<W: RmpWrite>(w: &mut W, ts: f64, events: &[KvEvent], rank: Option<u32>, layout: Layout) -> Done<W> {
    write_array_len(w, if rank.is_some() { 3 } else { 2 })?;
    write_f64(w, ts)?;
    write_array_len(w, events.len() as u32)?;
    for event in events {
        match event {
            KvEvent::Stored(s) => stored(w, s, layout)?,
            KvEvent::Removed(r) => removed(w, r, layout)?,
            KvEvent::Cleared => head(w, "AllBlocksCleared", 0, layout)?,
        }
    }
    if let Some(rank) = rank {
        write_uint(w, rank.into())?;
    }
    Ok(())
}

/// Begins an event of `fields` fields.
fn head<W: RmpWrite>(w: &mut W, tag: &str, fields: u32, layout: Layout) -> Done<W> {
    if layout == Layout::Maps {
        write_map_len(w, fields + 1)?;
        write_str(w, "type")?;
    } else {
        write_array_len(w, fields + 1)?;
    }
    write_str(w, tag)
}

fn name<W: RmpWrite>(w: &mut W, name: &str, layout: Layout) -> Done<W> {
    if layout == Layout::Maps { write_str(w, name) } else { Ok(()) }
}

fn hash<W: RmpWrite>(w: &mut W, hash: u64, layout: Layout) -> Done<W> {
    if layout != Layout::ByteHashes {
        return write_uint(w, hash).map(drop);
    }
    let mut bytes = [0x5a; 32];
    bytes[24..].copy_from_slice(&hash.to_be_bytes());
    write_bin(w, &bytes)
}

fn hashes<W: RmpWrite>(w: &mut W, list: &[u64], layout: Layout) -> Done<W> {
    write_array_len(w, list.len() as u32)?;
    list.iter().try_for_each(|&h| hash(w, h, layout))
}

fn text<W: RmpWrite>(w: &mut W, text: Option<&str>) -> Done<W> {
    match text {
        Some(text) => write_str(w, text),
        None => write_nil(w).map_err(ValueWriteError::InvalidMarkerWrite),
    }
}

fn medium(tier: Tier) -> &'static str {
    match tier {
        Tier::Gpu => "GPU",
        Tier::Cpu => "CPU",
        Tier::Storage => "STORAGE",
    }
}

fn stored<W: RmpWrite>(w: &mut W, s: &Stored, layout: Layout) -> Done<W> {
    head(w, "BlockStored", 10, layout)?;
    name(w, "block_hashes", layout)?;
    hashes(w, &s.hashes, layout)?;
    name(w, "parent_block_hash", layout)?;
    match s.parent {
        Some(parent) => hash(w, parent, layout)?,
        None => text(w, None)?,
    }
    name(w, "token_ids", layout)?;
    write_array_len(w, s.tokens.len() as u32)?;
    for &token in &s.tokens {
        write_uint(w, token.into())?;
    }
    name(w, "block_size", layout)?;
    write_uint(w, s.block.into())?;
    name(w, "lora_id", layout)?;
    text(w, None)?;
    name(w, "medium", layout)?;
    write_str(w, medium(s.tier))?;
    name(w, "lora_name", layout)?;
    text(w, s.lora.as_deref())?;
    name(w, "extra_keys", layout)?;
    extra_keys(w, s)?;
    name(w, "group_idx", layout)?;
    write_uint(w, s.group.into())?;
    name(w, "kv_cache_spec_kind", layout)?;
    write_str(w, if s.whole { "full_attention" } else { "sliding_window" })
}

/// One list a block: the adapter, identities (each with an offset), and on the first block the salt.
fn extra_keys<W: RmpWrite>(w: &mut W, s: &Stored) -> Done<W> {
    write_array_len(w, s.hashes.len() as u32)?;
    for number in 0..s.hashes.len() as u32 {
        let extra = || s.extra.iter().filter(|(at, _)| *at == number);
        let salt = s.salt.as_deref().filter(|_| number == 0);
        let n = extra().count() + usize::from(s.lora.is_some()) + usize::from(salt.is_some());
        if n == 0 {
            text(w, None)?;
            continue;
        }
        write_array_len(w, n as u32)?;
        if let Some(lora) = s.lora.as_deref() {
            write_str(w, lora)?;
        }
        for (_, identity) in extra() {
            // Identities are kept as they came: one msgpack value each.
            w.write_bytes(identity).map_err(ValueWriteError::InvalidDataWrite)?;
        }
        if let Some(salt) = salt {
            write_str(w, salt)?;
        }
    }
    Ok(())
}

fn removed<W: RmpWrite>(w: &mut W, r: &Removed, layout: Layout) -> Done<W> {
    head(w, "BlockRemoved", 3, layout)?;
    name(w, "block_hashes", layout)?;
    hashes(w, &r.hashes, layout)?;
    name(w, "medium", layout)?;
    write_str(w, medium(r.tier))?;
    name(w, "group_idx", layout)?;
    write_uint(w, r.group.into()).map(drop)
}
