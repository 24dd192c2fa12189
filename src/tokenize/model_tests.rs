//! Whole models: a folder with a tokenizer and a template in the style of each family, a body in, ids and text out.

use super::super::testing::model_folder;
use super::*;
use serde_json::{Value, json};

fn model(name: &str, template: &str) -> Model {
    let controls = ["<|im_start|>", "<|im_end|>", "<s>", "</s>", "<think>", "</think>"];
    let more = json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}});
    let folder = model_folder(name, &controls, template, more);
    let model = Model::load(&Source { path: folder.clone(), template: None, cache_bytes: 1 << 20 });
    std::fs::remove_dir_all(folder).unwrap();
    model.unwrap()
}

fn text(model: &Model, body: &Value) -> Result<String, Unrendered> {
    model.text(body.to_string().as_bytes())
}

const FAMILIES: [(&str, &str); 7] = [
    ("llama3", include_str!("../../tests/fixtures/templates/llama3.jinja")),
    ("qwen2_5", include_str!("../../tests/fixtures/templates/qwen2_5.jinja")),
    ("qwen3", include_str!("../../tests/fixtures/templates/qwen3.jinja")),
    ("mistral", include_str!("../../tests/fixtures/templates/mistral.jinja")),
    ("deepseek_r1", include_str!("../../tests/fixtures/templates/deepseek_r1.jinja")),
    ("gemma", include_str!("../../tests/fixtures/templates/gemma.jinja")),
    ("phi4", include_str!("../../tests/fixtures/templates/phi4.jinja")),
];

fn family(name: &str) -> Model {
    let (name, template) = FAMILIES.into_iter().find(|(n, _)| *n == name).unwrap();
    model(name, template)
}

#[test]
fn every_family_renders_a_plain_conversation() {
    let body = json!({"messages": [
        {"role": "user", "content": " hi "},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]});
    let llama = "<s><|start_header_id|>system<|end_header_id|>\n\nKnowledge ends in December 2023\nToday is 26 Jul 2024\n\n\
        <|eot_id|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n\
        yes<|eot_id|><|start_header_id|>user<|end_header_id|>\n\na\nb<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n";
    let turns = "<|im_start|>user\n hi <|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n";
    for (name, want) in [
        ("llama3", llama),
        ("qwen2_5", &format!("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{turns}")),
        ("qwen3", turns),
        ("mistral", "<s>[INST]  hi [/INST] yes</s>[INST] a\nb[/INST]"),
        ("deepseek_r1", "<s><|User|> hi <|Assistant|>yes<|end|><|User|>a\nb<|Assistant|><think>\n"),
        (
            "gemma",
            "<s><start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\nyes<end_of_turn>\n<start_of_turn>user\nab<end_of_turn>\n<start_of_turn>model\n",
        ),
        ("phi4", "<|user|> hi <|end|>\n<|assistant|>yes<|end|>\n<|user|>a\nb<|end|>\n<|assistant|>\n"),
    ] {
        assert_eq!(text(&family(name), &body).unwrap(), want, "{name}");
    }
}

#[test]
fn templates_that_rewrite_old_turns_are_followed() {
    let qwen = family("qwen3");
    let mut messages = json!([
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "<think>\nlong\n</think>\n\nanswer"},
    ]);
    let first = text(&qwen, &json!({"messages": messages, "add_generation_prompt": false})).unwrap();
    assert!(first.contains("<think>\nlong\n</think>\n\nanswer"), "{first}");
    messages.as_array_mut().unwrap().push(json!({"role": "user", "content": "two"}));
    let next =
        text(&qwen, &json!({"messages": messages, "chat_template_kwargs": {"enable_thinking": false}}))
            .unwrap();
    assert_eq!(
        next,
        "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\nanswer<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n\
        <|im_start|>assistant\n<think>\n\n</think>\n\n"
    );
}

