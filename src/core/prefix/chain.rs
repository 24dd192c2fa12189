//! A prompt as a chain of block hashes.
//!
//! Text is cut into blocks of fixed size and each block is hashed by itself while the body is being scanned, because
//! model, adapter and salt, which root the chain, may be the last keys of the body. Chaining afterwards costs one hash
//! of 16 bytes a block. Hash `i` of a chain stands for block `i` *and everything before it*, so two chains that agree
//! at one place agree up to that place.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of text in one block of the text chain, about 64 tokens of English.
pub const TEXT_BLOCK: usize = 256;

/// First byte of a mark. It never occurs in UTF-8, so that no text can pass for structure.
const MARK: u8 = 0xFF;

/// What besides its text makes two prompts differ: everything here is hashed with full field boundaries.
#[derive(Clone, Copy, Debug, Default)]
pub struct Root<'a> {
    /// Base model. Caches of two models never match.
    pub model: &'a str,
    /// LoRA adapter, if one is applied: it changes every KV block.
    pub lora: Option<&'a str>,
    /// The client's `cache_salt`: tenants with different salts must not share blocks.
    pub cache_salt: Option<&'a str>,
}

/// Structure of a prompt: what a chat template writes between the texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// Tool definitions follow.
    Tools,
    /// A system prompt follows that stands outside the messages.
    System,
    /// A message of this role starts.
    Role(&'a [u8]),
    /// A text part of a message starts.
    Text,
    /// An image, by its reference: URL or inline data.
    Image(&'a [u8]),
    /// A call of the tool of this name; its arguments follow as text.
    ToolCall(&'a [u8]),
    /// Any other content (audio, video, files, parts of unknown type), by its bytes.
    Other(&'a [u8]),
    /// The part or message ends.
    End,
}

/// Identity of the start of a prompt, for rendezvous between independent routers: the first chained block, or, when
/// the prompt fills no block, the chained hash of what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Head(pub u64);

/// Collects the blocks of one prompt; reusable, so that a busy thread allocates once.
#[derive(Clone, Debug)]
pub struct Blocks {
    seed: u64,
    size: usize,
    open: Vec<u8>,
    full: Vec<u64>,
    text: u64,
    marks: u64,
}

impl Blocks {
    /// A collector of blocks of `block_bytes` (at least 1; [`TEXT_BLOCK`] by default in the config). `seed` is
    /// shared by routers that are to agree, and secret: with it unknown nobody can craft two texts of one hash.
    pub fn new(seed: u64, block_bytes: usize) -> Self {
        let size = block_bytes.max(1);
        Blocks { seed, size, open: Vec::with_capacity(size), full: Vec::new(), text: 0, marks: 0 }
    }

    /// Forgets the prompt; keeps the memory.
    pub fn clear(&mut self) {
        self.open.clear();
        self.full.clear();
        self.text = 0;
        self.marks = 0;
    }

    /// Appends text (UTF-8, unescaped). However a text is split over calls, the blocks are the same.
    pub fn push(&mut self, text: &[u8]) {
        self.text += text.len() as u64;
        self.append(text);
    }

    /// Appends structure. A payload enters by its hash, so every mark has a fixed length.
    pub fn mark(&mut self, part: Part<'_>) {
        let (tag, payload) = match part {
            Part::Tools => (1, None),
            Part::System => (2, None),
            Part::Role(name) => (3, Some(name)),
            Part::Text => (4, None),
            Part::Image(reference) => (5, Some(reference)),
            Part::ToolCall(name) => (6, Some(name)),
            Part::Other(bytes) => (7, Some(bytes)),
            Part::End => (8, None),
        };
        let mut mark = [MARK, tag, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut len = 2;
        if let Some(payload) = payload {
            mark[2..].copy_from_slice(&xxh3_64_with_seed(payload, self.seed).to_le_bytes());
            len = mark.len();
        }
        self.marks += len as u64;
        self.append(&mark[..len]);
    }

    fn append(&mut self, mut bytes: &[u8]) {
        if !self.open.is_empty() {
            let take = bytes.len().min(self.size - self.open.len());
            self.open.extend_from_slice(&bytes[..take]);
            bytes = &bytes[take..];
            if self.open.len() < self.size {
                return;
            }
            self.full.push(xxh3_64_with_seed(&self.open, self.seed));
            self.open.clear();
        }
        let blocks = bytes.chunks_exact(self.size);
        self.open.extend_from_slice(blocks.remainder());
        self.full.extend(blocks.map(|block| xxh3_64_with_seed(block, self.seed)));
    }

    /// Bytes of text pushed so far, without marks.
    pub fn bytes(&self) -> u64 {
        self.text
    }

    /// Bytes that marks take in the blocks: with [`Blocks::bytes`], the length of what was cut into blocks.
    pub fn mark_bytes(&self) -> u64 {
        self.marks
    }

    /// Full blocks so far, the length of the chain.
    pub fn len(&self) -> usize {
        self.full.len()
    }

    /// True while no block is full.
    pub fn is_empty(&self) -> bool {
        self.full.is_empty()
    }

    /// Writes the chained hashes of the full blocks to `out` (cleared first).
    pub fn chain_into(&self, root: &Root<'_>, out: &mut Vec<u64>) -> Head {
        out.clear();
        out.reserve(self.full.len());
        let root = self.root(root);
        let mut hash = root;
        for &block in &self.full {
            hash = self.link(hash, block);
            out.push(hash);
        }
        match out.first() {
            Some(&first) => Head(first),
            None => Head(self.link(root, xxh3_64_with_seed(&self.open, self.seed))),
        }
    }

    fn link(&self, before: u64, block: u64) -> u64 {
        let mut pair = [0; 16];
        pair[..8].copy_from_slice(&before.to_le_bytes());
        pair[8..].copy_from_slice(&block.to_le_bytes());
        xxh3_64_with_seed(&pair, self.seed)
    }

    fn root(&self, root: &Root<'_>) -> u64 {
        root_hash(self.seed, self.size as u64, root)
    }
}

/// Each field enters by its presence and its own hash, so "a" + "bc" can't pass for "ab" + "c", nor an empty salt for
/// none. The kind of the chain (its block size, among others) enters too: chains of two kinds have nothing in common.
pub(super) fn root_hash(seed: u64, kind: u64, root: &Root<'_>) -> u64 {
    let mut fields = [0; 35];
    fields[..8].copy_from_slice(&kind.to_le_bytes());
    let named = [Some(root.model), root.lora, root.cache_salt];
    for (slot, field) in fields[8..].chunks_exact_mut(9).zip(named) {
        if let Some(field) = field {
            slot[0] = 1;
            slot[1..].copy_from_slice(&xxh3_64_with_seed(field.as_bytes(), seed).to_le_bytes());
        }
    }
    xxh3_64_with_seed(&fields, seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Root<'static> = Root { model: "m", lora: None, cache_salt: None };

    fn chain_of(root: &Root<'_>, text: &[u8]) -> (Vec<u64>, Head) {
        let mut blocks = Blocks::new(7, 16);
        blocks.push(text);
        let mut out = Vec::new();
        let head = blocks.chain_into(root, &mut out);
        (out, head)
    }

    #[test]
    fn any_split_gives_the_same_blocks() {
        let text: Vec<u8> = (0..101u8).collect();
        let (want, _) = chain_of(&ROOT, &text);
        assert_eq!(want.len(), 6);
        let mut blocks = Blocks::new(7, 16);
        let mut got = Vec::new();
        for a in 0..=text.len() {
            for b in [a, (a + 3).min(text.len()), (a + 16).min(text.len()), (a + 40).min(text.len())] {
                blocks.clear();
                for piece in [&text[..a], &text[a..b], &text[b..]] {
                    blocks.push(piece);
                }
                blocks.chain_into(&ROOT, &mut got);
                assert_eq!(got, want, "split at {a} and {b}");
                assert_eq!(blocks.bytes(), 101);
            }
        }
    }

    #[test]
    fn case_7_tools_images_salt_lora_and_system_are_part_of_the_prefix() {
        let text = [b'x'; 64];
        let roots = [
            ROOT,
            Root { model: "n", ..ROOT },
            Root { lora: Some("l"), ..ROOT },
            Root { lora: Some(""), ..ROOT },
            Root { cache_salt: Some("l"), ..ROOT },
            Root { cache_salt: Some("k"), ..ROOT },
            Root { lora: Some("l"), cache_salt: Some("l"), ..ROOT },
        ];
        let parts = [
            None,
            Some(Part::Tools),
            Some(Part::System),
            Some(Part::Text),
            Some(Part::End),
            Some(Part::Role(b"user")),
            Some(Part::Role(b"assistant")),
            Some(Part::Image(b"user")),
            Some(Part::Image(b"http://a/b.png")),
            Some(Part::ToolCall(b"user")),
            Some(Part::Other(b"user")),
        ];
        let mut seen = std::collections::HashSet::new();
        for root in &roots {
            for part in parts {
                let mut blocks = Blocks::new(7, 16);
                if let Some(part) = part {
                    blocks.mark(part);
                }
                blocks.push(&text);
                let mut out = Vec::new();
                blocks.chain_into(root, &mut out);
                assert!(out.len() >= 4);
                assert!(out.iter().all(|&hash| seen.insert(hash)), "{root:?} {part:?} shares a block");
            }
        }
    }

    #[test]
    fn marks_delimit_what_is_around_them() {
        let make = |role: &[u8], text: &[u8]| {
            let mut blocks = Blocks::new(7, 4);
            blocks.mark(Part::Role(role));
            blocks.push(text);
            let mut out = Vec::new();
            blocks.chain_into(&ROOT, &mut out);
            assert_eq!(blocks.mark_bytes() + blocks.bytes(), 10 + text.len() as u64);
            out
        };
        assert_ne!(make(b"user", b"abcdef").last(), make(b"usera", b"bcdef#").last());
    }

    #[test]
    fn case_8_short_prompts_and_block_borders() {
        let text = [b'a'; 64];
        for (len, blocks) in [(0, 0), (1, 0), (15, 0), (16, 1), (17, 1), (31, 1), (32, 2), (33, 2), (64, 4)] {
            let (chain, head) = chain_of(&ROOT, &text[..len]);
            assert_eq!(chain.len(), blocks, "{len} bytes");
            if let Some(&first) = chain.first() {
                assert_eq!(head, Head(first));
            }
        }
        let short: Vec<Head> = [0, 1, 15].iter().map(|&n| chain_of(&ROOT, &text[..n]).1).collect();
        assert!(short[0] != short[1] && short[1] != short[2], "short prompts keep an identity");
        assert_ne!(chain_of(&Root { cache_salt: Some("s"), ..ROOT }, b"hi").1, chain_of(&ROOT, b"hi").1);
    }

    #[test]
    fn case_10_order_matters() {
        let (a, b) = ([b'a'; 16], [b'b'; 16]);
        let (ab, _) = chain_of(&ROOT, &[a, b].concat());
        let (ba, _) = chain_of(&ROOT, &[b, a].concat());
        assert!(ab.iter().all(|hash| !ba.contains(hash)));
        let (aa, _) = chain_of(&ROOT, &[a, a].concat());
        assert_ne!(aa[0], aa[1], "equal blocks at different places differ");
    }

    #[test]
    fn the_seed_keys_every_hash() {
        let hash = |seed| {
            let mut blocks = Blocks::new(seed, 16);
            blocks.push(&[b'a'; 16]);
            blocks.chain_into(&ROOT, &mut Vec::new())
        };
        assert_ne!(hash(1), hash(2));
        assert_eq!(hash(1), hash(1));
    }
}
