//! The ids are the library's, for every kind of tokenizer and any text, remembered or not.

use super::super::testing::{CORPUS, PATTERN, byte_level, control, with};
use super::*;
use proptest::prelude::*;
use serde_json::json;
use std::sync::LazyLock;

fn controls() -> Vec<AddedToken> {
    vec![
        control("<|im_start|>"),
        control("<|im_end|>"),
        control("<|im_end|>\n\n"),
        control("<think>"),
        control("[INST]"),
        control(" <pad>").lstrip(true),
        control("<mask>").lstrip(true).rstrip(true),
        control("<r>").rstrip(true),
        AddedToken::from("Normal", false),
        AddedToken::from("loose thing", false).lstrip(true),
    ]
}

/// Llama 2 and its like: no byte-level alphabet, spaces as `▁`.
fn metaspace(scheme: &str, split: bool) -> Tokenizer {
    let base = byte_level(500, &[]);
    let mut file: serde_json::Value = serde_json::from_str(&base.to_string(false).unwrap()).unwrap();
    let mut vocab = serde_json::Map::new();
    let mut next = 0;
    let mut add = |token: String| {
        let id = next;
        vocab.entry(token).or_insert_with(|| {
            next += 1;
            json!(id)
        });
    };
    add("<unk>".into());
    (0..=255u8).for_each(|b| add(format!("<0x{b:02X}>")));
    CORPUS.iter().flat_map(|c| c.chars()).for_each(|c| add(c.to_string().replace(' ', "▁")));
    add("▁".into());
    let merges = [
        ("t", "h"),
        ("th", "e"),
        ("▁", "the"),
        ("▁", "t"),
        ("i", "n"),
        ("a", "n"),
        ("▁", "▁"),
        ("▁▁", "▁▁"),
        ("o", "u"),
    ];
    merges.iter().for_each(|(a, b)| add(format!("{a}{b}")));
    file["model"] = json!({
        "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
        "vocab": vocab, "merges": merges.map(|(a, b)| json!([a, b])),
    });
    file["pre_tokenizer"] =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split});
    file["decoder"] = json!(null);
    let mut tokenizer = Tokenizer::from_bytes(file.to_string()).unwrap();
    tokenizer.add_tokens(controls()).unwrap();
    tokenizer
}

