//! Asking for usage in a client's stream without moving anything else.

use super::scan::{Scan, Shape};

/// A change of a body: `removed` bytes at `at` give way to `insert`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Splice {
    /// Offset of the change.
    pub at: usize,
    /// How many bytes go.
    pub removed: usize,
    /// What comes in their place.
    pub insert: &'static [u8],
}

impl Splice {
    /// Length of the body after the change.
    pub fn len_after(&self, len: usize) -> usize {
        len - self.removed + self.insert.len()
    }

    /// The changed body as three pieces, which need not be joined to be sent.
    pub fn pieces<'a>(&self, body: &'a [u8]) -> [&'a [u8]; 3] {
        let (before, rest) = body.split_at(self.at.min(body.len()));
        [before, self.insert, &rest[self.removed.min(rest.len())..]]
    }
}

/// How to make the engine report usage at the end of this stream; `None` when it does so anyway, or can't.
///
/// Left alone: the shapes that always report (`/v1/responses`, `/v1/messages`), options that the replica will refuse, and
/// `continuous_usage_stats`, where asking would change every event that the client sees.
pub fn splice_usage(scan: &Scan<'_>) -> Option<Splice> {
    if !scan.stream || scan.include_usage || !matches!(scan.shape, Shape::Chat | Shape::Completions) {
        return None;
    }
    let Some(o) = &scan.stream_options else {
        // The body holds at least `"stream":true`, so a comma is right.
        return Some(Splice {
            at: scan.inside,
            removed: 0,
            insert: b"\"stream_options\":{\"include_usage\":true},",
        });
    };
    if o.null {
        return Some(Splice { at: o.span.start, removed: o.span.len(), insert: b"{\"include_usage\":true}" });
    }
    if !o.object || o.odd || o.continuous {
        return None;
    }
    Some(match &o.include_usage {
        Some(value) => Splice { at: value.start, removed: value.len(), insert: b"true" },
        None => Splice {
            at: o.span.start + 1,
            removed: 0,
            insert: if o.empty { b"\"include_usage\":true" } else { b"\"include_usage\":true," },
        },
    })
}

/// How to make the engine tell the token ids of this stream.
pub fn splice_ids(scan: &Scan<'_>) -> Splice {
    // The body holds at least `"stream":true`, so a comma is right.
    Splice { at: scan.inside, removed: 0, insert: b"\"return_token_ids\":true," }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::{Ignore, Scratch, scan};

    fn spliced(shape: Shape, body: &str) -> Option<String> {
        let s = scan(shape, body.as_bytes(), &mut Ignore, &mut Scratch::default()).unwrap();
        let splice = splice_usage(&s)?;
        let out = splice.pieces(body.as_bytes()).concat();
        assert_eq!(out.len(), splice.len_after(body.len()));
        let again = scan(shape, &out, &mut Ignore, &mut Scratch::default()).unwrap();
        assert!(again.include_usage && splice_usage(&again).is_none());
        Some(String::from_utf8(out).unwrap())
    }

    #[test]
    fn only_the_option_moves() {
        for (body, out) in [
            (
                r#" {"stream":true, "x":1e999}"#,
                r#" {"stream_options":{"include_usage":true},"stream":true, "x":1e999}"#,
            ),
            (
                r#"{"stream":true,"stream_options":{}}"#,
                r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
            ),
            (
                r#"{"stream":true,"stream_options":null}"#,
                r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
            ),
            (
                r#"{"stream":true,"stream_options": { "a":1 }}"#,
                r#"{"stream":true,"stream_options": {"include_usage":true, "a":1 }}"#,
            ),
            (
                r#"{"stream_options":{"include_usage" : false},"stream":true}"#,
                r#"{"stream_options":{"include_usage" : true},"stream":true}"#,
            ),
            (
                r#"{"stream_options":{"include_usage":true},"stream":true,"stream_options":{"b":[]}}"#,
                r#"{"stream_options":{"include_usage":true},"stream":true,"stream_options":{"include_usage":true,"b":[]}}"#,
            ),
            (
                r#"{"stream":true,"stream_options":{"include_usage":true,"include_usage":null}}"#,
                r#"{"stream":true,"stream_options":{"include_usage":true,"include_usage":true}}"#,
            ),
        ] {
            assert_eq!(spliced(Shape::Chat, body).as_deref(), Some(out));
            assert_eq!(spliced(Shape::Completions, body).as_deref(), Some(out));
        }
    }

    #[test]
    fn left_alone() {
        for body in [
            "{}",
            r#"{"stream":false}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
            r#"{"stream":true,"stream_options":"odd"}"#,
            r#"{"stream":true,"stream_options":{"include_usage":"maybe"}}"#,
            r#"{"stream":true,"stream_options":{"continuous_usage_stats":true}}"#,
        ] {
            assert_eq!(spliced(Shape::Chat, body), None, "{body}");
        }
        assert_eq!(spliced(Shape::Responses, r#"{"stream":true}"#), None);
        assert_eq!(spliced(Shape::Messages, r#"{"stream":true}"#), None);
    }
}
