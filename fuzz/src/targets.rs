//! The targets; a file of its own, since the main package's test includes it.

use bytes::Bytes;
use homing::config;
use homing::core::Time;
use homing::core::prefix::exact::{Follower, FollowerConfig};
use homing::core::prefix::snapshot::Header;
use homing::core::prefix::{IndexConfig, PrefixIndex, Saved};
use homing::engine::{self, Delta, Engine, kv};
use homing::openai::{Framer, FramerMode, Ignore, Part, Scratch, Shape, Sink, scan, splice_usage};
use homing::sim::replay::read;
use serde_json::Value;

/// Takes the prompt and counts it, so that the scan has somewhere to go.
#[derive(Default)]
struct Count(usize);

impl Sink for Count {
    fn part(&mut self, _: Part<'_>) {}

    fn text(&mut self, run: &[u8]) {
        self.0 += run.len();
    }
}

/// The body of a request, as each of the shapes. The first byte chooses.
///
/// What is accepted is told the same with and without a sink. What a strict parser takes for an object is accepted. And
/// asking for usage in it changes that and nothing else.
pub fn body(data: &[u8]) {
    let Some((which, body)) = data.split_first() else { return };
    let paths = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"];
    let Some(shape) = Shape::of_path(paths[usize::from(*which) % paths.len()]) else { return };
    let (mut scratch, mut count) = (Scratch::default(), Count::default());
    let strict: Option<Value> = serde_json::from_slice(body).ok().filter(Value::is_object);
    let told = match scan(shape, body, &mut count, &mut scratch) {
        Ok(told) => told,
        Err(error) => {
            assert!(strict.is_none(), "a parser takes it, the scan says {error:?}");
            return;
        }
    };
    assert!(told.text_bytes <= count.0 as u64, "text that the sink never got");
    let again = scan(shape, body, &mut Ignore, &mut scratch).expect("the same again");
    assert_eq!((told.text_bytes, &told.model, told.stream), (again.text_bytes, &again.model, again.stream));
    let Some(splice) = splice_usage(&told) else { return };
    let spliced = splice.pieces(body).concat();
    assert_eq!(spliced.len(), splice.len_after(body.len()));
    let Some(mut before) = strict else { return };
    let mut after: Value = serde_json::from_slice(&spliced).expect("still an object");
    assert_eq!(after["stream_options"]["include_usage"], true, "usage was asked for");
    for side in [&mut before, &mut after] {
        let object = side.as_object_mut().expect("an object");
        if let Some(Value::Object(options)) = object.get_mut("stream_options") {
            options.remove("include_usage");
        }
        if object
            .get("stream_options")
            .is_none_or(|o| o.is_null() || o.as_object().is_some_and(|o| o.is_empty()))
        {
            object.remove("stream_options");
        }
    }
    assert_eq!(before, after, "nothing else has changed");
}

/// A stream of events, cut anywhere. The first byte says how.
///
/// Watched only, it comes out as it went in. What is taken out when stripping, and what is learned, doesn't depend on where it
/// was cut.
pub fn sse(data: &[u8]) {
    let Some((cut, stream)) = data.split_first() else { return };
    let run = |strip: bool, size: usize| {
        let mut framer = Framer::new(FramerMode { strip_usage: strip });
        let mut out = Vec::new();
        for chunk in stream.chunks(size.max(1)) {
            framer.push(Bytes::copy_from_slice(chunk)).iter().for_each(|piece| out.extend_from_slice(piece));
        }
        out.extend_from_slice(&framer.finish().unwrap_or_default());
        let f = framer.facts();
        (out, f.tokens, f.first_token, f.error, f.usage)
    };
    for strip in [false, true] {
        let whole = run(strip, stream.len());
        let pieces = run(strip, usize::from(*cut) % 61 + 1);
        assert!(strip || whole.0 == stream, "a stream that is only watched changed");
        assert_eq!(whole.0, pieces.0, "strip {strip}: another stream when cut");
        assert_eq!((whole.2, whole.3, whole.4), (pieces.2, pieces.3, pieces.4), "strip {strip}");
    }
}

/// A metrics page, as each engine's; and two of them one after the other.
pub fn prometheus(data: &[u8]) {
    let _ = engine::detect(data);
    let (before, after) = data.split_at(data.len() / 2);
    for name in [Engine::Vllm, Engine::Sglang, Engine::Trtllm, Engine::Llamacpp] {
        let _ = engine::scan(data, name);
        let _ = Delta::between(&engine::scan(before, name), &engine::scan(after, name));
    }
    let _ = engine::models(data);
}

/// A configuration file, and a list of replicas. What is accepted has no errors, can be shown, and adopts itself without a
/// difference.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // Files of secrets are not what is fuzzed, and must not be read at random.
    if text.contains("_file") {
        return;
    }
    let env = |name: &str| (name == "A").then(|| "1".to_owned());
    if let Ok((config, report)) = config::parse(text, &config::Overrides::default(), &env) {
        assert!(!report.has_errors());
        serde_json::to_value(&config).expect("it can be shown");
        let adopted = config::adopt(&config, &config);
        assert!(adopted.changed.is_empty() && adopted.restart.is_empty());
    }
    let _ = config::parse_replicas(text, &env);
}

