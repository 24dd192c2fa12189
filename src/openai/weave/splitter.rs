//! Cuts a stream into whole events.
//!
//! Unlike the framer, which passes bytes on before their event is whole, this holds an event until it can be changed.

use memchr::memchr2;

/// Bytes of an event that hasn't ended.
#[derive(Debug, Default)]
pub(super) struct Splitter {
    held: Vec<u8>,
    /// Up to here lies no end of an event; the line that begins here has been looked at from `line` on.
    line: usize,
    seen: usize,
}

/// A buffer that grew beyond this is given back.
const KEEP: usize = 4 << 10;

impl Splitter {
    /// Adds bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// Bytes held.
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// Gives each whole event, with its blank line, to `take`, until that says no.
    pub(super) fn each(&mut self, mut take: impl FnMut(&[u8]) -> bool) {
        let mut event = 0;
        let mut going = true;
        while going && let Some(end) = self.next_end() {
            going = take(self.held.get(event..end).unwrap_or_default());
            event = end;
        }
        if event > 0 {
            self.held.drain(..event);
            self.line = self.line.saturating_sub(event);
            self.seen = self.seen.saturating_sub(event);
        }
        if self.held.is_empty() {
            self.held.shrink_to(KEEP);
        }
    }

    /// The end of the next event: behind its blank line.
    fn next_end(&mut self) -> Option<usize> {
        loop {
            let rest = self.held.get(self.seen..)?;
            let Some(at) = memchr2(b'\n', b'\r', rest).map(|i| self.seen + i) else {
                self.seen = self.held.len();
                return None;
            };
            let after = match (self.held.get(at), self.held.get(at + 1)) {
                (Some(b'\r'), Some(b'\n')) => at + 2,
                // The other half of a line's end may still come.
                (Some(b'\r'), None) => {
                    self.seen = at;
                    return None;
                }
                _ => at + 1,
            };
            let blank = at == self.line;
            self.line = after;
            self.seen = after;
            if blank {
                return Some(after);
            }
        }
    }

    /// What never became a whole event.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        self.line = 0;
        self.seen = 0;
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_however_they_are_cut() {
        for (text, count) in [
            ("data: 1\n\ndata: 2\n\n: c\n\n", 3),
            ("data: 1\r\n\r\nevent: x\r\ndata: 2\r\n\r\n", 2),
            ("\n\ndata: x\ndata: y\n\n", 3),
        ] {
            for size in 1..text.len() {
                let mut splitter = Splitter::default();
                let mut events = Vec::new();
                for piece in text.as_bytes().chunks(size) {
                    splitter.push(piece);
                    splitter.each(|e| {
                        events.push(String::from_utf8_lossy(e).into_owned());
                        true
                    });
                }
                assert_eq!((events.len(), events.concat().as_str()), (count, text), "{size}");
                assert!(splitter.rest().is_empty());
            }
        }
    }

    #[test]
    fn an_event_that_has_not_ended_is_the_rest() {
        let mut splitter = Splitter::default();
        splitter.push(b"data: 1\n\ndata: {\"a");
        let mut n = 0;
        splitter.each(|_| {
            n += 1;
            true
        });
        assert_eq!((n, splitter.len()), (1, 9));
        assert_eq!(splitter.rest(), b"data: {\"a");
    }
}
