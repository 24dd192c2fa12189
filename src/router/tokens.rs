//! Exact prompts: the engine's token ids instead of text, for models whose files are at hand.
//!
//! The work is done by threads of its own, within a bound of time. What doesn't come in time isn't waited for: the
//! request goes on with its text, whose chain is entered always, and the ids are remembered for its next turn.

use super::Router;
use crate::config::Config;
use crate::core::ids::Holder;
use crate::core::prefix::{Root, TokenChain};
use crate::tokenize::{Kind, LoadError, Model, Pool, Source, Unrendered};
use bytes::Bytes;
use std::collections::HashMap;
use std::num::NonZero;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

/// A prompt as the engine's cache sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenPrompt {
    /// Chained hashes of its full blocks.
    pub chain: Arc<[u64]>,
    /// Identity of its start.
    pub head: u64,
    /// Its tokens.
    pub tokens: u32,
    /// Tokens of a block.
    pub block: u32,
}

/// Where a placed request's tokens are believed to be.
#[derive(Clone, Debug)]
pub(super) struct Placement {
    pub(super) chain: Arc<[u64]>,
    pub(super) block: u32,
    pub(super) holder: Holder,
    /// The data-parallel rank of that holder, where there are several.
    pub(super) rank: Option<u32>,
}

/// Why a prompt is followed as text though its model's files are at hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inexact {
    /// The ids weren't there in time.
    Late,
    /// Too many prompts wait for their ids.
    Busy,
    /// They can't be told here.
    Unrendered(Unrendered),
}

impl Inexact {
    /// A word for the metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Inexact::Late => "late",
            Inexact::Busy => "busy",
            Inexact::Unrendered(why) => why.label(),
        }
    }
}

/// Models by the names that requests use, and the threads that tokenize.
#[derive(Debug)]
pub struct Tokens {
    pool: Pool,
    names: HashMap<String, Arc<Entry>>,
    patience: Duration,
}

#[derive(Debug)]
struct Entry {
    /// The name that stands for all names of the model: they share one cache in the engine.
    name: String,
    model: Model,
    block: u32,
}

/// Why the models' files can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// The files of a model.
    #[error("tokenizer.models, {model}: {source}")]
    Files {
        /// Its first name.
        model: String,
        /// What is wrong.
        source: LoadError,
    },
    /// The system.
    #[error("threads of the tokenizer: {0}")]
    Threads(#[from] std::io::Error),
}

impl Tokens {
    /// Loads the models that `config` names; `None` if it names none.
    ///
    /// # Errors
    /// Files that can't be used, or threads that can't be started.
    pub fn load(config: &Config) -> Result<Option<Tokens>, TokensError> {
        let config = &config.tokenizer;
        if config.models.is_empty() {
            return Ok(None);
        }
        let mut names = HashMap::new();
        for m in &config.models {
            let name = m.names.first().cloned().unwrap_or_default();
            let source = Source {
                path: m.path.clone(),
                template: m.template.clone(),
                cache_bytes: m.cache.as_usize(),
            };
            let model =
                Model::load(&source).map_err(|source| TokensError::Files { model: name.clone(), source })?;
            let entry = Arc::new(Entry { name, model, block: m.block_tokens.max(1) });
            names.extend(m.names.iter().map(|n| (n.clone(), entry.clone())));
        }
        let half = || available_parallelism().map_or(1, NonZero::get).div_ceil(2);
        let pool = Pool::start(config.threads.unwrap_or_else(half), config.queue)?;
        Ok(Some(Tokens { pool, names, patience: config.timeout.get() }))
    }

    /// The first of these models that is known: the name that stands for it, and the tokens in one of its blocks.
    pub(super) fn identity<'a>(&self, mut models: impl Iterator<Item = &'a str>) -> Option<(&str, u32)> {
        models.find_map(|m| self.names.get(m)).map(|e| (&*e.name, e.block))
    }
}

impl Entry {
    fn prompt(
        &self,
        seed: u64,
        kind: Kind,
        keys: (Option<&str>, Option<&str>),
        body: &[u8],
    ) -> Result<TokenPrompt, Inexact> {
        let ids = self.model.ids(kind, body).map_err(Inexact::Unrendered)?;
        let root = Root { model: &self.name, lora: keys.0, cache_salt: keys.1 };
        let mut chain = TokenChain::new(seed, self.block, &root);
        chain.extend(&ids);
        Ok(TokenPrompt {
            head: chain.head().0,
            tokens: u32::try_from(ids.len()).unwrap_or(u32::MAX),
            block: self.block,
            chain: chain.into_hashes().into(),
        })
    }
}

impl Router {
    /// Gives the router its models' files, once.
    pub fn use_tokens(&self, tokens: Tokens) {
        let _ = self.tokens.set(tokens);
    }

    /// The files for a model; the third is the adapter, if it is one of a model whose files are at hand.
    fn entry<'a>(&self, model: Option<&'a str>) -> Option<(&Tokens, &Arc<Entry>, Option<&'a str>)> {
        let (tokens, model) = (self.tokens.get()?, model?);
        if let Some(entry) = tokens.names.get(model) {
            return Some((tokens, entry, None));
        }
        let parent = self.parent_of(model)?;
        Some((tokens, tokens.names.get(&*parent)?, Some(model)))
    }

    /// The exact prompt of a body; `None` if the model's files aren't at hand.
    pub async fn tokens(
        &self,
        kind: Kind,
        model: Option<&str>,
        salt: Option<&str>,
        body: &Bytes,
    ) -> Option<Result<TokenPrompt, Inexact>> {
        let (tokens, entry, lora) = self.entry(model)?;
        let (send, receive) = tokio::sync::oneshot::channel();
        let (entry, seed, body) = (entry.clone(), self.seed, body.clone());
        let (lora, salt) = (lora.map(str::to_owned), salt.map(str::to_owned));
        let job = move || {
            // Nobody listens any more when it took too long; the segments are remembered all the same.
            let _ = send.send(entry.prompt(seed, kind, (lora.as_deref(), salt.as_deref()), &body));
        };
        if tokens.pool.submit(job).is_err() {
            return Some(Err(Inexact::Busy));
        }
        Some(match tokio::time::timeout(tokens.patience, receive).await {
            Ok(Ok(prompt)) => prompt,
            Ok(Err(_)) => Err(Inexact::Unrendered(Unrendered::Tokenizer("it broke off".to_owned()))),
            Err(_) => Err(Inexact::Late),
        })
    }

    /// The same on this thread and without a limit of time; for explanations.
    pub fn tokens_now(
        &self,
        kind: Kind,
        model: Option<&str>,
        salt: Option<&str>,
        body: &[u8],
    ) -> Option<Result<TokenPrompt, Inexact>> {
        self.entry(model).map(|(_, entry, lora)| entry.prompt(self.seed, kind, (lora, salt), body))
    }

    /// What the index of token chains holds.
    pub fn exact_stats(&self) -> crate::core::prefix::IndexStats {
        self.exact.read().stats()
    }
}

#[cfg(all(test, feature = "tokenizers"))]
#[path = "tokens_tests.rs"]
mod tests;
