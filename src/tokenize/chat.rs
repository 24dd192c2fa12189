//! A chat body, brought into the form that templates expect, by vLLM's rules.
//!
//! - Content is a text or a list of parts, as the template wants it; texts are joined by line ends.
//! - Of an assistant's message its reasoning and tool calls stay, with the calls' arguments as objects, not as JSON text.
//! - Of a tool's message its call's id stays, and its content is a text.
//! - Tools are as their schema says: type, then name, description and parameters, present even when null.
//! - Developer messages become system messages for templates that don't know them.

use super::Unrendered;
use super::body::Body;
use super::fields::Fields;
use super::format::Format;
use super::template::{Input, Templates};
use minijinja::value::{Value, ValueKind};

/// Appended to the message that is to be continued, to find where it ends in the rendered text.
const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// The prompt's text for a chat body.
pub(super) fn render(templates: &Templates, body: Body) -> Result<String, Unrendered> {
    if let Some(key) = body.strange {
        return Err(Unrendered::Key(key));
    }
    let Some(list) = body.messages.as_ref() else { return Err(Unrendered::Body) };
    let tools = body.tools.as_ref().map(tools).transpose()?;
    let name = templates.pick(tools.is_some()).ok_or(Unrendered::NoTemplate)?;
    let format = templates.format(name);
    let list = list.try_iter().map_err(|_| Unrendered::Body)?;
    let mut messages = list.map(|m| Message::read(&m, format)).collect::<Result<Vec<_>, _>>()?;
    if !templates.knows_developer() {
        developers(&mut messages);
    }
    let mut final_text = None;
    if body.continue_final_message {
        final_text = Some(messages.last_mut().and_then(Message::tag).ok_or(Unrendered::Body)?);
    }
    let messages = messages.into_iter().map(Message::into_value).collect();
    let others = others(&body)?;
    let rendered = templates.render(name, Input { messages, tools, others })?;
    match final_text {
        Some(text) => cut(rendered, &text),
        None => Ok(rendered),
    }
}

/// Cuts what the template wrote after the final message, as Transformers does: if the template trims contents, then
/// what is before the cut is trimmed as well.
fn cut(mut rendered: String, text: &str) -> Result<String, Unrendered> {
    let odd = || Unrendered::Template("the final message doesn't appear in the prompt".to_owned());
    let at = rendered.rfind(TAG.trim_end()).ok_or_else(odd)?;
    if !rendered.contains(text.trim()) {
        return Err(odd());
    }
    let kept = rendered[at..].starts_with(TAG);
    rendered.truncate(if kept { at } else { rendered[..at].trim_end().len() });
    Ok(rendered)
}

/// What the template gets besides messages and tools.
fn others(body: &Body) -> Result<Fields, Unrendered> {
    let mut map = Fields::default();
    if let Some(kwargs) = &body.template_kwargs {
        for key in kwargs.try_iter().map_err(|_| Unrendered::Body)? {
            match key.as_str() {
                Some("chat_template" | "tokenize") => return Err(Unrendered::Key("chat_template_kwargs")),
                Some("messages") | None => {}
                Some(_) => {
                    let value = kwargs.get_item(&key).unwrap_or_default();
                    map.insert(key, value);
                }
            }
        }
    }
    if let Some(documents) = &body.documents {
        map.insert("documents", documents.clone());
    }
    if let Some(effort) = &body.reasoning_effort {
        map.insert("reasoning_effort", effort.clone());
        let thinks = effort.as_str() != Some("none");
        map.or_insert("enable_thinking", thinks);
    }
    let prompted = body.add_generation_prompt.unwrap_or(true);
    map.insert("add_generation_prompt", prompted);
    Ok(map)
}

/// Tool definitions in the order of their schema.
fn tools(list: &Value) -> Result<Value, Unrendered> {
    let tools = list.try_iter().map_err(|_| Unrendered::Body)?.map(|tool| {
        let function = item(&tool, "function").ok_or(Unrendered::Body)?;
        let mut inner = Fields::default();
        inner.insert("name", item(&function, "name").ok_or(Unrendered::Body)?);
        for key in ["description", "parameters"] {
            inner.insert(key, item(&function, key).unwrap_or_else(|| Value::from(())));
        }
        let deferred = item(&tool, "defer_loading");
        for (key, value) in [
            ("strict", item(&function, "strict")),
            ("defer_loading", item(&function, "defer_loading").or_else(|| deferred.clone())),
        ] {
            if let Some(value) = value {
                inner.insert(key, value);
            }
        }
        let mut outer = Fields::default();
        outer.insert("type", item(&tool, "type").unwrap_or_else(|| "function".into()));
        outer.insert("function", inner.into_value());
        if let Some(deferred) = deferred {
            outer.insert("defer_loading", deferred);
        }
        Ok(outer.into_value())
    });
    let tools: Vec<Value> = tools.collect::<Result<_, Unrendered>>()?;
    // An empty list of tools is a list still, and false in templates.
    Ok(Value::from(tools))
}

