//! One event, in any of its layouts.

use super::pack::{Fault, Reader};
use crate::core::prefix::exact::{KvEvent, Removed, Stored, Tier};

/// Tokens in a block: engines use 1 to a few hundred.
const MAX_BLOCK: u32 = 65_536;
/// Numbers of attention groups.
const MAX_GROUP: u32 = 255;

/// What became of an event.
#[derive(Debug)]
pub(super) enum Read {
    Event(KvEvent),
    /// Of a type that nobody here knows.
    Unknown,
}

/// Fields in the order of the positional layouts; maps name them.
const STORED: [&str; 11] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "sliding_window",
];
const REMOVED: [&str; 3] = ["block_hashes", "medium", "group_idx"];

/// Reads the event that these bytes are.
pub(super) fn read(bytes: &[u8]) -> Result<Read, Fault> {
    let mut r = Reader::new(bytes);
    if r.is_list() {
        let n = r.list()?.checked_sub(1).ok_or(Fault::Kind)?;
        let tag = r.bytes()?;
        return fields(tag, |names, set| {
            let named = names.iter().map(|&name| Some(name)).chain(std::iter::repeat(None));
            named.take(n).try_for_each(|name| one(name, &mut r, set))
        });
    }
    let pairs = r.map()?;
    let mut look = r;
    let mut tag = None;
    for _ in 0..pairs {
        let key = look.bytes()?;
        if key == b"type" {
            tag = Some(look.bytes()?);
            break;
        }
        look.skip()?;
    }
    fields(tag.ok_or(Fault::Kind)?, |_, set| {
        (0..pairs).try_for_each(|_| {
            let key = r.text().ok();
            one(key, &mut r, set)
        })
    })
}

