//! Reading a request: the four shapes of body that carry a prompt, into one.

use super::error::Failure;
use crate::sim::text::Prompt;
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;

/// Which API a body speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    Chat,
    Completions,
    Responses,
    Messages,
}

/// What is asked for.
pub(super) struct Ask {
    pub(super) api: Api,
    pub(super) model: String,
    pub(super) prompt: Prompt,
    pub(super) salt: Option<String>,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) max_tokens: Option<u32>,
    pub(super) choices: u32,
    pub(super) ignore_eos: bool,
    pub(super) return_ids: bool,
    /// Announce again what is found cached (vLLM's `kv_cache_report_mode`).
    pub(super) report: bool,
    /// The tool that must be called.
    pub(super) tool: Option<String>,
}

#[derive(Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow)]
    model: Option<Text<'a>>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    max_output_tokens: Option<u32>,
    n: Option<u32>,
    ignore_eos: Option<bool>,
    return_token_ids: Option<bool>,
    vllm_xargs: Option<Value>,
    #[serde(borrow)]
    cache_salt: Option<Text<'a>>,
    #[serde(borrow)]
    messages: Option<Vec<Message<'a>>>,
    #[serde(borrow)]
    system: Option<Content<'a>>,
    prompt: Option<Value>,
    #[serde(borrow)]
    input: Option<Input<'a>>,
    #[serde(borrow)]
    instructions: Option<Text<'a>>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    continue_final_message: Option<bool>,
    add_generation_prompt: Option<bool>,
    #[serde(borrow)]
    previous_response_id: Option<Text<'a>>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: Option<Text<'a>>,
    #[serde(borrow)]
    content: Option<Content<'a>>,
    tool_calls: Option<Value>,
    /// `function_call_output` items of the responses API.
    output: Option<Value>,
}

/// Text, or a list of parts.
enum Content<'a> {
    Text(Cow<'a, str>),
    Parts(Vec<Part<'a>>),
}

#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow)]
    text: Option<Text<'a>>,
    #[serde(borrow)]
    content: Option<Box<Content<'a>>>,
    image_url: Option<Value>,
    source: Option<Value>,
    input_audio: Option<Value>,
    video_url: Option<Value>,
    input: Option<Value>,
}

/// `input` of the responses API: text or messages.
enum Input<'a> {
    Text(Cow<'a, str>),
    Items(Vec<Message<'a>>),
}

// By hand, because serde's untagged enums copy the whole value first.
impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Content<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of parts")
            }

            fn visit_borrowed_str<E>(self, v: &'de str) -> Result<Self::Value, E> {
                Ok(Content::Text(Cow::Borrowed(v)))
            }

            fn visit_str<E>(self, v: &str) -> Result<Self::Value, E> {
                Ok(Content::Text(Cow::Owned(v.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut parts = Vec::new();
                while let Some(part) = seq.next_element()? {
                    parts.push(part);
                }
                Ok(Content::Parts(parts))
            }
        }
        d.deserialize_any(V)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Input<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Input<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of items")
            }

            fn visit_borrowed_str<E>(self, v: &'de str) -> Result<Self::Value, E> {
                Ok(Input::Text(Cow::Borrowed(v)))
            }

            fn visit_str<E>(self, v: &str) -> Result<Self::Value, E> {
                Ok(Input::Text(Cow::Owned(v.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Input::Items(items))
            }
        }
        d.deserialize_any(V)
    }
}

impl Content<'_> {
    fn render(&self, prompt: &mut Prompt) {
        let parts = match self {
            Content::Text(text) => return prompt.text(text),
            Content::Parts(parts) => parts,
        };
        for part in parts {
            if let Some(text) = &part.text {
                prompt.text(&text.0);
            }
            if let Some(content) = &part.content {
                content.render(prompt);
            }
            let others = [&part.image_url, &part.source, &part.input_audio, &part.video_url, &part.input];
            for value in others.into_iter().flatten() {
                prompt.attachment(&value.to_string());
            }
        }
    }
}

impl Message<'_> {
    fn role(&self) -> &str {
        self.role.as_ref().map_or("user", |r| &r.0)
    }

    /// The message without its end.
    fn render(&self, prompt: &mut Prompt) {
        prompt.begin(self.role());
        if let Some(content) = &self.content {
            content.render(prompt);
        }
        for value in [&self.tool_calls, &self.output].into_iter().flatten() {
            prompt.text(&value.to_string());
        }
    }
}

