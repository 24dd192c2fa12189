//! A borrowed cursor over JSON text.
//!
//! The router needs a handful of values of a body and must forward all of it as it came, so nothing is built here: the
//! cursor walks over the text once, checks its grammar, and hands out *where* values are. Strings are skipped
//! in windows of many bytes (`quoted`). Left to the replica: UTF-8 and control characters inside strings.

use super::quoted::{self, Notes};
use memchr::memchr_iter;

/// Deepest nesting of arrays and objects that is accepted.
pub const MAX_DEPTH: u32 = 128;

/// Why a text is not JSON, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadJson {
    /// Line of the fault, from 1.
    pub line: u32,
    /// Column of the fault in bytes, from 1.
    pub column: u32,
    /// What was wrong there.
    pub detail: &'static str,
}

/// A string in the text: its bytes between the quotes, still escaped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Str {
    /// Offset of the first byte after the opening quote.
    pub start: usize,
    /// Offset of the closing quote.
    pub end: usize,
    /// Are there escapes in it?
    pub escaped: bool,
}

/// What a value is, by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// `null`
    Null,
    /// `true`
    True,
    /// `false`
    False,
    /// A number, kept as bytes.
    Number,
    /// A string.
    String,
    /// An array.
    Array,
    /// An object.
    Object,
}

/// A value that was walked over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// What it is.
    pub ty: Type,
    /// Offset of its first byte (of a string: the quote).
    pub start: usize,
    /// Offset after its last byte.
    pub end: usize,
    /// Of a string: has it escapes? Of a container: is there white space outside strings?
    pub flag: bool,
}

impl Value {
    /// This value as a string, if it is one.
    pub fn string(self) -> Option<Str> {
        (self.ty == Type::String).then_some(Str {
            start: self.start + 1,
            end: self.end - 1,
            escaped: self.flag,
        })
    }
}

/// Where the walk is.
#[derive(Debug)]
pub struct Cursor<'a> {
    body: &'a [u8],
    pos: usize,
    depth: u32,
    notes: Notes,
}

/// A fault before its line is counted: the offset, and what was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Offset in the text.
    pub at: usize,
    /// What was wrong there.
    pub detail: &'static str,
}

impl Fault {
    /// Count lines and columns in the text the fault is in.
    pub fn locate(self, body: &[u8]) -> BadJson {
        let before = &body[..self.at.min(body.len())];
        let (mut line, mut bol) = (1u32, 0usize);
        for nl in memchr_iter(b'\n', before) {
            line = line.saturating_add(1);
            bol = nl + 1;
        }
        let column = u32::try_from(before.len() - bol + 1).unwrap_or(u32::MAX);
        BadJson { line, column, detail: self.detail }
    }
}

/// Result of a step of the walk.
pub type Step<T> = Result<T, Fault>;

/// A walk through one object or array: whether a comma has to come next.
#[derive(Debug)]
pub struct Walk {
    first: bool,
}

impl<'a> Cursor<'a> {
    /// A cursor at the start of `body`.
    pub fn new(body: &'a [u8]) -> Self {
        Cursor::noting(body, Notes::none())
    }

    /// A cursor that notes in `notes` where escapes are.
    pub(super) fn noting(body: &'a [u8], notes: Notes) -> Self {
        Cursor { body, pos: 0, depth: 0, notes }
    }

    /// What was noted.
    pub(super) fn into_notes(self) -> Notes {
        self.notes
    }

    /// The text under the cursor.
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    /// Offset of the next byte to be read.
    pub fn pos(&self) -> usize {
        self.pos
    }

    fn fault<T>(&self, detail: &'static str) -> Step<T> {
        Err(Fault { at: self.pos, detail })
    }

    /// Skip white space; was there any?
    #[inline]
    fn space(&mut self) -> bool {
        let from = self.pos;
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = self.body.get(self.pos) {
            self.pos += 1;
        }
        self.pos != from
    }

    /// The type of the value that comes next. Only the value's first byte has been looked at.
    pub fn peek(&mut self) -> Step<Type> {
        self.space();
        match self.body.get(self.pos) {
            Some(b'"') => Ok(Type::String),
            Some(b'{') => Ok(Type::Object),
            Some(b'[') => Ok(Type::Array),
            Some(b't') => Ok(Type::True),
            Some(b'f') => Ok(Type::False),
            Some(b'n') => Ok(Type::Null),
            Some(b'-' | b'0'..=b'9') => Ok(Type::Number),
            Some(_) => self.fault("expected a value"),
            None => self.fault("the text ends where a value should be"),
        }
    }

    /// Enter the object that comes next.
    pub fn object(&mut self) -> Step<Walk> {
        self.enter(b'{', "expected an object")
    }

