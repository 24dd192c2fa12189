//! Answers, from a replica's reply or of our own making.

use super::answer::Answer;
use super::headers;
use super::live::{How, Live};
use super::record::{Ending, Record};
use super::reply::{Pieces, Reply};
use super::resume::Resume;
use super::watch::Watch;
use crate::openai::{Problem, Weave};
use crate::router::Reservation;
use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use smallvec::smallvec;

const REPLICA: HeaderName = HeaderName::from_static("x-homing-replica");
const CACHED: HeaderName = HeaderName::from_static("x-homing-cached-tokens");
const PROMPT: HeaderName = HeaderName::from_static("x-homing-prompt-tokens");
const WAIT: HeaderName = HeaderName::from_static("x-homing-wait-ms");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The router's own error.
pub(super) fn problem(mut record: Box<Record>, problem: &Problem) -> Response<Answer> {
    record.end(Ending::Problem(problem.kind));
    let body = Bytes::from(problem.body(record.errors, record.id()));
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json(record, status, body);
    if let Some(seconds) = problem.retry_after {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
    }
    response
}

/// An answer of the router's own.
pub(super) fn json(mut record: Box<Record>, status: StatusCode, body: Bytes) -> Response<Answer> {
    if status.is_success() {
        record.end(Ending::Ok);
    }
    let mut headers = HeaderMap::with_capacity(6);
    headers.insert(CONTENT_TYPE, JSON);
    headers.insert(headers::REQUEST_ID, record.request_id.clone());
    finish(record, status, headers, |record| Answer::whole(smallvec![body], None, record))
}

/// A replica's answer. `strip`: take the usage event out that only the router asked for. A `reservation` that is
/// still open ends with the answer.
pub(super) fn reply(
    mut record: Box<Record>,
    reply: Reply,
    reservation: Option<Reservation>,
    strip: bool,
    resume: Option<(Box<Resume>, Weave)>,
) -> Response<Answer> {
    let Reply { head, pieces, trailers, source, ended, .. } = reply;
    let (status, mut headers) = (head.status, head.headers);
    headers::to_client(&mut headers, &record.request_id);
    let events = headers::is_event_stream(&headers);
    let tell = events && !headers.contains_key(CONTENT_LENGTH) && headers::is_plain(&headers);
    let (resume, weave) = resume.filter(|_| tell && status.is_success()).unzip();
    let woven = weave.is_some();
    let readable = status.is_success() && headers::is_plain(&headers);
    let mut watch = match weave {
        Some(weave) => Watch::Woven(Box::new(weave)),
        None if readable && events => Watch::events(strip),
        None if readable && record.generates => Watch::json(),
        None => Watch::Blind,
    };
    if events {
        headers.insert(headers::NO_BUFFERING, HeaderValue::from_static("no"));
        if strip {
            headers.remove(CONTENT_LENGTH);
        }
    }
    if !status.is_success() {
        headers::cap_retry_after(&mut headers, record.worker.shared.settings().max_retry_after);
        record.end(if status.is_client_error() { Ending::Refused } else { Ending::ReplicaError });
    }
    record.streamed = events;
    if !ended || woven {
        let idle = events.then_some(record.worker.shared.settings().stream_idle);
        let how = How { idle, events: tell, resume };
        return finish(record, status, headers, |record| {
            Answer::live(Live::new(source, pieces, watch, reservation, record, how))
        });
    }
    let mut out = Pieces::new();
    for piece in pieces {
        out.extend(watch.see(piece));
    }
    out.extend(watch.end());
    record.whole(&watch, reservation);
    finish(record, status, headers, |record| Answer::whole(out, trailers, record))
}

fn finish(
    mut record: Box<Record>,
    status: StatusCode,
    mut headers: HeaderMap,
    body: impl FnOnce(Box<Record>) -> Answer,
) -> Response<Answer> {
    record.status = status.as_u16();
    if record.explain
        && let Some((replica, cached, prompt, waited)) = record.placement()
    {
        let millis = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        headers.insert(CACHED, cached.into());
        headers.insert(PROMPT, prompt.into());
        headers.insert(WAIT, millis.into());
        if let Ok(replica) = HeaderValue::from_str(replica) {
            headers.insert(REPLICA, replica);
        }
    }
    if record.http1 && record.closing() {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let mut response = Response::new(body(record));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}
