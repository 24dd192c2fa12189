//! What stands for a model in builds without the feature `tokenizers`: there are none.

use super::{Kind, LoadError, Source, Unrendered};

/// A model's tokenizer and chat template; this build has none.
#[derive(Debug)]
pub enum Model {}

impl Model {
    /// Reads the model's files.
    ///
    /// # Errors
    /// Always: this build can't.
    pub fn load(_: &Source) -> Result<Model, LoadError> {
        Err(LoadError::NotBuilt)
    }

    /// The ids that the engine will see for `body`.
    ///
    /// # Errors
    /// They can't be told here.
    pub fn ids(&self, _: Kind, _: &[u8]) -> Result<Vec<u32>, Unrendered> {
        match *self {}
    }

    /// The text that the chat template makes of `body`.
    ///
    /// # Errors
    /// It can't be rendered here.
    pub fn text(&self, _: &[u8]) -> Result<String, Unrendered> {
        match *self {}
    }

    /// Bytes that remembered segments take now.
    pub fn cached_bytes(&self) -> usize {
        match *self {}
    }
}
