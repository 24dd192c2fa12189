//! The text that a JSON string stands for, in runs.
//!
//! Most of a prompt is plain, so text is handed on as borrowed runs between escapes; only the escaped characters
//! themselves are made anew. (Of a prompt whose escapes were noted, `staged` makes larger runs.) A surrogate without its
//! partner becomes U+FFFD: engines differ there, and a router must not fail where an engine might answer.

use super::json::Str;
use memchr::memchr;

/// Give the decoded text of `s` to `take`, run by run. `s` must come from a [`Cursor`](super::json::Cursor) over `body`.
#[inline]
pub fn runs(body: &[u8], s: Str, mut take: impl FnMut(&[u8])) {
    let mut rest = body.get(s.start..s.end).unwrap_or_default();
    if !s.escaped {
        if !rest.is_empty() {
            take(rest);
        }
        return;
    }
    while let Some(i) = memchr(b'\\', rest) {
        let (run, escape) = rest.split_at(i);
        if !run.is_empty() {
            take(run);
        }
        let mut utf8 = [0; 4];
        let (c, len) = decode(escape);
        take(c.encode_utf8(&mut utf8).as_bytes());
        rest = &escape[len.min(escape.len())..];
    }
    if !rest.is_empty() {
        take(rest);
    }
}

/// The character that the escape at the start of `e` stands for, and the escape's length.
#[inline]
pub(super) fn decode(e: &[u8]) -> (char, usize) {
    match e.get(1) {
        Some(b'n') => ('\n', 2),
        Some(b't') => ('\t', 2),
        Some(b'r') => ('\r', 2),
        Some(b'b') => ('\u{8}', 2),
        Some(b'f') => ('\u{c}', 2),
        Some(b'u') => unicode(e),
        Some(&c) => (char::from(c), 2),
        None => (char::REPLACEMENT_CHARACTER, 1),
    }
}

fn unicode(e: &[u8]) -> (char, usize) {
    let Some(high) = hex4(e) else { return (char::REPLACEMENT_CHARACTER, 6) };
    if (0xD800..0xDC00).contains(&high)
        && let Some(low) = e.get(6..).and_then(hex4)
        && (0xDC00..0xE000).contains(&low)
    {
        let c = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
        return (char::from_u32(c).unwrap_or(char::REPLACEMENT_CHARACTER), 12);
    }
    (char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER), 6)
}

/// The number in `\uXXXX` at the start of `e`.
fn hex4(e: &[u8]) -> Option<u32> {
    let digits = e.strip_prefix(b"\\u")?.get(..4)?;
    digits.iter().try_fold(0, |n, &d| Some(n << 4 | char::from(d).to_digit(16)?))
}

/// The decoded text of a short string, at most `N` bytes of it: a key, a role, a type.
#[derive(Debug)]
pub struct Short<const N: usize> {
    buf: [u8; N],
}

impl<const N: usize> Default for Short<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Short<N> {
    /// An empty buffer.
    pub fn new() -> Self {
        Short { buf: [0; N] }
    }

    /// The text of `s`: borrowed from `body` when it has no escapes, else decoded here. Cut after `N` bytes.
    #[inline]
    pub fn of<'b>(&'b mut self, body: &'b [u8], s: Str) -> &'b [u8] {
        let raw = body.get(s.start..s.end).unwrap_or_default();
        if !s.escaped {
            return &raw[..raw.len().min(N)];
        }
        let mut len = 0;
        runs(body, s, |run| {
            let n = run.len().min(N - len);
            self.buf[len..len + n].copy_from_slice(&run[..n]);
            len += n;
        });
        &self.buf[..len]
    }
}

/// The whole decoded text of `s`, for the few strings that are kept; not UTF-8 → U+FFFD.
pub fn whole(body: &[u8], s: Str) -> std::borrow::Cow<'_, str> {
    if !s.escaped {
        return String::from_utf8_lossy(body.get(s.start..s.end).unwrap_or_default());
    }
    let mut out = Vec::with_capacity(s.end - s.start);
    runs(body, s, |run| out.extend_from_slice(run));
    String::from_utf8_lossy(&out).into_owned().into()
}

/// Give the JSON text `json` to `take` without the white space outside its strings.
pub fn compact(json: &[u8], mut take: impl FnMut(&[u8])) {
    let (mut from, mut at) = (0, 0);
    while let Some(&b) = json.get(at) {
        match b {
            b'"' => {
                at += 1;
                while let Some(i) = memchr::memchr2(b'"', b'\\', json.get(at..).unwrap_or_default()) {
                    at += i + 1;
                    if json[at - 1] == b'"' {
                        break;
                    }
                    at += 1;
                }
            }
            b' ' | b'\n' | b'\t' | b'\r' => {
                if at > from {
                    take(&json[from..at]);
                }
                at += 1;
                from = at;
            }
            _ => at += 1,
        }
    }
    if from < json.len() {
        take(&json[from..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::json::Cursor;

    fn text(json: &str) -> String {
        let s = Cursor::new(json.as_bytes()).value().unwrap().string().unwrap();
        whole(json.as_bytes(), s).into_owned()
    }

    #[test]
    fn escapes_decode_as_serde_json_does() {
        for s in [
            r#""""#,
            r#""plain""#,
            r#""a\nb\t\r\b\f\/\\\"c""#,
            r#""\u00e9\u4e2d\ud83d\ude00 end""#,
            r#""\\n is not a line""#,
        ] {
            assert_eq!(text(s), serde_json::from_str::<String>(s).unwrap(), "{s}");
        }
    }

    #[test]
    fn lone_surrogates_are_replaced() {
        assert_eq!(text(r#""a\ud83dz""#), "a\u{fffd}z");
        assert_eq!(text(r#""\udc00\ud83d\n\ud83d\u0041""#), "\u{fffd}\u{fffd}\n\u{fffd}A");
    }

    #[test]
    fn short_strings_are_cut() {
        let body = br#""us\u0065r and a long tail of text""#;
        let s = Cursor::new(body).value().unwrap().string().unwrap();
        assert_eq!(Short::<4>::new().of(body, s), b"user");
        assert_eq!(Short::<4>::new().of(b"\"username\"", Str { start: 1, end: 9, escaped: false }), b"user");
    }

    #[test]
    fn compacting_keeps_strings() {
        let mut out = Vec::new();
        compact(b" { \"a b\\\" c\" : [ 1 , \" \" ] }\n", |r| out.extend_from_slice(r));
        assert_eq!(out, b"{\"a b\\\" c\":[1,\" \"]}");
        compact(b"\"\\", |_| {});
    }
}
