//! What the router needs of a request body, in one walk.
//!
//! The walk touches each byte once, checks that the body is JSON, and notes where the prompt is; then the prompt goes to
//! a [`Sink`] in the order in which a chat template shows it: tools, system, messages. Nothing is copied or rewritten:
//! the body is forwarded as it came. Values of an unexpected type are read as absent: the replica decides about them.
//! Of duplicated keys the last one counts, as in the engines.

use super::completions::{self, number_u32};
use super::content::NAME;
use super::json::{BadJson, Cursor, Fault, Step, Str, Type, Value};
use super::message::{self, noted};
use super::sink::Sink;
use super::tape::{Amount, Kind, Mark, Scratch};
use super::text::{Short, whole};
use std::borrow::Cow;
use std::ops::Range;

/// Which of the bodies that carry prompts it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// Anthropic's `/v1/messages`
    Messages,
}

impl Shape {
    /// The shape of bodies that are posted to `path` (without query and base path); `None` if it carries no prompt.
    pub fn of_path(path: &str) -> Option<Self> {
        match path.strip_suffix('/').unwrap_or(path) {
            "/v1/chat/completions" => Some(Shape::Chat),
            "/v1/completions" => Some(Shape::Completions),
            "/v1/responses" => Some(Shape::Responses),
            "/v1/messages" => Some(Shape::Messages),
            _ => None,
        }
    }
}

/// A set of things that a request asks for; they decide, for one, whether a broken stream can be continued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(u16);

impl Features {
    /// Tools may be called.
    pub const TOOLS: Features = Features(1);
    /// Log probabilities are to be told.
    pub const LOGPROBS: Features = Features(1 << 1);
    /// The output has to follow a schema or grammar.
    pub const STRUCTURED: Features = Features(1 << 2);
    /// Stop strings.
    pub const STOP: Features = Features(1 << 3);
    /// Penalties on tokens that were there already.
    pub const PENALTIES: Features = Features(1 << 4);
    /// A seed.
    pub const SEED: Features = Features(1 << 5);
    /// A least number of output tokens.
    pub const MIN_TOKENS: Features = Features(1 << 6);

    /// Are all of `other` asked for?
    pub fn has(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    /// Is nothing of it asked for?
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn set(&mut self, which: Features, on: bool) {
        self.0 = if on { self.0 | which.0 } else { self.0 & !which.0 };
    }
}

/// What `stream_options` says and where it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// Where its value is.
    pub span: Range<usize>,
    /// Is it an object? Otherwise it is `null`, or something that the replica will refuse.
    pub object: bool,
    /// Is it `null`?
    pub null: bool,
    /// Has the object no keys?
    pub empty: bool,
    /// Where the value of `include_usage` is, when it is a boolean or `null`.
    pub include_usage: Option<Range<usize>>,
    /// Usage is wanted with every event (`continuous_usage_stats`).
    pub continuous: bool,
    /// `include_usage` is neither a boolean nor `null`.
    pub odd: bool,
}

/// What a body says. Text is decoded; lengths are in bytes of decoded text.
#[derive(Clone, Debug)]
pub struct Scan<'a> {
    /// Which body it is.
    pub shape: Shape,
    /// The model asked for.
    pub model: Option<Cow<'a, str>>,
    /// Is the answer to be streamed?
    pub stream: bool,
    /// Bound on output tokens: `max_completion_tokens`, else `max_output_tokens`, else `max_tokens`.
    pub max_tokens: Option<u32>,
    /// Answers to a prompt (`n`), at least 1.
    pub n: u32,
    /// Prompts in the body: 1 but for `/v1/completions` with an array of them.
    pub prompts: u32,
    /// Keeps this prompt's prefix apart from others'.
    pub cache_salt: Option<Cow<'a, str>>,
    /// The end user: `user`, else `safety_identifier`, else `metadata.user_id`.
    pub user: Option<Cow<'a, str>>,
    /// The conversation: `metadata.session_id`, else `session_id`, else `conversation`, else `prompt_cache_key`.
    pub session: Option<Cow<'a, str>>,
    /// The answer that this request continues.
    pub previous_response_id: Option<Cow<'a, str>>,
    /// Has the client asked for usage in its stream?
    pub include_usage: bool,
    /// `stream_options`, if the key is there.
    pub stream_options: Option<StreamOptions>,
    /// What else it asks for.
    pub features: Features,
    /// Bytes of text that went to the sink.
    pub text_bytes: u64,
    /// Media parts that went to the sink.
    pub media: u32,
    /// Length of a prompt that came as token ids.
    pub prompt_token_ids: Option<u32>,
    /// Offset after the opening brace of the body.
    pub inside: usize,
}

