//! The client's own name for its model, put back into an answer as it passes.
//!
//! A replica answers with the name that it was asked by. Wherever the answer has that name under a key `model`, the
//! client's comes in its place, in whatever chunks the answer comes. Text of the model is inside JSON strings, so
//! it is never touched. Nothing is held back but the name itself, when a chunk ends in the middle of it.

use bytes::Bytes;
use memchr::{memchr2, memchr3};
use smallvec::SmallVec;

const KEY: &[u8] = b"model";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Between strings.
    Plain,
    /// In a string of which so many bytes are those of the key.
    Key(usize),
    /// In any other string.
    Text,
    /// The same, after a backslash.
    Escape,
    /// After the key.
    Named,
    /// After the colon.
    Colon,
    /// In the value; the flag: after a backslash.
    Value(bool),
}

/// Changes one answer.
#[derive(Debug)]
pub(super) struct Restore {
    from: String,
    /// In quotes, escaped.
    to: Bytes,
    /// A stream of events: a line's end ends every string.
    lines: bool,
    at: At,
    /// The value's bytes, its quote included, that came with earlier chunks.
    held: Vec<u8>,
    /// Longest text that the name can be in: each of its bytes as an escape of six.
    longest: usize,
}

impl Restore {
    /// Puts `to` where the answer says `from`. `events`: it is a stream of events.
    pub(super) fn new(from: &str, to: &str, events: bool) -> Self {
        let quoted = serde_json::Value::from(to).to_string();
        Restore {
            from: from.to_owned(),
            to: quoted.into(),
            lines: events,
            at: At::Plain,
            held: Vec::new(),
            longest: 6 * from.len() + 2,
        }
    }

    /// Takes in a chunk; returns what goes on.
    pub(super) fn push(&mut self, chunk: &Bytes) -> SmallVec<[Bytes; 2]> {
        let mut out = SmallVec::new();
        // Of the chunk: from where on nothing is in `out` yet, where the value begins, what is looked at next.
        let (mut unsent, mut value, mut pos) = (0, 0, 0);
        while let Some(next) = self.skip(chunk, pos) {
            pos = next + 1;
            let byte = chunk[next];
            if self.lines && matches!(byte, b'\n' | b'\r') {
                self.release(&mut out);
                self.at = At::Plain;
                continue;
            }
            self.at = match (self.at, byte) {
                (At::Plain, b'"') => At::Key(0),
                (At::Plain, _) => At::Plain,
                (At::Key(n), b'"') => {
                    if n == KEY.len() {
                        At::Named
                    } else {
                        At::Plain
                    }
                }
                (At::Key(n), b) if KEY.get(n) == Some(&b) => At::Key(n + 1),
                (At::Key(_) | At::Text, b'\\') => At::Escape,
                (At::Text, b'"') => At::Plain,
                (At::Key(_) | At::Text | At::Escape, _) => At::Text,
                (At::Named | At::Colon, b' ' | b'\t' | b'\n' | b'\r') => self.at,
                (At::Named, b':') => At::Colon,
                (At::Colon, b'"') => {
                    value = next;
                    At::Value(false)
                }
                (At::Named, b'"') => At::Key(0),
                (At::Named | At::Colon, _) => At::Plain,
                (At::Value(false), b'"') => {
                    let start = if self.held.is_empty() { value } else { 0 };
                    if self.is_name(&chunk[start..pos]) {
                        if self.held.is_empty() && unsent < start {
                            out.push(chunk.slice(unsent..start));
                        }
                        self.held.clear();
                        out.push(self.to.clone());
                        unsent = pos;
                    } else {
                        self.release(&mut out);
                    }
                    At::Plain
                }
                (At::Value(false), b'\\') => At::Value(true),
                (At::Value(_), _) => {
                    let start = if self.held.is_empty() { value } else { 0 };
                    if self.held.len() + (pos - start) > self.longest {
                        self.release(&mut out);
                        At::Text
                    } else {
                        At::Value(false)
                    }
                }
            };
        }
        let mut end = chunk.len();
        if let At::Value(_) = self.at {
            let start = if self.held.is_empty() { value } else { 0 };
            self.held.extend_from_slice(&chunk[start..]);
            end = start.max(unsent);
        }
        if unsent < end {
            out.push(if unsent == 0 && end == chunk.len() {
                chunk.clone()
            } else {
                chunk.slice(unsent..end)
            });
        }
        out
    }

    /// The answer has ended: returns what was held back.
    pub(super) fn finish(&mut self) -> Option<Bytes> {
        let held = std::mem::take(&mut self.held);
        (!held.is_empty()).then(|| held.into())
    }

