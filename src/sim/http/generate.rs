//! Requests that go through the engine.

use super::answer::Answer;
use super::body::{Api, Ask};
use super::conn::Busy;
use super::error::Failure;
use super::faults::Faults;
use super::reply::{Break, Reply, Stream};
use super::serve::whole;
use super::state::{Pending, State, unix_now};
use super::station::Ticket;
use crate::sim::engine::{Job, Reason};
use crate::sim::text::{Prompt, Voice, root};
use hyper::Response;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};
use std::sync::Arc;

/// Answer a request for text.
pub(super) async fn answer(
    state: &Arc<State>,
    api: Api,
    body: &[u8],
    faults: &Faults,
    busy: Busy,
) -> Response<Reply> {
    let ask = match Ask::read(api, body, |id| state.recall(id)) {
        Ok(ask) => ask,
        Err(failure) => return whole(failure.status, failure.body(), busy),
    };
    if faults.error_body_200 {
        let failure = Failure::status(500, "Simulated trouble.").body();
        if !ask.stream {
            return whole(200, failure, busy);
        }
        let mut response = whole(200, format!("data: {failure}\n\n"), busy);
        event_stream(&mut response);
        return response;
    }
    let stream = ask.stream;
    let mut pending = Pending::new(state, &ask.model);
    let (answer, ticket) = match begin(state, ask) {
        Ok(begun) => begun,
        Err(failure) => {
            pending.done();
            return whole(failure.status, failure.body(), busy);
        }
    };
    if !stream {
        let progress = ticket.ended().await;
        pending.done();
        return whole(200, answer.whole(progress.cached), busy);
    }
    let breaks = [
        (faults.hang_mid_stream, Break::Hang),
        (faults.reset_mid_stream_after, Break::Reset),
        (faults.cut_mid_stream_after, Break::Cut),
    ];
    let stream = Stream {
        answer,
        ticket,
        sent: 0,
        begun: false,
        over: false,
        breaks: breaks.into_iter().find_map(|(after, how)| after.map(|n| (n, how))),
        settle: None,
        busy,
        pending,
    };
    let mut response = Response::new(Reply::Stream(Box::new(stream)));
    event_stream(&mut response);
    response
}

fn event_stream(response: &mut Response<Reply>) {
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
}

fn known(state: &State, model: &str) -> Result<String, Failure> {
    let config = &state.config;
    if model.is_empty() {
        return config.models.first().cloned().ok_or_else(|| Failure::no_model(model));
    }
    let known = config.models.iter().any(|m| m == model) || config.adapters.iter().any(|a| a.name == model);
    if known { Ok(model.to_owned()) } else { Err(Failure::no_model(model)) }
}

/// Hand a request to the engine, with its answer ready to be written as the tokens come.
fn begin(state: &Arc<State>, ask: Ask) -> Result<(Answer, Ticket), Failure> {
    let config = &state.config;
    let model = known(state, &ask.model)?;
    let prompt_tokens = ask.prompt.tokens();
    let room = config.max_model_len.saturating_sub(prompt_tokens);
    if room == 0 {
        return Err(Failure::too_long(config.max_model_len, prompt_tokens));
    }
    if let Some(max) = ask.max_tokens.filter(|max| *max > room) {
        let limit = config.max_model_len;
        let message = format!(
            "max_tokens is too large: {max}. This model's maximum context length is {limit} tokens, and the request \
             has {prompt_tokens} input tokens."
        );
        return Err(Failure::bad(message, "max_tokens"));
    }
    let voice = Voice::of(&ask.prompt, config.seed);
    let limit = ask.max_tokens.unwrap_or(room);
    let natural = if ask.ignore_eos { u32::MAX } else { voice.length(config.mean_output) };
    let tokens = natural.min(limit);
    let reason = if natural <= limit { Reason::Stop } else { Reason::Length };
    let texts: Vec<String> = (0..ask.choices).map(|choice| voice.text(tokens, choice)).collect();
    let chain = ask.prompt.chain(root(&model, ask.salt.as_deref()), &texts[0], config.profile.block_tokens);
    if let Some(publisher) = &state.publisher {
        let adapter = config.adapters.iter().any(|a| a.name == model).then_some(&*model);
        publisher.contents(&chain, &ask.prompt.ids_with(&texts[0]), adapter, ask.salt.as_deref());
        if ask.report {
            let found =
                state.station.with(|_, engine| engine.holds(&chain)) / config.profile.block_tokens.max(1);
            publisher.report(&chain[..(found as usize).min(chain.len())]);
        }
    }
    let ticket = state.station.submit(Job {
        id: 0,
        chain: chain.into(),
        prompt_tokens,
        output_tokens: tokens,
        choices: ask.choices,
        ends: reason,
    });
    if ticket.rejected() {
        return Err(Failure::bad("The request needs more KV cache than there is.", "input_tokens"));
    }
    let id = state.request_id();
    if ask.api == Api::Responses {
        let mut conversation = ask.prompt.clone();
        conversation.text(&texts[0]);
        conversation.end();
        state.remember(format!("resp_{id}"), conversation);
    }
    let answer = Answer {
        api: ask.api,
        id,
        created: unix_now() as u64,
        model,
        prompt_tokens,
        details: config.prompt_tokens_details,
        include_usage: ask.include_usage,
        texts,
        tokens,
        reason,
        tool: ask.tool,
        prompt_ids: ask.return_ids.then(|| ask.prompt.ids()),
    };
    Ok((answer, ticket))
}

