//! Prompts of `/v1/completions`: a text, token ids, or an array of either.
//!
//! Of several prompts the first one decides the way; the engine serves them all.

use super::json::{Cursor, Step, Type, Value};
use super::tape::{Kind, Mark, Scratch};

/// Note the prompt that comes next; returns how many prompts there are.
pub(super) fn prompt(c: &mut Cursor<'_>, tape: &mut Scratch) -> Step<u32> {
    if c.peek()? != Type::Array {
        let v = c.value()?;
        if v.ty == Type::String {
            tape.push(Mark::value(Kind::Text, v));
        }
        return Ok(1);
    }
    let start = c.pos();
    let mut walk = c.array()?;
    let (mut count, mut first) = (0u32, None);
    while c.element(&mut walk)? {
        let v = c.value()?;
        first.get_or_insert(v);
        count = count.saturating_add(1);
    }
    let all = Value { ty: Type::Array, start, end: c.pos(), flag: false };
    match first.map(|v| (v.ty, v)) {
        Some((Type::Number, _)) => {
            tape.push(Mark::value(Kind::Tokens, all));
            Ok(1)
        }
        Some((Type::Array, v)) => {
            tape.push(Mark::value(Kind::Tokens, v));
            Ok(count)
        }
        Some((Type::String, v)) => {
            tape.push(Mark::value(Kind::Text, v));
            Ok(count)
        }
        _ => Ok(count.max(1)),
    }
}

/// Give the numbers of a JSON array as little-endian `u32`s to `take`; returns how many. What isn't such a number becomes
/// `u32::MAX`: the engine will refuse it.
pub(super) fn token_ids(array: &[u8], mut take: impl FnMut(&[u8])) -> u32 {
    let mut block = [0u8; 256];
    let (mut fill, mut count) = (0, 0u32);
    for id in array.split(|&b| b == b',') {
        let id = id.trim_ascii();
        let id = id.strip_prefix(b"[").unwrap_or(id);
        let id = id.strip_suffix(b"]").unwrap_or(id).trim_ascii();
        if id.is_empty() {
            continue;
        }
        let n = number_u32(id).unwrap_or(u32::MAX);
        block[fill..fill + 4].copy_from_slice(&n.to_le_bytes());
        fill += 4;
        count = count.saturating_add(1);
        if fill == block.len() {
            take(&block);
            fill = 0;
        }
    }
    if fill > 0 {
        take(&block[..fill]);
    }
    count
}

/// A plain non-negative integer, saturating at `u32::MAX`; `None` for anything else.
pub(super) fn number_u32(digits: &[u8]) -> Option<u32> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u32, |n, d| {
        d.is_ascii_digit().then(|| n.saturating_mul(10).saturating_add(u32::from(d - b'0')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(json: &str) -> (Vec<u32>, u32) {
        let mut out = Vec::new();
        let n = token_ids(json.as_bytes(), |run| out.extend_from_slice(run));
        (out.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect(), n)
    }

    #[test]
    fn token_ids_are_numbers_not_spelling() {
        assert_eq!(ids("[1,2,128000]"), (vec![1, 2, 128_000], 3));
        assert_eq!(ids("[ 1 ,\n2 , 128000 ]"), (vec![1, 2, 128_000], 3));
        assert_eq!(ids("[]"), (vec![], 0));
        assert_eq!(ids("[-1,1.5,99999999999]"), (vec![u32::MAX; 3], 3));
        let many: Vec<u32> = (0..1000).collect();
        assert_eq!(ids(&format!("{many:?}")), (many, 1000));
    }
}
