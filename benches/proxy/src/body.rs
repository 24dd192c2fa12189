//! Chat requests of a wanted size.

use std::fmt::Write;

/// What a request asks of the back end, beside its prompt.
#[derive(Default, Clone, Copy)]
pub(crate) struct Ask<'a> {
    /// SSE chunks instead of one answer.
    pub(crate) stream: bool,
    /// How the back end shall behave (see `backend`); empty for normally.
    pub(crate) mock: &'a str,
}

const WORDS: [&str; 24] = [
    "the",
    "cache",
    "of",
    "a",
    "replica",
    "holds",
    "blocks",
    "that",
    "were",
    "computed",
    "before",
    "and",
    "each",
    "new",
    "prompt",
    "begins",
    "with",
    "them",
    "\\n",
    "\\\"quoted\\\"",
    "caf\u{e9}",
    "so",
    "prefill",
    "is",
];

/// A whole HTTP request whose JSON body is as near `size` bytes as words allow; the system prompt at its start is number `which`.
///
/// The text has escapes and some non-ASCII characters, as real prompts have: a scanner's fast path for plain ASCII is not all it measures.
pub(crate) fn request(which: u64, size: usize, ask: Ask<'_>) -> Vec<u8> {
    let mut body = format!(
        r#"{{"model":"bench","messages":[{{"role":"system","content":"You are assistant {which:08}. "#
    );
    let mut tail = r#""}],"max_tokens":64,"temperature":0.5"#.to_string();
    if ask.stream {
        tail += r#","stream":true"#;
    }
    if !ask.mock.is_empty() {
        // Writing to a String can't fail.
        let _ = write!(tail, r#","x_mock":"{}""#, ask.mock);
    }
    tail.push('}');
    let system_end = size / 4;
    let mut state = which.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut in_system = true;
    while body.len() + tail.len() + 16 < size {
        // xorshift: words differ from prompt to prompt all the way, not just in the number at the start.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        body.push_str(WORDS[(state % WORDS.len() as u64) as usize]);
        body.push(' ');
        if in_system && body.len() > system_end && body.len() + tail.len() + 64 < size {
            body.push_str(r#""},{"role":"user","content":""#);
            in_system = false;
        }
    }
    body.push_str(&tail);
    let mut bytes = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nuser-agent: proxybench\r\naccept: */*\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_differences() {
        for size in [1 << 10, 32 << 10, 256 << 10] {
            let (a, b) =
                (request(1, size, Ask::default()), request(2, size, Ask { stream: true, mock: "slow" }));
            let text = String::from_utf8(a.clone()).unwrap();
            let body = text.split("\r\n\r\n").nth(1).unwrap();
            assert!(body.len() <= size && body.len() + 32 > size, "{} of {size}", body.len());
            assert!(body.contains(r#"{"role":"user""#) && body.ends_with('}'));
            assert_ne!(a, b);
            assert!(b.ends_with(br#","stream":true,"x_mock":"slow"}"#));
        }
    }
}