/// The value of a key, unless it is absent or null.
fn item(map: &Value, key: &str) -> Option<Value> {
    if map.kind() != ValueKind::Map {
        return None;
    }
    map.get_attr(key).ok().filter(|v| !v.is_undefined() && !v.is_none())
}

enum Content {
    Text(String),
    /// One string that needs no copy.
    Whole(Value),
    Parts(Vec<Fields>),
}

struct Message {
    role: String,
    content: Content,
    more: Fields,
}

impl Message {
    fn read(message: &Value, format: Format) -> Result<Message, Unrendered> {
        let role =
            item(message, "role").and_then(|r| r.as_str().map(str::to_owned)).ok_or(Unrendered::Body)?;
        let content = content(item(message, "content"), format, role == "system")?;
        let mut made = Message { content, more: Fields::default(), role };
        match made.role.as_str() {
            "assistant" => made.assistant(message)?,
            "tool" => {
                if let Some(id) = item(message, "tool_call_id") {
                    made.more.insert("tool_call_id", id);
                }
                if let Content::Parts(parts) = &made.content {
                    let texts = parts.iter().filter_map(|p| p.get("text")?.as_str());
                    made.content = Content::Text(texts.collect::<Vec<_>>().join("\n"));
                }
            }
            "developer" => {
                let tools = item(message, "tools").unwrap_or_else(|| Value::from(()));
                made.more.insert("tools", tools);
            }
            _ => {}
        }
        for key in ["name", "task"] {
            if let Some(value) = item(message, key).filter(|v| v.as_str().is_some()) {
                made.more.insert(key, value);
            }
        }
        Ok(made)
    }

    fn assistant(&mut self, message: &Value) -> Result<(), Unrendered> {
        if let Some(calls) = item(message, "tool_calls") {
            let calls: Vec<Value> = calls.try_iter().map_err(|_| Unrendered::Body)?.collect();
            if !calls.is_empty() {
                let calls = calls.iter().map(call).collect::<Result<Vec<_>, _>>()?;
                self.more.insert("tool_calls", Value::from(calls));
            }
        }
        if let Some(reasoning) = item(message, "reasoning").or_else(|| item(message, "reasoning_content")) {
            self.more.insert("reasoning", reasoning.clone());
            self.more.insert("reasoning_content", reasoning);
        }
        Ok(())
    }

    /// Appends [`TAG`] to the last text, and returns that text.
    fn tag(&mut self) -> Option<String> {
        match &mut self.content {
            Content::Text(text) => {
                let before = text.clone();
                text.push_str(TAG);
                Some(before)
            }
            Content::Whole(value) => {
                let before = value.as_str()?.to_owned();
                self.content = Content::Text(format!("{before}{TAG}"));
                Some(before)
            }
            Content::Parts(parts) => {
                let part = parts.iter_mut().rev().find(|p| p.get("text").is_some())?;
                let before = part.get("text")?.as_str()?.to_owned();
                part.insert("text", format!("{before}{TAG}"));
                Some(before)
            }
        }
    }

    /// The content as one text, for system messages that are put together.
    fn text(&self) -> String {
        match &self.content {
            Content::Text(text) => text.clone(),
            Content::Whole(value) => value.as_str().unwrap_or_default().to_owned(),
            Content::Parts(parts) => {
                let texts = parts.iter().filter_map(|p| p.get("text")?.as_str());
                texts.collect::<Vec<_>>().join("\n")
            }
        }
    }

    fn into_value(self) -> Value {
        let mut map = Fields::default();
        map.insert("role", self.role);
        let content = match self.content {
            Content::Text(text) => Value::from(text),
            Content::Whole(value) => value,
            Content::Parts(parts) => parts.into_iter().map(Fields::into_value).collect(),
        };
        map.insert("content", content);
        map.extend(self.more);
        map.into_value()
    }
}

