//! The end of a string, and its escapes on the way.
//!
//! The bytes are looked at in windows; where many windows in a row hold nothing, a vectorised search goes on from there.
//! Where escapes are is noted, so that decoding the prompt later need not search the text again. The notes are bounded
//! whatever the body: strings beyond the bound are searched twice.

use super::json::{Fault, Step, Str};
use super::window::{escapes, sixteen, sixty_four};
use memchr::memchr2;

/// Most escapes that are noted of one body: 1 MiB of notes.
const MAX_NOTES: usize = 1 << 18;
/// Notes that grew beyond so many are given back after the scan.
const KEEP_NOTES: usize = 1 << 14;
/// After so many windows of 64 bytes without a hit a call of the search is the cheaper way on.
const QUIET: u32 = 2;
/// Escapes of one window that are written without asking how many there are. Text seldom has more.
const STRAIGHT: usize = 4;

/// Where the escapes of a body are, ascending.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// Offsets; those from `len` on mean nothing.
    at: Vec<u32>,
    len: usize,
    /// Strings that begin here or later have no notes.
    full: Option<usize>,
}

impl Notes {
    /// Notes that take nothing: for short texts that are read once.
    pub(super) fn none() -> Self {
        Notes { full: Some(0), ..Notes::default() }
    }

    pub(super) fn reset(&mut self) {
        self.len = 0;
        self.full = None;
    }

    /// Give back what an uncommon body took.
    pub(super) fn trim(&mut self) {
        if self.at.len() > KEEP_NOTES {
            self.at = Vec::new();
            self.len = 0;
        }
    }

    /// The escapes of a string of the noted body; `None` if they were not noted.
    pub(super) fn of(&self, s: Str) -> Option<&[u32]> {
        if self.full.is_some_and(|full| s.start >= full) {
            return None;
        }
        let noted = self.at.get(..self.len)?;
        let from = noted.partition_point(|&at| (at as usize) < s.start);
        let count = noted[from..].partition_point(|&at| (at as usize) < s.end);
        noted.get(from..from + count)
    }

    /// Note the escapes of one window that begins at `at`; `false` if there is no room for it.
    #[inline]
    fn note(&mut self, at: usize, mut starts: u64) -> bool {
        if self.len + 64 > self.at.len() && !self.grow() {
            return false;
        }
        let Some(room) = self.at.get_mut(self.len..).and_then(|rest| rest.first_chunk_mut::<64>()) else {
            return false;
        };
        let mut count = starts.count_ones() as usize;
        self.len += count;
        // Offsets fit: longer bodies are refused before the walk.
        let at = at as u32;
        for slot in &mut room[..STRAIGHT] {
            *slot = at + starts.trailing_zeros();
            starts &= starts.wrapping_sub(1);
        }
        count = count.saturating_sub(STRAIGHT);
        for slot in room[STRAIGHT..].iter_mut().take(count) {
            *slot = at + starts.trailing_zeros();
            starts &= starts.wrapping_sub(1);
        }
        true
    }

    #[cold]
    fn grow(&mut self) -> bool {
        if self.at.len() >= MAX_NOTES {
            return false;
        }
        self.at.resize((self.at.len() * 2).max(256), 0);
        true
    }
}

/// The string whose first byte after the quote is at `start`.
#[inline]
pub(super) fn string(body: &[u8], start: usize, notes: &mut Notes) -> Step<Str> {
    // Keys and short values end within a few bytes.
    if let Some(near) = body.get(start..).and_then(|rest| rest.first_chunk()) {
        let hits = sixteen(near);
        let end = hits.quotes & hits.quotes.wrapping_neg();
        if end != 0 && hits.backslashes & (end - 1) == 0 {
            return Ok(Str { start, end: start + end.trailing_zeros() as usize, escaped: false });
        }
    }
    long(body, start, notes)
}

fn long(body: &[u8], start: usize, notes: &mut Notes) -> Step<Str> {
    let before = notes.len;
    let (mut at, mut quiet, mut carried, mut escaped) = (start, 0, false, false);
    let mut last;
    let end = loop {
        let rest = body.get(at..).unwrap_or_default();
        let window = match rest.first_chunk::<64>() {
            Some(window) => window,
            None if rest.is_empty() => break None,
            None => {
                last = [0; 64];
                last[..rest.len()].copy_from_slice(rest);
                &last
            }
        };
        let hits = sixty_four(window);
        if hits.quotes | hits.backslashes | u64::from(carried) == 0 {
            at += 64;
            quiet += 1;
            if quiet >= QUIET {
                match memchr2(b'"', b'\\', body.get(at..).unwrap_or_default()) {
                    Some(i) if body.get(at + i) == Some(&b'"') => break Some(at + i),
                    Some(i) => at += i,
                    None => break None,
                }
            }
            continue;
        }
        quiet = 0;
        let first_is_escaped = u64::from(carried);
        let (mut starts, carry) = escapes(hits.backslashes, carried);
        carried = carry;
        let quotes = hits.quotes & !(starts << 1 | first_is_escaped);
        let end = quotes & quotes.wrapping_neg();
        // With no end in this window all of its escapes count.
        starts &= end.wrapping_sub(1);
        if starts != 0 {
            escaped = true;
            let noted = notes.full.is_none() && notes.note(at, starts);
            if !noted {
                if notes.full.is_none() {
                    check(body, start, notes.at.get(before..notes.len).unwrap_or_default())?;
                    notes.full = Some(start);
                }
                check_each(body, start, at, starts)?;
            }
        }
        if end != 0 {
            break Some(at + end.trailing_zeros() as usize);
        }
        at += 64;
    };
    if notes.full.is_none() {
        check(body, start, notes.at.get(before..notes.len).unwrap_or_default())?;
    }
    match end {
        Some(end) => Ok(Str { start, end, escaped }),
        None => Err(endless(start)),
    }
}

