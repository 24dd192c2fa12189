//! Which request is whose: the endpoints with prompts, the router's own, and all others.

use super::answer::Answer;
use super::io::InFlight;
use super::record::Record;
use super::worker::Worker;
use super::{generate, models, pass, respond};
use crate::openai::{Problem, Shape};
use bytes::Bytes;
use http::{Method, Response, StatusCode};
use hyper::Request;
use hyper::body::Incoming;
use std::rc::Rc;

/// Seconds after which to come again when no replica can serve.
const RETRY_AFTER: u32 = 2;

/// Answers one request.
pub(super) async fn handle(
    worker: Rc<Worker>,
    in_flight: InFlight,
    request: Request<Incoming>,
) -> Response<Answer> {
    worker.shared.live.budget().deposit();
    worker.shared.live.hedges().deposit();
    let mut record = Record::new(worker, in_flight, &request);
    let path = request.uri().path();
    // A tunnel isn't ours to give, and an echo would show the key that the replica gets from here.
    if matches!(*request.method(), Method::CONNECT | Method::TRACE) {
        return respond::problem(record, &Problem::method_not_allowed());
    }
    let read = matches!(*request.method(), Method::GET | Method::HEAD);
    // Browsers ask with OPTIONS whether they may: what a replica allows is the replica's to say.
    if let Some(shape) = Shape::of_path(path)
        && *request.method() != Method::OPTIONS
    {
        if *request.method() != Method::POST {
            return respond::problem(record, &Problem::method_not_allowed());
        }
        return generate::serve(record, request, shape).await;
    }
    if read && path == "/health" {
        record.route = "health";
        if record.worker.shared.router.ready() {
            return respond::json(record, StatusCode::OK, Bytes::from_static(b"{\"status\":\"ok\"}"));
        }
        return respond::problem(record, &Problem::no_capacity(RETRY_AFTER));
    }
    if read && let Some(rest) = path.strip_prefix("/v1/models") {
        match rest.strip_prefix('/') {
            Some(name) if !name.is_empty() => return models::one(record, name),
            Some(_) => return models::all(record),
            None if rest.is_empty() => return models::all(record),
            None => {}
        }
    }
    pass::serve(record, request).await
}
