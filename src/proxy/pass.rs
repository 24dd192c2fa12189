//! Every path without a prompt in it: to the replica with the least to do, bodies streamed both ways.

use super::answer::Answer;
use super::attempts::{self, Repeat};
use super::exchange::{Body, Call};
use super::generate::{broke_off, refused};
use super::headers;
use super::models::percent_decoded;
use super::read_body::read_body;
use super::record::Record;
use super::reply::Reply;
use super::respond;
use super::target;
use super::through::Through;
use super::tunnel::Far;
use crate::openai::{Ignore, Problem, Scratch, Shape, scan};
use crate::router::Ask;
use crate::router::Reservation;
use http::header::{CONNECTION, CONTENT_TYPE, UPGRADE};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, Version};
use http_body::Body as _;
use hyper::Request;
use hyper::body::Incoming;
use smallvec::smallvec;

/// Bodies up to this size are held, so that they can be sent again and their model be read.
const HELD: u64 = 64 * 1024;
/// Paths that only compute: sending such a request twice does no harm.
const COMPUTE: [&str; 10] = [
    "/v1/embeddings",
    "/tokenize",
    "/detokenize",
    "/score",
    "/v1/score",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
    "/pooling",
    "/classify",
];
/// What follows here is the identifier of a stored response.
const RESPONSES: &str = "/v1/responses/";

/// Serves one request.
pub(super) async fn serve(mut record: Box<Record>, request: Request<Incoming>) -> Response<Answer> {
    match run(&mut record, request).await {
        Ok((reply, reservation)) if reply.head.status == StatusCode::SWITCHING_PROTOCOLS => {
            switch(record, reply, reservation).await
        }
        Ok((reply, reservation)) => respond::reply(record, reply, reservation, false, None),
        Err(problem) => respond::problem(record, &problem),
    }
}

async fn run(record: &mut Record, request: Request<Incoming>) -> Result<attempts::Served, Problem> {
    let (head, body) = request.into_parts();
    if climbs(head.uri.path()) {
        return Err(Problem::bad_request("The path has segments that lead upwards."));
    }
    let upgrade = upgrade(&head);
    let mut ask = Ask { choices: 1, previous_response: stored(head.uri.path()), ..Ask::default() };
    record.steer(&head.headers, &mut ask);
    let limits = &record.worker.shared.live.limits();
    let hint = body.size_hint();
    let mut fault = None;
    let body = if body.is_end_stream() {
        Body::Memory(smallvec![])
    } else if hint.exact().is_some_and(|n| n <= HELD) {
        let whole = read_body(body, limits).await.map_err(|error| refused(&error, limits))?;
        record.bytes_in = whole.bytes.len() as u64;
        ask.model = model(&head, &whole.bytes).filter(|m| record.worker.shared.router.knows_model(m));
        Body::Memory(smallvec![whole.bytes])
    } else if hint.lower() > limits.bytes as u64 {
        return Err(Problem::payload_too_large(limits.bytes as u64));
    } else {
        let through = Through::new([], body, limits.bytes as u64, limits.silence);
        fault = Some(through.fault());
        Body::Stream(Some(Box::new(through)))
    };
    if upgrade.is_some() {
        ask.model = in_query(&head).filter(|m| record.worker.shared.router.knows_model(m));
    }
    record.model.clone_from(&ask.model);
    let repeat = repeat(&head, &body);
    let mut call = Call {
        target: target::of(&head.uri),
        method: head.method,
        headers: head.headers,
        request_id: record.request_id.clone(),
        body,
        report_at: None,
        rank: None,
        generates: false,
        plain: false,
        upgrade,
    };
    let worker = record.worker.clone();
    let served = attempts::run(record, &mut ask, &mut call, repeat).await;
    served.map_err(|problem| match fault.and_then(|f| f.get()) {
        Some(fault) => broke_off(fault, &worker.shared.live.limits()),
        None => problem,
    })
}