/// A tool call with its arguments as an object. Arguments that are no JSON object count as none.
fn call(call: &Value) -> Result<Value, Unrendered> {
    let function = item(call, "function").ok_or(Unrendered::Body)?;
    let arguments = item(&function, "arguments").and_then(|a| match a.as_str() {
        Some(text) => serde_json::from_str::<Value>(text).ok(),
        None => Some(a),
    });
    let arguments =
        arguments.filter(|a| a.kind() == ValueKind::Map).unwrap_or_else(|| Fields::default().into_value());
    // Templates that print a call as it is show the order of the engine's schema.
    let mut inner = Fields::default();
    inner.insert("arguments", arguments);
    let mut outer = Fields::default();
    let copy = |to: &mut Fields, from: &Value, key: &str| {
        if let Some(value) = item(from, key) {
            to.insert(key, value);
        }
    };
    copy(&mut inner, &function, "name");
    copy(&mut outer, call, "id");
    outer.insert("function", inner.into_value());
    copy(&mut outer, call, "type");
    Ok(outer.into_value())
}

/// A line that some client puts before its system prompt, different each time; vLLM drops it.
const BILLING: &str = "x-anthropic-billing-header";

fn content(content: Option<Value>, format: Format, system: bool) -> Result<Content, Unrendered> {
    let parts: Vec<Value> = match content {
        None => Vec::new(),
        Some(v) if v.as_str().is_some() => vec![v],
        Some(v) => v.try_iter().map_err(|_| Unrendered::Body)?.collect(),
    };
    let mut texts: Vec<Value> = Vec::with_capacity(parts.len());
    let mut maps = Vec::new();
    for part in &parts {
        let Some(mut text) = part_text(part)? else { continue };
        if system && let Some(rest) = text.as_str().filter(|t| t.starts_with(BILLING)) {
            let rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
            if rest.is_empty() {
                continue;
            }
            text = rest.into();
        }
        match format {
            Format::Text => texts.push(text),
            Format::Parts => maps.push(part_map(part, text)),
        }
    }
    Ok(match (format, texts.as_slice()) {
        (Format::Parts, _) => Content::Parts(maps),
        (Format::Text, [one]) => Content::Whole(one.clone()),
        (Format::Text, all) => {
            let all: Vec<&str> = all.iter().filter_map(Value::as_str).collect();
            Content::Text(all.join("\n"))
        }
    })
}

/// The text of a part; `None` for parts that count as nothing.
fn part_text(part: &Value) -> Result<Option<Value>, Unrendered> {
    if part.as_str().is_some() {
        return Ok(Some(part.clone()));
    }
    let kind = item(part, "type");
    let key = match kind.as_ref().and_then(|k| k.as_str()) {
        Some("text" | "input_text" | "output_text") => "text",
        Some("refusal") => "refusal",
        Some("thinking") => "thinking",
        // Images, audio and the like take placeholders whose number only the engine knows.
        _ => return Err(Unrendered::Media),
    };
    if item(part, "uuid").is_some() {
        return Err(Unrendered::Media);
    }
    match item(part, key) {
        Some(text) if text.as_str().is_some() => Ok(Some(text)),
        Some(_) => Err(Unrendered::Body),
        None if key == "text" || key == "refusal" => Ok(None),
        None => Err(Unrendered::Body),
    }
}

/// Keys of parts that vLLM knows; those that it doesn't know are left to the template.
const KNOWN: [&str; 18] = [
    "audio_embeds",
    "audio_url",
    "closed",
    "data",
    "file",
    "image_embeds",
    "image_pil",
    "image_url",
    "input_audio",
    "name",
    "prompt_cache_breakpoint",
    "refusal",
    "text",
    "thinking",
    "type",
    "uuid",
    "video_embeds",
    "video_url",
];

fn part_map(part: &Value, text: Value) -> Fields {
    let mut map = Fields::default();
    map.insert("type", "text");
    map.insert("text", text);
    if part.kind() == ValueKind::Map {
        for key in part.try_iter().into_iter().flatten() {
            if key.as_str().is_some_and(|k| !KNOWN.contains(&k)) {
                let value = part.get_item(&key).unwrap_or_default();
                map.insert(key, value);
            }
        }
    }
    map
}

/// Developer messages as system messages; all system messages in one at the start, if one stands elsewhere.
fn developers(messages: &mut Vec<Message>) {
    if !messages.iter().any(|m| m.role == "developer") {
        return;
    }
    for message in messages.iter_mut().filter(|m| m.role == "developer") {
        message.role = "system".to_owned();
        message.more.remove("tools");
    }
    if !messages.iter().skip(1).any(|m| m.role == "system") {
        return;
    }
    let texts: Vec<String> =
        messages.iter().filter(|m| m.role == "system").map(Message::text).filter(|t| !t.is_empty()).collect();
    messages.retain(|m| m.role != "system");
    let content = Content::Text(texts.join("\n\n"));
    messages.insert(0, Message { role: "system".to_owned(), content, more: Fields::default() });
}
