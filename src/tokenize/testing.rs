//! Tokenizers for tests, trained on the spot: one of each kind that models have.

#![expect(clippy::unwrap_used, reason = "a test that can't set itself up has failed")]

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

/// Text to train on, and to take samples from.
pub(crate) const CORPUS: &[&str] = &[
    "The quick brown fox jumps over the lazy dog; it isn't tired, they're sure, and I'll say so 1234 times.",
    "fn main() {\n    let x = vec![1, 2, 3];\n\tprintln!(\"{}\", x.len());\n}\n\n\n",
    "Ünïcödé wörds, 日本語のテキスト, русский текст, emoji 😀👩‍👩‍👧 and e\u{301}\u{a0}combining.",
    "  leading spaces,   runs of   spaces   \r\n and \t tabs  \n",
    "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"unit\": \"celsius\"}}",
    "the theory of the thing that they thought through thoroughly, though the others thanked them",
];

/// The splitting pattern in the style of Llama 3, Qwen and others.
pub(crate) const PATTERN: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Byte-level BPE of `size` tokens, with the control tokens `added`.
pub(crate) fn byte_level(size: usize, added: &[AddedToken]) -> Tokenizer {
    let mut trainer: TrainerWrapper = BpeTrainer::builder()
        .vocab_size(size)
        .show_progress(false)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build()
        .into();
    let mut tokenizer = Tokenizer::new(BPE::default());
    tokenizer.with_pre_tokenizer(Some(ByteLevel::default().add_prefix_space(false)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    tokenizer.train(&mut trainer, CORPUS.iter().cycle().take(60).copied()).unwrap();
    tokenizer.add_tokens(added.to_vec()).unwrap();
    tokenizer
}

/// The same tokenizer with parts of its file replaced.
pub(crate) fn with(tokenizer: &Tokenizer, parts: &[(&str, Value)]) -> Tokenizer {
    let mut file: Value = serde_json::from_str(&tokenizer.to_string(false).unwrap()).unwrap();
    for (key, value) in parts {
        file[*key] = value.clone();
    }
    Tokenizer::from_bytes(file.to_string()).unwrap()
}

/// A special token that is looked for in the raw text.
pub(crate) fn control(content: &str) -> AddedToken {
    AddedToken::from(content, true)
}

/// Writes a model's folder: a tokenizer with these control tokens, and a chat template.
pub(crate) fn model_folder(name: &str, controls: &[&str], template: &str, more: Value) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("homing-tokenize-{}-{n}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let added: Vec<AddedToken> = controls.iter().map(|c| control(c)).collect();
    write(&folder, "tokenizer.json", &byte_level(600, &added).to_string(false).unwrap());
    let mut config = json!({"chat_template": template});
    for (key, value) in more.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    write(&folder, "tokenizer_config.json", &config.to_string());
    folder
}

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).unwrap();
}
