//! Answers: JSON, and errors in OpenAI's shape.

use crate::observe::request_id;
use crate::openai::{ErrorShape, Problem};
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A problem as an answer.
#[derive(Debug)]
pub(super) struct Refused(pub(super) Problem);

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Refused(problem)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let id = request_id();
        let mut response = Response::new(Body::from(self.0.body(ErrorShape::OpenAi, &id)));
        *response.status_mut() =
            StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, JSON);
        if let Ok(id) = HeaderValue::try_from(id) {
            headers.insert(REQUEST_ID, id);
        }
        if let Some(seconds) = self.0.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// There is nothing here.
pub(super) async fn not_found() -> Refused {
    Refused(Problem::not_found())
}

/// Not with this method.
pub(super) async fn wrong_method() -> Refused {
    Refused(Problem::method_not_allowed())
}
