//! The places of a body that carry the prompt, in the template's order.
//!
//! Keys come in any order, so the walk over the body only notes where things are, twelve bytes a part; the text goes to
//! the sink when the walk has ended. The tape is bounded whatever the body: what is beyond the bound is left out of the
//! prefix, which costs precision and nothing else.

use super::json::{Str, Value};
use super::quoted::Notes;
use super::sink::{MAX_NAME, Media, Part, Sink};
use super::staged::Stage;
use super::text::{Short, compact, runs};
use xxhash_rust::xxh3::{Xxh3, xxh3_128_with_seed};

/// Most marks of one body: 12 MiB of them.
const MAX_MARKS: usize = 1 << 20;
const _: () = assert!(size_of::<Mark>() == 12, "the bound in bytes is told in the docs");
/// A scratch that grew beyond so many marks is given back after its scan.
const KEEP_MARKS: usize = 1 << 13;

/// What stands at a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Tools,
    Role,
    /// A role that the shape implies.
    System,
    User,
    Assistant,
    Tool,
    Name,
    Text,
    Reasoning,
    /// Text that continues the part before it.
    More,
    Media(Media),
    Call,
    Result,
    Tokens,
    Other,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    start: u32,
    end: u32,
    kind: Kind,
    /// Of a string: escaped. Of JSON: with white space.
    flag: bool,
    /// Is the span JSON, not the inside of a string?
    json: bool,
}

impl Mark {
    pub(super) fn bare(kind: Kind) -> Self {
        Mark { start: 0, end: 0, kind, flag: false, json: false }
    }

    /// A mark on a string. Offsets fit: longer bodies are refused before the walk.
    pub(super) fn string(kind: Kind, s: Str) -> Self {
        Mark { start: s.start as u32, end: s.end as u32, kind, flag: s.escaped, json: false }
    }

    /// A mark on any value: a string's text, or the JSON of anything else.
    pub(super) fn value(kind: Kind, v: Value) -> Self {
        match v.string() {
            Some(s) => Mark::string(kind, s),
            None => Mark { start: v.start as u32, end: v.end as u32, kind, flag: v.flag, json: true },
        }
    }

    fn str(self) -> Str {
        Str { start: self.start as usize, end: self.end as usize, escaped: self.flag }
    }
}

/// A stretch of the tape.
pub(super) type Stretch = std::ops::Range<usize>;

/// Memory of a scan, to be used again for the next one.
#[derive(Debug, Default)]
pub struct Scratch {
    marks: Vec<Mark>,
    spare: Vec<Mark>,
    notes: Notes,
    stage: Stage,
    seed: u64,
}

impl Scratch {
    /// A scratch that hashes media references with `seed`; routers that share an index must share it.
    pub fn new(seed: u64) -> Self {
        Scratch { seed, ..Scratch::default() }
    }

    pub(super) fn reset(&mut self) {
        self.marks.clear();
        self.spare.clear();
        self.notes.reset();
    }

    /// The notes, for the cursor of the walk; they have to be put back before anything is emitted.
    pub(super) fn take_notes(&mut self) -> Notes {
        std::mem::take(&mut self.notes)
    }

    pub(super) fn put_notes(&mut self, notes: Notes) {
        self.notes = notes;
    }

    /// Give memory back that only an unusual body needed.
    pub(super) fn trim(&mut self) {
        self.reset();
        self.marks.shrink_to(KEEP_MARKS);
        self.spare.shrink_to(KEEP_MARKS);
        self.notes.trim();
    }

    pub(super) fn len(&self) -> usize {
        self.marks.len()
    }

    pub(super) fn push(&mut self, mark: Mark) {
        if self.marks.len() < MAX_MARKS {
            self.marks.push(mark);
        }
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.marks.truncate(len);
    }

    /// Put `mark` before what was noted since `at`.
    pub(super) fn insert(&mut self, at: usize, mark: Mark) {
        if self.marks.len() < MAX_MARKS && at <= self.marks.len() {
            self.marks.insert(at, mark);
        }
    }

