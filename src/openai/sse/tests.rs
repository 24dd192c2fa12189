//! Transcripts of streams, cut at every byte.

use super::super::Usage;
use super::*;
use bytes::Bytes;
use proptest::prelude::*;

const CHAT: &str = concat!(
    ": hello\n\n",
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n",
    "data: {\"id\":\"c\",\"choices\":[{\"delta\":{\"content\":\"say \\\"usage\\\":{\\\"prompt_tokens\\\":1}, [DONE]\\\\\"}}],\"usage\":null}\n\n",
    "event: odd\nid: 7\ndata: {\"id\":\"c\",\"choices\":[{\"delta\":{\"reasoning_content\":\"é\"},\"finish_reason\":\"stop\"}]}\n\n",
    "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\n",
    "data: [DONE]\n\n",
);

const RESPONSES: &str = concat!(
    "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\",\"usage\":null,\"error\":null}}\n\n",
    "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"hi\"}\n\n",
    "event: response.completed\ndata: {\"response\":{\"id\":\"resp_1\",\"usage\":{\"input_tokens\":5,\"input_tokens_details\":{\"cached_tokens\":4},\"output_tokens\":1}},\"type\":\"response.completed\"}\n\n",
);

const ANTHROPIC: &str = concat!(
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg\",\"usage\":{\"input_tokens\":3,\"cache_read_input_tokens\":6,\"output_tokens\":1}}}\n\n",
    "event: ping\ndata: {\"type\": \"ping\"}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n",
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":9}}\n\n",
    "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
);

/// A usage event in several lines, among lines that have to stay; and one without its blank line.
const ODD: &str = concat!(
    "data: {\"choices\":[{\"text\":\"x\"}]}\n\n\n",
    ": keep\nid: 3\ndata: {\"choices\":[],\ndata: \"usage\":{\"prompt_tokens\":4,\ndata:\"completion_tokens\":1}}\nretry: 5\n\n",
    "data: {\"choices\":[],\"prompt_filter_results\":[]}\n\n",
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":2}}",
);

fn run(mode: FramerMode, chunks: &[&[u8]]) -> (Vec<u8>, Facts) {
    let mut framer = Framer::new(mode);
    let mut out = Vec::new();
    for c in chunks {
        for piece in framer.push(Bytes::copy_from_slice(c)) {
            assert!(!piece.is_empty() || c.is_empty());
            out.extend_from_slice(&piece);
        }
    }
    out.extend(framer.finish().unwrap_or_default());
    (out, framer.facts().clone())
}

const WATCH: FramerMode = FramerMode { strip_usage: false };
const STRIP: FramerMode = FramerMode { strip_usage: true };

fn line_ends(s: &str) -> [String; 3] {
    [s.to_owned(), s.replace('\n', "\r\n"), s.replace('\n', "\r")]
}

fn usage(prompt_tokens: u32, completion_tokens: u32, cached_tokens: Option<u32>) -> Option<Usage> {
    Some(Usage { prompt_tokens, completion_tokens, cached_tokens })
}

#[test]
fn any_split_gives_the_same_bytes_and_facts() {
    for text in [CHAT, RESPONSES, ANTHROPIC, ODD].iter().flat_map(|s| line_ends(s)) {
        let text = text.as_bytes();
        for mode in [WATCH, STRIP] {
            let whole = run(mode, &[text]);
            for i in 0..=text.len() {
                assert_eq!(run(mode, &[&text[..i], &text[i..]]), whole, "cut at {i}");
                let j = (i + 7).min(text.len());
                assert_eq!(run(mode, &[&text[..i], &text[i..j], &text[j..]]), whole, "cut at {i} and {j}");
            }
            let bytes: Vec<&[u8]> = text.chunks(1).collect();
            assert_eq!(run(mode, &bytes), whole);
        }
        assert_eq!(run(WATCH, &[text]).0, text);
    }
}

