//! The state machine, message by message.

use super::body::PIECE;
use super::*;
use crate::config::Config;
use crate::core::{Failure, Outcome};
use crate::proxy::PromptReader;
use crate::router::Router;
use bytes::Bytes;
use std::net::SocketAddr;

pub(super) struct Stage {
    pub(super) exchange: Exchange,
    pub(super) rules: Rules,
    pub(super) policies: Policies,
    prompts: PromptReader,
}

impl Stage {
    pub(super) fn new() -> Self {
        Stage {
            exchange: Exchange::default(),
            rules: Rules { decide: 4096, held: 1 << 20, fallbacks: 2, trusted: true, testing: false },
            policies: Policies::default(),
            prompts: PromptReader::new(&Router::new(&Config::default(), 1)),
        }
    }

    pub(super) fn say_with(&mut self, input: In, notes: Notes) -> Vec<Effect> {
        let mut effects = Effects::new();
        let mut cx = Context { rules: &self.rules, policies: &self.policies, prompts: &mut self.prompts };
        self.exchange.take(input, notes, &mut cx, &mut effects).unwrap();
        effects.into_vec()
    }

    fn say(&mut self, input: In) -> Vec<Effect> {
        self.say_with(input, Notes::default())
    }

    pub(super) fn placed(&mut self, at: &[&str]) -> Vec<Effect> {
        let addresses: Vec<SocketAddr> = at.iter().map(|a| a.parse().unwrap()).collect();
        let mut effects = Effects::new();
        self.exchange.placed(Ok(&addresses), &mut effects);
        effects.into_vec()
    }

    pub(super) fn closed(&mut self) -> Vec<Effect> {
        let mut effects = Effects::new();
        self.exchange.closed(&mut effects);
        effects.into_vec()
    }

    /// A chat request, placed, its body gone on.
    fn flowing(body: &str) -> Self {
        let mut s = Stage::new();
        s.say(post(&[]));
        assert!(matches!(wish(s.say(In::RequestBody(bytes(body), true))), Wish { .. }));
        s.placed(&["10.0.0.1:80"]);
        s
    }
}

const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;
const ONE: &str = "10.0.0.1:80";

pub(super) fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

pub(super) fn head(pairs: &[(&str, &str)]) -> Head {
    Head(pairs.iter().map(|&(k, v)| (k.to_owned(), v.into())).collect())
}

pub(super) fn post(more: &[(&str, &str)]) -> In {
    let mut pairs =
        vec![(":method", "POST"), (":path", "/v1/chat/completions"), ("content-type", "application/json")];
    pairs.extend_from_slice(more);
    In::RequestHead(head(&pairs), false)
}

fn get(path: &str) -> In {
    In::RequestHead(head(&[(":method", "GET"), (":path", path)]), true)
}

fn answer(pairs: &[(&str, &str)]) -> In {
    In::ResponseHead(head(pairs), false)
}

fn wish(mut effects: Vec<Effect>) -> Wish {
    assert_eq!(effects.len(), 1, "{effects:?}");
    match effects.remove(0) {
        Effect::Place(wish) => *wish,
        other => panic!("{other:?}"),
    }
}

fn sent(effects: Vec<Effect>) -> Vec<Out> {
    let out = |e| match e {
        Effect::Send(out) => Some(out),
        _ => None,
    };
    effects.into_iter().filter_map(out).collect()
}

fn refused(effects: Vec<Effect>) -> Immediate {
    match effects.as_slice() {
        [Effect::Send(Out::Immediate(answer)), Effect::Over] => (**answer).clone(),
        other => panic!("{other:?}"),
    }
}

fn released(effects: &[Effect]) -> Option<Release> {
    effects.iter().find_map(|e| match e {
        Effect::Release(how) => Some(*how),
        _ => None,
    })
}

fn length(out: &Out) -> Option<String> {
    let Out::RequestHead { set, .. } = out else { panic!("{out:?}") };
    set.iter().find(|(k, _)| *k == "content-length").map(|(_, v)| v.to_string())
}

