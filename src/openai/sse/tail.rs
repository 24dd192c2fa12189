//! What an answer that isn't streamed says at its beginning and its end.

use super::super::json::{Cursor, Step, Type};
use super::super::text::{Short, whole};
use super::super::usage::{Tally, Usage, find};

/// Bytes kept of the beginning.
const HEAD: usize = 1 << 10;
/// Bytes kept of the end.
const TAIL: usize = 4 << 10;

/// The beginning and the end of something long, in constant memory.
#[derive(Debug, Default)]
pub(super) struct Window {
    head: Vec<u8>,
    last: Vec<u8>,
}

impl Window {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let room = HEAD.saturating_sub(self.head.len()).min(bytes.len());
        self.head.extend_from_slice(&bytes[..room]);
        let bytes = &bytes[bytes.len().saturating_sub(TAIL)..];
        if self.last.len() + bytes.len() > 2 * TAIL {
            let cut = self.last.len().saturating_sub(TAIL);
            self.last.drain(..cut);
        }
        self.last.extend_from_slice(bytes);
    }

    pub(super) fn head(&self) -> &[u8] {
        &self.head
    }

    pub(super) fn tail(&self) -> &[u8] {
        &self.last[self.last.len().saturating_sub(TAIL)..]
    }
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// Token counts, if they stand in the last 4 KiB.
    pub usage: Option<Usage>,
    /// The answer's identifier, if it stands in the first KiB.
    pub id: Option<Box<str>>,
    /// It is an error, whatever the status says.
    pub error: bool,
}

/// Watches the chunks of a JSON answer go by. Constant memory, nothing delayed.
#[derive(Debug, Default)]
pub struct TailScan {
    window: Window,
}

impl TailScan {
    /// At the start of an answer.
    pub fn new() -> Self {
        TailScan::default()
    }

    /// Take in a chunk.
    pub fn push(&mut self, chunk: &[u8]) {
        self.window.push(chunk);
    }

    /// What the whole answer said.
    pub fn finish(&self) -> Tail {
        let mut found = Tail { usage: find(self.window.tail()).and_then(Tally::usage), ..Tail::default() };
        // The head may be cut: what was read before that counts.
        let _ = top(&mut Cursor::new(self.window.head()), &mut found);
        found
    }
}

fn top(c: &mut Cursor<'_>, found: &mut Tail) -> Step<()> {
    let mut walk = c.object()?;
    while let Some(key) = c.key(&mut walk)? {
        let mut buf = Short::<16>::new();
        match buf.of(c.body(), key) {
            b"id" => found.id = c.value()?.string().map(|s| whole(c.body(), s).into()),
            // Noted before its value is read, which may be cut.
            b"error" => {
                found.error = c.peek()? != Type::Null;
                c.value()?;
            }
            _ => {
                c.value()?;
            }
        }
    }
    Ok(())
}
