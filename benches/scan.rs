//! Speed of the scan of a chat body, and of the stream framer.

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use homing::core::prefix::chain::{Blocks, Root, TEXT_BLOCK};
use homing::openai::{Framer, FramerMode, Part, Scratch, Shape, Sink, scan};

fn main() {
    divan::main();
}

/// Looks at every run's length, as cheaply as a sink can.
struct Length(usize);

impl Sink for Length {
    fn part(&mut self, part: Part<'_>) {
        black_box(part);
    }

    fn text(&mut self, run: &[u8]) {
        self.0 += run.len();
    }
}

/// A conversation whose messages are 2 KiB long; an escaped line break each `line` bytes, if any.
fn body(bytes: usize, line: Option<usize>) -> Vec<u8> {
    let words = "The quick brown fox jumps over the lazy dog and then sleeps in the sun. ";
    let mut text: String = words.chars().cycle().take((bytes / 2).min(2048) - 100).collect();
    if let Some(line) = line {
        let chars: Vec<char> = text.chars().collect();
        text = chars.chunks(line).map(|c| c.iter().collect::<String>()).collect::<Vec<_>>().join("\\n");
    }
    let mut out = String::from("{\"model\":\"m\",\"stream\":true,\"max_tokens\":64,\"messages\":[");
    while out.len() + text.len() < bytes {
        let role = if out.len() % 2 == 0 { "user" } else { "assistant" };
        out.push_str(&format!("{{\"role\":\"{role}\",\"content\":\"{text}\"}},"));
    }
    out.push_str("{\"role\":\"user\",\"content\":\"go on\"}]}");
    out.into_bytes()
}

const SIZES: [usize; 3] = [1 << 10, 32 << 10, 256 << 10];

fn run(bencher: Bencher<'_, '_>, body: &[u8]) {
    let mut scratch = Scratch::default();
    bencher.counter(BytesCount::of_slice(body)).bench_local(|| {
        let mut sink = Length(0);
        let found = scan(Shape::Chat, black_box(body), &mut sink, &mut scratch);
        black_box((found.is_ok(), sink.0))
    });
}

#[divan::bench(args = SIZES)]
fn chat_plain(bencher: Bencher<'_, '_>, bytes: usize) {
    run(bencher, &body(bytes, None));
}

#[divan::bench(args = SIZES)]
fn chat_line_breaks_each_80(bencher: Bencher<'_, '_>, bytes: usize) {
    run(bencher, &body(bytes, Some(80)));
}

#[divan::bench(args = SIZES)]
fn chat_line_breaks_each_20(bencher: Bencher<'_, '_>, bytes: usize) {
    run(bencher, &body(bytes, Some(20)));
}

/// Hashes the text as the proxy does.
struct Hash<'a>(&'a mut Blocks);

impl Sink for Hash<'_> {
    fn part(&mut self, part: Part<'_>) {
        if let Part::Role(role) = part {
            self.0.mark(homing::core::prefix::chain::Part::Role(role));
        }
    }

    fn text(&mut self, run: &[u8]) {
        self.0.push(run);
    }
}

/// Bodies like those of the bench of the proxy: two messages of random words, an escape about every 44 bytes, some
/// characters that aren't ASCII.
fn words(bytes: usize, seed: u64) -> Vec<u8> {
    let words = "the cache of a replica holds blocks that were computed before and each new prompt begins with them \\n \
                 \\\"quoted\\\" caf\u{e9} so prefill is";
    let words: Vec<&str> = words.split_whitespace().collect();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut out = String::from("{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"You are ");
    let (tail, mut system) = ("\"}],\"max_tokens\":64,\"temperature\":0.5}", true);
    while out.len() + tail.len() < bytes {
        out.push_str(words[random.usize(..words.len())]);
        out.push(' ');
        if system && out.len() > bytes / 4 {
            out.push_str("\"},{\"role\":\"user\",\"content\":\"");
            system = false;
        }
    }
    (out + tail).into_bytes()
}

fn hash(bencher: Bencher<'_, '_>, bodies: &[Vec<u8>]) {
    let mut scratch = Scratch::default();
    let mut blocks = Blocks::new(7, TEXT_BLOCK);
    let mut chain = Vec::new();
    let mut bodies_in_turn = bodies.iter().cycle();
    bencher.counter(BytesCount::of_slice(&bodies[0][..])).bench_local(|| {
        blocks.clear();
        let body = bodies_in_turn.next().map_or(&[][..], |body| body);
        let found = scan(Shape::Chat, black_box(body), &mut Hash(&mut blocks), &mut scratch);
        black_box((found.is_ok(), blocks.chain_into(&Root::default(), &mut chain)))
    });
}

/// Sixteen bodies in turn, so that no branch predictor knows them by heart.
#[divan::bench(args = SIZES, sample_count = 400)]
fn hashed_words(bencher: Bencher<'_, '_>, bytes: usize) {
    hash(bencher, &(0..16).map(|seed| words(bytes, seed)).collect::<Vec<_>>());
}

#[divan::bench(args = SIZES, sample_count = 400)]
fn hashed_plain(bencher: Bencher<'_, '_>, bytes: usize) {
    hash(bencher, &[body(bytes, None)]);
}

/// One stream: a hundred events of one token each, an event a chunk.
#[divan::bench(args = [false, true])]
fn stream_of_100_events(bencher: Bencher<'_, '_>, strip_usage: bool) {
    let event = bytes::Bytes::from(
        "data: {\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion.chunk\",\
         \"created\":1790000000,\"model\":\"meta-llama/Llama-3.1-8B-Instruct\",\"choices\":[{\"index\":0,\
         \"delta\":{\"content\":\" token\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n",
    );
    bencher.counter(BytesCount::new(100 * event.len())).bench_local(|| {
        let mut framer = Framer::new(FramerMode { strip_usage });
        for _ in 0..100 {
            black_box(framer.push(black_box(event.clone())));
        }
        framer.facts().tokens
    });
}