/// Read `body` and give its prompt to `sink`. Where the body is not a JSON object, the sink gets nothing.
pub fn scan<'a>(
    shape: Shape,
    body: &'a [u8],
    sink: &mut impl Sink,
    scratch: &mut Scratch,
) -> Result<Scan<'a>, BadJson> {
    scratch.reset();
    let mut c = Cursor::noting(body, scratch.take_notes());
    let found = Found::walk(shape, &mut c, scratch);
    scratch.put_notes(c.into_notes());
    let found = match found {
        Ok(found) => found,
        Err(fault) => {
            scratch.trim();
            return Err(fault.locate(body));
        }
    };
    let mut amount = Amount::default();
    for stretch in &found.sections {
        let a = scratch.emit(body, stretch.clone(), sink);
        amount.text_bytes += a.text_bytes;
        amount.media += a.media;
        amount.tokens += a.tokens;
    }
    scratch.trim();
    Ok(found.finish(shape, body, amount))
}

/// Where each section of the prompt stands in [`Found::sections`], which is the order in which templates show them.
const TOOLS: usize = 0;
const FUNCTIONS: usize = 1;
const DOCUMENTS: usize = 2;
const SYSTEM: usize = 3;
const PROMPT: usize = 4;

#[derive(Default)]
struct Found {
    inside: usize,
    sections: [Range<usize>; 5],
    model: Option<Str>,
    stream: bool,
    /// In the order of precedence.
    max: [Option<u32>; 3],
    n: Option<u32>,
    prompts: u32,
    salt: Option<Str>,
    user: [Option<Str>; 3],
    session: [Option<Str>; 4],
    previous: Option<Str>,
    options: Option<StreamOptions>,
    features: Features,
    penalties: u8,
    structured: u8,
    logprobs: u8,
}

impl Found {
    fn walk(shape: Shape, c: &mut Cursor<'_>, tape: &mut Scratch) -> Step<Found> {
        if u32::try_from(c.body().len()).is_err() {
            return Err(Fault { at: 0, detail: "longer than 4 GiB" });
        }
        if c.peek()? != Type::Object {
            return Err(Fault { at: c.pos(), detail: "expected an object" });
        }
        let mut found = Found { prompts: 1, ..Found::default() };
        let mut walk = c.object()?;
        found.inside = c.pos();
        while let Some(key) = c.key(&mut walk)? {
            let mut buf = Short::<NAME>::new();
            let name = buf.of(c.body(), key);
            if !found.prompt(shape, name, c, tape)? {
                found.parameter(name, c)?;
            }
        }
        c.end()?;
        Ok(found)
    }

    /// Note a key that carries prompt in this shape; false (and nothing read) for other keys.
    fn prompt(&mut self, shape: Shape, name: &[u8], c: &mut Cursor<'_>, tape: &mut Scratch) -> Step<bool> {
        let (section, range) = match (shape, name) {
            (Shape::Chat | Shape::Messages, b"messages") | (Shape::Responses, b"input") => {
                (PROMPT, noted(c, tape, message::messages)?)
            }
            (Shape::Messages, b"system") | (Shape::Responses, b"instructions") => {
                (SYSTEM, noted(c, tape, message::system)?)
            }
            (Shape::Completions, b"prompt") => {
                let from = tape.len();
                self.prompts = completions::prompt(c, tape)?;
                (PROMPT, from..tape.len())
            }
            (Shape::Completions, _) => return Ok(false),
            (_, b"tools") => (TOOLS, json(c, tape, Kind::Tools)?),
            (Shape::Chat, b"functions") => (FUNCTIONS, json(c, tape, Kind::Tools)?),
            (Shape::Chat, b"documents") => (DOCUMENTS, json(c, tape, Kind::Other)?),
            _ => return Ok(false),
        };
        self.sections[section] = range;
        Ok(true)
    }

    fn parameter(&mut self, name: &[u8], c: &mut Cursor<'_>) -> Step<()> {
        match name {
            b"metadata" => {
                self.session[0] = None;
                self.user[2] = None;
                return each(c, |name, v, _| match name {
                    b"session_id" => self.session[0] = v.string(),
                    b"user_id" => self.user[2] = v.string(),
                    _ => {}
                });
            }
            b"conversation" => {
                self.session[2] = None;
                if c.peek()? == Type::Object {
                    return each(c, |name, v, _| {
                        if name == b"id" {
                            self.session[2] = v.string();
                        }
                    });
                }
                self.session[2] = c.value()?.string();
                return Ok(());
            }
            b"stream_options" => {
                self.options = Some(stream_options(c)?);
                return Ok(());
            }
            _ => {}
        }
        let v = c.value()?;
        let body = c.body();
        match name {
            b"model" => self.model = v.string(),
            b"stream" => self.stream = v.ty == Type::True,
            b"max_completion_tokens" => self.max[0] = number(body, v),
            b"max_output_tokens" => self.max[1] = number(body, v),
            b"max_tokens" => self.max[2] = number(body, v),
            b"n" => self.n = number(body, v),
            b"cache_salt" => self.salt = v.string(),
            b"user" => self.user[0] = v.string(),
            b"safety_identifier" => self.user[1] = v.string(),
            b"session_id" => self.session[1] = v.string(),
            b"prompt_cache_key" => self.session[3] = v.string(),
            b"previous_response_id" => self.previous = v.string(),
            b"stop" | b"stop_sequences" => self.features.set(Features::STOP, says(body, v)),
            b"seed" => self.features.set(Features::SEED, v.ty == Type::Number),
            b"min_tokens" => self.features.set(Features::MIN_TOKENS, says(body, v)),
            b"logprobs" => self.logprobs = bit(self.logprobs, 0, v.ty == Type::Number || says(body, v)),
            b"prompt_logprobs" => self.logprobs = bit(self.logprobs, 1, v.ty == Type::Number),
            b"presence_penalty" => self.penalties = bit(self.penalties, 0, says(body, v)),
            b"frequency_penalty" => self.penalties = bit(self.penalties, 1, says(body, v)),
            b"repetition_penalty" => self.penalties = bit(self.penalties, 2, says(body, v)),
            b"response_format" => self.structured = bit(self.structured, 0, says(body, v)),
            b"structured_outputs" => self.structured = bit(self.structured, 1, says(body, v)),
            b"guided_json" => self.structured = bit(self.structured, 2, says(body, v)),
            b"guided_regex" => self.structured = bit(self.structured, 3, says(body, v)),
            b"guided_choice" => self.structured = bit(self.structured, 4, says(body, v)),
            b"guided_grammar" => self.structured = bit(self.structured, 5, says(body, v)),
            _ => {}
        }
        Ok(())
    }