#[test]
fn tools_and_calls_are_as_the_engine_shows_them() {
    let call = |arguments: &str| json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}});
    let body = json!({"messages": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": null, "tool_calls": [call("{\"z\":1,\"a\":\"ü\"}"), call("[]")]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "r"}]},
    ]});
    // Written by hand, because the order of keys is what it is about.
    let tool = r#"{"function": {"parameters": {"type": "object", "b": 1.0, "a": []}, "name": "f"}, "type": "function"}"#;
    let whole = body.to_string().replacen('{', &format!("{{\"tools\": [{tool}], "), 1);
    let got = family("qwen2_5").text(whole.as_bytes()).unwrap();
    for part in [
        "\n{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": null, \"parameters\": {\"type\": \"object\", \"b\": 1.0, \"a\": []}}}\n",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"z\": 1, \"a\": \"ü\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call><|im_end|>",
        "<|im_start|>user\n<tool_response>\nr\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
    ] {
        assert!(got.contains(part), "{part}\nnot in\n{got}");
    }
    let mistral = text(&family("mistral"), &body).unwrap();
    let shown = "[TOOL_CALLS] [{\"arguments\": {\"z\": 1, \"a\": \"ü\"}, \"name\": \"f\", \"id\": \"c\"}, ";
    assert!(mistral.contains(shown), "{mistral}");
    let error = text(&family("llama3"), &body).unwrap_err();
    assert!(error.to_string().contains("Only one call at a time"), "{error}");
}

#[test]
fn a_final_message_is_continued_where_it_ends() {
    let body = |content: &str| {
        json!({"continue_final_message": true, "add_generation_prompt": false,
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": content}]})
    };
    assert!(text(&family("qwen3"), &body("part ")).unwrap().ends_with("\npart "), "the end is kept");
    assert!(text(&family("gemma"), &body("part ")).unwrap().ends_with("model\npart"), "it trims");
    let trimming = model("trimming", "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}");
    assert_eq!(text(&trimming, &body("part ")).unwrap(), "[q][part");
}

#[test]
fn what_cannot_be_told_here_is_refused_with_its_reason() {
    let qwen = family("qwen3");
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    let image = json!([{"type": "image_url", "image_url": {"url": "http://x"}}]);
    for (body, label) in [
        (json!({"messages": user(image)}), "media"),
        (json!({"messages": user(json!("x")), "chat_template": "{{ 1 }}"}), "key"),
        (json!({"messages": user(json!("x")), "truncate_prompt_tokens": 5}), "key"),
        (json!({"messages": 1}), "body"),
        (json!({"prompt": "x"}), "body"),
        (json!([1]), "body"),
    ] {
        assert_eq!(qwen.ids(Kind::Chat, body.to_string().as_bytes()).unwrap_err().label(), label, "{body}");
    }
    let none = model("none", "");
    assert_eq!(none.ids(Kind::Chat, json!({"messages": []}).to_string().as_bytes()).unwrap(), [0u32; 0]);
}

#[test]
fn completions_are_texts_or_ids_and_the_first_of_several() {
    let m = family("qwen3");
    let ids = |prompt: Value| m.ids(Kind::Completion, json!({"prompt": prompt}).to_string().as_bytes());
    assert_eq!(ids(json!([3, 4])).unwrap(), [3, 4]);
    assert_eq!(ids(json!([[5], [6]])).unwrap(), [5]);
    assert_eq!(ids(json!("the thing")).unwrap(), ids(json!(["the thing", "x"])).unwrap());
    assert_eq!(ids(json!({})).unwrap_err().label(), "body");
}

#[test]
fn developers_become_the_system_where_the_template_knows_none() {
    let body = json!({"messages": [
        {"role": "user", "content": "u"},
        {"role": "developer", "content": "d", "tools": []},
        {"role": "system", "content": "s"},
    ]});
    let got = text(&family("qwen3"), &body).unwrap();
    assert!(got.starts_with("<|im_start|>system\nd\n\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>"), "{got}");
}
