//! The endpoints that carry prompts: read the body, find out what is cached where, and go there.

use super::answer::Answer;
use super::attempts::{self, Repeat, Served};
use super::exchange::{Body, Call};
use super::payload::Pieces;
use super::prompt::tokenized;
use super::read_body::{BodyError, Read, read_body};
use super::record::Record;
use super::respond;
use super::resume::Resume;
use super::target;
use super::through::{Fault, Through};
use crate::openai::{Problem, Shape, Splice, Weave};
use crate::router::Inexact;
use bytes::Bytes;
use http::Response;
use http::request::Parts;
use http_body::Body as _;
use hyper::Request;
use hyper::body::Incoming;
use smallvec::smallvec;

/// Serves one request.
pub(super) async fn serve(
    mut record: Box<Record>,
    request: Request<Incoming>,
    shape: Shape,
) -> Response<Answer> {
    record.errors = shape.into();
    record.generates = true;
    record.route = match shape {
        Shape::Chat => "chat",
        Shape::Completions => "completions",
        Shape::Responses => "responses",
        Shape::Messages => "messages",
    };
    match run(&mut record, request, shape).await {
        Ok(Begun { served: (reply, reservation), strip, resume }) => {
            respond::reply(record, reply, reservation, strip, resume)
        }
        Err(problem) => respond::problem(record, &problem),
    }
}

/// An answer that has begun.
struct Begun {
    served: Served,
    /// The usage event is taken out.
    strip: bool,
    resume: Option<(Box<Resume>, Weave)>,
}

async fn run(record: &mut Record, request: Request<Incoming>, shape: Shape) -> Result<Begun, Problem> {
    let worker = record.worker.clone();
    let (head, body) = request.into_parts();
    let limits = &worker.shared.live.limits();
    let announced = body.size_hint().exact();
    let mut whole = read_body(body, limits).await.map_err(|error| refused(&error, limits))?;
    record.bytes_in = announced.unwrap_or(whole.bytes.len() as u64);
    if let Some(rest) = whole.rest.take() {
        let served = pass_on(record, head, shape, &whole, rest).await?;
        return Ok(Begun { served, strip: false, resume: None });
    }
    let resume = &worker.shared.settings().resume.clone();
    let prompt = worker
        .prompts
        .borrow_mut()
        .read_for(shape, &whole.bytes, |model| resume.covers(model))
        .map_err(|bad| Problem::bad_json(&bad))?;
    let mut ask = prompt.ask;
    record.steer(&head.headers, &mut ask);
    if let Some(kind) = tokenized(shape) {
        let exact =
            worker.shared.router.tokens(kind, ask.model.as_deref(), prompt.salt.as_deref(), &whole.bytes);
        ask.tokens = exact.await.and_then(|told| {
            worker.shared.metrics.tokenized(told.as_ref().map_or_else(Inexact::label, |_| "exact"));
            told.ok()
        });
    }
    // Only names that exist may become labels.
    record.model = ask.model.clone().filter(|name| worker.shared.router.knows_model(name));
    record.streamed = prompt.stream;
    record.prompt(&ask.chain);
    let mut call = Call {
        method: head.method,
        target: target::of(&head.uri),
        headers: head.headers,
        request_id: record.request_id.clone(),
        body: Body::Memory(pieces(&whole.bytes, &prompt.splices)),
        report_at: prompt.inside,
        rank: None,
        generates: true,
        plain: prompt.strip || prompt.recipe.is_some(),
        upgrade: None,
    };
    let served = attempts::run(record, &mut ask, &mut call, Repeat::Always).await?;
    let resume = prompt.recipe.map(|recipe| {
        let weave = Weave::new(recipe, resume.max_bytes.as_usize());
        (Box::new(Resume::new(worker.clone(), ask, call.headers, call.request_id)), weave)
    });
    Ok(Begun { served, strip: prompt.strip, resume })
}

