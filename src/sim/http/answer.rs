//! Writing an answer: whole, or as the events of a stream, in each of the four APIs.

use super::body::Api;
use crate::sim::engine::Reason;
use crate::sim::text::{TOKEN, id};
use serde_json::{Value, json};
use std::fmt::Write;

/// All that is needed to write the answer to one request, or any part of it.
pub(super) struct Answer {
    pub(super) api: Api,
    /// Number of the request, in hexadecimal: the end of all ids.
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) prompt_tokens: u32,
    /// Is `prompt_tokens_details` told?
    pub(super) details: bool,
    pub(super) include_usage: bool,
    /// One text a choice; all of `tokens` tokens.
    pub(super) texts: Vec<String>,
    pub(super) tokens: u32,
    pub(super) reason: Reason,
    pub(super) tool: Option<String>,
    /// The prompt's ids, if token ids are asked for.
    pub(super) prompt_ids: Option<Vec<u32>>,
}

impl Answer {
    fn piece(&self, choice: usize, i: u32) -> &str {
        let at = i as usize * TOKEN;
        self.texts.get(choice).and_then(|text| text.get(at..at + TOKEN)).unwrap_or_default()
    }

    fn ids(&self, choice: usize) -> Vec<u32> {
        self.texts[choice].as_bytes().chunks(TOKEN).map(id).collect()
    }

