//! Random orders of messages, sensible and not: what must hold whatever Envoy says.

use super::body::PIECE;
use super::exchange_tests::{Stage, head, post};
use super::*;
use bytes::Bytes;
use std::time::{Duration, Instant};

/// One direction as it came out.
#[derive(Default)]
struct Seen {
    head: bool,
    body: Vec<u8>,
    ends: u32,
    trailers: bool,
}

impl Seen {
    fn body(&mut self, piece: &Bytes, end: bool) {
        assert!(self.head && self.ends == 0 && !self.trailers, "the body is between headers and end");
        assert!(piece.len() <= PIECE);
        assert!(end || !piece.is_empty());
        self.body.extend_from_slice(piece);
        self.ends += u32::from(end);
    }
}

#[derive(Default)]
struct Judge {
    request: Seen,
    answer: Seen,
    immediate: bool,
    over: bool,
    wished: u32,
    booked: bool,
    booked_ever: bool,
}

impl Judge {
    fn hear(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            assert!(!self.over, "after the end: {effect:?}");
            match effect {
                Effect::Send(out) => self.out(out),
                Effect::Place(_) => {
                    self.wished += 1;
                    assert_eq!(self.wished, 1);
                }
                Effect::Release(_) => assert!(std::mem::take(&mut self.booked), "released what isn't booked"),
                Effect::FirstToken | Effect::Progress(_) | Effect::Stored(_) => {}
                Effect::Abandon | Effect::Served(_) => {}
                Effect::Over => self.over = true,
            }
        }
    }

    fn out(&mut self, out: Out) {
        assert!(!self.immediate, "nothing follows an answer of our own");
        match out {
            Out::RequestHead { destination, .. } => {
                assert!(!std::mem::replace(&mut self.request.head, true) && !destination.is_empty());
            }
            Out::RequestBody(piece, end) => self.request.body(&piece, end),
            Out::RequestTrailers => {
                assert!(self.request.head && self.request.ends == 0);
                assert!(!std::mem::replace(&mut self.request.trailers, true));
            }
            Out::ResponseHead { .. } => assert!(!std::mem::replace(&mut self.answer.head, true)),
            Out::ResponseBody(piece, end) => self.answer.body(&piece, end),
            Out::ResponseTrailers => {
                assert!(self.answer.head && self.answer.ends == 0);
                assert!(!std::mem::replace(&mut self.answer.trailers, true));
            }
            Out::Immediate(answer) => {
                assert!(answer.status >= 400 && !self.request.head);
                self.immediate = true;
            }
        }
    }
}

/// One direction as it goes in: its messages in order.
fn direction(rng: &mut fastrand::Rng, first: In, body: &[u8], request: bool) -> Vec<In> {
    let piece = |data: &[u8], end| {
        let data = Bytes::copy_from_slice(data);
        if request { In::RequestBody(data, end) } else { In::ResponseBody(data, end) }
    };
    let mut all = vec![first];
    let mut rest = body;
    while !rest.is_empty() {
        let n = rng.usize(1..=rest.len()).min(1 << rng.u32(0..20));
        all.push(piece(&rest[..n], false));
        rest = &rest[n..];
    }
    match rng.u8(..4) {
        0 => all.push(if request { In::RequestTrailers } else { In::ResponseTrailers }),
        1 if all.len() > 1 => {
            if let Some(In::RequestBody(_, end) | In::ResponseBody(_, end)) = all.last_mut() {
                *end = true;
            }
        }
        _ => all.push(piece(b"", true)),
    }
    all
}

fn request_body(rng: &mut fastrand::Rng) -> String {
    let text: String = (0..1usize << rng.u32(0..17)).map(|_| rng.alphanumeric()).collect();
    let stream = rng.bool();
    match rng.u8(..10) {
        0 => "{\"model\":".to_owned(),
        1 => "{\"messages\":[]}".to_owned(),
        2 => format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}],\"model\":\"m\"}}"),
        _ => format!(
            "{{\"model\":\"m\",\"stream\":{stream},\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}]}}"
        ),
    }
}

