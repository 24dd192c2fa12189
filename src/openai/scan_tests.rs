//! The scan against bodies of all shapes, and against `serde_json`.

use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

/// Writes down what it gets; runs of text are joined.
#[derive(Default, PartialEq, Debug)]
struct Record(Vec<String>);

impl Sink for Record {
    fn part(&mut self, part: Part<'_>) {
        let s = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        self.0.push(match part {
            Part::Role(r) => format!("<{}>", s(r)),
            Part::Name(n) => format!("<name {}>", s(n)),
            Part::ToolCall(n) => format!("<call {}>", s(n)),
            Part::Media(m, h) => format!("<{m:?} {h:032x}>"),
            other => format!("<{other:?}>"),
        });
        self.0.push(String::new());
    }

    fn text(&mut self, run: &[u8]) {
        assert!(!run.is_empty());
        self.0.last_mut().expect("a part comes before its text").push_str(&String::from_utf8_lossy(run));
    }
}

fn prompt(shape: Shape, body: &str) -> String {
    let mut r = Record::default();
    let s = scan(shape, body.as_bytes(), &mut r, &mut Scratch::default()).unwrap();
    let texts: usize = r.0.iter().skip(1).step_by(2).map(String::len).sum();
    assert_eq!(s.text_bytes, texts as u64);
    r.0.concat()
}

fn params(shape: Shape, body: &str) -> Scan<'_> {
    scan(shape, body.as_bytes(), &mut Ignore, &mut Scratch::default()).unwrap()
}

#[test]
fn chat_in_template_order() {
    let body = r#"{"messages":[
        {"content":"be\nkind","role":"system"},
        {"role":"user","content":[{"type":"text","text":"look"},{"image_url":{"detail":"low","url":"http:\/\/a/b"},"type":"image_url"}]},
        {"role":"assistant","tool_calls":[{"id":"c1","type":"function","function":{"arguments":"{\"q\": 1}","name":"find"}}],"content":null,"reasoning_content":"hm"},
        {"role":"tool","tool_call_id":"c1","content":"found"},
        {"role":"user","name":"ann","content":"thanks"}],
        "tools":[ {"type": "function", "function": {"name": "find"}} ],"model":"m"}"#;
    let image = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(b"http://a/b"));
    assert_eq!(
        prompt(Shape::Chat, body),
        format!(
            "<Tools>[{{\"type\":\"function\",\"function\":{{\"name\":\"find\"}}}}]<system><Text>be\nkind<user><Text>look\
             <Image {image}><assistant><Reasoning>hm<call find>{{\"q\": 1}}<tool><Text>found<user><name ann><Text>thanks"
        )
    );
}

#[test]
fn responses_items() {
    let body = r#"{"input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]},
        {"type":"reasoning","summary":[{"type":"summary_text","text":"s"}],"content":[{"type":"reasoning_text","text":"r"}]},
        {"type":"function_call","call_id":"x","name":"f","arguments":"{}"},
        {"output":"42","type":"function_call_output","call_id":"x"},
        {"type":"message","role":"assistant","content":[{"type":"output_text","text":"yo","annotations":[]}]},
        {"type":"item_reference", "id":"i"}],
        "instructions":"be kind"}"#;
    assert_eq!(
        prompt(Shape::Responses, body),
        "<system><Text>be kind<user><Text>hi<assistant><Reasoning><Text>s<Reasoning>r<assistant><call f>{}<tool><Text>42\
         <assistant><Text>yo<Other>{\"type\":\"item_reference\",\"id\":\"i\"}"
    );
    assert_eq!(prompt(Shape::Responses, r#"{"input":"hi"}"#), "<user><Text>hi");
}

#[test]
fn anthropic_blocks() {
    let body = r#"{"max_tokens":5,"messages":[{"role":"user","content":"a"},
        {"role":"assistant","content":[{"type":"thinking","thinking":"t"},{"type":"tool_use","id":"1","name":"f","input":{"x": [1, 2]}}]},
        {"role":"user","content":[{"content":[{"type":"text","text":"r"}],"tool_use_id":"1","type":"tool_result"},
          {"type":"text","text":"go","cache_control":{"type":"ephemeral"}}]}],
        "system":[{"type":"text","text":"sys"}],"metadata":{"user_id":"u"},"stop_sequences":["x"]}"#;
    assert_eq!(
        prompt(Shape::Messages, body),
        "<system><Text>sys<user><Text>a<assistant><Reasoning>t<call f>{\"x\":[1,2]}<user><ToolResult><Text>r<Text>go"
    );
    let s = params(Shape::Messages, body);
    assert_eq!((s.max_tokens, s.user.as_deref()), (Some(5), Some("u")));
    assert!(s.features.has(Features::STOP));
}

