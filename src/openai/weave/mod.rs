//! Continuing a stream on another engine, so that its client sees one unbroken answer.
//!
//! An engine that is asked to tell token ids (`return_token_ids`) says with each event which tokens it stands for, and
//! with the first one which tokens the prompt became. Prompt and tokens so far, given as ids to the completions endpoint
//! of another engine, are exactly the state that the first one was in: nothing is tokenized or templated again.
//!
//! - [`Recipe`]: which requests can be continued like that, and what of them the continuation repeats.
//! - [`Weave`]: the stream as its client sees it: takes the ids out again, remembers them, and makes the events of
//!   continuations look like those of the first engine.
//!
//! Text alone would not do: it can be tokenized in more than one way, templates trim it, and a cut may lie inside a
//! character. So a stream of an engine that tells no ids can't be continued.

mod event;
mod recipe;
mod splitter;
mod state;
#[cfg(test)]
mod tests;

pub use recipe::Recipe;
pub use state::Weave;
