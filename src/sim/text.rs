//! The language of the simulated engines: four bytes are a token, and an answer is a row of pseudo words.
//!
//! A prompt is rendered much as a chat template does it: tools first, then each message between a marker of its role
//! and an end marker, then the marker that opens the answer. All pieces are padded to whole tokens, so a later turn that
//! repeats the conversation repeats its tokens, and with them the blocks that an engine has cached, the answer's included.
//!
//! What is answered depends on the text before the marker that opened the answer, and on nothing else: every engine
//! gives the same answer, also when it continues one that another has begun.

use std::borrow::Cow;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Bytes in a token.
pub const TOKEN: usize = 4;

const OPEN: &[u8; 8] = b"<|asst|>";
const CLOSE: &[u8; 8] = b"<|end|>\n";

/// A rendered prompt.
#[derive(Clone, Debug, Default)]
pub struct Prompt {
    bytes: Vec<u8>,
}

impl Prompt {
    /// A prompt of plain text, as `/v1/completions` takes it.
    pub fn plain(text: &str) -> Self {
        Prompt { bytes: text.as_bytes().to_vec() }
    }

    /// A prompt of token ids, as [`Prompt::ids`] gave them.
    pub fn from_ids(ids: &[u32]) -> Self {
        Prompt { bytes: ids.iter().flat_map(|id| id.to_le_bytes()).collect() }
    }

    /// Make room for `bytes` more.
    pub fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve(bytes);
    }

    /// Begin a message.
    pub fn begin(&mut self, role: &str) {
        let tag = match role {
            "system" | "developer" => *b"syst",
            "assistant" => *b"asst",
            other => {
                let mut tag = *b"....";
                tag.iter_mut().zip(other.bytes()).for_each(|(t, b)| *t = b);
                tag
            }
        };
        self.bytes.extend_from_slice(b"<|");
        self.bytes.extend_from_slice(&tag);
        self.bytes.extend_from_slice(b"|>");
    }

    /// Text inside a message.
    pub fn text(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
    }

    /// An image or another attachment, by its reference.
    pub fn attachment(&mut self, reference: &str) {
        let hash = xxh3_64(reference.as_bytes());
        self.bytes.extend_from_slice(format!("<|obj:{hash:016x}|>").as_bytes());
    }

    /// End a message.
    pub fn end(&mut self) {
        while !self.bytes.len().is_multiple_of(TOKEN) {
            self.bytes.push(b' ');
        }
        self.bytes.extend_from_slice(CLOSE);
    }

    /// A whole message of text.
    pub fn message(&mut self, role: &str, text: &str) {
        self.begin(role);
        self.text(text);
        self.end();
    }

    /// Open the answer.
    pub fn open_answer(&mut self) {
        self.bytes.extend_from_slice(OPEN);
    }

    /// Length in tokens; a rest of less than four bytes is a token too.
    pub fn tokens(&self) -> u32 {
        u32::try_from(self.bytes.len().div_ceil(TOKEN)).unwrap_or(u32::MAX)
    }

    /// The tokens as numbers.
    pub fn ids(&self) -> Vec<u32> {
        self.bytes.chunks(TOKEN).map(id).collect()
    }

    /// The tokens of this prompt with `answer` behind it, in whole tokens.
    pub fn ids_with(&self, answer: &str) -> Vec<u32> {
        self.bytes
            .iter()
            .chain(answer.as_bytes())
            .copied()
            .collect::<Vec<u8>>()
            .chunks(TOKEN)
            .map(id)
            .collect()
    }

    /// Hashes of the full blocks of this prompt with `answer` behind it. `root` keeps apart what must not be shared.
    pub fn chain(&self, root: u64, answer: &str, block_tokens: u32) -> Vec<u64> {
        let size = block_tokens.max(1) as usize * TOKEN;
        let mut hash = root;
        let mut chain = Vec::with_capacity((self.bytes.len() + answer.len()) / size);
        let mut link = |block: &[u8]| {
            // 0 means "no content" in the pool.
            hash = xxh3_64_with_seed(block, hash).max(1);
            chain.push(hash);
        };
        let rest = self.bytes.len() % size;
        let (full, rest) = self.bytes.split_at(self.bytes.len() - rest);
        full.chunks_exact(size).for_each(&mut link);
        // An answer behind a partial token would be tokenized differently when it comes back; so would nobody's else.
        if rest.len().is_multiple_of(TOKEN) {
            let tail: Cow<'_, [u8]> = match rest {
                [] => Cow::Borrowed(answer.as_bytes()),
                rest => Cow::Owned([rest, answer.as_bytes()].concat()),
            };
            tail.chunks_exact(size).for_each(&mut link);
        }
        chain
    }

    /// Where the answer began: behind the last marker that opened one and wasn't closed, else at the end.
    fn origin(&self) -> usize {
        let found = memchr::memmem::rfind(&self.bytes, OPEN).map(|at| at + OPEN.len());
        let open = |at: &usize| memchr::memmem::find(&self.bytes[*at..], CLOSE).is_none();
        found.filter(open).unwrap_or(self.bytes.len())
    }
}