impl Ask {
    /// Read the body of a request to `api`. `history` gives the conversation of an earlier response by its id.
    pub(super) fn read(
        api: Api,
        body: &[u8],
        history: impl FnOnce(&str) -> Option<Prompt>,
    ) -> Result<Ask, Failure> {
        let wire: Wire<'_> = serde_json::from_slice(body).map_err(|e| Failure::bad_json(&e))?;
        let mut prompt = match &wire.previous_response_id {
            None => Prompt::default(),
            Some(id) => history(&id.0).ok_or_else(|| Failure::no_response(&id.0))?,
        };
        match api {
            Api::Completions => prompt = plain(wire.prompt.as_ref())?,
            _ => render(&wire, body.len(), &mut prompt)?,
        }
        if prompt.tokens() == 0 {
            return Err(Failure::bad("the prompt is empty", "prompt"));
        }
        let choices = wire.n.unwrap_or(1);
        if choices == 0 || choices > 128 {
            return Err(Failure::bad("n must be between 1 and 128", "n"));
        }
        let max_tokens = wire.max_completion_tokens.or(wire.max_tokens).or(wire.max_output_tokens);
        if max_tokens == Some(0) {
            return Err(Failure::bad("max_tokens must be at least 1, got 0.", "max_tokens"));
        }
        Ok(Ask {
            api,
            model: wire.model.map(|m| m.0.into_owned()).unwrap_or_default(),
            prompt,
            salt: wire.cache_salt.map(|s| s.0.into_owned()),
            stream: wire.stream.unwrap_or(false),
            include_usage: wire.stream_options.and_then(|o| o.include_usage).unwrap_or(false),
            max_tokens,
            choices: if matches!(api, Api::Chat | Api::Completions) { choices } else { 1 },
            ignore_eos: wire.ignore_eos.unwrap_or(false),
            return_ids: wire.return_token_ids.unwrap_or(false),
            report: wire
                .vllm_xargs
                .as_ref()
                .is_some_and(|args| args.get("kv_cache_report_mode").is_some_and(|mode| mode == "full")),
            tool: forced_tool(wire.tools.as_deref(), wire.tool_choice.as_ref()),
        })
    }
}

/// Tools, system text and messages, in the order of a chat template.
fn render(wire: &Wire<'_>, size: usize, prompt: &mut Prompt) -> Result<(), Failure> {
    prompt.reserve(size);
    if let Some(tools) = wire.tools.as_ref().filter(|t| !t.is_empty()) {
        prompt.begin("tools");
        tools.iter().for_each(|tool| prompt.text(&tool.to_string()));
        prompt.end();
    }
    let system = wire.system.as_ref();
    if let Some(content) = system {
        prompt.begin("system");
        content.render(prompt);
        prompt.end();
    }
    if let Some(text) = &wire.instructions {
        prompt.message("system", &text.0);
    }
    let messages = match (&wire.messages, &wire.input) {
        (Some(messages), _) => messages.as_slice(),
        (None, Some(Input::Items(items))) => items.as_slice(),
        (None, Some(Input::Text(text))) => {
            prompt.message("user", text);
            prompt.open_answer();
            return Ok(());
        }
        (None, None) => return Err(Failure::bad("Field required: messages", "messages")),
    };
    if messages.is_empty() {
        return Err(Failure::bad("messages must not be empty", "messages"));
    }
    let goes_on = wire.continue_final_message == Some(true);
    for (i, message) in messages.iter().enumerate() {
        message.render(prompt);
        if !(goes_on && i + 1 == messages.len()) {
            prompt.end();
        }
    }
    if !goes_on && wire.add_generation_prompt != Some(false) {
        prompt.open_answer();
    }
    Ok(())
}

/// `prompt` of a completion: text or token ids, or a list with one of these.
fn plain(prompt: Option<&Value>) -> Result<Prompt, Failure> {
    let wrong = || Failure::bad("prompt must be one text or one list of token ids", "prompt");
    match prompt.ok_or_else(wrong)? {
        Value::String(text) => Ok(Prompt::plain(text)),
        Value::Array(list) => match list.as_slice() {
            [one @ (Value::String(_) | Value::Array(_))] => plain(Some(one)),
            ids => {
                let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
                ids.iter().map(id).collect::<Option<Vec<_>>>().map(|v| Prompt::from_ids(&v)).ok_or_else(wrong)
            }
        },
        _ => Err(wrong()),
    }
}

/// The name of the tool that `tool_choice` forces, in the shape of any of the APIs.
fn forced_tool(tools: Option<&[Value]>, choice: Option<&Value>) -> Option<String> {
    let name = |tool: &Value| {
        let named = tool.get("function").unwrap_or(tool).get("name");
        named.and_then(Value::as_str).map(str::to_owned)
    };
    let first = tools?.first()?;
    match choice? {
        Value::String(word) if word == "required" => name(first),
        Value::Object(map) if map.get("type").and_then(Value::as_str) == Some("any") => name(first),
        choice @ Value::Object(_) => name(choice),
        _ => None,
    }
}
