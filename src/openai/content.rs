//! The content of a message: a text, or parts of many types.
//!
//! The names differ between the shapes (`text`, `input_text`; `image_url`, `input_image`, `image` with a source) but
//! never contradict each other, so one walk knows them all. A part of an unknown type counts as what it is, byte for
//! byte: it may be something that the model reads.

use super::json::{Cursor, Step, Str, Type, Value};
use super::sink::Media;
use super::tape::{Kind, Mark, Scratch};
use super::text::Short;

/// Longest key or type name that the scan knows, and then some.
pub(super) const NAME: usize = 64;

/// Note the content that comes next. `inner`: it is the content of a tool's answer, which holds no other answers.
pub(super) fn content(c: &mut Cursor<'_>, tape: &mut Scratch, inner: bool) -> Step<()> {
    match c.peek()? {
        Type::Array => {
            let mut walk = c.array()?;
            while c.element(&mut walk)? {
                match c.peek()? {
                    Type::Object => part(c, tape, inner)?,
                    _ => value(c, tape)?,
                }
            }
            Ok(())
        }
        _ => value(c, tape),
    }
}

/// A string is text; an object says something unknown; anything else says nothing.
fn value(c: &mut Cursor<'_>, tape: &mut Scratch) -> Step<()> {
    let v = c.value()?;
    match v.ty {
        Type::String => tape.push(Mark::value(Kind::Text, v)),
        Type::Object => tape.push(Mark::value(Kind::Other, v)),
        _ => {}
    }
    Ok(())
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Is {
    #[default]
    Untyped,
    Text,
    Reasoning,
    Media(Media),
    Call,
    Result,
    Unknown,
}

impl Is {
    fn of(name: &[u8]) -> Self {
        match name {
            b"text" | b"input_text" | b"output_text" | b"refusal" | b"summary_text" => Is::Text,
            b"thinking" | b"reasoning_text" => Is::Reasoning,
            b"image_url" | b"input_image" | b"image" => Is::Media(Media::Image),
            b"input_audio" | b"audio_url" | b"audio" => Is::Media(Media::Audio),
            b"video_url" | b"input_video" | b"video" => Is::Media(Media::Video),
            b"file" | b"input_file" | b"document" => Is::Media(Media::File),
            b"tool_use" | b"server_tool_use" => Is::Call,
            b"tool_result" => Is::Result,
            _ => Is::Unknown,
        }
    }
}

fn part(c: &mut Cursor<'_>, tape: &mut Scratch, inner: bool) -> Step<()> {
    let (at, from) = (tape.len(), c.pos());
    let mut is = Is::Untyped;
    let (mut text, mut name, mut input) = (None::<Value>, None::<Str>, None::<Value>);
    // Where a part has several references, the first of these slots decides, not the order of its keys.
    let mut refs = [None::<Str>; 4];
    let mut walk = c.object()?;
    while let Some(key) = c.key(&mut walk)? {
        let mut buf = Short::<NAME>::new();
        match buf.of(c.body(), key) {
            b"type" => {
                is = match c.value()?.string() {
                    Some(s) => Is::of(Short::<NAME>::new().of(c.body(), s)),
                    None => Is::Unknown,
                }
            }
            b"text" | b"refusal" | b"thinking" => text = Some(c.value()?),
            b"name" => name = c.value()?.string(),
            b"input" => input = Some(c.value()?),
            b"content" if !inner => {
                tape.truncate(at);
                content(c, tape, true)?;
            }
            b"image_url" | b"audio_url" | b"video_url" | b"input_audio" | b"file" | b"source" => {
                refs[0] = reference(c)?;
            }
            b"file_data" => refs[1] = c.value()?.string(),
            b"file_url" => refs[2] = c.value()?.string(),
            b"file_id" => refs[3] = c.value()?.string(),
            _ => {
                c.value()?;
            }
        }
    }
    let whole = Value { ty: Type::Object, start: from, end: c.pos(), flag: true };
    if is == Is::Result {
        tape.insert(at, Mark::bare(Kind::Result));
        return Ok(());
    }
    tape.truncate(at);
    match (is, text, refs.into_iter().flatten().next()) {
        (Is::Text | Is::Untyped, Some(v), _) if v.ty == Type::String => tape.push(Mark::value(Kind::Text, v)),
        (Is::Reasoning, Some(v), _) => tape.push(Mark::value(Kind::Reasoning, v)),
        (Is::Media(media), _, Some(s)) => tape.push(Mark::string(Kind::Media(media), s)),
        (Is::Call, ..) => {
            tape.push(Mark::string(Kind::Call, name.unwrap_or_default()));
            if let Some(v) = input {
                tape.push(Mark::value(Kind::More, v));
            }
        }
        _ => tape.push(Mark::value(Kind::Other, whole)),
    }
    Ok(())
}

/// What a part refers to: a string, or an object that says it in one of its keys.
fn reference(c: &mut Cursor<'_>) -> Step<Option<Str>> {
    if c.peek()? != Type::Object {
        return Ok(c.value()?.string());
    }
    let mut refs = [None::<Str>; 4];
    let mut walk = c.object()?;
    while let Some(key) = c.key(&mut walk)? {
        let mut buf = Short::<NAME>::new();
        let slot = match buf.of(c.body(), key) {
            b"url" => Some(0),
            b"data" | b"file_data" => Some(1),
            b"file_id" => Some(2),
            b"file_url" => Some(3),
            _ => None,
        };
        let v = c.value()?.string();
        if let Some(slot) = slot {
            refs[slot] = v;
        }
    }
    Ok(refs.into_iter().flatten().next())
}