#[test]
fn only_injected_usage_is_taken_out() {
    for (text, gone) in line_ends(CHAT).iter().zip(line_ends(CHAT).map(|s| {
        let at = s.find("data: {\"id\":\"c\",\"choices\":[],").unwrap();
        let end = s.find("data: [DONE]").unwrap();
        format!("{}{}", &s[..at], &s[end..])
    })) {
        assert_eq!(String::from_utf8(run(STRIP, &[text.as_bytes()]).0).unwrap(), gone);
    }
    for s in [RESPONSES, ANTHROPIC] {
        assert_eq!(run(STRIP, &[s.as_bytes()]).0, s.as_bytes());
    }
    let kept = concat!(
        "data: {\"choices\":[{\"text\":\"x\"}]}\n\n\n",
        ": keep\nid: 3\nretry: 5\n\n",
        "data: {\"choices\":[],\"prompt_filter_results\":[]}\n\n",
    );
    for (text, kept) in line_ends(ODD).iter().zip(line_ends(kept)) {
        assert_eq!(String::from_utf8(run(STRIP, &[text.as_bytes()]).0).unwrap(), kept);
    }
}

#[test]
fn facts_of_each_dialect() {
    let f = run(WATCH, &[CHAT.as_bytes()]).1;
    assert_eq!((f.first_token, f.tokens, f.usage), (true, 2, usage(12, 2, Some(8))));
    assert!(f.finished && f.done && !f.error);
    let f = run(WATCH, &[RESPONSES.as_bytes()]).1;
    assert_eq!((f.first_token, f.tokens, f.usage), (true, 1, usage(5, 1, Some(4))));
    assert!(f.finished && f.done && !f.error);
    assert_eq!(f.response_id.as_deref(), Some("resp_1"));
    let f = run(WATCH, &[ANTHROPIC.as_bytes()]).1;
    assert_eq!((f.first_token, f.tokens, f.usage), (true, 1, usage(9, 9, Some(6))));
    assert!(f.finished && f.done && !f.error);
}

#[test]
fn what_is_a_first_token() {
    let is = |choice: &str| {
        run(WATCH, &[format!("data: {{\"choices\":[{choice}]}}\n\n").as_bytes()]).1.first_token
    };
    for yes in [
        r#"{"delta":{"content":" "}}"#,
        r#"{"delta":{"reasoning":"x"}}"#,
        r#"{"delta":{"tool_calls":[{"index":0}]}}"#,
        r#"{"text":"a"}"#,
        r#"{"delta":{},"index":0},{"delta":{"content":"b"},"index":1}"#,
    ] {
        assert!(is(yes), "{yes}");
    }
    for no in [
        r#"{"delta":{"role":"assistant","content":""}}"#,
        r#"{"delta":{"content":null,"tool_calls":[]}}"#,
        r#"{"delta":{"role":"text"},"finish_reason":"stop"}"#,
        r#"{"text":""}"#,
        "",
    ] {
        assert!(!is(no), "{no}");
    }
}

#[test]
fn errors_inside_a_stream() {
    for s in [
        "data: {\"error\":{\"message\":\"x\"}}\n\ndata: [DONE]\n\n",
        "event: error\ndata: {\"type\":\"error\",\"error\":{}}\n\n",
        "event: error\ndata: not json\n\n",
        "data: {\"type\":\"response.failed\",\"response\":{\"id\":\"r\"}}\n\n",
    ] {
        assert!(run(WATCH, &[s.as_bytes()]).1.error, "{s}");
    }
}

#[test]
fn whole_events_are_sent_at_once_and_not_copied() {
    let mut framer = Framer::new(STRIP);
    let chunk = Bytes::from("data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {");
    let out = framer.push(chunk.clone());
    assert_eq!(out.len(), 1);
    assert_eq!((out[0].as_ptr(), out[0].len()), (chunk.as_ptr(), chunk.len() - 7));
    let out = Framer::new(STRIP).push(chunk.slice(..chunk.len() - 7));
    assert_eq!((out.len(), out[0].as_ptr()), (1, chunk.as_ptr()));
    let out = Framer::new(WATCH).push(chunk.clone());
    assert_eq!((out.len(), out[0].as_ptr(), out[0].len()), (1, chunk.as_ptr(), chunk.len()));
}

