//! A prompt as a chain of block hashes.

/// Bytes of text in one block of the text chain, about 64 tokens of English.
pub const TEXT_BLOCK: usize = 256;