    /// Put `head` and then the stretches `order` in the place of all that was noted since `at`.
    pub(super) fn arrange(&mut self, at: usize, head: &[Mark], order: &[Stretch]) {
        self.spare.clear();
        self.spare.extend_from_slice(head);
        for s in order {
            self.spare.extend_from_slice(self.marks.get(s.clone()).unwrap_or_default());
        }
        self.marks.truncate(at);
        let room = MAX_MARKS.saturating_sub(at).min(self.spare.len());
        self.marks.extend_from_slice(&self.spare[..room]);
    }

    /// Give a stretch to the sink. Returns how much there was.
    pub(super) fn emit(&mut self, body: &[u8], stretch: Stretch, sink: &mut impl Sink) -> Amount {
        let mut sum = Amount::default();
        let Scratch { marks, notes, stage, seed, .. } = self;
        for &m in marks.get(stretch).unwrap_or_default() {
            emit(body, m, *seed, (notes, stage), sink, &mut sum);
        }
        sum
    }
}

/// How much prompt went to the sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) text_bytes: u64,
    pub(super) media: u32,
    pub(super) tokens: u32,
}

fn emit(
    body: &[u8],
    m: Mark,
    seed: u64,
    (notes, stage): (&Notes, &mut Stage),
    sink: &mut impl Sink,
    sum: &mut Amount,
) {
    let mut short = Short::<MAX_NAME>::new();
    let part = match m.kind {
        Kind::Tools => Some(Part::Tools),
        Kind::Role => Some(Part::Role(short.of(body, m.str()))),
        Kind::System => Some(Part::Role(b"system")),
        Kind::User => Some(Part::Role(b"user")),
        Kind::Assistant => Some(Part::Role(b"assistant")),
        Kind::Tool => Some(Part::Role(b"tool")),
        Kind::Name => Some(Part::Name(short.of(body, m.str()))),
        Kind::Text => Some(Part::Text),
        Kind::Reasoning => Some(Part::Reasoning),
        Kind::More => None,
        Kind::Media(media) => {
            sum.media += 1;
            Some(Part::Media(media, digest(body, m.str(), seed)))
        }
        Kind::Call => Some(Part::ToolCall(short.of(body, m.str()))),
        Kind::Result => Some(Part::ToolResult),
        Kind::Tokens => Some(Part::Tokens),
        Kind::Other => Some(Part::Other),
    };
    if let Some(part) = part {
        sink.part(part);
    }
    let mut text = |run: &[u8]| {
        sum.text_bytes += run.len() as u64;
        sink.text(run);
    };
    match m.kind {
        Kind::Tools | Kind::Text | Kind::Reasoning | Kind::More | Kind::Other if m.json => {
            let json = body.get(m.start as usize..m.end as usize).unwrap_or_default();
            if m.flag { compact(json, text) } else { text(json) }
        }
        Kind::Text | Kind::Reasoning | Kind::More | Kind::Other => match notes.of(m.str()) {
            Some(escapes) if m.flag => stage.decode(body, m.str(), escapes, text),
            _ => runs(body, m.str(), text),
        },
        Kind::Tokens => {
            let ids = body.get(m.start as usize..m.end as usize).unwrap_or_default();
            sum.tokens = sum.tokens.saturating_add(super::completions::token_ids(ids, text));
        }
        _ => {}
    }
}

/// 128 bits that stand for a reference, whatever its escapes. Media can be megabytes of base64: the hash keeps it out of
/// the blocks of text.
fn digest(body: &[u8], s: Str, seed: u64) -> u128 {
    if !s.escaped {
        return xxh3_128_with_seed(body.get(s.start..s.end).unwrap_or_default(), seed);
    }
    let mut hash = Xxh3::with_seed(seed);
    runs(body, s, |run| hash.update(run));
    hash.digest128()
}
