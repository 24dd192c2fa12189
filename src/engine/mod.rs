//! What each model server calls its numbers.
//!
//! A router needs about twenty of the thousand lines on an engine's metrics page, once a second, from each replica. So a
//! page is scanned in one pass for the names in a table (`names`), without a parser, a map or an allocation; everything
//! else is skipped by its first bytes. Another engine is another table.
//!
//! [`kv`] is what they publish of their KV caches, event by event.
//!
//! What isn't on the page is `None`: unknown, which is neither idle nor full.

mod delta;
pub mod kv;
mod models;
mod names;
mod page;
mod sample;
mod scan;

pub use delta::Delta;
pub use models::{ModelEntry, models};
pub use names::{Engine, detect};
pub use sample::{Lora, Sample, Sum};
pub use scan::scan;