#[test]
fn a_body_in_two_pieces_and_an_empty_end() {
    let mut s = Stage::new();
    assert!(s.say(post(&[])).is_empty(), "nothing goes on before the place is known");
    assert!(s.say(In::RequestBody(bytes(&CHAT[..20]), false)).is_empty());
    assert!(s.say(In::RequestBody(bytes(&CHAT[20..]), false)).is_empty());
    let wish = wish(s.say(In::RequestBody(Bytes::new(), true)));
    assert_eq!((wish.ask.model.as_deref(), wish.ask.generates, wish.ask.fallbacks), (Some("m"), true, 2));
    let out = sent(s.placed(&[ONE, "[fd00::2]:81"]));
    let Out::RequestHead { destination, .. } = &out[0] else { panic!("{out:?}") };
    assert_eq!(destination, "10.0.0.1:80,[fd00::2]:81");
    assert_eq!(length(&out[0]), Some(CHAT.len().to_string()));
    let rest = [Out::RequestBody(bytes(&CHAT[..20]), false), Out::RequestBody(bytes(&CHAT[20..]), true)];
    assert_eq!(out[1..], rest);
    assert!(s.say(In::RequestBody(bytes("more"), true)).is_empty(), "a second end changes nothing");
}

#[test]
fn an_empty_body_is_not_json_and_an_empty_pass_through_body_ends_once() {
    let mut s = Stage::new();
    s.say(post(&[]));
    assert_eq!(refused(s.say(In::RequestBody(Bytes::new(), true))).status, 400);
    let mut s = Stage::new();
    wish(s.say(In::RequestHead(head(&[(":method", "POST"), (":path", "/tokenize")]), false)));
    assert!(s.say(In::RequestBody(Bytes::new(), true)).is_empty());
    let out = sent(s.placed(&[ONE]));
    assert_eq!(out[1..], [Out::RequestBody(Bytes::new(), true)]);
}

#[test]
fn without_a_body_only_the_headers_go_on() {
    let mut s = Stage::new();
    let subset = Some(vec![Wanted::parse(ONE).unwrap()]);
    let notes = Notes { subset: subset.clone(), ..Notes::default() };
    let wish = wish(s.say_with(get("/v1/models"), notes));
    assert_eq!((wish.subset, wish.ask.generates), (subset, false), "the subset holds for GET as well");
    assert_eq!(sent(s.placed(&[ONE])).len(), 1);
}

#[test]
fn trailers_end_a_body_that_has_no_end_of_its_own() {
    let mut s = Stage::new();
    s.say(post(&[]));
    s.say(In::RequestBody(bytes(CHAT), false));
    wish(s.say(In::RequestTrailers));
    let out = sent(s.placed(&[ONE]));
    assert_eq!(out[1..], [Out::RequestBody(bytes(CHAT), false), Out::RequestTrailers]);
    assert_eq!(length(&out[0]), None, "a length and trailers don't go together");
}

#[test]
fn bad_json_and_a_missing_model_are_refused() {
    for (body, param) in [("{\"model\":\"m\",", None), ("[]", None), ("{\"messages\":[]}", Some("model"))] {
        let mut s = Stage::new();
        s.say(post(&[("x-request-id", "r1")]));
        let no = refused(s.say(In::RequestBody(bytes(body), true)));
        assert_eq!(no.status, 400);
        let told: serde_json::Value = serde_json::from_slice(&no.body).unwrap();
        assert_eq!(told["error"]["param"].as_str(), param);
        assert!(s.say(In::RequestBody(bytes("x"), true)).is_empty());
        assert!(s.closed().is_empty());
    }
}

#[test]
fn what_does_not_generate_passes_unread() {
    for (method, path, kind) in [
        ("POST", "/v1/embeddings", "application/json"),
        ("POST", "/v1/chat/completions", "text/plain"),
        ("PUT", "/v1/chat/completions", "application/json"),
    ] {
        let mut s = Stage::new();
        let pairs = [(":method", method), (":path", path), ("content-type", kind)];
        assert!(!wish(s.say(In::RequestHead(head(&pairs), false))).ask.generates);
        assert!(s.say(In::RequestBody(bytes("not {json"), false)).is_empty(), "held until it is placed");
        assert_eq!(sent(s.placed(&[ONE])).len(), 2);
        let out = sent(s.say(In::RequestBody(bytes("more"), true)));
        assert_eq!(out, [Out::RequestBody(bytes("more"), true)]);
    }
}

