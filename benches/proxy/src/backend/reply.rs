//! What a back end says, as bytes on the wire.

use crate::net::wall_ns;

/// The answer of `/v1/models`.
pub(crate) const MODELS: &str = r#"{"object":"list","data":[{"id":"bench","object":"model","created":1,"owned_by":"vllm","root":"bench","parent":null,"max_model_len":131072}]}"#;

/// A whole 200 answer.
pub(crate) fn ok(kind: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-length: {}\r\ncontent-type: {kind}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// An error in vLLM's shape.
pub(crate) fn error(code: u16, reason: &str) -> Vec<u8> {
    let body = format!(
        r#"{{"error":{{"message":"{reason}, as asked.","type":"{reason}","param":null,"code":{code}}}}}"#
    );
    format!(
        "HTTP/1.1 {code} {reason}\r\nserver: uvicorn\r\ncontent-length: {}\r\ncontent-type: application/json\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// A chat completion of about 1 KB.
pub(crate) fn completion(prompt: u64, cached: u64) -> Vec<u8> {
    const TEXT: &str = "The replica that holds the longest part of the prompt answers first. ";
    let body = format!(
        r#"{{"id":"chatcmpl-0123456789abcdef","object":"chat.completion","created":1,"model":"bench","choices":[{{"index":0,"message":{{"role":"assistant","content":"{}","refusal":null,"tool_calls":[]}},"logprobs":null,"finish_reason":"stop","stop_reason":null}}],"usage":{}}}"#,
        TEXT.repeat(9),
        usage(prompt, 64, cached)
    );
    ok("application/json", body.as_bytes())
}

/// The head of a stream.
pub(crate) const STREAM_HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

/// The first event: the role, and no token.
pub(crate) fn role() -> Vec<u8> {
    event(
        r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}"#,
    )
}

/// One token. `t` is when it was sent; a proxy must let an unknown key through.
pub(crate) fn token() -> Vec<u8> {
    event(&format!(
        r#"{{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{{"index":0,"delta":{{"content":" token"}},"logprobs":null,"finish_reason":null}}],"t":{}}}"#,
        wall_ns()
    ))
}

/// The last events and the end of the body.
pub(crate) fn end(include_usage: bool, prompt: u64, chunks: u32, cached: u64) -> Vec<u8> {
    let mut bytes = event(
        r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"length"}]}"#,
    );
    if include_usage {
        bytes.extend(event(&format!(
            r#"{{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"bench","choices":[],"usage":{}}}"#,
            usage(prompt, u64::from(chunks), cached)
        )));
    }
    bytes.extend(event("[DONE]"));
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}

fn usage(prompt: u64, completion: u64, cached: u64) -> String {
    format!(
        r#"{{"prompt_tokens":{prompt},"total_tokens":{},"completion_tokens":{completion},"prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#,
        prompt + completion
    )
}

/// An SSE event in an HTTP chunk of its own.
fn event(data: &str) -> Vec<u8> {
    format!("{:x}\r\ndata: {data}\n\n\r\n", data.len() + 8).into_bytes()
}
