//! The server over real sockets.

use super::*;
use crate::sim::client::Link;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response};
use serde_json::{Value, json};
use std::time::Instant;

async fn send(mock: &Mock, method: &str, path: &str, body: &str) -> Response<hyper::body::Incoming> {
    let request = Request::builder().method(method).uri(path).header("host", "mock").header("x-test", "yes");
    let request = request.body(Full::from(body.to_owned())).unwrap();
    Link::new(mock.addr().to_string()).send(request).await.unwrap()
}

async fn text(mock: &Mock, method: &str, path: &str, body: &str) -> (u16, String) {
    let response = send(mock, method, path, body).await;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn post(mock: &Mock, path: &str, body: &Value) -> (u16, Value) {
    let (status, text) = text(mock, "POST", path, &body.to_string()).await;
    (status, serde_json::from_str(&text).unwrap_or(Value::Null))
}

/// The data of each event; `[DONE]` as a string.
fn events(stream: &str) -> Vec<Value> {
    let data = stream.split("\n\n").filter_map(|e| e.lines().find_map(|l| l.strip_prefix("data: ")));
    data.map(|d| serde_json::from_str(d).unwrap_or_else(|_| d.into())).collect()
}

async fn instant() -> Mock {
    Mock::start(MockConfig::instant()).await.unwrap()
}

/// Slow enough to be caught in the act: 20 ms a token.
async fn slow() -> Mock {
    let mut config = MockConfig::default();
    config.profile.t0 = 0.02;
    Mock::start(config).await.unwrap()
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(5), "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn chat(extra: Value) -> Value {
    let mut body = json!({"model": "mock", "messages": [{"role": "user", "content": "Hello out there!"}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn a_streamed_answer_is_the_whole_one_in_pieces() {
    let mock = instant().await;
    let (status, whole) = post(&mock, "/v1/chat/completions", &chat(json!({"max_tokens": 7}))).await;
    assert_eq!((status, &whole["choices"][0]["finish_reason"]), (200, &json!("length")));
    assert_eq!(whole["usage"]["completion_tokens"], 7);
    let body = chat(json!({"max_tokens": 7, "stream": true, "stream_options": {"include_usage": true}}));
    let (_, stream) = text(&mock, "POST", "/v1/chat/completions", &body.to_string()).await;
    let events = events(&stream);
    assert_eq!(events.len(), 1 + 7 + 1 + 1, "{stream}");
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let words = events[1..8].iter().map(|e| e["choices"][0]["delta"]["content"].as_str().unwrap());
    assert_eq!(words.collect::<String>(), whole["choices"][0]["message"]["content"].as_str().unwrap());
    assert_eq!(events[7]["choices"][0]["finish_reason"], "length");
    assert_eq!((&events[8]["choices"], &events[8]["usage"]["completion_tokens"]), (&json!([]), &json!(7)));
    assert_eq!(events[9], "[DONE]");
    let (_, stream) = text(
        &mock,
        "POST",
        "/v1/chat/completions",
        &chat(json!({"max_tokens": 2, "stream": true})).to_string(),
    )
    .await;
    assert!(!stream.contains("\"usage\""), "usage only if asked for");
}

#[tokio::test]
async fn the_next_turn_is_cached_with_the_answer() {
    let mock = Mock::start(MockConfig::default()).await.unwrap();
    let question = "word ".repeat(100);
    let mut body = chat(json!({"max_tokens": 64, "ignore_eos": true}));
    body["messages"][0]["content"] = json!(question);
    let (_, first) = post(&mock, "/v1/chat/completions", &body).await;
    let prompt = first["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let answer = first["choices"][0]["message"].clone();
    body["messages"].as_array_mut().unwrap().push(json!({"role": "assistant", "content": answer["content"]}));
    body["messages"].as_array_mut().unwrap().push(json!({"role": "user", "content": "And then?"}));
    let (_, second) = post(&mock, "/v1/chat/completions", &body).await;
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    // All but the last token of the answer was computed, in blocks of 16.
    assert_eq!(cached, (prompt + 63) / 16 * 16);
    body["cache_salt"] = json!("mine");
    let (_, salted) = post(&mock, "/v1/chat/completions", &body).await;
    assert_eq!(salted["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(salted["choices"][0]["message"], second["choices"][0]["message"], "the answer is the same");
    mock.clear_cache();
    body.as_object_mut().unwrap().remove("cache_salt");
    let (_, cleared) = post(&mock, "/v1/chat/completions", &body).await;
    assert_eq!(cleared["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(mock.stats().cached_tokens, cached);
}

#[tokio::test]
async fn an_answer_is_continued_by_ids_and_by_text() {
    let mock = instant().await;
    let (_, whole) =
        post(&mock, "/v1/chat/completions", &chat(json!({"max_tokens": 20, "return_token_ids": true}))).await;
    let said = whole["choices"][0]["message"]["content"].as_str().unwrap();
    let mut ids = whole["prompt_token_ids"].as_array().unwrap().clone();
    ids.extend_from_slice(&whole["choices"][0]["token_ids"].as_array().unwrap()[..8]);
    let (_, rest) =
        post(&mock, "/v1/completions", &json!({"model": "mock", "prompt": ids, "max_tokens": 12})).await;
    assert_eq!(rest["choices"][0]["text"], said[32..]);
    let mut body =
        chat(json!({"max_tokens": 12, "continue_final_message": true, "add_generation_prompt": false}));
    body["messages"].as_array_mut().unwrap().push(json!({"role": "assistant", "content": said[..32]}));
    let (_, rest) = post(&mock, "/v1/chat/completions", &body).await;
    assert_eq!(rest["choices"][0]["message"]["content"], said[32..]);
}

#[tokio::test]
async fn all_four_apis_answer() {
    let mock = instant().await;
    let (status, done) =
        post(&mock, "/v1/completions", &json!({"model": "mock", "prompt": "Once", "n": 3, "max_tokens": 4}))
            .await;
    assert_eq!((status, done["choices"].as_array().unwrap().len()), (200, 3));
    let ask = json!({"model": "mock", "input": "Hi", "instructions": "Be kind.", "max_output_tokens": 5});
    let (_, response) = post(&mock, "/v1/responses", &ask).await;
    assert_eq!(response["status"], "completed");
    assert_eq!(response["usage"]["output_tokens"], 5);
    let mut next = json!({"model": "mock", "input": "More", "previous_response_id": response["id"]});
    let (status, more) = post(&mock, "/v1/responses", &next).await;
    assert_eq!(status, 200);
    assert!(more["usage"]["input_tokens"].as_u64() > response["usage"]["input_tokens"].as_u64());
    next["previous_response_id"] = json!("resp_other");
    assert_eq!(post(&mock, "/v1/responses", &next).await.0, 404, "another replica's");
    let (_, stream) =
        text(&mock, "POST", "/v1/responses", &json!({"input": "Hi", "stream": true}).to_string()).await;
    let kinds: Vec<Value> = events(&stream).iter().map(|e| e["type"].clone()).collect();
    assert_eq!(
        (kinds.first(), kinds.last()),
        (Some(&json!("response.created")), Some(&json!("response.completed")))
    );

    let ask = json!({"model": "mock", "max_tokens": 3, "system": "S", "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]});
    let (_, message) = post(&mock, "/v1/messages", &ask).await;
    assert_eq!(
        (&message["stop_reason"], &message["usage"]["output_tokens"]),
        (&json!("max_tokens"), &json!(3))
    );
    let mut ask = ask;
    ask["stream"] = json!(true);
    let (_, stream) = text(&mock, "POST", "/v1/messages", &ask.to_string()).await;
    assert!(
        stream.starts_with("event: message_start\n") && stream.contains("event: message_stop\n"),
        "{stream}"
    );
    assert_eq!(stream.matches("\"text_delta\"").count(), 3);
}

#[tokio::test]
async fn a_forced_tool_is_called() {
    let mock = instant().await;
    let tools = json!([{"type": "function", "function": {"name": "look", "parameters": {}}}]);
    let mut body = chat(json!({"max_tokens": 4, "tools": tools, "tool_choice": "required"}));
    let (_, whole) = post(&mock, "/v1/chat/completions", &body).await;
    let choice = &whole["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &Value::Null)
    );
    let arguments = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(arguments).unwrap()["q"].is_string());
    body["stream"] = json!(true);
    let (_, stream) = text(&mock, "POST", "/v1/chat/completions", &body.to_string()).await;
    let pieces = events(&stream);
    let call = |e: &Value| {
        e["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].as_str().map(str::to_owned)
    };
    assert_eq!(pieces.iter().filter_map(call).collect::<String>(), arguments);
}

#[tokio::test]
async fn errors_look_like_vllms() {
    let mut config =
        MockConfig { max_model_len: 100, api_key: Some("secret".into()), ..MockConfig::default() };
    let mock = Mock::start(config.clone()).await.unwrap();
    assert_eq!(
        post(&mock, "/v1/chat/completions", &chat(json!({}))).await,
        (401, json!({"error": "Unauthorized"}))
    );
    assert_eq!(text(&mock, "GET", "/health", "").await.0, 200, "health needs no key");
    config.api_key = None;
    let mock = Mock::start(config).await.unwrap();
    let (status, body) = post(&mock, "/v1/chat/completions", &chat(json!({"model": "nonesuch"}))).await;
    assert_eq!(
        (status, &body["error"]["code"], &body["error"]["param"]),
        (404, &json!(404), &json!("model"))
    );
    let (status, _) = text(&mock, "POST", "/v1/chat/completions", "{\"model\": ").await;
    assert_eq!(status, 400);
    let mut long = chat(json!({}));
    long["messages"][0]["content"] = json!("x".repeat(500));
    let (status, body) = post(&mock, "/v1/chat/completions", &long).await;
    assert_eq!((status, &body["error"]["type"]), (400, &json!("BadRequestError")));
    assert_eq!(post(&mock, "/v1/chat/completions", &chat(json!({"max_tokens": 99}))).await.0, 400);
    assert_eq!(text(&mock, "GET", "/v1/chat/completions", "").await.0, 405);
    assert_eq!(text(&mock, "GET", "/nonesuch", "").await.0, 404);
}

#[tokio::test]
async fn side_calls_answer() {
    let adapters = vec![Adapter { name: "tuned".into(), parent: "mock".into() }];
    let mock = Mock::start(MockConfig { adapters, ..MockConfig::default() }).await.unwrap();
    let models: Value = serde_json::from_str(&text(&mock, "GET", "/v1/models", "").await.1).unwrap();
    assert_eq!(models["data"][0]["max_model_len"], 32_768);
    assert_eq!((&models["data"][1]["id"], &models["data"][1]["parent"]), (&json!("tuned"), &json!("mock")));
    assert_eq!(
        post(&mock, "/v1/chat/completions", &chat(json!({"model": "tuned", "max_tokens": 2}))).await.0,
        200
    );
    let (_, tokens) = post(&mock, "/tokenize", &json!({"model": "mock", "prompt": "four bytes each"})).await;
    assert_eq!((&tokens["count"], tokens["tokens"].as_array().unwrap().len()), (&json!(4), 4));
    let (_, vectors) = post(&mock, "/v1/embeddings", &json!({"model": "mock", "input": ["a", "b"]})).await;
    assert_eq!(vectors["data"].as_array().unwrap().len(), 2);
    assert_ne!(vectors["data"][0]["embedding"], vectors["data"][1]["embedding"]);
    let (_, score) = post(&mock, "/score", &json!({"model": "mock", "text_1": "a", "text_2": "b"})).await;
    assert!(score["data"][0]["score"].is_number());
    for path in ["/ping", "/version", "/load", "/is_sleeping"] {
        assert_eq!(text(&mock, "GET", path, "").await.0, 200, "{path}");
    }
    let (_, page) = text(&mock, "GET", "/metrics", "").await;
    for line in [
        "vllm:num_requests_running{engine=\"0\",model_name=\"mock\"} 0.0",
        "vllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"True\",engine=\"0\",num_gpu_blocks=\"16384\"} 1.0",
        "vllm:request_success_total{engine=\"0\",model_name=\"mock\",finished_reason=\"length\"} 1.0",
        "vllm:request_prefill_kv_computed_tokens_count{engine=\"0\",model_name=\"mock\"} 4.0",
        "vllm:lora_requests_info{max_lora=\"1\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"}",
    ] {
        assert!(page.contains(line), "{line} is not in\n{page}");
    }
}

#[tokio::test]
async fn sleeping_holds_requests_and_waking_serves_them() {
    let mock = Mock::start(MockConfig::default()).await.unwrap();
    assert_eq!(text(&mock, "POST", "/sleep?level=1", "").await.0, 200);
    assert_eq!(text(&mock, "GET", "/health", "").await.0, 200, "as vLLM: healthy, and asleep");
    assert!(text(&mock, "GET", "/is_sleeping", "").await.1.contains("true"));
    let (_, page) = text(&mock, "GET", "/metrics", "").await;
    assert!(page.contains("sleep_state=\"awake\"} 0.0"));
    let body = chat(json!({"max_tokens": 1}));
    let waiting = post(&mock, "/v1/chat/completions", &body);
    let waking = async {
        until("it waits", || mock.stats().waiting == 1).await;
        assert_eq!(text(&mock, "POST", "/wake_up", "").await.0, 200);
    };
    assert_eq!(tokio::join!(waiting, waking).0.0, 200);
}

#[tokio::test]
async fn a_client_that_leaves_cancels_in_every_phase() {
    let mock = slow().await;
    // Before the first token, not streamed; then in mid-stream.
    for (n, stream) in [(1, false), (2, true)] {
        let body = chat(json!({"max_tokens": 2000, "ignore_eos": true, "stream": stream})).to_string();
        let mut link = Link::new(mock.addr().to_string());
        let request =
            Request::post("/v1/chat/completions").header("host", "m").body(Full::from(body)).unwrap();
        let running = || mock.stats().running == 1;
        if stream {
            let mut response = link.send(request).await.unwrap();
            response.frame().await.unwrap().unwrap();
            assert!(running());
            drop((response, link));
        } else {
            tokio::select! {
                _ = link.send(request) => panic!("answered"),
                () = until("it runs", running) => {}
            }
            drop(link);
        }
        until("the engine forgets it", || mock.stats().running == 0).await;
        assert_eq!((mock.stats().aborted, mock.stats().abandoned), (n, n));
    }
    until("connections close", || mock.stats().connections_open == 0).await;
}

#[tokio::test]
async fn faults_can_be_switched_over_http() {
    let mock = instant().await;
    let ask = chat(json!({"max_tokens": 9, "stream": true})).to_string();
    let set = async |faults: Value| assert_eq!(post(&mock, "/mock/faults", &faults).await.0, 200);
    set(json!({"status": 429, "retry_after": 7, "times": 1})).await;
    let response = send(&mock, "POST", "/v1/chat/completions", &ask).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["retry-after"]),
        (429, &"7".parse().unwrap())
    );
    assert_eq!(text(&mock, "POST", "/v1/chat/completions", &ask).await.0, 200, "one time only");
    assert_eq!(post(&mock, "/mock/faults", &json!({"nonesuch": 1})).await.0, 400);

    for (fault, tokens) in [("reset_mid_stream_after", 3), ("cut_mid_stream_after", 2)] {
        set(json!({fault: tokens})).await;
        let mut response = send(&mock, "POST", "/v1/chat/completions", &ask).await;
        let mut read = String::new();
        let error = loop {
            match response.frame().await {
                Some(Ok(frame)) => read.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap()),
                Some(Err(error)) => break error,
                None => panic!("{fault}: a normal end"),
            }
        };
        assert_eq!(events(&read).len(), 1 + tokens, "{fault} {error:?}");
    }
    set(json!({"hang_mid_stream": 1})).await;
    let mut response = send(&mock, "POST", "/v1/chat/completions", &ask).await;
    response.frame().await.unwrap().unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(50), response.frame()).await.is_err());

    set(json!({"reset": true})).await;
    let request =
        Request::post("/v1/chat/completions").header("host", "m").body(Full::from(ask.clone())).unwrap();
    assert!(Link::new(mock.addr().to_string()).send(request).await.is_err());
    set(json!({"hang_before_headers": true})).await;
    let hung = send(&mock, "POST", "/v1/chat/completions", &ask);
    assert!(tokio::time::timeout(Duration::from_millis(50), hung).await.is_err());
    set(json!({"health": 503, "empty_metrics": true})).await;
    assert_eq!(text(&mock, "GET", "/health", "").await.0, 503);
    assert!(!text(&mock, "GET", "/metrics", "").await.1.contains("vllm:"));

    let stats: Value = serde_json::from_str(&text(&mock, "GET", "/mock/stats", "").await.1).unwrap();
    assert_eq!(stats["last"]["path"], "/v1/chat/completions");
    assert_eq!(mock.stats().last.unwrap().header("x-test"), Some("yes"));
    assert_eq!(mock.last_body(), ask.as_bytes());
}

#[tokio::test]
async fn idle_connections_are_closed_when_told() {
    let mock = instant().await;
    let mut link = Link::new(mock.addr().to_string());
    let request = || Request::get("/health").header("host", "m").body(Full::default()).unwrap();
    link.send(request()).await.unwrap();
    assert_eq!(mock.stats().connections_open, 1);
    mock.set_faults(Faults { close_idle_after: Some(0.03), ..Faults::default() });
    until("it is closed", || mock.stats().connections_open == 0).await;
    assert_eq!(link.send(request()).await.unwrap().status(), 200, "over a new connection");
}

#[tokio::test]
async fn killing_resets_and_stopping_does_not() {
    let mock = slow().await;
    let of =
        |tokens: u32| chat(json!({"max_tokens": tokens, "stream": true, "ignore_eos": true})).to_string();
    // Long enough to be still running whatever else the machine does.
    let mut response = send(&mock, "POST", "/v1/chat/completions", &of(1000)).await;
    response.frame().await.unwrap().unwrap();
    mock.kill();
    let end = async {
        while let Some(frame) = response.frame().await {
            frame?;
        }
        Ok::<_, hyper::Error>(())
    };
    assert!(end.await.is_err());
    assert!(tokio::net::TcpStream::connect(mock.addr()).await.is_err(), "the port is closed");

    let mock = slow().await;
    let response = send(&mock, "POST", "/v1/chat/completions", &of(10)).await;
    let (all, ()) = tokio::join!(response.into_body().collect(), mock.stop(Duration::from_secs(5)));
    assert!(all.unwrap().to_bytes().ends_with(b"[DONE]\n\n"));
}

#[tokio::test]
async fn starting_refuses_or_answers_503() {
    let startup = Duration::from_millis(500);
    let mock = Mock::start(MockConfig { startup, ..MockConfig::default() }).await.unwrap();
    assert_eq!(text(&mock, "GET", "/health", "").await.0, 503);
    let config = MockConfig { startup, refuse_while_starting: true, ..MockConfig::default() };
    let refusing = Mock::start(config).await.unwrap();
    assert!(tokio::net::TcpStream::connect(refusing.addr()).await.is_err());
    tokio::time::sleep(startup + Duration::from_millis(50)).await;
    assert_eq!(text(&mock, "GET", "/health", "").await.0, 200);
    assert_eq!(text(&refusing, "GET", "/health", "").await.0, 200);
}

#[tokio::test]
async fn timing_follows_the_profile() {
    let mock = slow().await;
    mock.set_faults(Faults { slow: Some(2.0), ..Faults::default() });
    let start = Instant::now();
    post(&mock, "/v1/chat/completions", &chat(json!({"max_tokens": 5}))).await;
    // Five steps of 40 ms.
    let took = start.elapsed().as_secs_f64();
    assert!((0.195..2.0).contains(&took), "{took}");
}
