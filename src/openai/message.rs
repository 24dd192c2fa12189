//! Messages and items: what stands in `messages` (chat, Anthropic) and in `input` (responses).
//!
//! A message is put in one order whatever the order of its keys: role, name, reasoning, content, tool calls. The items
//! of `/v1/responses` become the messages that an engine makes of them. Identifiers of calls are left out: clients
//! that make them anew each turn would lose their prefix, and most templates don't show them.

use super::content::{NAME, content};
use super::json::{Cursor, Step, Str, Type, Value};
use super::tape::{Kind, Mark, Scratch, Stretch};
use super::text::Short;

/// Note the messages that come next; a bare string is a user's message (`input` of responses).
pub(super) fn messages(c: &mut Cursor<'_>, tape: &mut Scratch) -> Step<()> {
    match c.peek()? {
        Type::Array => {
            let mut walk = c.array()?;
            while c.element(&mut walk)? {
                match c.peek()? {
                    Type::Object => message(c, tape)?,
                    _ => {
                        c.value()?;
                    }
                }
            }
        }
        Type::String => {
            let v = c.value()?;
            tape.push(Mark::bare(Kind::User));
            tape.push(Mark::value(Kind::Text, v));
        }
        _ => {
            c.value()?;
        }
    }
    Ok(())
}

/// Note a system prompt that stands beside the messages: a string or blocks of text.
pub(super) fn system(c: &mut Cursor<'_>, tape: &mut Scratch) -> Step<()> {
    if c.peek()? == Type::Null {
        c.value()?;
        return Ok(());
    }
    tape.push(Mark::bare(Kind::System));
    content(c, tape, false)
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Item {
    #[default]
    Message,
    Call,
    CallOutput,
    Reasoning,
    Unknown,
}

impl Item {
    fn of(name: &[u8]) -> Self {
        match name {
            b"message" => Item::Message,
            b"function_call" | b"custom_tool_call" => Item::Call,
            b"function_call_output" | b"custom_tool_call_output" => Item::CallOutput,
            b"reasoning" => Item::Reasoning,
            _ => Item::Unknown,
        }
    }
}

fn message(c: &mut Cursor<'_>, tape: &mut Scratch) -> Step<()> {
    let (at, from) = (tape.len(), c.pos());
    let mut item = Item::default();
    let (mut role, mut name) = (None::<Str>, None::<Str>);
    let (mut reasoning, mut arguments, mut input) = (None::<Value>, None::<Value>, None::<Value>);
    let (mut body, mut output, mut summary) = (0..0, 0..0, 0..0);
    let (mut calls, mut call) = (0..0, 0..0);
    let mut walk = c.object()?;
    while let Some(key) = c.key(&mut walk)? {
        let mut buf = Short::<NAME>::new();
        match buf.of(c.body(), key) {
            b"role" => role = c.value()?.string(),
            b"content" => body = noted(c, tape, |c, tape| content(c, tape, false))?,
            b"name" => name = c.value()?.string(),
            b"reasoning_content" | b"reasoning" => reasoning = Some(c.value()?),
            b"tool_calls" => calls = noted(c, tape, tool_calls)?,
            b"function_call" => call = noted(c, tape, function)?,
            b"type" => {
                item = match c.value()?.string() {
                    Some(s) => Item::of(Short::<NAME>::new().of(c.body(), s)),
                    None => Item::Unknown,
                }
            }
            b"arguments" => arguments = Some(c.value()?),
            b"input" => input = Some(c.value()?),
            b"output" => output = noted(c, tape, |c, tape| content(c, tape, true))?,
            b"summary" => summary = noted(c, tape, |c, tape| content(c, tape, true))?,
            _ => {
                c.value()?;
            }
        }
    }
    let reasoning = reasoning.filter(|v| v.ty == Type::String).map(|v| Mark::value(Kind::Reasoning, v));
    match item {
        Item::Message => {
            let role = role.map_or(Mark::bare(Kind::Role), |s| Mark::string(Kind::Role, s));
            let name = name.map(|s| Mark::string(Kind::Name, s));
            let head = [Some(role), name, reasoning];
            let mut marks = [role; 3];
            let n = pack(&head, &mut marks);
            tape.arrange(at, &marks[..n], &[body, calls, call]);
        }
        Item::Call => {
            let name = Mark::string(Kind::Call, name.unwrap_or_default());
            let text = arguments.or(input).map(|v| Mark::value(Kind::More, v));
            let mut marks = [name; 3];
            let n = pack(&[Some(Mark::bare(Kind::Assistant)), Some(name), text], &mut marks);
            tape.arrange(at, &marks[..n], &[]);
        }
        Item::CallOutput => tape.arrange(at, &[Mark::bare(Kind::Tool)], &[output]),
        Item::Reasoning => {
            tape.arrange(at, &[Mark::bare(Kind::Assistant), Mark::bare(Kind::Reasoning)], &[summary, body]);
        }
        Item::Unknown => {
            let whole = Value { ty: Type::Object, start: from, end: c.pos(), flag: true };
            tape.arrange(at, &[Mark::value(Kind::Other, whole)], &[]);
        }
    }
    Ok(())
}

/// The marks that are there, at the front of `to`; returns how many.
fn pack<const N: usize>(marks: &[Option<Mark>; N], to: &mut [Mark; N]) -> usize {
    let mut n = 0;
    for m in marks.iter().flatten() {
        to[n] = *m;
        n += 1;
    }
    n
}

/// Run `walk`; returns the stretch of the tape that it wrote.
pub(super) fn noted(
    c: &mut Cursor<'_>,
    tape: &mut Scratch,
    walk: impl FnOnce(&mut Cursor<'_>, &mut Scratch) -> Step<()>,
) -> Step<Stretch> {
    let from = tape.len();
    walk(c, tape)?;
    Ok(from..tape.len())
}

fn tool_calls(c: &mut Cursor<'_>, tape: &mut Scratch) -> Step<()> {
    if c.peek()? != Type::Array {
        c.value()?;
        return Ok(());
    }
    let mut walk = c.array()?;
    while c.element(&mut walk)? {
        if c.peek()? != Type::Object {
            c.value()?;
            continue;
        }
        let at = tape.len();
        let mut call = c.object()?;
        while let Some(key) = c.key(&mut call)? {
            let mut buf = Short::<NAME>::new();
            match buf.of(c.body(), key) {
                b"function" | b"custom" => {
                    tape.truncate(at);
                    function(c, tape)?;
                }
                _ => {
                    c.value()?;
                }
            }
        }
    }
    Ok(())
}

/// A function's name and arguments.
fn function(c: &mut Cursor<'_>, tape: &mut Scratch) -> Step<()> {
    if c.peek()? != Type::Object {
        c.value()?;
        return Ok(());
    }
    let (mut name, mut arguments) = (Str::default(), None);
    let mut walk = c.object()?;
    while let Some(key) = c.key(&mut walk)? {
        let mut buf = Short::<NAME>::new();
        match buf.of(c.body(), key) {
            b"name" => name = c.value()?.string().unwrap_or_default(),
            b"arguments" | b"input" => arguments = Some(c.value()?),
            _ => {
                c.value()?;
            }
        }
    }
    tape.push(Mark::string(Kind::Call, name));
    if let Some(v) = arguments {
        tape.push(Mark::value(Kind::More, v));
    }
    Ok(())
}