    fn finish_reason(&self) -> &'static str {
        match (self.api, self.reason, &self.tool) {
            (Api::Messages, _, Some(_)) => "tool_use",
            (Api::Messages, Reason::Stop, None) => "end_turn",
            (Api::Messages, ..) => "max_tokens",
            (_, _, Some(_)) => "tool_calls",
            (_, Reason::Stop, None) => "stop",
            _ => "length",
        }
    }

    fn completion_tokens(&self) -> u64 {
        u64::from(self.tokens) * self.texts.len() as u64
    }

    fn usage(&self, cached: u32) -> Value {
        let (prompt, output) = (u64::from(self.prompt_tokens), self.completion_tokens());
        match self.api {
            Api::Messages => {
                let mut usage = json!({"input_tokens": prompt, "output_tokens": output});
                if self.details {
                    usage["cache_read_input_tokens"] = json!(cached);
                }
                usage
            }
            Api::Responses => json!({
                "input_tokens": prompt, "input_tokens_details": {"cached_tokens": cached}, "output_tokens": output,
                "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": prompt + output,
            }),
            Api::Chat | Api::Completions => json!({
                "prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output,
                "prompt_tokens_details": if self.details { json!({"cached_tokens": cached}) } else { Value::Null },
            }),
        }
    }

    fn arguments(&self, choice: usize) -> String {
        format!("{{\"q\":\"{}\"}}", self.texts[choice])
    }

    /// The whole body of an answer that isn't streamed.
    pub(super) fn whole(&self, cached: u32) -> String {
        let (id, model, created) = (&self.id, &self.model, self.created);
        match self.api {
            Api::Chat => {
                let mut body = json!({
                    "id": format!("chatcmpl-{id}"), "object": "chat.completion", "created": created, "model": model,
                    "choices": (0..self.texts.len()).map(|c| self.chat_choice(c)).collect::<Vec<_>>(),
                    "usage": self.usage(cached),
                });
                if let Some(ids) = &self.prompt_ids {
                    body["prompt_token_ids"] = json!(ids);
                }
                body
            }
            Api::Completions => json!({
                "id": format!("cmpl-{id}"), "object": "text_completion", "created": created, "model": model,
                "choices": (0..self.texts.len()).map(|c| {
                    let mut choice = json!({
                        "index": c, "text": self.texts[c], "logprobs": null, "finish_reason": self.finish_reason(),
                        "stop_reason": null,
                    });
                    if let Some(ids) = &self.prompt_ids {
                        choice["prompt_token_ids"] = json!(ids);
                        choice["token_ids"] = json!(self.ids(c));
                    }
                    choice
                }).collect::<Vec<_>>(),
                "usage": self.usage(cached),
            }),
            Api::Responses => self.response(Some(cached)),
            Api::Messages => self.message(Some(cached)),
        }
        .to_string()
    }

    fn chat_choice(&self, c: usize) -> Value {
        let mut message = json!({"role": "assistant", "content": self.texts[c], "tool_calls": []});
        if let Some(tool) = &self.tool {
            message["content"] = Value::Null;
            message["tool_calls"] = json!([{
                "id": format!("call_{}{c}", self.id), "type": "function",
                "function": {"name": tool, "arguments": self.arguments(c)},
            }]);
        }
        let mut choice = json!({
            "index": c, "message": message, "logprobs": null, "finish_reason": self.finish_reason(),
            "stop_reason": null,
        });
        if self.prompt_ids.is_some() {
            choice["token_ids"] = json!(self.ids(c));
        }
        choice
    }

    /// The response object, finished if the cached tokens are given.
    fn response(&self, cached: Option<u32>) -> Value {
        let output = cached.map_or_else(|| json!([]), |_| json!([self.item("completed", &self.texts[0])]));
        json!({
            "id": format!("resp_{}", self.id), "object": "response", "created_at": self.created, "model": self.model,
            "status": if cached.is_some() { "completed" } else { "in_progress" }, "output": output,
            "usage": cached.map(|c| self.usage(c)),
        })
    }

    fn item(&self, status: &str, text: &str) -> Value {
        let content = if status == "completed" {
            json!([{"type": "output_text", "text": text, "annotations": []}])
        } else {
            json!([])
        };
        json!({
            "type": "message", "id": format!("msg_{}", self.id), "role": "assistant", "status": status,
            "content": content,
        })
    }

    /// The Anthropic message object, finished if the cached tokens are given.
    fn message(&self, cached: Option<u32>) -> Value {
        let content = match (&self.tool, cached) {
            (_, None) => json!([]),
            (Some(tool), _) => json!([{
                "type": "tool_use", "id": format!("toolu_{}", self.id), "name": tool, "input": {"q": self.texts[0]},
            }]),
            (None, _) => json!([{"type": "text", "text": self.texts[0]}]),
        };
        let usage = cached.map_or_else(
            || json!({"input_tokens": self.prompt_tokens, "output_tokens": 0}),
            |cached| self.usage(cached),
        );
        json!({
            "id": format!("msg_{}", self.id), "type": "message", "role": "assistant", "model": self.model,
            "content": content, "stop_reason": cached.map(|_| self.finish_reason()), "stop_sequence": null,
            "usage": usage,
        })
    }

    /// What a stream says before its first token.
    pub(super) fn begin(&self, out: &mut Vec<u8>) {
        match self.api {
            Api::Completions => {}
            Api::Chat => {
                for c in 0..self.texts.len() {
                    let mut chunk = self.chunk(json!([{
                        "index": c, "delta": {"role": "assistant", "content": ""}, "logprobs": null,
                        "finish_reason": null,
                    }]));
                    if let Some(ids) = &self.prompt_ids {
                        chunk["prompt_token_ids"] = json!(ids);
                    }
                    data(out, &chunk);
                }
            }
            Api::Responses => {
                self.event(out, 0, "response.created", json!({"response": self.response(None)}));
                self.event(out, 1, "response.in_progress", json!({"response": self.response(None)}));
                let added = json!({"output_index": 0, "item": self.item("in_progress", "")});
                self.event(out, 2, "response.output_item.added", added);
                let part = json!({"type": "output_text", "text": "", "annotations": []});
                self.event(out, 3, "response.content_part.added", self.placed(json!({"part": part})));
            }
            Api::Messages => {
                named(out, "message_start", json!({"message": self.message(None)}));
                let block = match &self.tool {
                    Some(tool) => {
                        json!({"type": "tool_use", "id": format!("toolu_{}", self.id), "name": tool, "input": {}})
                    }
                    None => json!({"type": "text", "text": ""}),
                };
                named(out, "content_block_start", json!({"index": 0, "content_block": block}));
            }
        }
    }

    /// The event of token number `i` of one choice.
    pub(super) fn token(&self, out: &mut Vec<u8>, choice: usize, i: u32) {
        let last = i + 1 == self.tokens;
        let piece = self.piece(choice, i);
        match (self.api, &self.tool) {
            (Api::Chat, None) | (Api::Completions, _) => self.plain_token(out, choice, i, piece, last),
            (Api::Chat, Some(tool)) => {
                let mut call = json!({"index": 0, "function": {"arguments": self.argument_piece(piece, i)}});
                if i == 0 {
                    call["id"] = json!(format!("call_{}{choice}", self.id));
                    call["type"] = json!("function");
                    call["function"]["name"] = json!(tool);
                }
                let reason = last.then(|| self.finish_reason());
                data(out, &self.chunk(json!([{
                    "index": choice, "delta": {"tool_calls": [call]}, "logprobs": null, "finish_reason": reason,
                }])));
            }
            (Api::Responses, _) => {
                let delta = self.placed(json!({"delta": piece}));
                self.event(out, 4 + i, "response.output_text.delta", delta);
            }
            (Api::Messages, tool) => {
                let delta = match tool {
                    Some(_) => {
                        json!({"type": "input_json_delta", "partial_json": self.argument_piece(piece, i)})
                    }
                    None => json!({"type": "text_delta", "text": piece}),
                };
                named(out, "content_block_delta", json!({"index": 0, "delta": delta}));
            }
        }
    }

    /// The common case, written without a tree of values.
    fn plain_token(&self, out: &mut Vec<u8>, choice: usize, i: u32, piece: &str, last: bool) {
        let mut line = String::with_capacity(256);
        let (head, created) = (&self.id, self.created);
        let model = Value::from(self.model.as_str());
        let reason = if last { format!("\"{}\"", self.finish_reason()) } else { "null".to_owned() };
        let written = if self.api == Api::Chat {
            write!(
                line,
                "data: {{\"id\":\"chatcmpl-{head}\",\"object\":\"chat.completion.chunk\",\"created\":{created},\
                 \"model\":{model},\"choices\":[{{\"index\":{choice},\"delta\":{{\"content\":\"{piece}\"}},\
                 \"logprobs\":null,\"finish_reason\":{reason}",
            )
        } else {
            write!(
                line,
                "data: {{\"id\":\"cmpl-{head}\",\"object\":\"text_completion\",\"created\":{created},\
                 \"model\":{model},\"choices\":[{{\"index\":{choice},\"text\":\"{piece}\",\
                 \"logprobs\":null,\"finish_reason\":{reason}",
            )
        };
        debug_assert!(written.is_ok(), "a string takes everything");
        if let Some(ids) = &self.prompt_ids {
            if i == 0 && self.api == Api::Completions {
                line.push_str(&format!(",\"prompt_token_ids\":{}", json!(ids)));
            }
            line.push_str(&format!(",\"token_ids\":[{}]", id(piece.as_bytes())));
        }
        line.push_str("}]}\n\n");
        out.extend_from_slice(line.as_bytes());
    }

    fn argument_piece(&self, piece: &str, i: u32) -> String {
        let open = if i == 0 { "{\"q\":\"" } else { "" };
        let close = if i + 1 == self.tokens { "\"}" } else { "" };
        format!("{open}{piece}{close}")
    }

    /// What a stream says after its last token.
    pub(super) fn end(&self, out: &mut Vec<u8>, cached: u32) {
        match self.api {
            Api::Chat | Api::Completions => {
                if self.include_usage {
                    let mut chunk = self.chunk(json!([]));
                    chunk["usage"] = self.usage(cached);
                    data(out, &chunk);
                }
                out.extend_from_slice(b"data: [DONE]\n\n");
            }
            Api::Responses => {
                let n = 4 + self.tokens;
                let text = &self.texts[0];
                self.event(out, n, "response.output_text.done", self.placed(json!({"text": text})));
                let part = json!({"type": "output_text", "text": text, "annotations": []});
                self.event(out, n + 1, "response.content_part.done", self.placed(json!({"part": part})));
                let item = json!({"output_index": 0, "item": self.item("completed", text)});
                self.event(out, n + 2, "response.output_item.done", item);
                self.event(
                    out,
                    n + 3,
                    "response.completed",
                    json!({"response": self.response(Some(cached))}),
                );
            }
            Api::Messages => {
                named(out, "content_block_stop", json!({"index": 0}));
                let delta = json!({"stop_reason": self.finish_reason(), "stop_sequence": null});
                named(out, "message_delta", json!({"delta": delta, "usage": self.usage(cached)}));
                named(out, "message_stop", json!({}));
            }
        }
    }

    fn chunk(&self, choices: Value) -> Value {
        let (prefix, object) = match self.api {
            Api::Completions => ("cmpl", "text_completion"),
            _ => ("chatcmpl", "chat.completion.chunk"),
        };
        json!({
            "id": format!("{prefix}-{}", self.id), "object": object, "created": self.created, "model": self.model,
            "choices": choices,
        })
    }

    fn placed(&self, mut value: Value) -> Value {
        value["item_id"] = json!(format!("msg_{}", self.id));
        value["output_index"] = json!(0);
        value["content_index"] = json!(0);
        value
    }

    fn event(&self, out: &mut Vec<u8>, number: u32, kind: &str, mut value: Value) {
        value["sequence_number"] = json!(number);
        named(out, kind, value);
    }
}

fn data(out: &mut Vec<u8>, value: &Value) {
    out.extend_from_slice(format!("data: {value}\n\n").as_bytes());
}

fn named(out: &mut Vec<u8>, kind: &str, mut value: Value) {
    value["type"] = json!(kind);
    out.extend_from_slice(format!("event: {kind}\ndata: {value}\n\n").as_bytes());
}
