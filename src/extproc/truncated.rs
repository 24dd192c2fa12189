//! Reading the beginning of a body whose end hasn't come.
//!
//! A placement that waits for all of a 50 MB body holds up its first byte for nothing: what comes first of a prompt is what
//! caches hold. So the beginning is completed to a whole JSON text (strings closed, brackets closed, `null` where a value
//! is missing) and read as if it were all.

use memchr::memchr2;

/// `text` up to a sensible end, and what must follow to make it whole. Only sensible for the beginning of a valid text.
pub(super) fn complete(text: &[u8]) -> Vec<u8> {
    let mut walk = Walk::default();
    let cut = walk.over(text);
    let mut out = Vec::with_capacity(cut + walk.open.len() + 8);
    out.extend_from_slice(&text[..cut]);
    out.extend_from_slice(walk.rest.as_bytes());
    out.extend(walk.open.iter().rev());
    out
}

#[derive(Default)]
struct Walk {
    /// Closing brackets of what is open.
    open: Vec<u8>,
    /// What is missing before them.
    rest: &'static str,
}

/// What the last token was.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    /// Nothing, an opening bracket, or a whole value.
    Done,
    Comma,
    Colon,
    Key,
}

impl Walk {
    /// Walks to the end; returns how much of the text is kept.
    fn over(&mut self, text: &[u8]) -> usize {
        let (mut at, mut last) = (0, Last::Done);
        // Does a string that begins now name something?
        let mut key = false;
        while let Some(&byte) = text.get(at) {
            match byte {
                b'{' | b'[' => {
                    self.open.push(if byte == b'{' { b'}' } else { b']' });
                    (last, key) = (Last::Done, byte == b'{');
                }
                b'}' | b']' => {
                    self.open.pop();
                    (last, key) = (Last::Done, false);
                }
                b',' => (last, key) = (Last::Comma, self.open.last() == Some(&b'}')),
                b':' => (last, key) = (Last::Colon, false),
                b'"' => match string_end(text, at + 1) {
                    Ok(end) => {
                        at = end;
                        last = if key { Last::Key } else { Last::Done };
                    }
                    Err(keep) => {
                        self.rest = if key { "\":null" } else { "\"" };
                        return keep;
                    }
                },
                b' ' | b'\n' | b'\r' | b'\t' => {}
                _ => match bare_end(text, at) {
                    Some(end) => {
                        at = end;
                        last = Last::Done;
                        continue;
                    }
                    // A number or a word that may go on.
                    None => {
                        self.missing(last);
                        return at;
                    }
                },
            }
            at += 1;
        }
        self.missing(last);
        text.len()
    }

    fn missing(&mut self, last: Last) {
        self.rest = match (last, self.open.last()) {
            (Last::Key, _) => ":null",
            (Last::Comma, Some(b'}')) => "\"\":null",
            (Last::Comma | Last::Colon, _) => "null",
            (Last::Done, _) => "",
        };
    }
}

/// Where the string that begins at `at` has its closing quote, or up to where it can be kept.
fn string_end(text: &[u8], mut at: usize) -> Result<usize, usize> {
    loop {
        let Some(next) = text.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) else {
            return Err(text.len());
        };
        at += next;
        if text.get(at) == Some(&b'"') {
            return Ok(at);
        }
        let escape = if text.get(at + 1) == Some(&b'u') { 6 } else { 2 };
        if at + escape > text.len() {
            return Err(at);
        }
        at += escape;
    }
}

fn bare_end(text: &[u8], at: usize) -> Option<usize> {
    let ends = |b: &u8| b",]} \n\r\t".contains(b);
    text.get(at..)?.iter().position(ends).map(|n| at + n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn every_beginning_of_a_text_becomes_whole() {
        let text = br#" {"model":"a\"\u00e9\\", "stream" : true,"n":-1.5e3,"messages":[{"role":"user","content":"x\ny"},
            [1,[],{}],null],"o":{"k":{"z":[false]}},"last":"q"} "#;
        let whole: Value = serde_json::from_slice(text).unwrap();
        for n in 2..text.len() {
            let made = complete(&text[..n]);
            let value: Value = serde_json::from_slice(&made)
                .unwrap_or_else(|e| panic!("{n}: {e}: {}", String::from_utf8_lossy(&made)));
            if n > 30 {
                assert_eq!(value["model"], whole["model"], "{n}");
            }
            assert!(made.len() <= n + 24);
        }
    }

    #[test]
    fn nonsense_does_not_panic() {
        for text in
            [&b""[..], b"}", b"]]]", b"\"", b"\\", b"tru", b"{\"a\" \"b\"", b"{,", b"[1 2", b"\xff\xfe"]
        {
            complete(text);
        }
    }
}
