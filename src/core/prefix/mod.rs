//! Who holds which prefix: block chains of prompts, and the radix index over them.

pub mod chain;