    fn finish(self, shape: Shape, body: &[u8], amount: Amount) -> Scan<'_> {
        let text = |s: Option<Str>| s.map(|s| whole(body, s));
        let asked = |o: &StreamOptions| {
            let at = o.include_usage.clone().unwrap_or_default();
            body.get(at).is_some_and(|v| v == b"true")
        };
        let mut features = self.features;
        let tools = [TOOLS, FUNCTIONS].iter().any(|&s| !self.sections[s].is_empty());
        features.set(Features::TOOLS, tools);
        features.set(Features::LOGPROBS, self.logprobs != 0);
        features.set(Features::PENALTIES, self.penalties != 0);
        features.set(Features::STRUCTURED, self.structured != 0);
        Scan {
            shape,
            model: text(self.model),
            stream: self.stream,
            max_tokens: self.max.into_iter().flatten().next(),
            n: self.n.unwrap_or(1).max(1),
            prompts: self.prompts,
            cache_salt: text(self.salt),
            user: text(self.user.into_iter().flatten().next()),
            session: text(self.session.into_iter().flatten().next()),
            previous_response_id: text(self.previous),
            include_usage: self.options.as_ref().is_some_and(asked),
            stream_options: self.options,
            features,
            text_bytes: amount.text_bytes,
            media: amount.media,
            prompt_token_ids: (amount.tokens > 0).then_some(amount.tokens),
            inside: self.inside,
        }
    }
}

/// Note a value that the model reads as JSON, if there is anything in it.
fn json(c: &mut Cursor<'_>, tape: &mut Scratch, kind: Kind) -> Step<Range<usize>> {
    noted(c, tape, |c, tape| {
        let v = c.value()?;
        if says(c.body(), v) {
            tape.push(Mark::value(kind, v));
        }
        Ok(())
    })
}

/// Give each key and value of the object that comes next to `take`; any other value is walked over.
fn each(c: &mut Cursor<'_>, mut take: impl FnMut(&[u8], Value, &[u8])) -> Step<()> {
    if c.peek()? != Type::Object {
        return c.value().map(drop);
    }
    let mut walk = c.object()?;
    while let Some(key) = c.key(&mut walk)? {
        let v = c.value()?;
        take(Short::<NAME>::new().of(c.body(), key), v, c.body());
    }
    Ok(())
}

fn stream_options(c: &mut Cursor<'_>) -> Step<StreamOptions> {
    let ty = c.peek()?;
    let mut o = StreamOptions {
        object: ty == Type::Object,
        null: ty == Type::Null,
        empty: true,
        ..Default::default()
    };
    let start = c.pos();
    each(c, |name, v, _| {
        o.empty = false;
        match name {
            b"include_usage" => {
                o.odd = !matches!(v.ty, Type::True | Type::False | Type::Null);
                o.include_usage = (!o.odd).then_some(v.start..v.end);
            }
            b"continuous_usage_stats" => o.continuous = v.ty == Type::True,
            _ => {}
        }
    })?;
    o.span = start..c.pos();
    Ok(o)
}

fn number(body: &[u8], v: Value) -> Option<u32> {
    if v.ty == Type::Number { number_u32(body.get(v.start..v.end)?) } else { None }
}

/// Does a value ask for something? `null`, `false`, zero and what is empty don't.
pub(super) fn says(body: &[u8], v: Value) -> bool {
    let text = body.get(v.start..v.end).unwrap_or_default();
    match v.ty {
        Type::Null | Type::False => false,
        Type::Number => text.iter().any(|b| (b'1'..=b'9').contains(b)),
        Type::Array | Type::Object => text.iter().skip(1).find(|b| !b.is_ascii_whitespace()) != text.last(),
        Type::True | Type::String => true,
    }
}

fn bit(bits: u8, which: u8, on: bool) -> u8 {
    if on { bits | 1 << which } else { bits & !(1 << which) }
}
