//! From a body to token ids: the next turn of a long conversation, and a cold prompt.
//!
//! Its own percentiles instead of a mean: what counts is how long one request waits. The tokenizer is trained on the
//! spot on made-up words: byte-level BPE, 32,000 tokens, with the splitting pattern that Llama 3 and Qwen use. The chat
//! template is of Qwen's style. Everything is timed from the bytes of the body on, by the clock: on a machine that is busy
//! with other things only the lower percentiles say something of the code.

#![expect(clippy::unwrap_used, reason = "a benchmark that can't set itself up has failed")]

use homing::tokenize::{Kind, Model, Source};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

#[global_allocator]
static ALLOC: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TEMPLATE: &str = "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}\
    {%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

const PATTERN: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Made-up words, a few of which make most of a text, as in real ones.
struct Words {
    rng: fastrand::Rng,
    list: Vec<String>,
}

impl Words {
    fn new() -> Self {
        let mut rng = fastrand::Rng::with_seed(1);
        let parts = [
            "an", "tor", "ing", "re", "s", "ma", "ple", "con", "ti", "o", "qu", "ed", "er", "li", "ven", "ü",
        ];
        let list = (0..40_000)
            .map(|_| (0..rng.usize(1..5)).map(|_| parts[rng.usize(..parts.len())]).collect::<String>())
            .collect();
        Words { rng, list }
    }

    fn text(&mut self, words: usize) -> String {
        let mut out = String::new();
        for n in 0..words {
            let share = self.rng.f64();
            out += &self.list[(share * share * share * self.list.len() as f64) as usize];
            out += match self.rng.u8(..40) {
                0 => ". ",
                1 => ",\n",
                2 => "; 12",
                3 if n % 2 == 0 => " {\n    ",
                _ => " ",
            };
        }
        out
    }
}

fn model(words: &mut Words) -> Model {
    let mut trainer: TrainerWrapper = BpeTrainer::builder()
        .vocab_size(32_000)
        .show_progress(false)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build()
        .into();
    let mut tokenizer = Tokenizer::new(BPE::default());
    tokenizer.with_pre_tokenizer(Some(ByteLevel::default().add_prefix_space(false)));
    let texts: Vec<String> = (0..500).map(|_| words.text(800)).collect();
    tokenizer.train(&mut trainer, texts.iter()).unwrap();
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"].map(|t| AddedToken::from(t, true))).unwrap();
    let mut file: Value = serde_json::from_str(&tokenizer.to_string(false).unwrap()).unwrap();
    file["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]});
    let folder = std::env::temp_dir().join(format!("homing-bench-tokenize-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("tokenizer.json"), file.to_string()).unwrap();
    std::fs::write(folder.join("chat_template.jinja"), TEMPLATE).unwrap();
    let loaded = Model::load(&Source { path: folder.clone(), template: None, cache_bytes: 256 << 20 });
    std::fs::remove_dir_all(folder).unwrap();
    loaded.unwrap()
}

/// How long `work` takes.
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    (work(), begun.elapsed())
}

fn report(name: &str, bytes: usize, tokens: usize, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    println!("{name}: {bytes} bytes, {tokens} tokens, {} times", times.len());
    println!(
        "  p10 {:>8.3} ms   p50 {:>8.3} ms   p90 {:>8.3} ms   p99 {:>8.3} ms",
        at(0.1),
        at(0.5),
        at(0.9),
        at(0.99)
    );
}

fn body(messages: &[Value]) -> Vec<u8> {
    json!({"model": "m", "messages": messages, "stream": true}).to_string().into_bytes()
}

/// A text of about so many tokens.
fn sized(model: &Model, words: &mut Words, tokens: usize) -> String {
    let sample = words.text(1000);
    let ids = model.ids(Kind::Completion, json!({"prompt": sample}).to_string().as_bytes()).unwrap().len();
    words.text(tokens * 1000 / ids)
}

fn main() {
    let mut words = Words::new();
    let model = model(&mut words);
    let role = |n: usize| if n.is_multiple_of(2) { "user" } else { "assistant" };
    let mut times = Vec::new();
    let (mut bytes, mut tokens) = (0, 0);
    for _ in 0..8 {
        // 64 turns of 1,000 tokens are known; then 25 times one more.
        let mut messages: Vec<Value> =
            (0..64).map(|n| json!({"role": role(n), "content": sized(&model, &mut words, 1000)})).collect();
        model.ids(Kind::Chat, &body(&messages)).unwrap();
        for _ in 0..25 {
            messages.push(json!({"role": "user", "content": sized(&model, &mut words, 1000)}));
            let next = body(&messages);
            let (ids, took) = timed(|| model.ids(Kind::Chat, &next).unwrap());
            times.push(took);
            messages.pop();
            (bytes, tokens) = (next.len(), ids.len());
        }
    }
    report("next turn: 1k new tokens after 64k", bytes, tokens, times);

    for (name, size, rounds) in
        [("cold prompt of 8k tokens", 8000, 100), ("cold prompt of 1k tokens", 1000, 300)]
    {
        let mut times = Vec::new();
        for _ in 0..rounds {
            let next = body(&[json!({"role": "user", "content": sized(&model, &mut words, size)})]);
            let (ids, took) = timed(|| model.ids(Kind::Chat, &next).unwrap());
            times.push(took);
            (bytes, tokens) = (next.len(), ids.len());
        }
        report(name, bytes, tokens, times);
    }

    let messages: Vec<Value> =
        (0..8).map(|n| json!({"role": role(n), "content": sized(&model, &mut words, 1000)})).collect();
    let same = body(&messages);
    let mut times = Vec::new();
    for _ in 0..2000 {
        let (ids, took) = timed(|| model.ids(Kind::Chat, &same).unwrap());
        times.push(took);
        tokens = ids.len();
    }
    report("everything known, 32 KB", same.len(), tokens, times);
}
