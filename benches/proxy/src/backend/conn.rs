//! One connection to a simulated replica: what was asked, and how far its answer is.

use super::reply;
use crate::http::{BodyLen, Dechunk, Head, head, target};
use crate::net::Socket;

/// How much of a body's start and end is searched for fields: they stand beside the long text, never in it.
const EDGE: usize = 512;
/// How much of a prompt's start names it.
const NAME: usize = 1 << 10;

/// How a request asked to be treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mock {
    Well,
    Slow,
    Hang,
    Reset,
    Status(u16),
}

/// A complete request.
pub(crate) struct Request {
    pub(crate) path: Vec<u8>,
    /// It asks for tokens, rather than for facts.
    pub(crate) generate: bool,
    pub(crate) stream: bool,
    /// The stream shall end with a usage event.
    pub(crate) usage: bool,
    pub(crate) mock: Mock,
    /// The start of the body, which names the prompt.
    pub(crate) first: Vec<u8>,
    /// Bytes of the body.
    pub(crate) len: usize,
}

/// What the connection is busy with.
#[derive(PartialEq, Eq)]
pub(crate) enum Work {
    None,
    Answer { stream: bool, usage: bool, mock: Mock, prompt: u64, cached: u64, chunk: u32 },
}

/// What to do after a step.
pub(crate) enum Step {
    Again,
    Done,
    Reset,
}

pub(crate) struct Conn {
    pub(crate) replica: usize,
    pub(crate) socket: Socket,
    pub(crate) work: Work,
    /// Counts the timers set for this connection: only the last one is valid.
    pub(crate) stamp: u64,
    head: Option<Head>,
}

impl Conn {
    pub(crate) fn new(replica: usize, socket: Socket) -> Self {
        Self { replica, socket, work: Work::None, stamp: 0, head: None }
    }

    /// The next request and the bytes it takes, if it is complete.
    pub(crate) fn request(&mut self) -> Option<(usize, Request)> {
        let input = self.socket.input();
        if self.head.is_none() {
            self.head = head(input);
        }
        let head = self.head.as_ref()?;
        let (_, path) = target(input);
        let rest = &input[head.len..];
        match head.body {
            BodyLen::Exact(len) if rest.len() >= len => Some((head.len + len, read(path, &rest[..len]))),
            BodyLen::Exact(_) => None,
            BodyLen::Chunked => {
                let (mut dechunk, mut body) = (Dechunk::default(), Vec::new());
                let used = dechunk.feed(rest, &mut body);
                dechunk.done().then(|| (head.len + used, read(path, &body)))
            }
        }
    }

    /// Forgets a request that was read.
    pub(crate) fn done_reading(&mut self, used: usize) {
        self.socket.consume(used);
        self.head = None;
    }

    /// Sends the next part of the answer.
    pub(crate) fn step(&mut self, chunks: u32) -> Step {
        let Work::Answer { stream, usage, mock, prompt, cached, chunk } = &mut self.work else {
            return Step::Done;
        };
        if let Mock::Status(code) = *mock {
            self.socket
                .send(&reply::error(code, if code == 400 { "Bad Request" } else { "Internal Server Error" }));
        } else if *mock == Mock::Reset && (!*stream || *chunk >= 2) {
            return Step::Reset;
        } else if !*stream {
            self.socket.send(&reply::completion(*prompt, *cached));
        } else {
            if *chunk == 0 {
                self.socket.send(reply::STREAM_HEAD);
                self.socket.send(&reply::role());
            }
            if *chunk < chunks {
                *chunk += 1;
                self.socket.send(&reply::token());
                return Step::Again;
            }
            self.socket.send(&reply::end(*usage, *prompt, chunks, *cached));
        }
        self.work = Work::None;
        Step::Done
    }
}

fn read(path: &[u8], body: &[u8]) -> Request {
    let edges = [&body[..body.len().min(EDGE)], &body[body.len().saturating_sub(EDGE)..]];
    let has =
        |needle: &str| edges.iter().any(|edge| edge.windows(needle.len()).any(|w| w == needle.as_bytes()));
    let mocks = [
        ("slow", Mock::Slow),
        ("hang", Mock::Hang),
        ("reset", Mock::Reset),
        ("status400", Mock::Status(400)),
        ("status500", Mock::Status(500)),
    ];
    let generate = path.starts_with(b"/v1/") && path.ends_with(b"completions");
    let asked = generate && has(r#""x_mock":""#);
    Request {
        path: path.to_vec(),
        generate,
        stream: generate && has(r#""stream":true"#),
        usage: generate && has(r#""include_usage":true"#),
        mock: mocks
            .into_iter()
            .find(|(name, _)| asked && has(&format!(r#""x_mock":"{name}""#)))
            .map_or(Mock::Well, |(_, mock)| mock),
        first: if generate { body[..body.len().min(NAME)].to_vec() } else { Vec::new() },
        len: body.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_asked() {
        let asked = read(
            b"/v1/chat/completions",
            br#"{"messages":[],"stream":true,"stream_options":{"include_usage":true},"x_mock":"status500"}"#,
        );
        assert!(asked.generate && asked.stream && asked.usage);
        assert_eq!(asked.mock, Mock::Status(500));
        let plain = read(b"/v1/models", b"");
        assert!(!plain.generate && !plain.stream);
    }
}