/// The number of a token.
pub fn id(token: &[u8]) -> u32 {
    let mut bytes = [0; TOKEN];
    bytes.iter_mut().zip(token).for_each(|(b, t)| *b = *t);
    u32::from_le_bytes(bytes)
}

/// Root of the chains of one model (or adapter) and cache salt.
pub fn root(model: &str, salt: Option<&str>) -> u64 {
    xxh3_64_with_seed(salt.unwrap_or("").as_bytes(), xxh3_64(model.as_bytes()))
}

/// The answer to one prompt.
#[derive(Clone, Copy, Debug)]
pub struct Voice {
    seed: u64,
    /// Tokens of the answer that the prompt already contains.
    said: u64,
}

impl Voice {
    /// The answer to `prompt`. Engines with the same `seed` give the same.
    pub fn of(prompt: &Prompt, seed: u64) -> Self {
        let origin = prompt.origin();
        Voice {
            seed: xxh3_64_with_seed(&prompt.bytes[..origin], seed),
            said: (prompt.bytes.len() - origin).div_ceil(TOKEN) as u64,
        }
    }

    /// Tokens that are still to be said: from half to one and a half of `mean` in all, at least 1.
    pub fn length(&self, mean: u32) -> u32 {
        let mean = u64::from(mean.max(1));
        let all = mean / 2 + mix(self.seed) % (mean + 1);
        u32::try_from(all.saturating_sub(self.said)).unwrap_or(u32::MAX).max(1)
    }

    /// The next `n` tokens of answer number `choice`, one word of three letters and a space each.
    pub fn text(&self, n: u32, choice: u32) -> String {
        const HARD: &[u8; 16] = b"bcdfghklmnprstvz";
        const SOFT: &[u8; 4] = b"aeio";
        let mut text = String::with_capacity(n as usize * TOKEN);
        for i in 0..u64::from(n) {
            let x = mix(self.seed ^ (self.said + i) ^ (u64::from(choice) << 40)) as usize;
            for letter in [HARD[x & 15], SOFT[x >> 4 & 3], HARD[x >> 6 & 15], b' '] {
                text.push(char::from(letter));
            }
        }
        text
    }
}

/// A good permutation of 64 bits (splitmix64's finish).
pub(super) fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(turns: &[(&str, &str)]) -> Prompt {
        let mut prompt = Prompt::default();
        for (role, text) in turns {
            prompt.message(role, text);
        }
        prompt.open_answer();
        prompt
    }

    #[test]
    fn the_next_turn_extends_the_chain_of_prompt_and_answer() {
        let first = asked(&[("system", "Be brief."), ("user", "Who was first?")]);
        let answer = Voice::of(&first, 0).text(40, 0);
        let chain = first.chain(7, &answer, 4);
        assert_eq!(chain.len(), (first.tokens() as usize + 40) / 4);
        let turns = [
            ("system", "Be brief."),
            ("user", "Who was first?"),
            ("assistant", &answer),
            ("user", "And then?"),
        ];
        let next = asked(&turns).chain(7, "", 4);
        assert_eq!(next[..chain.len()], chain[..]);
        assert_ne!(asked(&turns).chain(8, "", 4)[0], chain[0], "another root, other blocks");
    }

    #[test]
    fn an_answer_can_be_continued_anywhere() {
        let prompt = asked(&[("user", "Tell me.")]);
        let voice = Voice::of(&prompt, 3);
        let whole = voice.text(20, 0);
        let mut ids = prompt.ids();
        ids.extend(whole.as_bytes()[..28].chunks(TOKEN).map(id));
        let rest = Voice::of(&Prompt::from_ids(&ids), 3);
        assert_eq!(rest.text(13, 0), whole[28..]);
        assert_eq!(rest.length(64), voice.length(64) - 7);
        assert_ne!(voice.text(20, 1), whole, "another choice says something else");
        assert!((32..=96).contains(&voice.length(64)));
    }

    #[test]
    fn a_closed_answer_is_history() {
        let prompt = asked(&[("user", "a"), ("assistant", "b"), ("user", "c")]);
        assert_eq!(Voice::of(&prompt, 0).said, 0);
        let plain = Prompt::plain("some text");
        assert_eq!((plain.tokens(), Voice::of(&plain, 0).said), (3, 0));
    }
}
