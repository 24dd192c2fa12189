//! Decoding a string whose escapes are known, into slices of a few kilobytes.
//!
//! Text with an escape every few dozen bytes would reach its sink in as many small runs; put together here they are
//! hashed block by block where they lie.

use super::json::Str;
use super::text::decode;

/// Decoded bytes that are handed on at once: they stay in the nearest cache until they are hashed.
const STAGE: usize = 4096;
/// Runs are copied in steps of so many bytes, whether they are as long or not: most are shorter, and a step of fixed
/// size is a few moves without a branch.
const STEP: usize = 64;
/// Runs from this length on are handed on from where they are: a copy would cost more than one more call.
const LONG: usize = 1024;
/// An escaped character takes at most four bytes.
const CHAR: usize = 4;

/// What an escape stands for, by the byte after its backslash; zero for `u`, and for what the walk has refused.
const SIMPLE: [u8; 256] = {
    let mut table = [0; 256];
    let pairs = *b"\"\"\\\\//b\x08f\x0cn\nr\rt\t";
    let mut i = 0;
    while i < pairs.len() {
        table[pairs[i] as usize] = pairs[i + 1];
        i += 2;
    }
    table
};

/// Where decoded text is put together; reused.
#[derive(Debug, Default)]
pub(super) struct Stage {
    /// `STAGE` bytes and room for a step beyond, once it has been used.
    bytes: Vec<u8>,
}

impl Stage {
    /// Give the decoded text of `s` to `take`. `escapes` are the offsets of all its escapes, ascending.
    pub(super) fn decode(&mut self, body: &[u8], s: Str, escapes: &[u32], mut take: impl FnMut(&[u8])) {
        if self.bytes.is_empty() {
            self.bytes.resize(STAGE + STEP + CHAR, 0);
        }
        let mut out = Out { bytes: &mut self.bytes, len: 0 };
        let mut from = s.start;
        for &at in escapes {
            let at = at as usize;
            // The second half of a surrogate pair went with the first.
            if at < from {
                continue;
            }
            out.run(body, from, at, &mut take);
            let simple = body.get(at + 1).map_or(0, |&c| SIMPLE[usize::from(c)]);
            if simple != 0 {
                out.push(simple);
                from = at + 2;
            } else {
                let (c, len) = decode(body.get(at..s.end).unwrap_or_default());
                c.encode_utf8(&mut [0; CHAR]).bytes().for_each(|b| out.push(b));
                from = at + len;
            }
        }
        out.run(body, from, s.end, &mut take);
        out.flush(&mut take);
    }
}

struct Out<'a> {
    bytes: &'a mut [u8],
    len: usize,
}

