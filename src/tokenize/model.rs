//! One model: its tokenizer and its chat template, together.

use super::body::{Body, Prompt};
use super::encoder::Encoder;
use super::files::Files;
use super::template::Templates;
use super::{Kind, LoadError, Source, Unrendered, chat};

/// A model's tokenizer and chat template. Shared between threads; what one has encoded, all remember.
#[derive(Debug)]
pub struct Model {
    encoder: Encoder,
    templates: Templates,
}

impl Model {
    /// Reads the model's files.
    ///
    /// # Errors
    /// A file is missing or isn't what it should be; the message says which.
    pub fn load(source: &Source) -> Result<Model, LoadError> {
        let files = Files::read(&source.path, source.template.as_deref())?;
        let encoder = Encoder::new(&files, source.cache_bytes)?;
        Ok(Model { encoder, templates: Templates::new(files.templates, files.specials)? })
    }

    /// The ids that the engine will see for `body`. Of several prompts in a completion, the first.
    ///
    /// # Errors
    /// They can't be told here; the error says why.
    pub fn ids(&self, kind: Kind, body: &[u8]) -> Result<Vec<u32>, Unrendered> {
        let body = Body::read(body).ok_or(Unrendered::Body)?;
        match kind {
            Kind::Chat => {
                let special = body.add_special_tokens.unwrap_or(false);
                self.encoder.encode(&chat::render(&self.templates, body)?, special)
            }
            Kind::Completion => {
                if let Some(key) = body.strange {
                    return Err(Unrendered::Key(key));
                }
                let special = body.add_special_tokens.unwrap_or(true);
                match body.prompt {
                    Some(Prompt::Text(text)) => self.encoder.encode(&text, special),
                    Some(Prompt::Ids(ids)) => Ok(ids),
                    Some(Prompt::Other) | None => Err(Unrendered::Body),
                }
            }
        }
    }

    /// The text that the chat template makes of `body`, for people who want to see it.
    ///
    /// # Errors
    /// It can't be rendered here; the error says why.
    pub fn text(&self, body: &[u8]) -> Result<String, Unrendered> {
        chat::render(&self.templates, Body::read(body).ok_or(Unrendered::Body)?)
    }

    /// Bytes that remembered segments take now.
    pub fn cached_bytes(&self) -> usize {
        self.encoder.bytes()
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
