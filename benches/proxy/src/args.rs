//! `--name value` pairs.

use std::collections::HashMap;
use std::str::FromStr;

use crate::Outcome;

/// The options of one command.
pub(crate) struct Args(HashMap<String, String>);

impl Args {
    /// Reads `--name value` pairs; anything else is an error.
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Outcome<Self> {
        let mut pairs = HashMap::new();
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").ok_or_else(|| format!("`{word}` is not an option"))?;
            let value = words.next().ok_or_else(|| format!("--{name} needs a value"))?;
            pairs.insert(name.to_string(), value);
        }
        Ok(Self(pairs))
    }

    /// The value of `name`, or `default`.
    pub(crate) fn get<T: FromStr>(&self, name: &str, default: T) -> Outcome<T> {
        match self.0.get(name) {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| format!("--{name}: `{text}` is not valid").into()),
        }
    }

    /// The value of `name`, which must be given.
    pub(crate) fn need<T: FromStr>(&self, name: &str) -> Outcome<T> {
        let text = self.0.get(name).ok_or_else(|| format!("--{name} is missing"))?;
        text.parse().map_err(|_| format!("--{name}: `{text}` is not valid").into())
    }
}