/// Are these escapes of the string at `start` known ones?
fn check(body: &[u8], start: usize, escapes: &[u32]) -> Step<()> {
    escapes.iter().try_for_each(|&at| known(body, start, at as usize))
}

/// The same for the escapes of one window that begins at `at`.
fn check_each(body: &[u8], start: usize, at: usize, mut starts: u64) -> Step<()> {
    while starts != 0 {
        known(body, start, at + starts.trailing_zeros() as usize)?;
        starts &= starts - 1;
    }
    Ok(())
}

/// Can the escape at `at`, in the string at `start`, be decoded?
#[inline]
fn known(body: &[u8], start: usize, at: usize) -> Step<()> {
    match body.get(at + 1) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(()),
        Some(b'u') => match body.get(at + 2..at + 6) {
            Some(hex) if hex.iter().all(u8::is_ascii_hexdigit) => Ok(()),
            Some(_) => Err(Fault { at, detail: "expected four hexadecimal digits" }),
            None => Err(endless(start)),
        },
        Some(_) => Err(Fault { at, detail: "unknown escape" }),
        None => Err(endless(start)),
    }
}

/// The fault is told at the quote, not at the end of the body: there it began.
fn endless(start: usize) -> Fault {
    Fault { at: start - 1, detail: "the string that begins here has no end" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same, byte by byte.
    fn slow(body: &[u8], start: usize) -> Step<Str> {
        let (mut at, mut escaped) = (start, false);
        loop {
            match body.get(at) {
                Some(b'"') => return Ok(Str { start, end: at, escaped }),
                Some(b'\\') => {
                    known(body, start, at)?;
                    escaped = true;
                    at += 2;
                }
                Some(_) => at += 1,
                None => return Err(endless(start)),
            }
        }
    }

    proptest! {
        #[test]
        fn ends_and_faults_are_those_of_a_loop(
            pieces in prop::collection::vec(prop::sample::select(
                &["\\", "\"", "\\n", "\\\\", "\\\"", "\\u00e9", "\\u12", "\\x", "plain", "some more plain text", "\\t"][..]
            ), 0..40),
            plain in 0..300usize,
            good: bool,
        ) {
            let mut body = format!("\"{}", "x".repeat(plain)).into_bytes();
            for piece in pieces.iter().filter(|piece| !good || !["\\", "\"", "\\u12", "\\x"].contains(piece)) {
                body.extend_from_slice(piece.as_bytes());
            }
            let mut notes = Notes::default();
            let want = slow(&body, 1);
            prop_assert_eq!(string(&body, 1, &mut notes), want);
            prop_assert_eq!(string(&body, 1, &mut Notes::none()), want);
            body.extend_from_slice(b"\" and \\n so on, with a \"");
            let (want, got) = (slow(&body, 1), string(&body, 1, &mut Notes::default()));
            prop_assert_eq!(got, want);
        }
    }

    #[test]
    fn notes_are_those_of_their_string() {
        let body = br#""first \n and more than sixteen bytes", "second \\ and \t also more \u00e9", "none: this is plain text""#;
        let mut notes = Notes::default();
        let mut strings = Vec::new();
        let mut at = 0;
        while let Some(quote) = body[at..].iter().position(|&b| b == b'"') {
            let s = string(body, at + quote + 1, &mut notes).unwrap();
            at = s.end + 1;
            strings.push(s);
        }
        let found: Vec<Vec<&str>> = strings
            .iter()
            .map(|&s| {
                notes
                    .of(s)
                    .unwrap()
                    .iter()
                    .map(|&at| std::str::from_utf8(&body[at as usize..][..2]).unwrap())
                    .collect()
            })
            .collect();
        assert_eq!(found, [vec!["\\n"], vec!["\\\\", "\\t", "\\u"], vec![]]);
        assert_eq!(Notes::none().of(strings[0]), None);
    }

    #[test]
    fn notes_are_bounded() {
        let body = format!("\"{}\"", "\\n".repeat(2 * MAX_NOTES));
        let mut notes = Notes::default();
        let s = string(body.as_bytes(), 1, &mut notes).unwrap();
        assert!(s.end == body.len() - 1 && s.escaped);
        assert_eq!((notes.at.len(), notes.of(s)), (MAX_NOTES, None));
        notes.trim();
        assert_eq!(notes.at.capacity(), 0);
    }
}