    /// The next byte that matters in the present state.
    fn skip(&self, chunk: &[u8], pos: usize) -> Option<usize> {
        let rest = chunk.get(pos..)?;
        let next = match (self.at, self.lines) {
            (At::Plain, true) => memchr3(b'"', b'\n', b'\r', rest),
            (At::Plain, false) => memchr::memchr(b'"', rest),
            (At::Text, true) => {
                let quote = memchr2(b'"', b'\\', rest);
                // Inside a string of an event there is no line end, unless the event is broken.
                let line = memchr2(b'\n', b'\r', &rest[..quote.unwrap_or(rest.len())]);
                line.or(quote)
            }
            (At::Text, false) => memchr2(b'"', b'\\', rest),
            _ => (!rest.is_empty()).then_some(0),
        };
        next.map(|n| pos + n)
    }

    fn release(&mut self, out: &mut SmallVec<[Bytes; 2]>) {
        if let Some(held) = self.finish() {
            out.push(held);
        }
    }

    /// Is the value the replica's name? `last` are its bytes in this chunk.
    fn is_name(&self, last: &[u8]) -> bool {
        if self.held.is_empty() {
            return serde_json::from_slice::<String>(last).is_ok_and(|s| s == self.from);
        }
        let whole = [self.held.as_slice(), last].concat();
        serde_json::from_slice::<String>(&whole).is_ok_and(|s| s == self.from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(restore: &mut Restore, chunks: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        for chunk in chunks {
            for piece in restore.push(&Bytes::copy_from_slice(chunk)) {
                out.extend_from_slice(&piece);
            }
        }
        out.extend(restore.finish().into_iter().flatten());
        out
    }

    const STREAM: &str = "event: \"odd\n: model\ndata: {\"id\":\"model\",\"model\":\"in/ner\",\"choices\":[{\"delta\":\
        {\"content\":\"\\\"model\\\":\\\"in/ner\\\"\"}}]}\r\n\r\ndata: {\"model\" : \"in\\/ner\",\"x\":\"in/ner\"}\n\n\
        data: {\"model\":\"other\",\"model\":null,\"model\":\"\"}\n\ndata: [DONE]\n\n";
    const RESTORED: &str = "event: \"odd\n: model\ndata: {\"id\":\"model\",\"model\":\"the \\\"client\\\"\",\"choices\":[{\"delta\":\
        {\"content\":\"\\\"model\\\":\\\"in/ner\\\"\"}}]}\r\n\r\ndata: {\"model\" : \"the \\\"client\\\"\",\"x\":\"in/ner\"}\n\n\
        data: {\"model\":\"other\",\"model\":null,\"model\":\"\"}\n\ndata: [DONE]\n\n";

    #[test]
    fn the_name_is_put_back_across_every_border() {
        for n in 0..=STREAM.len() {
            let (a, b) = STREAM.as_bytes().split_at(n);
            let out = through(&mut Restore::new("in/ner", "the \"client\"", true), &[a, b]);
            assert_eq!(String::from_utf8(out).unwrap(), RESTORED, "cut at {n}");
        }
        let bytes: Vec<&[u8]> = STREAM.as_bytes().chunks(1).collect();
        let out = through(&mut Restore::new("in/ner", "the \"client\"", true), &bytes);
        assert_eq!(String::from_utf8(out).unwrap(), RESTORED);
    }

    #[test]
    fn a_whole_answer_with_line_ends_inside() {
        let answer = "{\n \"model\":\n  \"a\",\n \"b\": {\"model\": \"a\"}\n}";
        let out = through(&mut Restore::new("a", "long name", false), &[answer.as_bytes()]);
        let expected = answer.replace("\"a\"", "\"long name\"");
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn nothing_but_a_name_is_held_back_and_a_long_one_passes() {
        let mut r = Restore::new("m", "n", true);
        assert_eq!(r.push(&Bytes::from_static(b"data: {\"mod")).concat(), b"data: {\"mod");
        assert_eq!(r.push(&Bytes::from_static(b"el\":\"")).concat(), b"el\":");
        assert_eq!(r.push(&Bytes::from_static(b"m")).concat(), b"");
        assert_eq!(r.push(&Bytes::from_static(b"\"}")).concat(), b"\"n\"}");
        let long = format!("{{\"model\":\"{}\"}}", "m\\\"".repeat(20));
        for n in 0..long.len() {
            let (a, b) = long.as_bytes().split_at(n);
            assert_eq!(through(&mut Restore::new("m", "n", false), &[a, b]), long.as_bytes(), "{n}");
        }
    }
}
