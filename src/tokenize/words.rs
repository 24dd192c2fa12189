//! The ids of words, as the pre-tokenizer cuts them: most of a text is words that were seen before.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use xxhash_rust::xxh3::xxh3_64;

/// Words remembered in a generation; two generations of them take about 10 MB.
const MOST: usize = 32_768;
/// Longer words seldom come again.
const LONGEST: usize = 64;

#[derive(Clone, Copy, Default)]
struct Xxh3(u64);

impl Hasher for Xxh3 {
    fn write(&mut self, bytes: &[u8]) {
        self.0 ^= xxh3_64(bytes);
    }

    fn write_u8(&mut self, _: u8) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

impl BuildHasher for Xxh3 {
    type Hasher = Xxh3;

    fn build_hasher(&self) -> Xxh3 {
        Xxh3(0)
    }
}

type Map = HashMap<Box<str>, Box<[u32]>, Xxh3>;

/// A bounded memory of words, for one thread at a time.
#[derive(Default)]
pub(super) struct Words {
    young: Map,
    old: Map,
}

impl Words {
    /// Appends the ids of `word` to `out`; asks `encode` for those of unknown words.
    pub(super) fn append<E>(
        &mut self,
        word: &str,
        out: &mut Vec<u32>,
        encode: impl FnOnce(&str, &mut Vec<u32>) -> Result<(), E>,
    ) -> Result<(), E> {
        if let Some(ids) = self.young.get(word) {
            out.extend_from_slice(ids);
            return Ok(());
        }
        if let Some((word, ids)) = self.old.remove_entry(word) {
            out.extend_from_slice(&ids);
            self.young.insert(word, ids);
            return Ok(());
        }
        let from = out.len();
        encode(word, out)?;
        if word.len() <= LONGEST {
            if self.young.len() >= MOST {
                self.old = std::mem::take(&mut self.young);
            }
            self.young.insert(word.into(), out[from..].into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_encoded_once_and_memory_is_bounded() {
        let mut words = Words::default();
        let mut calls = 0;
        let mut ask = |words: &mut Words, word: &str| {
            let mut out = vec![7];
            let done: Result<(), ()> = words.append(word, &mut out, |w, out| {
                calls += 1;
                out.extend([w.len() as u32, 1]);
                Ok(())
            });
            assert!(done.is_ok());
            assert_eq!(out, [7, word.len() as u32, 1]);
            calls
        };
        assert_eq!(ask(&mut words, "ab"), 1);
        assert_eq!(ask(&mut words, "ab"), 1);
        for i in 0..3 * MOST {
            ask(&mut words, &i.to_string());
            ask(&mut words, "ab");
        }
        assert_eq!(ask(&mut words, "ab"), 3 * MOST + 1, "what is used stays");
        assert!(words.young.len() <= MOST && words.old.len() <= MOST);
        let long = "x".repeat(LONGEST + 1);
        ask(&mut words, &long);
        assert_eq!(ask(&mut words, &long), 3 * MOST + 3, "too long to keep");
    }
}