impl Out<'_> {
    /// Room for it was made by the run before it.
    #[inline]
    fn push(&mut self, byte: u8) {
        if let Some(slot) = self.bytes.get_mut(self.len) {
            *slot = byte;
            self.len += 1;
        }
    }

    /// The plain bytes from `from` to `to`. Leaves room for a character.
    #[inline]
    fn run(&mut self, body: &[u8], from: usize, to: usize, take: &mut impl FnMut(&[u8])) {
        let len = to.saturating_sub(from);
        if self.len + len > STAGE {
            self.flush(take);
        }
        let source = body.get(from..).and_then(|rest| rest.first_chunk::<STEP>());
        let room = self.bytes.get_mut(self.len..).and_then(|rest| rest.first_chunk_mut::<STEP>());
        match (source, room) {
            (Some(source), Some(room)) if len <= STEP => {
                *room = *source;
                self.len += len;
            }
            _ => self.long(body.get(from..to).unwrap_or_default(), take),
        }
    }

    #[inline(never)]
    fn long(&mut self, run: &[u8], take: &mut impl FnMut(&[u8])) {
        if run.len() >= LONG {
            self.flush(take);
            take(run);
        } else if let Some(room) = self.bytes.get_mut(self.len..self.len + run.len()) {
            room.copy_from_slice(run);
            self.len += run.len();
        }
    }

    fn flush(&mut self, take: &mut impl FnMut(&[u8])) {
        if let Some(done @ [_, ..]) = self.bytes.get(..self.len) {
            take(done);
        }
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use crate::openai::{Part, Scratch, Shape, Sink, scan};
    use proptest::prelude::*;

    /// The text of all parts, and how many runs it came in.
    #[derive(Default)]
    struct Told(Vec<u8>, usize);

    impl Sink for Told {
        fn part(&mut self, _: Part<'_>) {}

        fn text(&mut self, run: &[u8]) {
            self.0.extend_from_slice(run);
            self.1 += 1;
        }
    }

    fn prompt(body: &str, scratch: &mut Scratch) -> Told {
        let mut told = Told::default();
        let found = scan(Shape::Completions, body.as_bytes(), &mut told, scratch).unwrap();
        assert_eq!(found.text_bytes, told.0.len() as u64);
        told
    }

    /// Pieces of a JSON string: every escape there is, plain text short and long, characters of all lengths.
    fn piece() -> impl Strategy<Value = String> {
        let escape = prop::sample::select(
            &[
                "\\\"",
                "\\\\",
                "\\/",
                "\\b",
                "\\f",
                "\\n",
                "\\r",
                "\\t",
                "\\u0041",
                "\\u00e9",
                "\\u4e2D",
                "\\ud83d\\ude00",
                "\\u0000",
                "\\\\\\\\",
                "\\\\\\\"",
                "\\\\u12",
            ][..],
        );
        prop_oneof![
            6 => escape.prop_map(str::to_owned),
            4 => "[ -!#-Z^-~é中😀]{0,30}",
            1 => (0..1500usize).prop_map(|n| "x".repeat(n)),
        ]
    }

    proptest! {
        #[test]
        fn dense_escapes_decode_as_serde_json_does(pieces in prop::collection::vec(piece(), 0..60)) {
            let mut scratch = Scratch::default();
            let inside = pieces.concat();
            let want: String = serde_json::from_str(&format!("\"{inside}\"")).unwrap();
            for shift in 0..40 {
                // A string with escapes of its own stands before: its notes must not be taken for the prompt's.
                let body = format!("{{\"user\":\"\\n{}\\t\",\"prompt\":\"{inside}\"}}", "y".repeat(shift));
                prop_assert_eq!(&prompt(&body, &mut scratch).0, want.as_bytes(), "{}", body);
            }
        }
    }

    #[test]
    fn each_escape_at_each_place_of_a_window() {
        let mut scratch = Scratch::default();
        for escape in ["\\\"", "\\\\", "\\/", "\\b", "\\f", "\\n", "\\r", "\\t", "\\u00e9", "\\ud83d\\ude00"]
        {
            for before in 0..140 {
                for times in [1, 2, 3, 70] {
                    let inside = format!("{}{}z", "x".repeat(before), escape.repeat(times));
                    let want: String = serde_json::from_str(&format!("\"{inside}\"")).unwrap();
                    let body = format!("{{\"prompt\":\"{inside}\"}}");
                    assert_eq!(prompt(&body, &mut scratch).0, want.as_bytes(), "{body}");
                }
            }
        }
    }

    #[test]
    fn lone_surrogates_are_replaced_in_long_text_too() {
        let plain = "x".repeat(100);
        let body = format!(r#"{{"prompt":"{plain}\ud83d{plain}\udc00\ud83d\n\ud83d\u0041{plain}"}}"#);
        let want = format!("{plain}\u{fffd}{plain}\u{fffd}\u{fffd}\n\u{fffd}A{plain}");
        assert_eq!(prompt(&body, &mut Scratch::default()).0, want.as_bytes());
    }

    #[test]
    fn text_comes_in_large_slices() {
        let body = format!("{{\"prompt\":\"{}\"}}", "some words and a line\\n".repeat(3000));
        let told = prompt(&body, &mut Scratch::default());
        assert_eq!(told.0, "some words and a line\n".repeat(3000).as_bytes());
        assert!(told.1 <= told.0.len() / 4000 + 1, "{} runs", told.1);
    }

    #[test]
    fn more_escapes_than_are_noted() {
        let mut scratch = Scratch::default();
        let many = r"\n\ud83d\ude00x".repeat(200_000);
        let parts = [r"a\tb, noted: more than sixteen bytes", &many, r"c\td"];
        let body = format!(
            r#"{{"messages":[{{"content":["{}","{}","{}"],"role":"user"}}]}}"#,
            parts[0], parts[1], parts[2]
        );
        let want = parts.map(|part| serde_json::from_str::<String>(&format!("\"{part}\"")).unwrap()).concat();
        let mut told = Told::default();
        scan(Shape::Chat, body.as_bytes(), &mut told, &mut scratch).unwrap();
        assert!(told.0 == want.as_bytes() && told.1 > 400_000, "the second part came in small runs");

        let after = prompt(r#"{"prompt":"a\tb and more than sixteen bytes\n"}"#, &mut scratch);
        assert_eq!(after.1, 1, "the next body is noted again");

        let broken = format!(r#"{{"prompt":"{many}\q"}}"#);
        let fault =
            scan(Shape::Completions, broken.as_bytes(), &mut Told::default(), &mut scratch).unwrap_err();
        assert_eq!((fault.column as usize, fault.detail), (12 + many.len(), "unknown escape"));
    }
}