#[test]
fn a_long_body_is_decided_by_its_beginning_and_streamed_from_there() {
    let mut s = Stage::new();
    let text = "lorem ipsum ".repeat(20_000);
    let body = format!(r#"{{"model":"m","stream":true,"messages":[{{"role":"user","content":"{text}"}}]}}"#);
    s.say(post(&[("content-length", &body.len().to_string())]));
    let (first, rest) = body.split_at(5000);
    let wish = wish(s.say(In::RequestBody(bytes(first), false)));
    assert!(wish.ask.text_bytes > 200_000, "the rest counts as text: {}", wish.ask.text_bytes);
    assert!(wish.ask.chain.len() > 10);
    let out = sent(s.placed(&[ONE]));
    assert_eq!(length(&out[0]), Some(body.len().to_string()));
    assert_eq!(out[1..], [Out::RequestBody(bytes(first), false)]);
    let out = sent(s.say(In::RequestBody(bytes(rest), true)));
    let pieces: Vec<_> =
        out.iter().map(|o| if let Out::RequestBody(b, e) = o { (b.len(), *e) } else { (0, false) }).collect();
    assert!(pieces.iter().all(|p| p.0 <= PIECE) && pieces.iter().filter(|p| p.1).count() == 1);
    assert!(pieces.last().unwrap().1);
}

#[test]
fn a_model_named_last_is_waited_for_within_bounds() {
    let mut s = Stage::new();
    s.say(post(&[]));
    let text = "x".repeat(100_000);
    assert!(
        s.say(In::RequestBody(bytes(&format!(r#"{{"messages":[{{"content":"{text}"#)), false)).is_empty()
    );
    let wish = wish(s.say(In::RequestBody(bytes(r#""}],"model":"last"}"#), true)));
    assert_eq!(wish.ask.model.as_deref(), Some("last"));
    let mut s = Stage::new();
    s.say(post(&[]));
    let pad = "x".repeat(5000);
    let cut = format!(r#"{{"pad":"{pad}","model":"llama"#);
    assert!(s.say(In::RequestBody(bytes(&cut), false)).is_empty(), "a name that breaks off is no name");
    let mut s = Stage::new();
    s.say(post(&[]));
    s.say(In::RequestBody(bytes(r#"{"messages":[{"content":""#), false));
    let no = loop {
        let effects = s.say(In::RequestBody(bytes(&"x".repeat(300_000)), false));
        if !effects.is_empty() {
            break refused(effects);
        }
    };
    assert_eq!(no.status, 413);
}

#[test]
fn a_model_is_rewritten_by_header_and_by_rule() {
    let by_rule = Policies {
        rewrites: [("m".to_owned(), vec![Target { model: "m-v2".into(), weight: 1 }])].into(),
        ..Policies::default()
    };
    for (policies, header, target) in [
        (by_rule.clone(), None, "m-v2"),
        (by_rule, Some(("x-llm-d-model-name-rewrite", "h")), "h"),
        (Policies::default(), Some(("x-gateway-model-name-rewrite", "h")), "h"),
    ] {
        let mut s = Stage { policies, ..Stage::new() };
        s.say(post(header.as_slice()));
        assert_eq!(wish(s.say(In::RequestBody(bytes(CHAT), true))).ask.model.as_deref(), Some(target));
        let out = sent(s.placed(&[ONE]));
        let expected = CHAT.replace("\"m\"", &format!("\"{target}\""));
        assert_eq!(out[1..], [Out::RequestBody(bytes(&expected), true)]);
        assert_eq!(length(&out[0]), Some(expected.len().to_string()));
        let Out::RequestHead { remove, .. } = &out[0] else { panic!() };
        assert_eq!(remove, &["accept-encoding"], "a compressed answer couldn't be named back");
        let out = sent(s.say(answer(&[(":status", "200"), ("content-type", "application/json")])));
        assert_eq!(out, [Out::ResponseHead { set: vec![], remove: vec!["content-length"] }]);
        let whole = format!(r#"{{"id":"1","model":"{target}","choices":[]}}"#);
        let mut got = Vec::new();
        for (i, byte) in whole.as_bytes().iter().enumerate() {
            for out in sent(s.say(In::ResponseBody(Bytes::copy_from_slice(&[*byte]), i + 1 == whole.len()))) {
                let Out::ResponseBody(b, _) = out else { panic!("{out:?}") };
                got.extend_from_slice(&b);
            }
        }
        assert_eq!(got, br#"{"id":"1","model":"m","choices":[]}"#);
    }
}

#[test]
fn a_rewrite_to_the_same_name_changes_nothing() {
    let mut s = Stage::new();
    s.say(post(&[("x-llm-d-model-name-rewrite", "m")]));
    wish(s.say(In::RequestBody(bytes(CHAT), true)));
    let out = sent(s.placed(&[ONE]));
    assert_eq!(out[1..], [Out::RequestBody(bytes(CHAT), true)]);
    let out = sent(s.say(answer(&[(":status", "200")])));
    assert_eq!(out, [Out::ResponseHead { set: vec![], remove: vec![] }]);
}

#[test]
fn a_stream_passes_at_once_and_tells_its_tokens_and_usage() {
    let mut s = Stage::flowing(CHAT);
    s.say(answer(&[(":status", "200"), ("content-type", "text/event-stream; charset=utf-8")]));
    let role = bytes("data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n");
    let effects = s.say(In::ResponseBody(role.clone(), false));
    assert!(matches!(effects.as_slice(), [Effect::Send(Out::ResponseBody(b, false))] if *b == role));
    let half = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choices\":[{\"del";
    let effects = s.say(In::ResponseBody(bytes(half), false));
    assert!(
        matches!(&effects[0], Effect::Send(Out::ResponseBody(b, false)) if b == half.as_bytes()),
        "no waiting"
    );
    assert!(matches!(effects[1..], [Effect::FirstToken, Effect::Progress(1)]), "{effects:?}");
    let last = "ta\":{\"content\":\"b\"}}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\
                \"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n";
    let effects = s.say(In::ResponseBody(bytes(last), false));
    assert!(matches!(effects[1..], [Effect::Progress(2)]));
    let effects = s.say(In::ResponseBody(Bytes::new(), true));
    assert!(matches!(&effects[0], Effect::Send(Out::ResponseBody(b, true)) if b.is_empty()));
    let usage = Outcome { prompt_tokens: Some(9), cached_tokens: Some(4), output_tokens: Some(2) };
    assert_eq!(released(&effects), Some(Release::Finished(usage)), "usage and [DONE] in one chunk");
    assert!(s.closed().is_empty(), "released once");
}

#[test]
fn an_answer_in_many_chunks_is_never_held_back() {
    let mut s = Stage::flowing(CHAT);
    s.say(answer(&[(":status", "200"), ("content-type", "application/json")]));
    let body = r#"{"id":"x","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}"#;
    for piece in body.as_bytes().chunks(5) {
        let out = sent(s.say(In::ResponseBody(Bytes::copy_from_slice(piece), false)));
        assert_eq!(out, [Out::ResponseBody(Bytes::copy_from_slice(piece), false)]);
    }
    let effects = s.say(In::ResponseTrailers);
    assert!(matches!(effects[0], Effect::Send(Out::ResponseTrailers)));
    let Some(Release::Finished(outcome)) = released(&effects) else { panic!("{effects:?}") };
    assert_eq!((outcome.prompt_tokens, outcome.output_tokens), (Some(7), Some(3)));
}

#[test]
fn the_status_is_the_pseudo_header_and_says_whose_fault_it_is() {
    let verdict = |pairs: &[(&str, &str)]| released(&Stage::flowing(CHAT).say(answer(pairs)));
    let failed = |f| Some(Release::Failed(f));
    assert_eq!(verdict(&[("status", "500"), (":status", "200")]), None);
    assert_eq!(verdict(&[(":status", "500")]), failed(Failure::Status(500)));
    assert_eq!(verdict(&[(":status", "503")]), failed(Failure::Status(503)));
    let busy = Failure::BackPressure { retry_after: Some(7.0) };
    assert_eq!(verdict(&[(":status", "503"), ("retry-after", "7")]), failed(busy));
    assert_eq!(verdict(&[(":status", "429")]), failed(Failure::BackPressure { retry_after: None }));
    assert_eq!(verdict(&[(":status", "504")]), failed(Failure::Timeout));
    assert_eq!(verdict(&[(":status", "404")]), failed(Failure::Blameless));
}

#[test]
fn who_served_is_told_and_echoed_in_tests() {
    let served: SocketAddr = "[fd00::1]:80".parse().unwrap();
    for testing in [false, true] {
        let mut s = Stage::flowing(CHAT);
        s.rules.testing = testing;
        let notes = Notes { served: Some(served), ..Notes::default() };
        let effects = s.say_with(answer(&[(":status", "200")]), notes);
        assert!(effects.iter().any(|e| matches!(e, Effect::Served(a) if *a == served)));
        let Effect::Send(Out::ResponseHead { set, .. }) = &effects[0] else { panic!("{effects:?}") };
        let expected: Vec<Set> = if testing {
            vec![("x-conformance-test-served-endpoint", "[fd00::1]:80".into())]
        } else {
            vec![]
        };
        assert_eq!(*set, expected);
    }
}

#[test]
fn no_place_is_told_with_its_reason() {
    let mut s = Stage::new();
    s.say(post(&[]));
    s.say(In::RequestBody(bytes(CHAT), true));
    let mut effects = Effects::new();
    s.exchange.placed(Err(&Refused::no_endpoints(2)), &mut effects);
    let no = refused(effects.into_vec());
    assert_eq!(no.status, 503);
    assert!(no.set.contains(&("x-llm-d-request-dropped-reason", "rejected-no-endpoints".into())));
    assert!(no.set.contains(&("retry-after", "2".into())));
    assert!(s.closed().is_empty());
}

#[test]
fn an_answer_before_the_place_gives_the_place_up() {
    let mut s = Stage::new();
    s.say(post(&[]));
    s.say(In::RequestBody(bytes(CHAT), true));
    let effects = s.say(answer(&[(":status", "403")]));
    assert!(matches!(effects.as_slice(), [Effect::Abandon, Effect::Send(Out::ResponseHead { .. })]));
    let effects = s.placed(&[ONE]);
    assert!(matches!(effects.as_slice(), [Effect::Release(Release::Cancelled)]), "{effects:?}");
    let effects = s.say(In::ResponseBody(bytes("no"), true));
    assert!(matches!(effects.as_slice(), [Effect::Send(Out::ResponseBody(_, true))]));
}

#[test]
fn how_a_stream_that_closes_early_is_released() {
    let modes = |answer| Notes { modes: Some((Mode::Duplex, answer)), ..Notes::default() };
    let close = |notes: Notes, answered: bool, whole: bool| {
        let mut s = Stage::new();
        s.say_with(post(&[]), notes);
        s.say(In::RequestBody(bytes(CHAT), whole));
        if !whole {
            return s.closed();
        }
        s.placed(&[ONE]);
        if answered {
            s.say(answer(&[(":status", "200")]));
        }
        s.closed()
    };
    let how = |effects: Vec<Effect>| released(&effects);
    assert_eq!(how(close(modes(Mode::Duplex), true, true)), Some(Release::Cancelled), "the client left");
    assert_eq!(how(close(modes(Mode::Duplex), false, true)), Some(Release::Cancelled));
    assert_eq!(how(close(modes(Mode::Withheld), true, true)), Some(Release::Unseen), "Envoy keeps the body");
    assert_eq!(how(close(modes(Mode::Withheld), false, true)), Some(Release::Unseen));
    assert_eq!(how(close(Notes::default(), false, true)), Some(Release::Unseen), "an old Envoy doesn't say");
    assert_eq!(how(close(Notes::default(), true, true)), Some(Release::Cancelled));
    assert_eq!(how(close(modes(Mode::Withheld), false, false)), None, "nothing was booked");
}

#[test]
fn a_setup_that_cannot_work_is_told() {
    let mut s = Stage::new();
    let mut effects = Effects::new();
    let mut cx = Context { rules: &s.rules, policies: &s.policies, prompts: &mut s.prompts };
    let notes = Notes { modes: Some((Mode::Other, Mode::Duplex)), ..Notes::default() };
    let told = s.exchange.take(post(&[]), notes, &mut cx, &mut effects).unwrap_err();
    assert!(told.contains("FULL_DUPLEX_STREAMED"));
}

#[test]
fn a_body_that_envoy_keeps_is_not_waited_for() {
    let mut s = Stage::new();
    let notes = Notes { modes: Some((Mode::Withheld, Mode::Withheld)), ..Notes::default() };
    assert!(!wish(s.say_with(post(&[]), notes)).ask.generates, "by load: its prompt isn't shown");
    assert_eq!(sent(s.placed(&[ONE])).len(), 1);
}
