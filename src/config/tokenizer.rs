//! Models whose token ids are known here: exact prefixes instead of estimates from text.

use super::units::{Seconds, Size};
use super::validate::Check;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Token ids of prompts, for models whose files are at hand. Prompts of other models are followed as text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Tokenizer {
    /// The models.
    pub models: Vec<TokenizerModel>,
    /// Threads that tokenize; null: half the cores, at least one.
    pub threads: Option<usize>,
    /// Most prompts that wait for such a thread; further ones are followed as text.
    pub queue: usize,
    /// Longest time a request waits for its ids, and then goes on with its text. What was begun is finished and remembered.
    pub timeout: Seconds,
}

impl Default for Tokenizer {
    fn default() -> Self {
        Tokenizer { models: Vec::new(), threads: None, queue: 256, timeout: Seconds::from_millis(20) }
    }
}

/// One model's files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenizerModel {
    /// Names by which requests ask for it. All are the same model: they share one prefix cache.
    pub names: Vec<String>,
    /// Folder with `tokenizer.json` and `tokenizer_config.json`, or a folder of a Hugging Face cache.
    pub path: PathBuf,
    /// File of the chat template, if the engine was given one (`--chat-template`).
    #[serde(default)]
    pub template: Option<PathBuf>,
    /// Tokens in a block of the engine's cache (vLLM: `--block-size`), or a divisor of it.
    #[serde(default = "block_tokens")]
    pub block_tokens: u32,
    /// Most memory for remembered segments.
    #[serde(default = "cache")]
    pub cache: Size,
}

/// What vLLM takes on GPUs unless told otherwise.
fn block_tokens() -> u32 {
    16
}

/// About 12 million tokens.
fn cache() -> Size {
    Size::bytes(64 << 20)
}

/// What types can't say of the models.
pub(super) fn check(tokenizer: &Tokenizer, c: &mut Check) {
    let mut names = BTreeSet::new();
    for (i, model) in tokenizer.models.iter().enumerate() {
        let path = format!("tokenizer.models[{i}]");
        if model.names.is_empty() {
            c.error(&format!("{path}.names"), "there is none: name the model as requests do");
        }
        for name in &model.names {
            if !names.insert(name) {
                c.error(&format!("{path}.names"), format!("`{name}` is listed twice"));
            }
        }
        let block = Some(f64::from(model.block_tokens));
        c.between(&format!("{path}.block_tokens"), block, 1.0, 4096.0);
    }
    c.at_least("tokenizer.queue", Some(tokenizer.queue), 1);
    c.between("tokenizer.threads", tokenizer.threads.map(|n| n as f64), 1.0, 256.0);
}