/// Answer a request that generates nothing: embeddings, scores, tokenization.
pub(super) async fn pooled(state: &Arc<State>, path: &str, body: &[u8], busy: Busy) -> Response<Reply> {
    match pooled_value(state, path, body).await {
        Ok(value) => whole(200, value.to_string(), busy),
        Err(failure) => whole(failure.status, failure.body(), busy),
    }
}

async fn pooled_value(state: &Arc<State>, path: &str, body: &[u8]) -> Result<Value, Failure> {
    let value: Value = serde_json::from_slice(body).map_err(|e| Failure::bad_json(&e))?;
    let model = known(state, value.get("model").and_then(Value::as_str).unwrap_or_default())?;
    if path == "/tokenize" {
        let api = if value.get("messages").is_some() { Api::Chat } else { Api::Completions };
        let ids = Ask::read(api, body, |_| None)?.prompt.ids();
        return Ok(json!({
            "count": ids.len(), "max_model_len": state.config.max_model_len, "tokens": ids, "token_strs": null,
        }));
    }
    let embeds = path == "/v1/embeddings";
    let given = if embeds { value.get("input") } else { value.get("text_2") };
    let given = given.ok_or_else(|| Failure::bad("Field required", "input"))?;
    let texts: Vec<String> = match given {
        Value::Array(list) if !list.iter().all(Value::is_number) => {
            list.iter().map(Value::to_string).collect()
        }
        one => vec![one.to_string()],
    };
    let query = value.get("text_1").map(Value::to_string).unwrap_or_default();
    let mut pending = Pending::new(state, &model);
    let mut tokens = 0;
    let mut data = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        let prompt = Prompt::plain(&format!("{query}{text}"));
        let seed = root(text, Some(&query));
        let prompt_tokens = prompt.tokens();
        tokens += prompt_tokens;
        let chain = Vec::new().into();
        let job = Job { id: 0, chain, prompt_tokens, output_tokens: 1, choices: 1, ends: Reason::Stop };
        let ticket = state.station.submit(job);
        if ticket.rejected() || prompt_tokens > state.config.max_model_len {
            return Err(Failure::too_long(state.config.max_model_len, prompt_tokens));
        }
        ticket.ended().await;
        let number = |i: u32| f64::from((seed.rotate_left(8 * i) & 0xffff) as u32) / 65_535.0;
        data.push(if embeds {
            let vector: Vec<f64> = (0..8).map(|i| number(i) * 2.0 - 1.0).collect();
            json!({"index": index, "object": "embedding", "embedding": vector})
        } else {
            json!({"index": index, "object": "score", "score": number(0)})
        });
    }
    pending.done();
    Ok(json!({
        "id": format!("{}-{}", if embeds { "embd" } else { "score" }, state.request_id()), "object": "list",
        "created": unix_now() as u64, "model": model, "data": data,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
    }))
}