/// One stream from its beginning to its end.
fn run(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut s = Stage::new();
    s.rules.decide = 1 << rng.u32(6..20);
    let renamed = rng.u8(..3) == 0;
    let more = [("x-llm-d-model-name-rewrite", "another-name")];
    let body = request_body(&mut rng);
    let events = rng.bool();
    let kind = if events { "text/event-stream" } else { "application/json" };
    let said = if renamed { "another-name" } else { "m" };
    let line =
        format!("data: {{\"model\":\"{said}\",\"choices\":[{{\"delta\":{{\"content\":\"x\"}}}}]}}\n\n");
    let answer = line.repeat(rng.usize(..40));
    let status = *rng.choice(["200", "200", "200", "404", "503"].iter()).unwrap();
    let mut go_in = direction(&mut rng, post(if renamed { &more } else { &[] }), body.as_bytes(), true)
        .into_iter()
        .peekable();
    let first = In::ResponseHead(head(&[(":status", status), ("content-type", kind)]), false);
    let mut come_back = direction(&mut rng, first, answer.as_bytes(), false).into_iter().peekable();
    let orderly = rng.u8(..4) > 0;
    let cut_short = rng.u8(..4) == 0;
    let mut judge = Judge::default();
    let mut placing = false;
    loop {
        // An orderly Envoy shows no answer before the request has gone out.
        let answer_now = if orderly { go_in.peek().is_none() && judge.request.head } else { rng.bool() };
        let effects = if placing && rng.bool() {
            placing = false;
            judge.booked = true;
            judge.booked_ever = true;
            s.placed(&["10.0.0.1:80"])
        } else if let Some(message) = if answer_now { come_back.next() } else { go_in.next() } {
            let odd = !orderly && rng.u8(..8) == 0;
            let again = odd.then(|| message.clone());
            let mut effects = s.say_with(message, Notes::default());
            if let Some(again) = again {
                effects.extend(s.say_with(again, Notes::default()));
            }
            effects
        } else if placing || (go_in.peek().is_some() || come_back.peek().is_some()) && !judge.over {
            if judge.over || (orderly && !placing && go_in.peek().is_none() && !judge.request.head) {
                break;
            }
            continue;
        } else {
            break;
        };
        placing |= effects.iter().any(|e| matches!(e, Effect::Place(_)));
        if effects.iter().any(|e| matches!(e, Effect::Abandon)) {
            placing = false;
        }
        judge.hear(effects);
        if judge.over || (cut_short && rng.u8(..8) == 0) {
            break;
        }
    }
    let whole = !judge.over && go_in.peek().is_none() && come_back.peek().is_none();
    judge.over = false;
    judge.hear(s.closed());
    assert!(!judge.booked, "seed {seed}: still booked");
    if orderly && whole && judge.request.head {
        let expected =
            if renamed { body.replace("\"model\":\"m\"", "\"model\":\"another-name\"") } else { body };
        assert_eq!(judge.request.body, expected.as_bytes(), "seed {seed}");
        assert_eq!(judge.request.ends + u32::from(judge.request.trailers), 1, "seed {seed}");
        let expected = if renamed { answer.replace("another-name", "m") } else { answer };
        assert_eq!(judge.answer.body, expected.as_bytes(), "seed {seed}");
        assert_eq!(judge.answer.ends + u32::from(judge.answer.trailers), 1, "seed {seed}");
        assert!(judge.booked_ever);
    }
}

#[test]
fn whatever_the_order_everything_comes_out_once_and_is_released_once() {
    for seed in 0..2000 {
        run(seed);
    }
}

/// Not part of the usual run: as long as `HOMING_FUZZ_SECONDS` says.
#[test]
fn longer_on_request() {
    let seconds = std::env::var("HOMING_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    let end = Instant::now() + Duration::from_secs(seconds);
    let first = 1_000_000;
    let mut seed = first;
    while Instant::now() < end {
        run(seed);
        seed += 1;
    }
    if seconds > 0 {
        println!("{} streams", seed - first);
    }
}
