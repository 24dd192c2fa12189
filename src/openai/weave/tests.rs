//! Streams as engines write them, broken at each place and continued.

use super::{Recipe, Weave};
use crate::openai::{Ignore, Scratch, Shape, Usage, scan};
use bytes::Bytes;

const LIMIT: usize = 1 << 16;

fn recipe(shape: Shape, body: &str) -> Recipe {
    let scan = scan(shape, body.as_bytes(), &mut Ignore, &mut Scratch::default()).unwrap();
    Recipe::read(&scan, body.as_bytes()).unwrap()
}

fn chat(more: &str) -> Recipe {
    recipe(
        Shape::Chat,
        &format!(r#"{{"model":"m","messages":[{{"role":"user","content":"x"}}],"stream":true{more}}}"#),
    )
}

/// What a chat's first engine says: ids 1, 2, 3 are the prompt; each token's id is 10 more than the one before.
fn first(tokens: &[&str]) -> String {
    let head = r#"{"id":"chatcmpl-A","object":"chat.completion.chunk","created":17,"model":"m","choices":[{"index":0,"#;
    let mut out = format!(
        "data: {head}\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},\"logprobs\":null,\"finish_reason\":null}}],\"prompt_token_ids\":[1,2,3]}}\n\n"
    );
    for (n, text) in tokens.iter().enumerate() {
        let id = 10 * (n + 1);
        out += &format!(
            "data: {head}\"delta\":{{\"content\":\"{text}\"}},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":[{id}]}}]}}\n\n"
        );
    }
    out
}

/// What the engine that continues says.
fn next(tokens: &[&str], usage: (u32, u32)) -> String {
    let head = r#"{"id":"cmpl-B","object":"text_completion","created":99,"model":"m","choices":[{"index":0,"#;
    let mut out = String::new();
    for (n, text) in tokens.iter().enumerate() {
        let reason = if n + 1 == tokens.len() { "\"stop\"" } else { "null" };
        let ids = if n == 0 { ",\"prompt_token_ids\":[1,2,3,10]" } else { "" };
        out += &format!(
            "data: {head}\"text\":\"{text}\",\"logprobs\":null,\"finish_reason\":{reason},\"stop_reason\":null{ids},\"token_ids\":[{}]}}]}}\n\n",
            100 + n
        );
    }
    out += &format!(
        "data: {{\"id\":\"cmpl-B\",\"object\":\"text_completion\",\"created\":99,\"model\":\"m\",\"choices\":[],\"usage\":{{\"prompt_tokens\":{},\"total_tokens\":0,\"completion_tokens\":{}}}}}\n\ndata: [DONE]\n\n",
        usage.0, usage.1
    );
    out
}

fn feed(weave: &mut Weave, text: &str, size: usize) -> String {
    let mut out = Vec::new();
    for piece in text.as_bytes().chunks(size) {
        out.extend(weave.push(&Bytes::copy_from_slice(piece)).unwrap_or_default());
    }
    String::from_utf8(out).unwrap()
}

