//! What the events of a stream say.
//!
//! Only the values that are needed are looked at; strings are skipped, nothing is kept or built. The dialects (chat,
//! completions, responses, Anthropic) are told apart by their keys, so a stream needs no label.

use super::super::content::NAME;
use super::super::json::{Cursor, Step, Str, Type, Value};
use super::super::text::{Short, whole};
use super::super::usage::{Tally, Usage, find};
use memchr::{memchr, memchr2, memmem};
use std::borrow::Cow;

/// What is known of a stream so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Has the model said anything? A first event with only a role doesn't count.
    pub first_token: bool,
    /// Events that carried output, each of about one token.
    pub tokens: u64,
    /// Token counts, as far as told; final once [`done`](Facts::done).
    pub usage: Option<Usage>,
    /// A finish reason was given.
    pub finished: bool,
    /// The stream's own end mark was seen: `[DONE]`, `message_stop`, `response.completed`.
    pub done: bool,
    /// The replica reported an error inside the stream.
    pub error: bool,
    /// Identifier of a stored response (`/v1/responses`), which later requests may continue.
    pub response_id: Option<Box<str>>,
    pub(in super::super) tally: Tally,
}

/// Longest identifier that is kept.
const MAX_ID: usize = 256;

/// One event's lines, read.
pub(super) struct Event<'a> {
    /// The `event:` line.
    pub(super) name: &'a [u8],
    /// The `data:` lines, joined.
    pub(super) data: Option<Cow<'a, [u8]>>,
}

impl<'a> Event<'a> {
    pub(super) fn read(lines: &'a [u8]) -> Self {
        let mut event = Event { name: b"", data: None };
        for line in each_line(lines) {
            let (field, value) = match memchr(b':', line) {
                Some(i) => (&line[..i], line[i + 1..].strip_prefix(b" ").unwrap_or(&line[i + 1..])),
                None => (line, &line[line.len()..]),
            };
            match field {
                b"event" => event.name = value,
                b"data" => match &mut event.data {
                    None => event.data = Some(Cow::Borrowed(value)),
                    Some(data) => {
                        let data = data.to_mut();
                        data.push(b'\n');
                        data.extend_from_slice(value);
                    }
                },
                _ => {}
            }
        }
        event
    }
}

/// The lines without their ends; the LF of a CRLF shows as an empty line, which means nothing inside an event.
fn each_line(mut rest: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
        let line = &rest[..end];
        rest = rest.get(end + 1..).unwrap_or_default();
        Some(line)
    })
}

/// The event's lines, with their ends, but for those of its data.
pub(super) fn without_data(lines: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = lines;
    while !rest.is_empty() {
        let mut end = memchr2(b'\n', b'\r', rest).map_or(rest.len(), |i| i + 1);
        if rest.get(end - 1) == Some(&b'\r') && rest.get(end) == Some(&b'\n') {
            end += 1;
        }
        let (line, after) = rest.split_at(end);
        let is_data = line.strip_prefix(b"data").and_then(<[u8]>::first);
        if !matches!(is_data, Some(b':' | b'\r' | b'\n')) {
            out.extend_from_slice(line);
        }
        rest = after;
    }
    out
}

/// What one event's JSON holds.
#[derive(Default)]
struct Look {
    ty: Option<Str>,
    choices: Option<Choices>,
    usage: Option<Tally>,
    error: bool,
    response_id: Option<Str>,
    stop_reason: bool,
}

#[derive(Default)]
struct Choices {
    any: bool,
    token: bool,
    finish: bool,
}

impl Look {
    /// Read as far as the JSON is whole.
    fn read(&mut self, c: &mut Cursor<'_>) -> Step<()> {
        let mut walk = c.object()?;
        while let Some(key) = c.key(&mut walk)? {
            let mut buf = Short::<NAME>::new();
            match buf.of(c.body(), key) {
                b"type" => self.ty = c.value()?.string(),
                b"choices" if c.peek()? == Type::Array => self.choices = Some(choices(c)?),
                b"usage" => self.usage(c)?,
                b"error" => self.error = c.value()?.ty != Type::Null,
                b"response" => self.inner(c, true)?,
                b"message" => self.inner(c, false)?,
                b"delta" if c.peek()? == Type::Object => self.delta(c)?,
                _ => {
                    c.value()?;
                }
            }
        }
        Ok(())
    }

    fn usage(&mut self, c: &mut Cursor<'_>) -> Step<()> {
        let mut tally = Tally::default();
        if tally.read(c)? {
            self.usage = Some(tally);
        }
        Ok(())
    }

    /// The object that the events of responses and Anthropic wrap their start and end in.
    fn inner(&mut self, c: &mut Cursor<'_>, response: bool) -> Step<()> {
        if c.peek()? != Type::Object {
            return c.value().map(drop);
        }
        let mut walk = c.object()?;
        while let Some(key) = c.key(&mut walk)? {
            let mut buf = Short::<NAME>::new();
            match buf.of(c.body(), key) {
                b"id" if response => self.response_id = c.value()?.string(),
                b"usage" => self.usage(c)?,
                _ => {
                    c.value()?;
                }
            }
        }
        Ok(())
    }

