//! The endpoints that carry prompts: read the body, find out what is cached where, and go there.

use super::answer::Answer;
use super::attempts::{self, Repeat, Served};
use super::exchange::{Body, Call};
use super::payload::Pieces;
use super::prompt::tokenized;
use super::read_body::{BodyError, read_body};
use super::record::Record;
use super::respond;
use super::target;
use crate::openai::{Problem, Shape, Splice};
use crate::router::Inexact;
use bytes::Bytes;
use http::Response;
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
        Ok(((reply, reservation), strip)) => respond::reply(record, reply, reservation, strip),
        Err(problem) => respond::problem(record, &problem),
    }
}

async fn run(
    record: &mut Record,
    request: Request<Incoming>,
    shape: Shape,
) -> Result<(Served, bool), Problem> {
    let worker = record.worker.clone();
    let (head, body) = request.into_parts();
    let limits = &worker.shared.live.limits();
    let whole = read_body(body, limits).await.map_err(|error| refused(&error, limits))?;
    record.bytes_in = whole.bytes.len() as u64;
    let prompt =
        worker.prompts.borrow_mut().read(shape, &whole.bytes).map_err(|bad| Problem::bad_json(&bad))?;
    let mut ask = prompt.ask;
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
    let strip = prompt.splice.is_some();
    let mut call = Call {
        method: head.method,
        target: target::of(&head.uri),
        headers: head.headers,
        request_id: record.request_id.clone(),
        body: Body::Memory(pieces(&whole.bytes, prompt.splice.as_ref())),
        report_at: prompt.inside,
        rank: None,
        generates: true,
        plain: strip,
    };
    let served = attempts::run(record, &mut ask, &mut call, Repeat::Always).await?;
    Ok((served, strip))
}

/// The body as it is sent: as it came, but for the one key that may have to be added.
fn pieces(body: &Bytes, splice: Option<&Splice>) -> Pieces {
    match splice {
        None => smallvec![body.clone()],
        Some(splice) => {
            let before = splice.at.min(body.len());
            let after = (before + splice.removed).min(body.len());
            smallvec![body.slice(..before), Bytes::from_static(splice.insert), body.slice(after..)]
        }
    }
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
        assert_eq!(pieces(&body, Some(&splice)).concat(), br#"{"a":1,"stream":true,"z":1e999}"#);
        let splice = Splice { at: 10, removed: 4, insert: b"false" };
        assert_eq!(pieces(&body, Some(&splice)).concat(), br#"{"stream":false,"z":1e999}"#);
        assert_eq!(pieces(&body, None).concat(), body);
    }
}
