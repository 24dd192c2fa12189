//! Follows a stream of server-sent events in whatever chunks it comes.
//!
//! Where events begin and end is found across any split; what they say is read once they are whole. Watching never
//! delays a byte. Only where the router itself asked for usage, and must take that event out again, an event that hasn't
//! ended yet is held back, at most [`HOLD`] bytes of it. Memory a stream is constant.

use super::facts::{Facts, without_data};
use super::tail::Window;
use bytes::Bytes;
use memchr::memchr2;
use smallvec::{SmallVec, smallvec};

/// Longest event (bytes before its blank line) that is read as a whole and can be taken out. Longer ones pass, and are
/// read by their first and last kilobytes.
pub const HOLD: usize = 64 << 10;

/// A buffer that grew beyond this is given back when its event has passed.
const KEEP: usize = 4 << 10;

/// What to do beside watching.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FramerMode {
    /// Take out the events that hold nothing but usage: the client didn't ask for them.
    pub strip_usage: bool,
}

/// What goes to the client for one chunk: none, one or a few slices, without copies of whole events.
pub type Pieces = SmallVec<[Bytes; 2]>;

/// Watches one stream.
#[derive(Debug, Default)]
pub struct Framer {
    mode: FramerMode,
    facts: Facts,
    /// The current event's bytes from earlier chunks. When stripping, these haven't been sent yet.
    held: Vec<u8>,
    /// Instead of `held`, once the event is longer than [`HOLD`]; its bytes have been sent.
    large: Option<Box<Window>>,
    /// The current line has bytes already.
    in_line: bool,
    /// The byte before was a CR: an LF now belongs to the same line end.
    after_cr: bool,
    /// The event before was taken out.
    dropped: bool,
}

impl Framer {
    /// A framer at the start of a stream.
    pub fn new(mode: FramerMode) -> Self {
        Framer { mode, ..Framer::default() }
    }

    /// What is known so far.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Take in a chunk; returns what to send now.
    pub fn push(&mut self, chunk: Bytes) -> Pieces {
        let strip = self.mode.strip_usage;
        let mut out = Pieces::new();
        // Of `chunk`: where the current event begins, what is looked at next, and from where on nothing is in `out` yet.
        let (mut event, mut pos, mut unsent) = (0, 0, 0);
        while let Some(i) = chunk.get(pos..).and_then(|rest| memchr2(b'\n', b'\r', rest)) {
            let at = pos + i;
            let half = chunk[at] == b'\n' && i == 0 && self.after_cr;
            self.after_cr = chunk[at] == b'\r';
            pos = at + 1;
            if half {
                if event == at && self.held.is_empty() && self.large.is_none() {
                    // It ends the blank line that ended the event before, and shares its fate.
                    event = pos;
                    if self.dropped {
                        unsent = pos;
                    }
                }
                continue;
            }
            if i > 0 || self.in_line {
                self.in_line = false;
                continue;
            }
            let here = &chunk[event..at];
            match self.end_event(here) {
                Fate::Keep => {
                    if strip && !self.held.is_empty() {
                        out.push(std::mem::take(&mut self.held).into());
                    }
                    self.dropped = false;
                }
                Fate::Drop(rest) => {
                    if unsent < event {
                        out.push(chunk.slice(unsent..event));
                    }
                    self.dropped = rest.is_empty();
                    unsent = if self.dropped { pos } else { at };
                    if !rest.is_empty() {
                        out.push(rest.into());
                    }
                }
            }
            self.held.clear();
            self.held.shrink_to(KEEP);
            event = pos;
        }
        if pos < chunk.len() {
            self.in_line = true;
            self.after_cr = false;
        }
        if !strip {
            self.hold(&chunk[event..]);
            return smallvec![chunk];
        }
        let was_large = self.large.is_some();
        let before = std::mem::take(&mut self.held);
        let now_large = was_large || before.len() + (chunk.len() - event) > HOLD;
        let end = if now_large { chunk.len() } else { event };
        if now_large && !was_large && !before.is_empty() {
            out.push(Bytes::copy_from_slice(&before));
        }
        self.held = before;
        self.hold(&chunk[event..]);
        if unsent < end {
            out.push(if unsent == 0 && end == chunk.len() { chunk } else { chunk.slice(unsent..end) });
        }
        out
    }

    /// The stream has ended: reads an event that never got its blank line, and returns what was held back of it.
    pub fn finish(&mut self) -> Option<Bytes> {
        let fate = self.end_event(&[]);
        let held = std::mem::take(&mut self.held);
        let rest = match fate {
            Fate::Keep => held,
            Fate::Drop(rest) => rest,
        };
        (self.mode.strip_usage && !rest.is_empty()).then(|| rest.into())
    }

    /// Read the event whose last bytes (before its blank line) are `here`.
    fn end_event(&mut self, here: &[u8]) -> Fate {
        if self.large.is_some() || self.held.len() + here.len() > HOLD {
            let mut window = self.large.take().unwrap_or_default();
            window.push(&self.held);
            window.push(here);
            self.facts.take_large(window.head(), window.tail());
            return Fate::Keep;
        }
        let lines = if self.held.is_empty() {
            here
        } else {
            let sent_with_chunk = self.held.len();
            self.held.extend_from_slice(here);
            let only_usage = self.facts.take(&self.held);
            if self.mode.strip_usage && only_usage {
                return Fate::Drop(without_data(&self.held));
            }
            self.held.truncate(sent_with_chunk);
            return Fate::Keep;
        };
        if self.facts.take(lines) && self.mode.strip_usage {
            return Fate::Drop(without_data(lines));
        }
        Fate::Keep
    }

    /// Remember more bytes of an event that hasn't ended.
    fn hold(&mut self, bytes: &[u8]) {
        if let Some(window) = &mut self.large {
            window.push(bytes);
        } else if self.held.len() + bytes.len() > HOLD {
            let mut window = Box::<Window>::default();
            window.push(&self.held);
            window.push(bytes);
            self.held = Vec::new();
            self.large = Some(window);
        } else {
            self.held.extend_from_slice(bytes);
        }
    }
}

enum Fate {
    Keep,
    /// Take it out, but for these lines of it.
    Drop(Vec<u8>),
}