/// A body too long to be read: its first part decides, and the rest passes through as it comes. Nothing is added to it, and
/// it can't be sent twice.
async fn pass_on(
    record: &mut Record,
    head: Parts,
    shape: Shape,
    part: &Read,
    rest: Incoming,
) -> Result<Served, Problem> {
    let worker = record.worker.clone();
    let limits = &worker.shared.live.limits();
    let prompt = worker.prompts.borrow_mut().read_start(shape, &part.bytes);
    let mut ask = prompt.ask;
    if ask.model.is_none() && worker.shared.router.model_names().len() > 1 {
        return Err(Problem::bad_request(format!(
            "The body is longer than {} bytes, so that its first part decides where it goes, and `model` isn't named there. \
             Put `model` before the messages.",
            limits.scan
        )));
    }
    record.model = ask.model.clone().filter(|name| worker.shared.router.knows_model(name));
    record.streamed = prompt.stream;
    record.prompt(&ask.chain);
    let left = limits.bytes.saturating_sub(part.bytes.len()) as u64;
    let through = Through::new([part.bytes.clone()], rest, left, limits.silence);
    let fault = through.fault();
    let mut call = Call {
        method: head.method,
        target: target::of(&head.uri),
        headers: head.headers,
        request_id: record.request_id.clone(),
        body: Body::Stream(Some(Box::new(through))),
        report_at: None,
        rank: None,
        generates: true,
        plain: false,
        upgrade: None,
    };
    let served = attempts::run(record, &mut ask, &mut call, Repeat::Unsent).await;
    served.map_err(|problem| fault.get().map_or(problem, |fault| broke_off(fault, limits)))
}

/// What a client is told whose body was refused on its way.
pub(super) fn broke_off(fault: Fault, limits: &super::read_body::BodyLimits) -> Problem {
    match fault {
        Fault::TooLarge => refused(&BodyError::TooLarge, limits),
        Fault::Silent => {
            Problem::request_timeout(u32::try_from(limits.silence.as_secs()).unwrap_or(u32::MAX))
        }
    }
}

/// The body as it is sent: as it came, but for the keys that may have to be added, in the order of their places.
fn pieces(body: &Bytes, splices: &[Splice]) -> Pieces {
    if splices.is_empty() {
        return smallvec![body.clone()];
    }
    let mut out = Pieces::new();
    let mut from = 0;
    for splice in splices {
        let at = splice.at.clamp(from, body.len());
        if at > from {
            out.push(body.slice(from..at));
        }
        out.push(Bytes::from_static(splice.insert));
        from = (at + splice.removed).min(body.len());
    }
    out.push(body.slice(from..));
    out
}

/// Why there is no body, in words.
pub(super) fn refused(error: &BodyError, limits: &super::read_body::BodyLimits) -> Problem {
    match error {
        BodyError::TooLarge => Problem::payload_too_large(limits.bytes as u64),
        BodyError::TimedOut => {
            Problem::request_timeout(u32::try_from(limits.within.as_secs()).unwrap_or(u32::MAX))
        }
        BodyError::NoRoom => Problem::no_capacity(2),
        BodyError::Broken => Problem::bad_request("The request's body broke off."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_splice_moves_nothing_else() {
        let body = Bytes::from_static(br#"{"stream":true,"z":1e999}"#);
        let splice = Splice { at: 1, removed: 0, insert: b"\"a\":1," };
        assert_eq!(pieces(&body, &[splice]).concat(), br#"{"a":1,"stream":true,"z":1e999}"#);
        let splice = Splice { at: 10, removed: 4, insert: b"false" };
        assert_eq!(pieces(&body, &[splice]).concat(), br#"{"stream":false,"z":1e999}"#);
        assert_eq!(pieces(&body, &[]).concat(), body);
        let both =
            [Splice { at: 1, removed: 0, insert: b"\"b\":2," }, Splice { at: 10, removed: 4, insert: b"0" }];
        assert_eq!(pieces(&body, &both).concat(), br#"{"b":2,"stream":0,"z":1e999}"#);
    }
}