    /// Enter the array that comes next.
    pub fn array(&mut self) -> Step<Walk> {
        self.enter(b'[', "expected an array")
    }

    fn enter(&mut self, open: u8, detail: &'static str) -> Step<Walk> {
        self.space();
        if self.body.get(self.pos) != Some(&open) {
            return self.fault(detail);
        }
        if self.depth >= MAX_DEPTH {
            return self.fault("nested too deeply");
        }
        self.depth += 1;
        self.pos += 1;
        Ok(Walk { first: true })
    }

    /// The next key of the object, with the cursor left before its value; `None` after the closing brace.
    pub fn key(&mut self, walk: &mut Walk) -> Step<Option<Str>> {
        if !self.more(walk, b'}')? {
            return Ok(None);
        }
        self.name().map(Some)
    }

    /// Is there another element in the array? The cursor is left before it, or after the closing bracket.
    pub fn element(&mut self, walk: &mut Walk) -> Step<bool> {
        self.more(walk, b']')
    }

    fn more(&mut self, walk: &mut Walk, close: u8) -> Step<bool> {
        self.space();
        match self.body.get(self.pos) {
            Some(&c) if c == close => {
                self.pos += 1;
                self.depth -= 1;
                return Ok(false);
            }
            Some(b',') if !walk.first => self.pos += 1,
            Some(_) if walk.first => {}
            Some(_) => return self.fault("expected a comma or the end of the container"),
            None => return self.fault("the text ends inside a container"),
        }
        walk.first = false;
        Ok(true)
    }

    /// A key and its colon.
    #[inline]
    fn name(&mut self) -> Step<Str> {
        self.space();
        if self.body.get(self.pos) != Some(&b'"') {
            return self.fault("expected a key in quotes");
        }
        let key = self.quoted()?;
        self.space();
        if self.body.get(self.pos) != Some(&b':') {
            return self.fault("expected a colon");
        }
        self.pos += 1;
        Ok(key)
    }

    /// Walk over the value that comes next, checking its grammar.
    #[inline]
    pub fn value(&mut self) -> Step<Value> {
        let ty = self.peek()?;
        let start = self.pos;
        let flag = match ty {
            Type::String => self.quoted()?.escaped,
            Type::Object | Type::Array => self.container()?,
            _ => {
                self.scalar()?;
                false
            }
        };
        Ok(Value { ty, start, end: self.pos, flag })
    }

    /// A literal or a number.
    #[inline]
    fn scalar(&mut self) -> Step<()> {
        let rest = &self.body[self.pos..];
        match rest.first() {
            Some(b't') if rest.starts_with(b"true") => self.pos += 4,
            Some(b'f') if rest.starts_with(b"false") => self.pos += 5,
            Some(b'n') if rest.starts_with(b"null") => self.pos += 4,
            Some(b'-' | b'0'..=b'9') => return self.number(),
            Some(_) => return self.fault("expected a value"),
            None => return self.fault("the text ends where a value should be"),
        }
        Ok(())
    }

    fn digits(&mut self) -> Step<()> {
        let from = self.pos;
        while let Some(b'0'..=b'9') = self.body.get(self.pos) {
            self.pos += 1;
        }
        if self.pos == from { self.fault("expected a digit") } else { Ok(()) }
    }