#[test]
fn long_events_pass_in_constant_memory() {
    let text = "y\\\"".repeat(HOLD / 2);
    let events = [
        format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n"),
        format!(
            "data: {{\"choices\":[],\"pad\":\"{text}\",\"usage\":{{\"prompt_tokens\":7,\"completion_tokens\":3}}}}\n\n"
        ),
        format!(
            "event: response.completed\ndata: {{\"response\":{{\"id\":\"resp_2\",\"output\":\"{text}\",\
             \"usage\":{{\"input_tokens\":8,\"output_tokens\":4}}}},\"type\":\"response.completed\"}}\n\n"
        ),
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9}}\n\n".to_owned(),
    ];
    let kept = events[..3].concat();
    let all = events.concat();
    for size in [1, 13, 4096, HOLD, all.len()] {
        for mode in [WATCH, STRIP] {
            let mut framer = Framer::new(mode);
            let (mut out, mut delay) = (0, 0);
            for c in all.as_bytes().chunks(size) {
                delay += c.len();
                for piece in framer.push(Bytes::copy_from_slice(c)) {
                    out += piece.len();
                    delay -= piece.len();
                }
                assert!(delay <= HOLD + events[3].len());
            }
            assert_eq!(out, if mode == STRIP { kept.len() } else { all.len() });
            let f = framer.facts();
            assert!(f.first_token && f.done && !f.error);
            assert_eq!((f.tokens, f.response_id.as_deref()), (1, Some("resp_2")));
            assert_eq!(f.usage, usage(9, 4, None));
        }
    }
}

#[test]
fn a_whole_answer_is_read_at_its_ends() {
    let scan = |body: &str, size: usize| {
        let mut tail = TailScan::new();
        body.as_bytes().chunks(size).for_each(|c| tail.push(c));
        tail.finish()
    };
    let text = "say ,\\\"usage\\\":{\\\"prompt_tokens\\\":1} ".repeat(1000);
    let long = format!(
        "{{\"id\":\"resp_9\",\"error\":null,\"output\":[{{\"text\":\"{text}\"}}],\"usage\":{{\"input_tokens\":6,\"output_tokens\":2}},\"user\":null}}"
    );
    for size in [1, 100, 4095, 4096, 8193, long.len()] {
        let found = scan(&long, size);
        assert_eq!(found, Tail { usage: usage(6, 2, None), id: Some("resp_9".into()), error: false });
    }
    let far = format!("{{\"usage\":{{\"prompt_tokens\":6}},\"pad\":\"{}\"}}", "x".repeat(4 << 10));
    for size in [1, 100, 4096, far.len()] {
        assert_eq!(scan(&far, size).usage, None);
    }
    let short = "{\"usage\": {\"prompt_tokens\": 6}, \"id\": \"x\"}";
    assert_eq!(scan(short, 5), Tail { usage: usage(6, 0, None), id: Some("x".into()), error: false });
    assert!(scan("{\"error\":{\"message\":\"no\"}}", 100).error);
    assert_eq!(scan("not json", 3), Tail::default());
}

proptest! {
    #[test]
    fn arbitrary_bytes_pass_and_splits_agree(
        bytes in prop::collection::vec(prop::sample::select(&b"\r\n\n:da{}[]\"1 "[..]), 0..80),
        parts in prop::collection::vec(prop::sample::select(vec![
            "data:", "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}", "\n", "\r\n", "\r", "[DONE]", "event: x", ":c",
        ]), 0..20),
        at in any::<prop::sample::Index>(),
    ) {
        let mut text = parts.concat().into_bytes();
        text.extend(bytes);
        let cut = at.index(text.len() + 1);
        for mode in [WATCH, STRIP] {
            let whole = run(mode, &[&text]);
            prop_assert_eq!(&run(mode, &[&text[..cut], &text[cut..]]), &whole);
            prop_assert_eq!(&run(mode, &text.chunks(1).collect::<Vec<_>>()), &whole);
        }
        prop_assert_eq!(run(WATCH, &[&text]).0, text);
    }
}