#[test]
fn completions_prompts() {
    assert_eq!(prompt(Shape::Completions, r#"{"prompt":"a\u0062"}"#), "<Text>ab");
    assert_eq!(prompt(Shape::Completions, r#"{"prompt":["x","y"]}"#), "<Text>x");
    assert_eq!(params(Shape::Completions, r#"{"prompt":["x","y"]}"#).prompts, 2);
    let ids = params(Shape::Completions, r#"{"prompt":[1,2,3]}"#);
    assert_eq!((ids.prompt_token_ids, ids.prompts, ids.text_bytes), (Some(3), 1, 12));
    let two = params(Shape::Completions, r#"{"prompt":[[7,8],[9]]}"#);
    assert_eq!((two.prompt_token_ids, two.prompts), (Some(2), 2));
    assert_eq!(
        prompt(Shape::Completions, r#"{"prompt":[[1, 2],[9]]}"#),
        prompt(Shape::Completions, r#"{"prompt":[1,2]}"#)
    );
    assert_eq!(prompt(Shape::Completions, r#"{"prompt":[]}"#), "");
}

#[test]
fn parameters() {
    let s = params(
        Shape::Chat,
        r#"{"model":"a\/b","max_tokens":10,"max_completion_tokens":7,"n":3,"stream":true,"cache_salt":"s",
        "user":"u","metadata":{"session_id":"z"},"prompt_cache_key":"k","seed":123456789012345678901234567890,
        "logprobs":false,"presence_penalty":0.0,"response_format":{"type":"json_object"},"tools":[ ],"stop":null,
        "stream_options":{"include_usage":true}}"#,
    );
    assert_eq!(s.model.as_deref(), Some("a/b"));
    assert_eq!((s.max_tokens, s.n, s.stream, s.include_usage), (Some(7), 3, true, true));
    assert_eq!(
        (s.user.as_deref(), s.session.as_deref(), s.cache_salt.as_deref()),
        (Some("u"), Some("z"), Some("s"))
    );
    assert!(s.features.has(Features::SEED) && s.features.has(Features::STRUCTURED));
    for f in [Features::TOOLS, Features::LOGPROBS, Features::PENALTIES, Features::STOP] {
        assert!(!s.features.has(f));
    }
    assert!(params(Shape::Chat, r#"{"functions":[{"name":"f"}]}"#).features.has(Features::TOOLS));
    let s = params(
        Shape::Responses,
        r#"{"conversation":{"id":"c"},"previous_response_id":"resp_1","max_output_tokens":9}"#,
    );
    assert_eq!((s.session.as_deref(), s.previous_response_id.as_deref()), (Some("c"), Some("resp_1")));
    assert_eq!(s.max_tokens, Some(9));
}

#[test]
fn what_the_replica_decides_passes() {
    let s = params(
        Shape::Chat,
        r#"{"model":5,"max_tokens":1.5,"n":null,"stream":"yes","temperature":1e400,"seed":-99999999999999999999999,
        "messages":[{"role":"user","content":null},{"role":5,"content":7},null,3,{}],"tools":"none","stop":{}}"#,
    );
    assert_eq!((s.model, s.max_tokens, s.n, s.stream), (None, None, 1, false));
    assert_eq!(params(Shape::Chat, r#"{"max_tokens":99999999999}"#).max_tokens, Some(u32::MAX));
    for odd in [
        r#"{"messages":null}"#,
        r#"{"messages":"x"}"#,
        r#"{"messages":[["a"]]}"#,
        r#"{"messages":[{"content":[1,[2]]}]}"#,
    ] {
        params(Shape::Chat, odd);
    }
}

#[test]
fn of_duplicated_keys_the_last_counts() {
    assert_eq!(
        prompt(
            Shape::Chat,
            r#"{"messages":[{"role":"x","content":"old"}],"messages":[{"role":"a","content":["q"],"role":"b",
            "tool_calls":[{"function":{"name":"g"},"function":{"name":"f","name":"h"}}],"content":"new"}],"model":"a","model":"b"}"#
        ),
        "<b><Text>new<call h>"
    );
    let s = params(
        Shape::Chat,
        r#"{"model":"a","model":"b","stream":true,"stream":false,"max_tokens":1,"max_tokens":null}"#,
    );
    assert_eq!((s.model.as_deref(), s.stream, s.max_tokens), (Some("b"), false, None));
    assert_eq!(prompt(Shape::Chat, r#"{"messages":[{"role":"x","content":"old"}],"messages":null}"#), "");
}

#[test]
fn escaped_keys_are_the_same_keys() {
    let plain = r#"{"model":"m","messages":[{"role":"user","content":"é😀"}]}"#;
    let escaped = r#"{"mod\u0065l":"\u006d","mess\u0061ges":[{"r\u006fle":"us\u0065r","content":"\u00e9\ud83d\ude00"}]}"#;
    assert_eq!(prompt(Shape::Chat, plain), prompt(Shape::Chat, escaped));
    assert_eq!(params(Shape::Chat, escaped).model.as_deref(), Some("m"));
}

#[test]
fn a_longer_conversation_begins_like_the_shorter() {
    let one = prompt(
        Shape::Chat,
        r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"}]}"#,
    );
    let two = prompt(
        Shape::Chat,
        r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#,
    );
    assert!(two.starts_with(&one));
}

#[test]
fn big_images_are_one_part_and_no_text() {
    let data = "iVBORw0KGgo/".repeat(700_000);
    let with = |url: &str| {
        format!(
            r#"{{"messages":[{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"{url}"}}}}]}}]}}"#
        )
    };
    let plain = with(&format!("data:image/png;base64,{data}"));
    let escaped = with(&format!("data:image\\/png;base64,{}", data.replace('/', "\\/")));
    let other = with(&format!("data:image/png;base64,{data}A"));
    assert_eq!(prompt(Shape::Chat, &plain), prompt(Shape::Chat, &escaped));
    assert_ne!(prompt(Shape::Chat, &plain), prompt(Shape::Chat, &other));
    let s = params(Shape::Chat, &plain);
    assert_eq!((s.text_bytes, s.media), (0, 1));
}

#[test]
fn bad_bodies_say_where() {
    let bad = |body: &str| {
        let mut r = Record::default();
        let e = scan(Shape::Chat, body.as_bytes(), &mut r, &mut Scratch::default()).unwrap_err();
        assert_eq!(r, Record::default());
        (e.line, e.column)
    };
    assert_eq!(bad(""), (1, 1));
    assert_eq!(bad("[1]"), (1, 1));
    assert_eq!(bad("{\"messages\":[{\"role\":\"user\",\n \"content\":\"abc]}"), (2, 12));
    assert_eq!(bad("{\"a\":1}}"), (1, 8));
    assert_eq!(bad(&format!("{{\"messages\":{}", "[{\"content\":".repeat(100_000))).0, 1);
}

#[test]
fn hostile_repetition_stays_linear_and_bounded() {
    let mut scratch = Scratch::default();
    let mut body =
        format!("{{\"messages\":[{{\"tool_calls\":[{}0],", r#"{"function":{"name":"f"}},"#.repeat(50_000));
    body.push_str(&"\"content\":\"x\",".repeat(50_000));
    body.push_str("\"role\":\"a\"}");
    body.push_str(&",{}".repeat(1_500_000));
    body.push_str("]}");
    let start = std::time::Instant::now();
    let s = scan(Shape::Chat, body.as_bytes(), &mut Ignore, &mut scratch).unwrap();
    assert!(s.text_bytes == 1 && start.elapsed().as_secs() < 5);
}

/// A JSON text of `v` with the keys of all objects in an order that `seed` chooses, white space and escapes at random.
fn spell(v: &Value, seed: &mut u64, out: &mut String) {
    let mut roll = |n: u64| {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 33) % n
    };
    let mut string = |s: &str, out: &mut String| {
        out.push('"');
        for c in s.chars() {
            if roll(4) == 0 || matches!(c, '"' | '\\') || c < ' ' {
                for u in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{u:04x}"));
                }
            } else {
                out.push(c);
            }
        }
        out.push('"');
    };
    match v {
        Value::String(s) => string(s, out),
        Value::Array(a) => {
            out.push('[');
            for (i, v) in a.iter().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                spell(v, seed, out);
            }
            out.push_str(" ]");
        }
        Value::Object(o) => {
            out.push_str("{ ");
            let mut keys: Vec<_> = o.iter().collect();
            let turn = roll(keys.len().max(1) as u64) as usize;
            keys.rotate_left(turn);
            for (i, (k, v)) in keys.into_iter().enumerate() {
                out.push_str(if i > 0 { " ,\n" } else { "" });
                out.push_str(&serde_json::to_string(k).unwrap());
                out.push_str(": ");
                spell(v, seed, out);
            }
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
}

fn chat_body() -> impl Strategy<Value = Value> {
    let text = "[a-z\"\\\\\n é😀]{0,12}";
    let message =
        (prop::sample::select(vec!["system", "user", "assistant"]), text, any::<bool>(), any::<bool>())
            .prop_map(|(role, text, parts, call)| {
                let content = if parts { json!([{"type": "text", "text": text}]) } else { json!(text) };
                let mut m = json!({"role": role, "content": content});
                if call {
                    m["tool_calls"] = json!([{"id": "i", "function": {"name": "f", "arguments": text}}]);
                }
                m
            });
    (prop::collection::vec(message, 0..5), text, any::<bool>(), any::<u32>(), any::<i64>()).prop_map(
        |(messages, model, stream, max, seed)| {
            json!({"messages": messages, "model": model, "stream": stream, "max_tokens": max, "seed": seed,
                   "extra": {"messages": [1, {"model": null}]}})
        },
    )
}

proptest! {
    #[test]
    fn spelling_and_key_order_mean_nothing(v in chat_body(), seed in any::<u64>()) {
        let plain = v.to_string();
        let mut other = String::new();
        spell(&v, &mut seed.clone(), &mut other);
        prop_assert_eq!(&serde_json::from_str::<Value>(&other).unwrap(), &v);
        prop_assert_eq!(prompt(Shape::Chat, &plain), prompt(Shape::Chat, &other));
        let s = params(Shape::Chat, &other);
        prop_assert_eq!(s.model.as_deref(), v["model"].as_str());
        prop_assert_eq!(Some(s.stream), v["stream"].as_bool());
        prop_assert_eq!(s.max_tokens.map(u64::from), v["max_tokens"].as_u64());
        let said: String = v["messages"].as_array().unwrap().iter().flat_map(|m| {
            let text = m["content"].as_str().or(m["content"][0]["text"].as_str()).unwrap();
            [text, m["tool_calls"][0]["function"]["arguments"].as_str().unwrap_or("")]
        }).collect();
        let mut r = Record::default();
        scan(Shape::Chat, other.as_bytes(), &mut r, &mut Scratch::default()).unwrap();
        prop_assert_eq!(r.0.iter().skip(1).step_by(2).map(String::as_str).collect::<String>(), said);
    }

    #[test]
    fn valid_iff_serde_json_says_so(v in chat_body(), cut in any::<prop::sample::Index>(), put in "[\\[\\]{},:\"\\\\0-9a-z. -]{0,3}") {
        let mut body = v.to_string();
        let at = (0..=cut.index(body.len())).rev().find(|&i| body.is_char_boundary(i)).unwrap();
        let end = (at + 2..body.len()).find(|&i| body.is_char_boundary(i)).unwrap_or(body.len());
        body.replace_range(at.min(end)..end, &put);
        let ours = scan(Shape::Chat, body.as_bytes(), &mut Ignore, &mut Scratch::default()).is_ok();
        // Into a type that keeps nothing: numbers out of range are the replica's business.
        let theirs = serde_json::from_str::<std::collections::HashMap<String, serde::de::IgnoredAny>>(&body);
        match theirs {
            Ok(_) => prop_assert!(ours, "{}", body),
            Err(e) if e.to_string().contains("surrogate") => {}
            Err(e) => prop_assert!(!ours, "{}: {}", body, e),
        }
    }

    #[test]
    fn nothing_panics(body in prop::collection::vec(prop::sample::select(&b"{}[]\",:\\u0n1te.- \xff\n"[..]), 0..60), which in 0..4usize) {
        let shape = [Shape::Chat, Shape::Completions, Shape::Responses, Shape::Messages][which];
        let _ = scan(shape, &body, &mut Ignore, &mut Scratch::default());
        let key = ["messages", "prompt", "input", "system"][which];
        let mut keyed = format!("{{\"{key}\":").into_bytes();
        keyed.extend(body);
        keyed.push(b'}');
        let _ = scan(shape, &keyed, &mut Ignore, &mut Scratch::default());
    }
}