    fn number(&mut self) -> Step<()> {
        if self.body.get(self.pos) == Some(&b'-') {
            self.pos += 1;
        }
        if self.body.get(self.pos) == Some(&b'0') {
            self.pos += 1;
            if let Some(b'0'..=b'9') = self.body.get(self.pos) {
                return self.fault("a number begins with a zero");
            }
        } else {
            self.digits()?;
        }
        if self.body.get(self.pos) == Some(&b'.') {
            self.pos += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.body.get(self.pos) {
            self.pos += 1;
            if let Some(b'+' | b'-') = self.body.get(self.pos) {
                self.pos += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    /// The string at the cursor, which stands on its opening quote.
    #[inline]
    fn quoted(&mut self) -> Step<Str> {
        let s = quoted::string(self.body, self.pos + 1, &mut self.notes)?;
        self.pos = s.end + 1;
        Ok(s)
    }

    /// Walk over the container at the cursor, without recursion; was there white space outside strings?
    fn container(&mut self) -> Step<bool> {
        // One bit a level, the innermost lowest: is it an object? `MAX_DEPTH` levels fit.
        let (mut objects, mut depth, mut loose) = (0u128, 0u32, false);
        loop {
            loose |= self.space();
            match self.body.get(self.pos) {
                Some(b'"') => {
                    self.quoted()?;
                }
                Some(&open @ (b'{' | b'[')) => {
                    if self.depth + depth >= MAX_DEPTH {
                        return self.fault("nested too deeply");
                    }
                    let object = open == b'{';
                    self.pos += 1;
                    loose |= self.space();
                    if self.body.get(self.pos) == Some(if object { &b'}' } else { &b']' }) {
                        self.pos += 1;
                    } else {
                        depth += 1;
                        objects = objects << 1 | u128::from(object);
                        if object {
                            loose |= self.loose_name()?;
                        }
                        continue;
                    }
                }
                _ => self.scalar()?,
            }
            // A value has ended: close what ends with it, up to the next comma.
            loop {
                if depth == 0 {
                    return Ok(loose);
                }
                let object = objects & 1 == 1;
                loose |= self.space();
                match self.body.get(self.pos) {
                    Some(b',') => {
                        self.pos += 1;
                        if object {
                            loose |= self.loose_name()?;
                        }
                        break;
                    }
                    Some(b'}') if object => {}
                    Some(b']') if !object => {}
                    Some(_) => return self.fault("expected a comma or the end of the container"),
                    None => return self.fault("the text ends inside a container"),
                }
                self.pos += 1;
                depth -= 1;
                objects >>= 1;
            }
        }
    }

    /// A key inside a container; was there white space before it or before its colon?
    #[inline]
    fn loose_name(&mut self) -> Step<bool> {
        let from = self.pos;
        let key = self.name()?;
        Ok(key.start - 1 != from || self.pos != key.end + 2)
    }

    /// Nothing but white space may follow.
    pub fn end(&mut self) -> Step<()> {
        self.space();
        if self.pos == self.body.len() { Ok(()) } else { self.fault("text after the end of the value") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(s: &str) -> Result<Value, BadJson> {
        let mut c = Cursor::new(s.as_bytes());
        c.value().and_then(|v| c.end().map(|()| v)).map_err(|f| f.locate(s.as_bytes()))
    }

    #[test]
    fn faults_are_located() {
        let at = |s: &str| {
            let b = check(s).unwrap_err();
            (b.line, b.column, b.detail)
        };
        assert_eq!(at("{\"a\":\n  tru}"), (2, 3, "expected a value"));
        assert_eq!(at("{\"a\":1} x"), (1, 9, "text after the end of the value"));
        assert_eq!(at("{\n\n\"a"), (3, 1, "the string that begins here has no end"));
        assert_eq!(at("[1,]"), (1, 4, "expected a value"));
        assert_eq!(at("{\"a\":1,}"), (1, 8, "expected a key in quotes"));
        assert_eq!(at("[1 2]"), (1, 4, "expected a comma or the end of the container"));
        assert_eq!(at("\"\\x\""), (1, 2, "unknown escape"));
        assert_eq!(at("\"\\u12g4\""), (1, 2, "expected four hexadecimal digits"));
        assert_eq!(at(""), (1, 1, "the text ends where a value should be"));
        for bad in [
            "[",
            "{",
            "{\"a\"",
            "{\"a\" 1}",
            "[1}",
            "{\"a\":1]",
            "01",
            "-",
            "1.",
            "1e",
            "+1",
            "nul",
            ",",
            "]",
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(check(&deep(128)).is_ok());
        assert_eq!(check(&deep(129)).unwrap_err().detail, "nested too deeply");
        assert!(check(&"[".repeat(1_000_000)).is_err());
        assert!(check(&"{\"a\":".repeat(1_000_000)).is_err());
    }

    #[test]
    fn white_space_outside_strings_is_noticed() {
        for (s, loose) in [
            ("{\"a\":[1,2,{\"b c\":\" \"}]}", false),
            ("{\"a\": 1}", true),
            ("{ \"a\":1}", true),
            ("{\"a\" :1}", true),
            ("{\"a\":1 }", true),
            ("[1, 2]", true),
            ("{\"a\":1, \"b\":2}", true),
            ("[ ]", true),
        ] {
            assert_eq!(check(s).unwrap().flag, loose, "{s}");
        }
    }

    #[test]
    fn walks_give_keys_and_elements() {
        let body = br#" { "a" : [ 1 , "x\n" ] , "b" : null } "#;
        let mut c = Cursor::new(body);
        let mut o = c.object().unwrap();
        let k = c.key(&mut o).unwrap().unwrap();
        assert_eq!(&body[k.start..k.end], b"a");
        let mut a = c.array().unwrap();
        assert!(c.element(&mut a).unwrap());
        assert_eq!(c.value().unwrap().ty, Type::Number);
        assert!(c.element(&mut a).unwrap());
        assert!(c.value().unwrap().string().unwrap().escaped);
        assert!(!c.element(&mut a).unwrap());
        assert!(c.key(&mut o).unwrap().is_some());
        assert_eq!(c.value().unwrap().ty, Type::Null);
        assert!(c.key(&mut o).unwrap().is_none());
        assert!(c.end().is_ok());
    }
}
