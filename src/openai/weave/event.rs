//! What one event of a chat or completions stream holds, and where.

use super::super::content::NAME;
use super::super::json::{Cursor, Step, Type, Value};
use super::super::text::Short;
use std::ops::Range;

/// The parts of an event's JSON that weaving needs. Places are offsets in the event.
#[derive(Debug, Default)]
pub(super) struct Event {
    pub(super) id: Option<Range<usize>>,
    pub(super) created: Option<Range<usize>>,
    pub(super) model: Option<Range<usize>>,
    pub(super) fingerprint: Option<Range<usize>>,
    /// Value of `usage`, if it is an object.
    pub(super) usage: Option<Range<usize>>,
    pub(super) error: bool,
    /// Values that name the prompt's tokens, at the top or in the choice.
    pub(super) prompt_ids: Option<Range<usize>>,
    pub(super) has_choices: bool,
    /// Elements of `choices`.
    pub(super) choices: u32,
    pub(super) choice: Choice,
}

/// The one choice of an event.
#[derive(Debug, Default)]
pub(super) struct Choice {
    /// The new text, with its quotes.
    pub(super) text: Option<Range<usize>>,
    /// The role is told.
    pub(super) role: bool,
    /// There is something in it that can't be continued: reasoning, tool calls, log probabilities.
    pub(super) other: bool,
    pub(super) finish: Option<Range<usize>>,
    pub(super) stop_reason: Option<Range<usize>>,
    /// Value that names the new tokens, if it is a list.
    pub(super) ids: Option<Range<usize>>,
}

/// What an event is.
pub(super) enum Read {
    /// JSON; the first field says where it begins.
    Json(Box<Event>),
    /// `[DONE]`
    Done,
    /// Nothing that is understood: a comment, another kind of event.
    Other,
}

/// Reads an event, given with its blank line.
pub(super) fn read(event: &[u8]) -> Read {
    let mut data: Option<Range<usize>> = None;
    let mut at = 0;
    for line in event.split_inclusive(|b| *b == b'\n') {
        let end = at + line.trim_ascii_end().len();
        if line.starts_with(b"data:") {
            if data.is_some() {
                return Read::Other;
            }
            data = Some((at + 5).min(end)..end);
        }
        at += line.len();
    }
    let Some(data) = data else { return Read::Other };
    let json = event.get(data.clone()).unwrap_or_default();
    if json.trim_ascii() == b"[DONE]" {
        return Read::Done;
    }
    let mut found = Event::default();
    let mut c = Cursor::new(json);
    match found.read(&mut c, data.start).and_then(|()| c.end()) {
        Ok(()) => Read::Json(Box::new(found)),
        Err(_) => Read::Other,
    }
}

fn place(v: Value, from: usize) -> Range<usize> {
    v.start + from..v.end + from
}

impl Event {
    fn read(&mut self, c: &mut Cursor<'_>, from: usize) -> Step<()> {
        let mut walk = c.object()?;
        while let Some(key) = c.key(&mut walk)? {
            let mut buf = Short::<NAME>::new();
            let name = buf.of(c.body(), key);
            if name == b"choices" && c.peek()? == Type::Array {
                self.has_choices = true;
                self.read_choices(c, from)?;
                continue;
            }
            let v = c.value()?;
            let at = place(v, from);
            match name {
                b"id" => self.id = Some(at),
                b"created" => self.created = Some(at),
                b"model" => self.model = Some(at),
                b"system_fingerprint" if v.ty == Type::String => self.fingerprint = Some(at),
                b"usage" if v.ty == Type::Object => self.usage = Some(at),
                b"error" => self.error = v.ty != Type::Null,
                b"prompt_token_ids" if v.ty == Type::Array => self.prompt_ids = Some(at),
                _ => {}
            }
        }
        Ok(())
    }

    fn read_choices(&mut self, c: &mut Cursor<'_>, from: usize) -> Step<()> {
        let mut walk = c.array()?;
        while c.element(&mut walk)? {
            self.choices += 1;
            if self.choices > 1 || c.peek()? != Type::Object {
                self.choice.other = true;
                c.value()?;
                continue;
            }
            let mut choice = c.object()?;
            while let Some(key) = c.key(&mut choice)? {
                let mut buf = Short::<NAME>::new();
                let name = buf.of(c.body(), key);
                if name == b"delta" && c.peek()? == Type::Object {
                    self.choice.delta(c, from)?;
                    continue;
                }
                let v = c.value()?;
                let at = place(v, from);
                match name {
                    b"text" if v.ty == Type::String => self.choice.text = Some(at),
                    b"finish_reason" if v.ty == Type::String => self.choice.finish = Some(at),
                    b"stop_reason" => self.choice.stop_reason = Some(at),
                    b"token_ids" if v.ty == Type::Array => self.choice.ids = Some(at),
                    b"prompt_token_ids" if v.ty == Type::Array => self.prompt_ids = Some(at),
                    b"logprobs" => self.choice.other |= v.ty != Type::Null,
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

impl Choice {
    fn delta(&mut self, c: &mut Cursor<'_>, from: usize) -> Step<()> {
        let mut walk = c.object()?;
        while let Some(key) = c.key(&mut walk)? {
            let mut buf = Short::<NAME>::new();
            let name = buf.of(c.body(), key);
            let v = c.value()?;
            match name {
                b"content" if v.ty == Type::String => self.text = Some(place(v, from)),
                b"role" => self.role = true,
                _ => {
                    let empty = v.ty == Type::Null || (v.ty == Type::Array && v.end - v.start == 2);
                    self.other |= !empty && name != b"content";
                }
            }
        }
        Ok(())
    }

    /// Is there text in it?
    pub(super) fn says(&self) -> bool {
        self.text.as_ref().is_some_and(|t| t.len() > 2)
    }
}