    fn delta(&mut self, c: &mut Cursor<'_>) -> Step<()> {
        let mut walk = c.object()?;
        while let Some(key) = c.key(&mut walk)? {
            let v = c.value()?;
            if Short::<NAME>::new().of(c.body(), key) == b"stop_reason" {
                self.stop_reason = v.ty == Type::String;
            }
        }
        Ok(())
    }
}

fn choices(c: &mut Cursor<'_>) -> Step<Choices> {
    let mut found = Choices::default();
    let mut walk = c.array()?;
    while c.element(&mut walk)? {
        found.any = true;
        if c.peek()? != Type::Object {
            c.value()?;
            continue;
        }
        let mut choice = c.object()?;
        while let Some(key) = c.key(&mut choice)? {
            let mut buf = Short::<NAME>::new();
            match buf.of(c.body(), key) {
                b"delta" if c.peek()? == Type::Object => {
                    let mut delta = c.object()?;
                    while let Some(key) = c.key(&mut delta)? {
                        let v = c.value()?;
                        found.token |= match Short::<NAME>::new().of(c.body(), key) {
                            b"content" | b"reasoning_content" | b"reasoning" | b"refusal" | b"tool_calls"
                            | b"function_call" | b"audio" => filled(c.body(), v),
                            _ => false,
                        };
                    }
                }
                b"text" | b"token_ids" => found.token |= filled(c.body(), c.value()?),
                b"finish_reason" => found.finish |= c.value()?.ty == Type::String,
                _ => {
                    c.value()?;
                }
            }
        }
    }
    Ok(found)
}

/// Is it a string, an array or an object with something in it?
fn filled(body: &[u8], v: Value) -> bool {
    match v.ty {
        Type::String => v.end - v.start > 2,
        Type::Array | Type::Object => {
            body.get(v.start + 1..v.end - 1).is_some_and(|inside| !inside.trim_ascii().is_empty())
        }
        _ => false,
    }
}

impl Facts {
    /// Take in an event by its lines. True for an event that holds nothing but usage.
    pub(in super::super) fn take(&mut self, lines: &[u8]) -> bool {
        let event = Event::read(lines);
        let Some(data) = &event.data else { return false };
        if data.trim_ascii() == b"[DONE]" {
            self.done = true;
            return false;
        }
        let mut look = Look::default();
        let mut c = Cursor::new(data);
        if look.read(&mut c).and_then(|()| c.end()).is_err() {
            self.error |= event.name == b"error";
            return false;
        }
        let only_usage = look.choices.as_ref().is_some_and(|c| !c.any) && look.usage.is_some() && !look.error;
        self.conclude(event.name, data, &look);
        only_usage
    }

    /// Take in an event too long to be kept, by its beginning and its end.
    pub(super) fn take_large(&mut self, head: &[u8], tail: &[u8]) {
        let event = Event::read(head);
        let data = event.data.unwrap_or_default();
        let mut look = Look::default();
        // The head is cut somewhere: what was read before that stays.
        let _ = look.read(&mut Cursor::new(&data));
        look.usage = find(tail).or(look.usage);
        if look.choices.is_none() && memmem::find(&data, b"\"choices\"").is_some() {
            // The walk ended inside the choices: so much text is output.
            look.choices = Some(Choices { any: true, token: true, finish: false });
        }
        let ends = |name: &[u8]| memmem::find(tail, name).is_some();
        let named = look.ty.is_some() || !event.name.is_empty();
        let name: &[u8] = match event.name {
            b"" if !named && ends(b"\"type\":\"response.completed\"") => b"response.completed",
            name => name,
        };
        self.conclude(name, &data, &look);
    }

    fn conclude(&mut self, name: &[u8], data: &[u8], look: &Look) {
        let mut buf = Short::<NAME>::new();
        let ty = look.ty.map_or(name, |s| buf.of(data, s));
        let choices = look.choices.as_ref();
        let closes = matches!(ty, b"response.completed" | b"response.incomplete" | b"response.failed");
        let delta = ty == b"content_block_delta" || (ty.starts_with(b"response.") && ty.ends_with(b".delta"));
        if delta || choices.is_some_and(|c| c.token) {
            self.first_token = true;
            self.tokens += 1;
        }
        if let Some(tally) = look.usage {
            self.tally = self.tally.merge(tally);
            self.usage = self.tally.usage();
        }
        self.finished |= closes || look.stop_reason || choices.is_some_and(|c| c.finish);
        self.done |= closes || ty == b"message_stop";
        self.error |= look.error || ty == b"error" || ty == b"response.failed" || name == b"error";
        if self.response_id.is_none()
            && let Some(id) = look.response_id.filter(|s| s.end - s.start <= MAX_ID)
        {
            self.response_id = Some(whole(data, id).into());
        }
    }
}
