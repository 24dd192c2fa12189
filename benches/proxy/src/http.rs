//! As much of HTTP/1.1 as both sides of the bench need: heads, lengths, and chunked bodies.

/// The head of a request or a response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Bytes of the head, with the empty line.
    pub(crate) len: usize,
    /// How the body ends.
    pub(crate) body: BodyLen,
}

/// How a body ends.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum BodyLen {
    Exact(usize),
    Chunked,
}

/// The head at the start of `input`, if it is complete.
pub(crate) fn head(input: &[u8]) -> Option<Head> {
    let len = input.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
    let mut body = BodyLen::Exact(0);
    for line in input[..len].split(|&b| b == b'\n').skip(1) {
        if let Some(value) = value_of(line, b"content-length") {
            body = BodyLen::Exact(value.parse().ok()?);
        } else if let Some(value) = value_of(line, b"transfer-encoding")
            && value.eq_ignore_ascii_case("chunked")
        {
            body = BodyLen::Chunked;
        }
    }
    Some(Head { len, body })
}

fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a str> {
    let (key, rest) = line.split_at_checked(name.len())?;
    let value = rest.strip_prefix(b":")?;
    if key.eq_ignore_ascii_case(name) { std::str::from_utf8(value).ok().map(str::trim) } else { None }
}

/// The status code of a response's head; 0 when there is none.
pub(crate) fn status(input: &[u8]) -> u16 {
    input
        .get(9..12)
        .and_then(|digits| std::str::from_utf8(digits).ok())
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

/// The method and path of a request's head.
pub(crate) fn target(input: &[u8]) -> (&[u8], &[u8]) {
    let line = input.split(|&b| b == b'\r').next().unwrap_or_default();
    let mut words = line.split(|&b| b == b' ');
    (words.next().unwrap_or_default(), words.next().unwrap_or_default())
}

/// Takes a chunked body apart, at any split.
#[derive(Default)]
pub(crate) struct Dechunk {
    state: State,
    left: usize,
}

#[derive(Default, PartialEq, Eq, Clone, Copy)]
enum State {
    #[default]
    Size,
    Extension,
    Data,
    DataEnd,
    /// In trailers, at the start of a line.
    Trailer,
    TrailerLine,
    Done,
}

impl Dechunk {
    /// Appends the content of `input` to `content`; says how many bytes it used. All of them, unless the body ended.
    pub(crate) fn feed(&mut self, input: &[u8], content: &mut Vec<u8>) -> usize {
        let mut at = 0;
        while at < input.len() && self.state != State::Done {
            let byte = input[at];
            if self.state == State::Data {
                let take = self.left.min(input.len() - at);
                content.extend_from_slice(&input[at..at + take]);
                at += take;
                self.left -= take;
                if self.left == 0 {
                    self.state = State::DataEnd;
                }
                continue;
            }
            at += 1;
            self.state = match (self.state, byte) {
                (State::Size | State::Extension, b'\n') if self.left == 0 => State::Trailer,
                (State::Size | State::Extension, b'\n') => State::Data,
                (State::Size, _) => match (byte as char).to_digit(16) {
                    Some(digit) => {
                        self.left = self.left * 16 + digit as usize;
                        State::Size
                    }
                    None => State::Extension,
                },
                (State::DataEnd, b'\n') => State::Size,
                (State::Trailer, b'\n') => State::Done,
                (State::Trailer, b'\r') => State::Trailer,
                (State::Trailer, _) => State::TrailerLine,
                (State::TrailerLine, b'\n') => State::Trailer,
                (other, _) => other,
            };
        }
        at
    }

    /// Whether the last chunk and its trailers were seen.
    pub(crate) fn done(&self) -> bool {
        self.state == State::Done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads() {
        assert_eq!(head(b"GET / HTTP/1.1\r\nhost: a\r\n"), None);
        assert_eq!(
            head(b"GET / HTTP/1.1\r\nContent-Length: 12\r\n\r\nx"),
            Some(Head { len: 38, body: BodyLen::Exact(12) })
        );
        assert_eq!(
            head(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").map(|h| h.body),
            Some(BodyLen::Chunked)
        );
        assert_eq!(status(b"HTTP/1.1 404 Not Found\r\n"), 404);
        assert_eq!(target(b"POST /v1/x HTTP/1.1\r\n"), (&b"POST"[..], &b"/v1/x"[..]));
    }

    #[test]
    fn dechunks_at_every_split() {
        let wire = b"5;x=1\r\nhello\r\n10\r\n0123456789abcdef\r\n0\r\ntrailer: 1\r\n\r\nNEXT";
        for cut in 0..wire.len() {
            let (mut dechunk, mut content) = (Dechunk::default(), Vec::new());
            let mut used = dechunk.feed(&wire[..cut], &mut content);
            used += dechunk.feed(&wire[used..], &mut content);
            assert!(dechunk.done());
            assert_eq!(content, b"hello0123456789abcdef");
            assert_eq!(&wire[used..], b"NEXT", "cut at {cut}");
        }
    }
}