/// The protocol that the client wants to change to. HTTP/2 has no such thing, and h2c isn't one that passes.
fn upgrade(head: &Parts) -> Option<HeaderValue> {
    let asked =
        head.headers.get_all(CONNECTION).iter().any(|v| {
            v.as_bytes().split(|b| *b == b',').any(|t| t.trim_ascii().eq_ignore_ascii_case(b"upgrade"))
        });
    let protocol = head.headers.get(UPGRADE).filter(|_| asked && head.version == Version::HTTP_11)?;
    (!protocol.as_bytes().eq_ignore_ascii_case(b"h2c")).then(|| protocol.clone())
}

/// The replica agrees to speak something else: from here on, only bytes pass.
async fn switch(record: Box<Record>, reply: Reply, reservation: Option<Reservation>) -> Response<Answer> {
    let mut headers = reply.head.headers.clone();
    let protocol = headers.get(UPGRADE).cloned();
    headers::to_client(&mut headers, &record.request_id);
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    if let Some(protocol) = protocol {
        headers.insert(UPGRADE, protocol);
    }
    let client = record.client().clone();
    let mut record = record;
    record.status = StatusCode::SWITCHING_PROTOCOLS.as_u16();
    let Some(upstream) = reply.into_upstream() else {
        return respond::problem(record, &Problem::replica_failed());
    };
    match Far::new(upstream, record, reservation).await {
        Ok(far) => {
            client.becomes(far);
            let mut response = Response::new(Answer::none());
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            *response.headers_mut() = headers;
            response
        }
        Err(record) => respond::problem(record, &Problem::replica_failed()),
    }
}

/// The model that a query names, as `/v1/realtime?model=…` does.
fn in_query(head: &Parts) -> Option<String> {
    head.uri.query()?.split('&').find_map(|pair| pair.strip_prefix("model=")).map(percent_decoded)
}

/// Could the path lead out of the base path that a replica's URL names? No client sends such a path by accident: they
/// resolve these segments themselves.
fn climbs(path: &str) -> bool {
    path.split('/').any(|segment| segment.to_ascii_lowercase().replace("%2e", ".") == "..")
}

fn repeat(head: &Parts, body: &Body) -> Repeat {
    let harmless = matches!(head.method, Method::GET | Method::HEAD | Method::OPTIONS)
        || COMPUTE.contains(&head.uri.path());
    if harmless && matches!(body, Body::Memory(_)) { Repeat::Always } else { Repeat::Unsent }
}

/// The response that a path is about: only the replica that stored it knows it.
fn stored(path: &str) -> Option<String> {
    let id = path.strip_prefix(RESPONSES)?.split('/').next()?;
    (!id.is_empty()).then(|| id.to_owned())
}

/// The model that a JSON body names. A body that can't be read is the replica's to judge.
fn model(head: &Parts, body: &[u8]) -> Option<String> {
    let json = head.headers.get(CONTENT_TYPE).is_none_or(|v| v.as_bytes().starts_with(b"application/json"));
    if !json {
        return None;
    }
    let scan = scan(Shape::Completions, body, &mut Ignore, &mut Scratch::default()).ok()?;
    scan.model.map(|m| m.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_do_not_climb() {
        for path in ["/../metrics", "/v1/%2E%2e/x", "/v1/.%2e", "/.."] {
            assert!(climbs(path), "{path}");
        }
        for path in ["/v1/a..b", "/...", "/", "/v1/./x", "*"] {
            assert!(!climbs(path), "{path}");
        }
    }

    #[test]
    fn a_stored_response_is_asked_for_where_it_is() {
        assert_eq!(stored("/v1/responses/resp_1").as_deref(), Some("resp_1"));
        assert_eq!(stored("/v1/responses/resp_1/cancel").as_deref(), Some("resp_1"));
        assert_eq!(stored("/v1/responses/"), None);
        assert_eq!(stored("/v1/embeddings"), None);
    }
}
