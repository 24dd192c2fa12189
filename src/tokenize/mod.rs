//! From a request's body to the token ids that the engine will see.
//!
//! A model's own `tokenizer.json` and chat template, applied by the engine's rules, give exactly its ids. With them the
//! prefix chain is cut where the engine's blocks are, so that what it says of its cache can be followed to the token.
//!
//! - [`Model`]: one model's files: body in, ids out.
//! - [`Pool`]: the threads that do this work, beside those that move bytes, bounded in number, queue and time.
//!
//! What can't be rendered here (images, whose placeholders only the engine can count; templates sent by the client;
//! truncated prompts) is refused with the reason, and the caller takes another way.

#[cfg(feature = "tokenizers")]
mod added;
#[cfg(feature = "tokenizers")]
mod body;
#[cfg(feature = "tokenizers")]
mod chat;
#[cfg(feature = "tokenizers")]
mod clock;
#[cfg(feature = "tokenizers")]
mod encoder;
#[cfg(feature = "tokenizers")]
mod fields;
#[cfg(feature = "tokenizers")]
mod files;
#[cfg(feature = "tokenizers")]
mod format;
#[cfg(feature = "tokenizers")]
mod model;
#[cfg(feature = "tokenizers")]
mod python;
#[cfg(feature = "tokenizers")]
mod segments;
#[cfg(feature = "tokenizers")]
mod template;
#[cfg(feature = "tokenizers")]
mod words;

#[cfg(not(feature = "tokenizers"))]
#[path = "without.rs"]
mod model;
mod pool;

#[cfg(all(test, feature = "tokenizers"))]
mod testing;

pub use model::Model;
pub use pool::{Busy, Pool};

use std::path::PathBuf;

/// Which body it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completion,
}

/// Where a model's files are, and how much may be remembered.
#[derive(Clone, Debug)]
pub struct Source {
    /// A folder with `tokenizer.json`, that file itself, or a folder of a Hugging Face cache.
    pub path: PathBuf,
    /// File of the chat template, instead of the model's own.
    pub template: Option<PathBuf>,
    /// Most bytes of remembered segments.
    pub cache_bytes: usize,
}

/// Why a model's files can't be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// There is no `tokenizer.json`.
    #[error(
        "{}: no tokenizer.json there, nor in a snapshot of a Hugging Face cache folder; give the folder that has it",
        path.display()
    )]
    Missing {
        /// The path that was given.
        path: PathBuf,
    },
    /// A file can't be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's word.
        source: std::io::Error,
    },
    /// A file isn't what its name says.
    #[error("{}: {detail}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// `tokenizer.json` describes no tokenizer that is known here.
    #[error("tokenizer.json: {detail}")]
    Tokenizer {
        /// What is wrong.
        detail: String,
    },
    /// The chat template isn't Jinja as it is understood here.
    #[error("chat template {name:?}: {detail}")]
    Template {
        /// Its name.
        name: String,
        /// What is wrong.
        detail: String,
    },
    /// Homing was built without the feature.
    #[error(
        "this homing was built without the feature \"tokenizers\"; remove `tokenizer:` or use a build with it"
    )]
    NotBuilt,
}

/// Why a body has no ids here. [`label`](Unrendered::label) names the reason in metrics.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unrendered {
    /// It isn't a body that the engine takes either.
    #[error("the body has no prompt of the expected form")]
    Body,
    /// It has images, audio or the like.
    #[error("media takes placeholders that only the engine can count")]
    Media,
    /// A key asks for something that is not followed here.
    #[error("{0} makes a prompt that only the engine can tell")]
    Key(&'static str),
    /// The model has no chat template.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The template refused.
    #[error("chat template: {0}")]
    Template(String),
    /// The tokenizer refused.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
}

impl Unrendered {
    /// A word for the reason.
    pub fn label(&self) -> &'static str {
        match self {
            Unrendered::Body => "body",
            Unrendered::Media => "media",
            Unrendered::Key(_) => "key",
            Unrendered::NoTemplate => "no_template",
            Unrendered::Template(_) => "template",
            Unrendered::Tokenizer(_) => "tokenizer",
        }
    }
}