static KINDS: LazyLock<Vec<(&'static str, Tokenizer, Encoder)>> = LazyLock::new(|| {
    let plain = byte_level(700, &controls());
    let split = |behavior: &str| {
        json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": behavior, "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ]})
    };
    let prepend = json!({"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]});
    let lower = json!({"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]});
    let template = json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<think>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                   {"SpecialToken": {"id": "[INST]", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<think>": {"id": "<think>", "ids": [7, 8], "tokens": ["a", "b"]},
                           "[INST]": {"id": "[INST]", "ids": [9], "tokens": ["c"]}}});
    let truncated = json!({"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0});
    let padded = json!({"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "!"});
    let mut whole_words = controls();
    whole_words.push(control("the").single_word(true));
    let mut ignoring: serde_json::Value = serde_json::from_str(&plain.to_string(false).unwrap()).unwrap();
    ignoring["model"]["ignore_merges"] = json!(true);
    let kinds = vec![
        ("byte-level", plain.clone()),
        (
            "byte-level with a prefix space",
            with(
                &plain,
                &[(
                    "pre_tokenizer",
                    json!({"type": "ByteLevel",
            "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
                )],
            ),
        ),
        (
            "llama 3",
            with(
                &plain,
                &[
                    ("pre_tokenizer", split("Isolated")),
                    ("model", ignoring["model"].clone()),
                    ("post_processor", template),
                ],
            ),
        ),
        (
            "qwen",
            with(&plain, &[("pre_tokenizer", split("Isolated")), ("normalizer", json!({"type": "NFC"}))]),
        ),
        ("lower case", with(&plain, &[("normalizer", lower)])),
        ("whole words", byte_level(400, &whole_words)),
        ("truncated and padded", with(&plain, &[("truncation", truncated), ("padding", padded)])),
        ("metaspace first", metaspace("first", true)),
        ("metaspace first unsplit", metaspace("first", false)),
        ("metaspace always", metaspace("always", true)),
        ("metaspace never", metaspace("never", false)),
        (
            "llama 2",
            with(&metaspace("never", false), &[("pre_tokenizer", json!(null)), ("normalizer", prepend)]),
        ),
        (
            "metaspace in a sequence",
            with(
                &metaspace("first", true),
                &[(
                    "pre_tokenizer",
                    json!({"type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": true},
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true}]}),
                )],
            ),
        ),
    ];
    kinds.into_iter().map(|(name, t)| (name, t.clone(), Encoder::of(t, 1 << 20).unwrap())).collect()
});

/// The library's ids, as engines get them.
fn reference(tokenizer: &Tokenizer, text: &str, special: bool) -> Vec<u32> {
    let mut tokenizer = tokenizer.clone();
    tokenizer.with_truncation(None).unwrap();
    tokenizer.with_padding(None);
    tokenizer.encode(text, special).unwrap().get_ids().to_vec()
}

fn compare(text: &str) {
    for (name, tokenizer, encoder) in KINDS.iter() {
        for special in [false, true] {
            let want = reference(tokenizer, text, special);
            for round in ["cold", "warm"] {
                assert_eq!(encoder.encode(text, special).unwrap(), want, "{name}, {round}: {text:?}");
            }
        }
    }
}

#[test]
fn the_corners_are_the_librarys() {
    for text in [
        "",
        " ",
        "<|im_start|>",
        "<|im_start|> <|im_end|>",
        "a<|im_end|>\n\nb<|im_end|>\nc",
        " <pad>  <pad>x",
        "a  <mask>  b <mask><mask> ",
        "<r> the <r>\n\n<mask>",
        "the them the, (the) the",
        "Normal normal NORMAL",
        "x  loose thing y",
        "<|im_start|>user\nthe<|im_end|>",
        "the",
        " the",
        "▁the",
        "a\u{a0}<mask>\u{3000}b",
        "1234567 12",
        "\r\n\r\n  \n x",
        "<think> <think>",
        "<|im_<|im_start|>",
        "[INST] hi [INST]",
    ] {
        compare(text);
    }
    for text in CORPUS {
        compare(text);
    }
}

fn texts() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => (0..CORPUS.len(), any::<prop::sample::Index>(), 1..24usize).prop_map(|(c, at, n)| {
            let chars: Vec<char> = CORPUS[c].chars().collect();
            let from = at.index(chars.len());
            chars[from..(from + n).min(chars.len())].iter().collect()
        }),
        3 => prop::sample::select(vec!["<|im_start|>", "<|im_end|>", "<think>", "[INST]", " <pad>", "<mask>", "<r>",
            "Normal", "loose thing", "the", "<|im_end|>\n\n"]).prop_map(str::to_owned),
        1 => prop::sample::select(vec![" ", "  ", "\n", "\n\n", "\t", "\r\n", "\u{a0}", "▁"]).prop_map(str::to_owned),
        1 => "\\PC{0,6}",
    ];
    prop::collection::vec(piece, 0..14).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn segments_put_together_are_the_whole_texts_ids(text in texts()) {
        compare(&text);
    }
}

#[test]
fn the_next_turn_costs_only_its_new_segments() {
    let (_, tokenizer, _) = &KINDS[0];
    let encoder = Encoder::of(tokenizer.clone(), 1 << 20).unwrap();
    let turn = |n: usize| format!("<|im_start|>user\nquestion {n} of the thing<|im_end|>");
    let mut text = String::new();
    for n in 0..50 {
        text += &turn(n);
        encoder.encode(&text, false).unwrap();
    }
    let before = encoder.bytes();
    encoder.encode(&text, false).unwrap();
    assert_eq!(encoder.bytes(), before, "nothing new, nothing remembered");
    text += &turn(50);
    encoder.encode(&text, false).unwrap();
    assert!(encoder.bytes() - before < 250, "one segment more");
}