#[test]
fn the_client_sees_one_stream_in_the_first_engines_name() {
    for size in [1, 7, 50, 10_000] {
        let mut weave = Weave::new(chat(r#","max_tokens":9,"stream_options":{"include_usage":true}"#), LIMIT);
        let mut seen = feed(&mut weave, &first(&["a", "b"]), size);
        // It dies in the middle of an event: nothing of that has gone out.
        seen += &feed(&mut weave, "data: {\"id\":\"chatcmpl-A\",\"cho", size);
        let body = String::from_utf8(weave.continuation(None).unwrap()).unwrap();
        assert!(body.ends_with(r#""max_tokens":7,"prompt":[1,2,3,10,20]}"#), "{body}");
        weave.resume();
        seen += &feed(&mut weave, &next(&["c", "d"], (5, 2)), size);
        let head =
            r#"{"id":"chatcmpl-A","object":"chat.completion.chunk","created":17,"model":"m","choices":["#;
        let token = |text: &str, reason: &str| {
            format!(
                "data: {head}{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\"logprobs\":null,\"finish_reason\":{reason},\"token_ids\":null}}]}}\n\n"
            )
        };
        let want = format!(
            "data: {head}{{\"index\":0,\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},\"logprobs\":null,\"finish_reason\":null}}],\"prompt_token_ids\":null}}\n\n"
        ) + &token("a", "null")
            + &token("b", "null")
            + &token("c", "null")
            + &token("d", "\"stop\"").replace("\"token_ids\"", "\"stop_reason\":null,\"token_ids\"")
            + &format!(
                "data: {head}],\"usage\":{{\"prompt_tokens\":3,\"total_tokens\":7,\"completion_tokens\":4}}}}\n\ndata: [DONE]\n\n"
            );
        assert_eq!(seen, want);
        assert_eq!(
            weave.usage(),
            Some(Usage { prompt_tokens: 3, completion_tokens: 4, cached_tokens: None })
        );
        assert!(weave.done() && weave.continued());
    }
}

#[test]
fn usage_is_for_those_who_ask() {
    let mut weave = Weave::new(chat(r#","max_tokens":9"#), LIMIT);
    feed(&mut weave, &first(&["a"]), 9);
    weave.resume();
    let seen = feed(&mut weave, &next(&["c"], (4, 1)), 9);
    assert!(!seen.contains("usage") && seen.ends_with("data: [DONE]\n\n"), "{seen}");
    assert_eq!(weave.usage().map(|u| u.completion_tokens), Some(2), "the router knows");
}

#[test]
fn tokens_whose_text_is_held_back_are_made_again() {
    let mut weave = Weave::new(chat(r#","max_tokens":9"#), LIMIT);
    // The third token is half a character.
    feed(&mut weave, &first(&["a", "b", ""]), 10_000);
    let body = String::from_utf8(weave.continuation(None).unwrap()).unwrap();
    assert!(body.ends_with(r#""max_tokens":7,"prompt":[1,2,3,10,20]}"#), "{body}");
}

/// An event of several tokens: its last may be half of a character.
fn merged(text: &str) -> String {
    first(&[text]).split_off(first(&[]).len()).replace("[10]", "[20,30]")
}

#[test]
fn what_was_sent_behind_a_doubtful_place_is_said_again_and_left_out() {
    for size in [3, 10_000] {
        let mut weave = Weave::new(chat(r#","max_tokens":9"#), LIMIT);
        feed(&mut weave, &(first(&["a"]) + &merged("bcd")), size);
        let body = String::from_utf8(weave.continuation(None).unwrap()).unwrap();
        assert!(body.ends_with(r#""max_tokens":8,"prompt":[1,2,3,10]}"#), "{body}");
        weave.resume();
        // It dies again before it has said what was sent; then another says it in other pieces.
        assert_eq!(feed(&mut weave, &next(&["b", "x"], (4, 2))[..200], size), "");
        weave.resume();
        let seen = feed(&mut weave, &next(&["bc", "de", "f"], (4, 3)), size);
        let texts: Vec<&str> =
            seen.split("\"content\":\"").skip(1).filter_map(|t| t.split('"').next()).collect();
        assert_eq!(texts, ["e", "f"], "{seen}");
        assert!(!weave.diverged() && weave.done());
        assert_eq!(weave.usage().map(|u| u.completion_tokens), Some(4));
    }
}

#[test]
fn a_continuation_that_says_something_else_is_none() {
    for other in [["bX", "e"], ["b", "c"]] {
        let mut weave = Weave::new(chat(r#","max_tokens":9"#), LIMIT);
        feed(&mut weave, &(first(&["a"]) + &merged("bcd")), 10_000);
        weave.resume();
        let seen = feed(&mut weave, &next(&other, (4, 2)), 10_000);
        assert!(weave.diverged() && seen.is_empty(), "{seen}");
    }
}

#[test]
fn without_a_bound_of_its_own_the_models_context_is_the_bound() {
    let mut weave = Weave::new(chat(""), LIMIT);
    feed(&mut weave, &first(&["a", "b"]), 10_000);
    assert_eq!(weave.continuation(None), None);
    let body = String::from_utf8(weave.continuation(Some(100)).unwrap()).unwrap();
    assert!(body.contains("\"max_tokens\":95,"), "{body}");
}

#[test]
fn what_is_only_missing_its_end_is_ended_here() {
    let mut weave = Weave::new(chat(r#","max_tokens":2,"stream_options":{"include_usage":true}"#), LIMIT);
    feed(&mut weave, &first(&["a", "b"]), 10_000);
    assert_eq!(weave.continuation(None), None);
    let end = String::from_utf8(weave.closing().unwrap().to_vec()).unwrap();
    assert!(end.contains("\"finish_reason\":\"length\""), "{end}");
    assert!(end.contains("\"prompt_tokens\":3,\"total_tokens\":5,\"completion_tokens\":2}"), "{end}");
    assert!(end.ends_with("data: [DONE]\n\n"));

    let mut weave = Weave::new(chat(r#","max_tokens":9"#), LIMIT);
    let finished = first(&["a", "b"]).replacen(
        "\"finish_reason\":null,\"token_ids\":[20]",
        "\"finish_reason\":\"stop\",\"token_ids\":[20]",
        1,
    );
    feed(&mut weave, &finished, 10_000);
    assert_eq!(weave.closing().unwrap(), "data: [DONE]\n\n");
}

#[test]
fn an_engine_that_gives_up_in_words_is_like_one_that_died() {
    for end in [
        "data: {\"error\":{\"message\":\"engine dead\"}}\n\ndata: [DONE]\n\n".to_owned(),
        first(&["x"])
            .split_off(first(&[]).len())
            .replace("\"finish_reason\":null", "\"finish_reason\":\"abort\""),
    ] {
        let mut weave = Weave::new(chat(r#","max_tokens":9"#), LIMIT);
        let seen = feed(&mut weave, &(first(&["a"]) + &end), 10_000);
        assert!(weave.failed() && !seen.contains("[DONE]") && !seen.contains("abort"), "{seen}");
        let body = String::from_utf8(weave.continuation(None).unwrap()).unwrap();
        assert!(body.ends_with("\"prompt\":[1,2,3,10]}"), "{body}");
    }
}

#[test]
fn what_cannot_be_continued_exactly_is_not() {
    let reasoning = first(&["a"]).replace("\"delta\":{\"content\":\"a\"}", "\"delta\":{\"reasoning\":\"a\"}");
    let no_ids =
        first(&["a"]).replace(",\"token_ids\":[10]", "").replace(",\"prompt_token_ids\":[1,2,3]", "");
    let two = first(&["a"]).replace("\"token_ids\":[10]}", "\"token_ids\":[10]},{\"index\":1}");
    for text in [reasoning, no_ids, two] {
        let mut weave = Weave::new(chat(r#","max_tokens":9"#), LIMIT);
        feed(&mut weave, &text, 10_000);
        assert_eq!(weave.continuation(None), None, "{text}");
        assert_eq!(weave.closing(), None);
    }
}

#[test]
fn memory_is_bounded_and_the_stream_goes_on_without_it() {
    let mut weave = Weave::new(chat(r#","max_tokens":100000"#), 4096);
    let tokens: Vec<String> = (0..5000).map(|n| format!("t{n} ")).collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let seen = feed(&mut weave, &first(&tokens), 1000);
    assert!(weave.bytes() < 8192, "{}", weave.bytes());
    assert!(seen.contains("t4999 ") && !seen.contains("token_ids\":["));
    assert_eq!(weave.continuation(None), None);
    let mut weave = Weave::new(chat(r#","max_tokens":9"#), 4096);
    let long = "x".repeat(100_000);
    let seen = feed(&mut weave, &long, 1000).len();
    assert!(seen > 50_000 && weave.bytes() < 40_000, "an event without an end passes");
    assert_eq!(seen + weave.finish().map_or(0, |rest| rest.len()), long.len());
}

#[test]
fn completions_stay_completions_and_ids_go_to_those_who_want_them() {
    let body = r#"{"model":"m","prompt":"x","max_tokens":5,"stream":true,"return_token_ids":true}"#;
    let mut weave = Weave::new(recipe(Shape::Completions, body), LIMIT);
    let text = "data: {\"id\":\"cmpl-A\",\"object\":\"text_completion\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"text\":\"a\",\"logprobs\":null,\"finish_reason\":null,\"prompt_token_ids\":[1,2],\"token_ids\":[7]}]}\n\n";
    assert_eq!(feed(&mut weave, text, 10_000), text, "what was asked for stays");
    assert!(weave.continuation(None).is_some_and(|b| b.ends_with(b"\"max_tokens\":4,\"prompt\":[1,2,7]}")));
    weave.resume();
    let seen = feed(&mut weave, &next(&["c"], (3, 1)), 10_000);
    assert!(seen.starts_with("data: {\"id\":\"cmpl-A\",\"object\":\"text_completion\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"text\":\"c\","), "{seen}");
    assert!(seen.contains("\"token_ids\":[100]") && !seen.contains("prompt_token_ids"), "{seen}");
}
