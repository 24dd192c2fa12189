//! Models whose token ids are known here: exact prefixes instead of estimates from text.

use super::units::{Seconds, Size};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
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
