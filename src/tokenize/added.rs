//! Finds a tokenizer's added tokens (`<|im_start|>` and the like) in a text, and so the segments between them.
//!
//! Only tokens that are looked for in the raw text are found here (`normalized: false`, as all control tokens are).
//! Those that are looked for in the normalised text are left to the segment's own encoding. The rules are those of the
//! `tokenizers` library: the leftmost match, of those the longest; white space that a token strips belongs to it.

/// A token to look for.
#[derive(Clone, Debug)]
pub(super) struct Added {
    pub(super) content: String,
    pub(super) id: u32,
    pub(super) lstrip: bool,
    pub(super) rstrip: bool,
}

/// A piece of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// An added token.
    Token(u32),
    /// The text between two of them, and whether it starts the whole text.
    Text { text: &'a str, first: bool },
}

#[derive(Clone, Debug, Default)]
struct Node {
    /// Sorted by byte.
    next: Vec<(u8, u32)>,
    token: Option<u32>,
}

/// All tokens, as a tree of bytes.
#[derive(Clone, Debug)]
pub(super) struct Finder {
    tokens: Vec<Added>,
    nodes: Vec<Node>,
    /// The first bytes of tokens: few enough to look for them with vector instructions, mostly.
    firsts: Vec<u8>,
    starts: Box<[bool; 256]>,
}

impl Finder {
    pub(super) fn new(tokens: Vec<Added>) -> Self {
        let mut made = Finder {
            nodes: vec![Node::default()],
            firsts: Vec::new(),
            starts: Box::new([false; 256]),
            tokens: Vec::new(),
        };
        for token in tokens.into_iter().filter(|t| !t.content.is_empty()) {
            made.insert(token);
        }
        made
    }

    fn insert(&mut self, token: Added) {
        let mut at = 0;
        for &byte in token.content.as_bytes() {
            let fresh = self.nodes.len() as u32;
            let node = &mut self.nodes[at];
            at = match node.next.binary_search_by_key(&byte, |(b, _)| *b) {
                Ok(found) => node.next[found].1,
                Err(place) => {
                    node.next.insert(place, (byte, fresh));
                    self.nodes.push(Node::default());
                    fresh
                }
            } as usize;
        }
        self.nodes[at].token = Some(self.tokens.len() as u32);
        if let Some(&first) = token.content.as_bytes().first()
            && !self.starts[usize::from(first)]
        {
            self.starts[usize::from(first)] = true;
            self.firsts.push(first);
        }
        self.tokens.push(token);
    }

    /// Hands the pieces of `text` to `take`, in order.
    pub(super) fn split<'a, E>(
        &self,
        text: &'a str,
        mut take: impl FnMut(Piece<'a>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut done, mut at) = (0, 0);
        while let Some((from, token, end)) = self.find(text.as_bytes(), at) {
            at = end;
            let (mut from, mut end) = (from, end);
            if token.lstrip {
                from = text[..from].trim_end().len().max(done);
            }
            if token.rstrip {
                end = text.len() - text[end..].trim_start().len();
            }
            if done < from {
                take(Piece::Text { text: &text[done..from], first: done == 0 })?;
            }
            take(Piece::Token(token.id))?;
            done = end;
        }
        if done < text.len() {
            take(Piece::Text { text: &text[done..], first: done == 0 })?;
        }
        Ok(())
    }

    /// The next match at or after `at`: where it starts, the token, where it ends.
    fn find(&self, text: &[u8], mut at: usize) -> Option<(usize, &Added, usize)> {
        loop {
            at += self.candidate(text.get(at..)?)?;
            if let Some((token, length)) = self.longest(&text[at..]) {
                return Some((at, token, at + length));
            }
            at += 1;
        }
    }

    fn candidate(&self, text: &[u8]) -> Option<usize> {
        match *self.firsts.as_slice() {
            [] => None,
            [a] => memchr::memchr(a, text),
            [a, b] => memchr::memchr2(a, b, text),
            [a, b, c] => memchr::memchr3(a, b, c, text),
            _ => text.iter().position(|&b| self.starts[usize::from(b)]),
        }
    }

    fn longest(&self, text: &[u8]) -> Option<(&Added, usize)> {
        let (mut node, mut best) = (&self.nodes[0], None);
        for (i, byte) in text.iter().enumerate() {
            let Ok(found) = node.next.binary_search_by_key(byte, |(b, _)| *b) else { break };
            node = &self.nodes[node.next[found].1 as usize];
            if let Some(token) = node.token {
                best = Some((&self.tokens[token as usize], i + 1));
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finder(tokens: &[(&str, bool, bool)]) -> Finder {
        let list = tokens.iter().enumerate().map(|(i, (content, lstrip, rstrip))| Added {
            content: (*content).to_owned(),
            id: i as u32,
            lstrip: *lstrip,
            rstrip: *rstrip,
        });
        Finder::new(list.collect())
    }

    fn split(finder: &Finder, text: &str) -> String {
        let mut out = Vec::new();
        let done: Result<(), ()> = finder.split(text, |piece| {
            out.push(match piece {
                Piece::Token(id) => format!("#{id}"),
                Piece::Text { text, first: true } => format!("^{text}"),
                Piece::Text { text, first: false } => text.to_owned(),
            });
            Ok(())
        });
        assert!(done.is_ok());
        out.join("|")
    }

    #[test]
    fn the_leftmost_and_then_the_longest_token_matches() {
        let f = finder(&[("<a>", false, false), ("<a>b", false, false), ("a>bc", false, false)]);
        assert_eq!(split(&f, "x<a>bc<a>y<a"), "^x|#1|c|#0|y<a");
        assert_eq!(split(&f, "<a>"), "#0");
        assert_eq!(split(&f, ""), "");
        assert_eq!(split(&finder(&[]), "abc"), "^abc");
    }

    #[test]
    fn stripped_white_space_belongs_to_the_token() {
        let f = finder(&[("<l>", true, false), ("<r>", false, true), ("<b>", true, true)]);
        assert_eq!(split(&f, " a \n<l> b"), "^ a|#0| b");
        assert_eq!(split(&f, "a <r> \u{a0}b"), "^a |#1|b");
        assert_eq!(split(&f, "<r>  <b>  c"), "#1|#2|c");
        assert_eq!(split(&f, "  <l>x"), "#0|x");
    }

    #[test]
    fn many_different_first_bytes_are_found_too() {
        let f = finder(&[
            ("[A]", false, false),
            ("<B>", false, false),
            ("{C}", false, false),
            ("▁d", false, false),
        ]);
        assert_eq!(split(&f, "1[A]2<B>3{C}4▁d5"), "^1|#0|2|#1|3|#2|4|#3|5");
    }
}
