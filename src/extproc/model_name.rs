//! The model's name in a request's body: found where it stands, and changed there.

use crate::openai::json::{Cursor, Step};
use crate::openai::text::whole;
use std::ops::Range;

/// What a body says under `model`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Named {
    /// Where the values stand, quotes included: a key may be there twice.
    pub(super) at: Vec<Range<usize>>,
    /// The last of them, which is the one that engines go by.
    pub(super) name: Option<String>,
}

/// Looks for it among the outermost keys, as far as the body is whole.
pub(super) fn find(body: &[u8]) -> Named {
    let mut found = Named::default();
    // A body that breaks off has told what comes before.
    let _ = walk(&mut Cursor::new(body), &mut found);
    found
}

fn walk(c: &mut Cursor<'_>, found: &mut Named) -> Step<()> {
    let mut walk = c.object()?;
    while let Some(key) = c.key(&mut walk)? {
        let is_model = whole(c.body(), key) == "model";
        let value = c.value()?;
        if is_model && let Some(text) = value.string() {
            found.name = Some(whole(c.body(), text).into_owned());
            found.at.push(value.start..value.end);
        }
    }
    Ok(())
}

/// The body with `name` in these places.
pub(super) fn renamed(body: &[u8], at: &[Range<usize>], name: &str) -> Vec<u8> {
    let quoted = serde_json::Value::from(name).to_string();
    let mut out = Vec::with_capacity(body.len() + at.len() * quoted.len());
    let mut from = 0;
    for range in at {
        out.extend_from_slice(&body[from..range.start]);
        out.extend_from_slice(quoted.as_bytes());
        from = range.end;
    }
    out.extend_from_slice(&body[from..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_outermost_name_changes_and_nothing_else_moves() {
        let body = br#" {"x":{"model":"in"}, "model" : "a\"b","z":1e999,"mod\u0065l":"last" }"#;
        let named = find(body);
        assert_eq!(named.name.as_deref(), Some("last"));
        let out = renamed(body, &named.at, "n\u{e9}w\"");
        let expected = r#" {"x":{"model":"in"}, "model" : "néw\"","z":1e999,"mod\u0065l":"néw\"" }"#;
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn what_is_there_of_a_body_is_looked_through() {
        assert_eq!(find(br#"{"model":"m","messages":[{"#).name.as_deref(), Some("m"));
        assert_eq!(find(br#"{"model":"m"#), Named::default());
        for odd in [&b""[..], b"[]", b"{\"model\":3}", b"{\"model\"", b"null"] {
            assert_eq!(find(odd), Named::default());
        }
    }
}