/// A trace file.
pub fn trace(data: &[u8]) {
    let _ = read::parse("fuzz", "fuzz", data);
}

/// A snapshot of the index, with and without a right checksum. What is accepted can be restored, and makes a sound index.
pub fn snapshot(data: &[u8]) {
    let _ = Saved::decode(data);
    let mut sealed = PrefixIndex::new(IndexConfig::default())
        .snapshot(Header { seed: 1, block_bytes: 256, written: 0 }, |_| None, &[])
        .seal();
    sealed.truncate(12);
    sealed.extend_from_slice(data);
    sealed.extend_from_slice(&homing::core::prefix::snapshot::checksum(&sealed).to_le_bytes());
    let Ok(mut saved) = Saved::decode(&sealed) else { return };
    let config = IndexConfig { max_blocks: 4096, max_holders: 8, ..IndexConfig::default() };
    let mut index = PrefixIndex::new(config);
    let names: Vec<String> = saved.waiting().map(str::to_owned).collect();
    for (name, h) in names.iter().zip(0..8) {
        index.join(h, None);
        saved.restore(&mut index, Time(0), name, h);
    }
    index.check_invariants();
    assert!(index.stats().distinct_blocks <= 4096);
}

/// Messages of a publisher of KV events, each behind its length (two bytes, big end first). What can be read of them goes
/// the whole way: through the table of the engine's hashes into an index, which stays sound, and to nothing when all is cleared.
pub fn kv_events(mut data: &[u8]) {
    let mut follower = Follower::new(FollowerConfig {
        seed: 1,
        block: 16,
        model: "fuzz".into(),
        max_blocks: 512,
        max_orphan_tokens: 4096,
    });
    let mut index = PrefixIndex::new(IndexConfig { max_blocks: 256, ..IndexConfig::default() });
    index.join(0, Some(64));
    index.follow(0, true);
    let mut changes = Vec::new();
    let mut now = 0;
    while let Some((len, rest)) = data.split_first_chunk::<2>() {
        let (payload, rest) = rest.split_at(rest.len().min(u16::from_be_bytes(*len).into()));
        data = rest;
        let Some(batch) = kv::decode(payload) else { continue };
        assert!(batch.events.len() <= payload.len(), "more events than bytes");
        for event in batch.events {
            follower.apply(event, &mut changes);
            now += 1;
            index.apply(Time(now), 0, &changes);
            changes.clear();
        }
        let tally = follower.tally();
        assert!(tally.known <= 512 && tally.orphans <= 4096, "over its bounds: {tally:?}");
        index.check_invariants();
    }
    follower.reset(&mut changes);
    index.apply(Time(now), 0, &changes);
    index.check_invariants();
    assert_eq!((index.held(0), follower.tally().known), (0, 0));
}
