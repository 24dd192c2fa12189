//! A tokenizer whose work is remembered, and whose ids are exactly those of the `tokenizers` library.
//!
//! The library finds the added tokens in the raw text first, and handles each segment between them by itself:
//! normalise, pre-tokenize, encode the words. So segments can be remembered one by one. The one step that looks beyond
//! its segment is `Metaspace`'s prefix space on the first piece of a text only: segments that don't start the text go
//! through a pre-tokenizer without it, and are remembered apart.

use super::added::{Added, Finder, Piece};
use super::files::Files;
use super::segments::Segments;
use super::words::Words;
use super::{LoadError, Unrendered};
use parking_lot::Mutex;
use tokenizers::models::ModelWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::{
    AddedToken, Encoding, Model, OffsetReferential, OffsetType, PreTokenizer, Token, Tokenizer,
};

/// Remembered words, for as many threads as encode at once.
type Memory = Mutex<Vec<Words>>;

/// One model's tokenizer.
pub(super) struct Encoder {
    tokenizer: Tokenizer,
    /// The pre-tokenizer for segments that don't start the text, if it differs.
    later: Option<PreTokenizerWrapper>,
    /// `None`: some added token matches whole words only, so that its neighbours matter; texts aren't cut then.
    finder: Option<Finder>,
    segments: Segments,
    words: Memory,
    /// Ids before and after a text that is encoded with special tokens.
    around: (Vec<u32>, Vec<u32>),
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder").field("segments", &self.segments).finish_non_exhaustive()
    }
}

impl Encoder {
    /// A tokenizer from a model's files, with a memory of `cache` bytes for segments.
    pub(super) fn new(files: &Files, cache: usize) -> Result<Self, LoadError> {
        let bad = |e: tokenizers::Error| LoadError::Tokenizer { detail: e.to_string() };
        let mut tokenizer = Tokenizer::from_bytes(&files.tokenizer).map_err(bad)?;
        let missing: Vec<AddedToken> = files
            .added
            .iter()
            .filter_map(|token| serde_json::from_value::<AddedToken>(token.clone()).ok())
            .filter(|token| !tokenizer.get_added_vocabulary().get_vocab().contains_key(&token.content))
            .collect();
        if !missing.is_empty() {
            tokenizer.add_tokens(missing).map_err(bad)?;
        }
        Self::of(tokenizer, cache).map_err(bad)
    }

    fn of(mut tokenizer: Tokenizer, cache: usize) -> tokenizers::Result<Self> {
        // Engines ask for neither, whatever the file says.
        tokenizer.with_truncation(None)?;
        tokenizer.with_padding(None);
        let mut model = tokenizer.get_model().clone();
        if let ModelWrapper::BPE(bpe) = &mut model {
            // Words are remembered here already.
            bpe.resize_cache(0);
            tokenizer.with_model(model);
        }
        let mut tokens = Vec::new();
        let mut alone = true;
        for (&id, token) in tokenizer.get_added_vocabulary().get_added_tokens_decoder() {
            if !token.normalized {
                alone &= !token.single_word;
                let content = token.content.clone();
                tokens.push(Added { content, id, lstrip: token.lstrip, rstrip: token.rstrip });
            }
        }
        Ok(Encoder {
            later: tokenizer.get_pre_tokenizer().and_then(later),
            finder: alone.then(|| Finder::new(tokens)),
            segments: Segments::new(cache),
            words: Memory::default(),
            around: around(&tokenizer)?,
            tokenizer,
        })
    }

    /// The ids of `text`; `special`: with those that the tokenizer puts around a text (BOS, mostly).
    pub(super) fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, Unrendered> {
        let mut words = self.words.lock().pop().unwrap_or_default();
        let mut out = Vec::with_capacity(text.len() / 4 + 8);
        if special {
            out.extend_from_slice(&self.around.0);
        }
        let done = match &self.finder {
            None => self.segment(text, true, &mut words, &mut out),
            Some(finder) => finder.split(text, |piece| match piece {
                Piece::Token(id) => {
                    out.push(id);
                    Ok(())
                }
                Piece::Text { text, first } => self.segment(text, first, &mut words, &mut out),
            }),
        };
        self.words.lock().push(words);
        done.map_err(|e| Unrendered::Tokenizer(e.to_string()))?;
        if special {
            out.extend_from_slice(&self.around.1);
        }
        Ok(out)
    }

    fn segment(
        &self,
        text: &str,
        first: bool,
        words: &mut Words,
        out: &mut Vec<u32>,
    ) -> tokenizers::Result<()> {
        let key = self.segments.key(text, u64::from(first && self.later.is_some()));
        if let Some(ids) = self.segments.get(key) {
            out.extend_from_slice(&ids);
            return Ok(());
        }
        let from = out.len();
        self.fresh(text, first, words, out)?;
        self.segments.put(key, &out[from..]);
        Ok(())
    }

    fn fresh(
        &self,
        text: &str,
        first: bool,
        words: &mut Words,
        out: &mut Vec<u32>,
    ) -> tokenizers::Result<()> {
        let added = self.tokenizer.get_added_vocabulary();
        let mut cut = added.extract_and_normalize(self.tokenizer.get_normalizer(), text);
        let later = self.later.as_ref().filter(|_| !first);
        if let Some(pre) = later.or_else(|| self.tokenizer.get_pre_tokenizer()) {
            pre.pre_tokenize(&mut cut)?;
        }
        for (word, _, tokens) in cut.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            match tokens {
                Some(tokens) => out.extend(tokens.iter().map(|t| t.id)),
                None => words.append(word, out, |word, out| self.word(word, out))?,
            }
        }
        Ok(())
    }

    fn word(&self, word: &str, out: &mut Vec<u32>) -> tokenizers::Result<()> {
        out.extend(self.tokenizer.get_model().tokenize(word)?.iter().map(|t| t.id));
        Ok(())
    }

    /// Bytes that remembered segments take.
    pub(super) fn bytes(&self) -> usize {
        self.segments.bytes()
    }
}

/// The same pre-tokenizer for text that doesn't start at the start; `None` if that makes no difference.
fn later(pre: &PreTokenizerWrapper) -> Option<PreTokenizerWrapper> {
    match pre {
        PreTokenizerWrapper::Metaspace(m) if m.get_prepend_scheme() == PrependScheme::First => {
            let mut m = m.clone();
            m.set_prepend_scheme(PrependScheme::Never);
            Some(m.into())
        }
        PreTokenizerWrapper::Sequence(all) => {
            let all: &[PreTokenizerWrapper] = all.as_ref();
            let others: Vec<Option<PreTokenizerWrapper>> = all.iter().map(later).collect();
            if others.iter().all(Option::is_none) {
                return None;
            }
            let made = others.into_iter().zip(all).map(|(other, same)| other.unwrap_or_else(|| same.clone()));
            Some(Sequence::new(made.collect()).into())
        }
        _ => None,
    }
}

/// What the post-processor puts before and after a text.
fn around(tokenizer: &Tokenizer) -> tokenizers::Result<(Vec<u32>, Vec<u32>)> {
    let mark = u32::MAX;
    let one = Encoding::from_tokens(vec![Token::new(mark, "x".to_owned(), (0, 1))], 0);
    let all = tokenizer.post_process(one, None, true)?;
    let mut parts = all.get_ids().split(|&id| id == mark);
    let mut part = || parts.next().unwrap_or_default().to_vec();
    Ok((part(), part()))
}

#[cfg(test)]
#[path = "encoder_tests.rs"]
mod tests;