type Set<'s> = &'s mut dyn FnMut(&str, &mut Reader<'_>) -> Result<bool, Fault>;

/// Hands one value to whoever wants it; else it is passed over. A nil is a field that isn't there.
fn one(name: Option<&str>, r: &mut Reader<'_>, set: Set<'_>) -> Result<(), Fault> {
    if r.nil() {
        return Ok(());
    }
    let taken = match name {
        Some(name) => set(name, r)?,
        None => false,
    };
    if taken { Ok(()) } else { r.skip().map(drop) }
}

fn fields(
    tag: &[u8],
    each: impl FnOnce(&[&'static str], Set<'_>) -> Result<(), Fault>,
) -> Result<Read, Fault> {
    match tag {
        b"BlockStored" => stored(|set| each(&STORED, set)),
        b"BlockRemoved" => removed(|set| each(&REMOVED, set)),
        b"AllBlocksCleared" => Ok(Read::Event(KvEvent::Cleared)),
        _ => Ok(Read::Unknown),
    }
}

fn stored(each: impl FnOnce(Set<'_>) -> Result<(), Fault>) -> Result<Read, Fault> {
    let mut s = Stored { whole: true, ..Stored::default() };
    let mut keys = Vec::new();
    let (mut hashes, mut tokens) = (false, false);
    each(&mut |name, r| {
        match name {
            "block_hashes" => {
                s.hashes = list(r, hash)?;
                hashes = true;
            }
            "parent_block_hash" => s.parent = Some(hash(r)?),
            "token_ids" => {
                s.tokens = list(r, |r| r.small(u32::MAX))?;
                tokens = true;
            }
            "block_size" => s.block = r.small(MAX_BLOCK)?,
            "medium" => s.tier = tier(r.bytes()?),
            "lora_name" => s.lora = Some(r.text()?.into()),
            "extra_keys" => keys = list(r, block_keys)?,
            "group_idx" => s.group = r.small(MAX_GROUP)? as u8,
            "kv_cache_spec_kind" => s.whole = whole(r.bytes()?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if !hashes || !tokens || s.tokens.len() != s.hashes.len() * s.block as usize && !s.tokens.is_empty() {
        return Err(Fault::Kind);
    }
    enter_keys(&mut s, keys);
    Ok(Read::Event(KvEvent::Stored(s)))
}

fn removed(each: impl FnOnce(Set<'_>) -> Result<(), Fault>) -> Result<Read, Fault> {
    let mut removed = Removed::default();
    let mut hashes = false;
    each(&mut |name, r| {
        match name {
            "block_hashes" => {
                removed.hashes = list(r, hash)?;
                hashes = true;
            }
            "medium" => removed.tier = tier(r.bytes()?),
            "group_idx" => removed.group = r.small(MAX_GROUP)? as u8,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if hashes { Ok(Read::Event(KvEvent::Removed(removed))) } else { Err(Fault::Kind) }
}

fn list<'a, T>(
    r: &mut Reader<'a>,
    mut each: impl FnMut(&mut Reader<'a>) -> Result<T, Fault>,
) -> Result<Vec<T>, Fault> {
    let n = r.list()?;
    // What is read is at least a byte each; what is made of it at most 32: no surprise is hidden in `n`.
    let mut out = Vec::with_capacity(n.min(4096));
    for _ in 0..n {
        out.push(each(r)?);
    }
    Ok(out)
}

/// The engine's hash: an integer, or bytes, of which the last eight are the same integer.
fn hash(r: &mut Reader<'_>) -> Result<u64, Fault> {
    if let Ok(int) = r.int_if() {
        return Ok(int);
    }
    let bytes = r.bytes()?;
    let low = &bytes[bytes.len().saturating_sub(8)..];
    Ok(low.iter().fold(0, |value, &byte| value << 8 | u64::from(byte)))
}

fn tier(name: &[u8]) -> Tier {
    match name {
        _ if name.eq_ignore_ascii_case(b"gpu") => Tier::Gpu,
        _ if name.eq_ignore_ascii_case(b"cpu") || name.eq_ignore_ascii_case(b"cpu_pinned") => Tier::Cpu,
        _ => Tier::Storage,
    }
}

/// Does a layer of this kind attend to the whole prefix? A kind that isn't known is taken not to.
fn whole(kind: &[u8]) -> bool {
    matches!(kind, b"full_attention" | b"mla_attention" | b"sink_full_attention")
}

/// One key of a block: text (adapter, salt), or the identity of an image with its offset.
enum Key {
    Text(Box<str>),
    Other(Box<[u8]>),
}

fn block_keys(r: &mut Reader<'_>) -> Result<Vec<Key>, Fault> {
    if r.nil() {
        return Ok(Vec::new());
    }
    if !r.is_list() {
        // A single key that isn't in a list of its own.
        return Ok(key(r)?.into_iter().collect());
    }
    let n = r.list()?;
    let mut keys = Vec::new();
    for _ in 0..n {
        keys.extend(key(r)?);
    }
    Ok(keys)
}

fn key(r: &mut Reader<'_>) -> Result<Option<Key>, Fault> {
    if r.is_text() {
        return Ok(Some(Key::Text(r.text()?.into())));
    }
    if r.nil() {
        return Ok(None);
    }
    // Whatever it is, its bytes tell it from others.
    Ok(Some(Key::Other(r.skip()?.into())))
}

/// Sorts the keys: the adapter's name is told in a field of its own; text on a prompt's first block is its salt; the
/// rest belongs to its block.
fn enter_keys(s: &mut Stored, keys: Vec<Vec<Key>>) {
    for (number, keys) in keys.into_iter().enumerate() {
        let mut adapter = s.lora.is_some();
        for key in keys {
            match key {
                Key::Text(text) if adapter && s.lora.as_ref() == Some(&text) => adapter = false,
                Key::Text(text) if number == 0 && s.parent.is_none() && s.salt.is_none() => {
                    s.salt = Some(text)
                }
                Key::Text(text) => s.extra.push((number as u32, text.into_boxed_bytes())),
                Key::Other(bytes) => s.extra.push((number as u32, bytes)),
            }
        }
    }
}
