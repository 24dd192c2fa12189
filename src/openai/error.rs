//! The one error type of the project: who is at fault, what happened, may it be tried again, and what the client reads.
//!
//! Messages are for a stranger at the other end: they say what was wrong and what to do, and never what a prompt said.

use super::json::BadJson;
use super::scan::Shape;
use serde_json::json;
use std::borrow::Cow;
use std::fmt::{self, Write as _};

/// Whose fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The request.
    Client,
    /// The router, or the fleet as a whole.
    Router,
    /// One replica.
    Replica,
}

/// What happened. The label is a metric's value and stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The body is not JSON.
    BadJson,
    /// The request is not well-formed in another way.
    BadRequest,
    /// No or a wrong key.
    Unauthorized,
    /// No such path.
    NotFound,
    /// The path doesn't take this method.
    MethodNotAllowed,
    /// No such model.
    ModelNotFound,
    /// The body is too long.
    PayloadTooLarge,
    /// The headers are too long.
    HeaderTooLarge,
    /// The request took too long to arrive.
    RequestTimeout,
    /// The prompt is longer than every replica's context.
    ContextTooLong,
    /// The tenant's quota is used up.
    Quota,
    /// Nothing can serve the request now.
    NoCapacity,
    /// The router hasn't seen its fleet yet, or is shutting down.
    NotReady,
    /// The time for the whole request is over.
    Deadline,
    /// No connection to a replica.
    ReplicaUnreachable,
    /// A replica broke off or answered nonsense.
    ReplicaFailed,
    /// A replica did not answer in time.
    ReplicaTimeout,
    /// A fault of the router.
    Internal,
}

impl Kind {
    /// Every kind, for metrics that begin at zero.
    pub const ALL: [Kind; 18] = [
        Kind::BadJson,
        Kind::BadRequest,
        Kind::Unauthorized,
        Kind::NotFound,
        Kind::MethodNotAllowed,
        Kind::ModelNotFound,
        Kind::PayloadTooLarge,
        Kind::HeaderTooLarge,
        Kind::RequestTimeout,
        Kind::ContextTooLong,
        Kind::Quota,
        Kind::NoCapacity,
        Kind::NotReady,
        Kind::Deadline,
        Kind::ReplicaUnreachable,
        Kind::ReplicaFailed,
        Kind::ReplicaTimeout,
        Kind::Internal,
    ];

    /// Name in metrics and logs.
    pub fn as_label(self) -> &'static str {
        self.row().0
    }

    /// Label, source, status, retryable, OpenAI's type and code, Anthropic's type.
    fn row(self) -> Row {
        use Source::{Client, Replica, Router};
        const BAD: &str = "invalid_request_error";
        const OFF: &str = "service_unavailable";
        const FAIL: &str = "server_error";
        match self {
            Kind::BadJson => ("bad_json", Client, 400, false, BAD, Some("invalid_json"), BAD),
            Kind::BadRequest => ("bad_request", Client, 400, false, BAD, None, BAD),
            Kind::Unauthorized => {
                ("unauthorized", Client, 401, false, BAD, Some("invalid_api_key"), "authentication_error")
            }
            Kind::NotFound => ("not_found", Client, 404, false, BAD, Some("not_found"), "not_found_error"),
            Kind::MethodNotAllowed => {
                ("method_not_allowed", Client, 405, false, BAD, Some("method_not_allowed"), BAD)
            }
            Kind::ModelNotFound => {
                ("model_not_found", Client, 404, false, BAD, Some("model_not_found"), "not_found_error")
            }
            Kind::PayloadTooLarge => {
                ("payload_too_large", Client, 413, false, BAD, Some("payload_too_large"), "request_too_large")
            }
            Kind::HeaderTooLarge => {
                ("header_too_large", Client, 431, false, BAD, Some("header_too_large"), BAD)
            }
            Kind::RequestTimeout => {
                ("request_timeout", Client, 408, false, BAD, Some("request_timeout"), BAD)
            }
            Kind::ContextTooLong => {
                ("context_too_long", Client, 400, false, BAD, Some("context_length_exceeded"), BAD)
            }
            Kind::Quota => {
                let code = "rate_limit_exceeded";
                ("quota", Client, 429, true, code, Some(code), "rate_limit_error")
            }
            Kind::NoCapacity => {
                ("no_capacity", Router, 503, true, OFF, Some("no_capacity"), "overloaded_error")
            }
            Kind::NotReady => ("not_ready", Router, 503, true, OFF, Some("not_ready"), "overloaded_error"),
            Kind::Deadline => {
                ("deadline", Router, 504, true, FAIL, Some("deadline_exceeded"), "timeout_error")
            }
            Kind::ReplicaUnreachable => {
                ("replica_unreachable", Replica, 502, true, FAIL, Some("replica_unreachable"), "api_error")
            }
            Kind::ReplicaFailed => {
                ("replica_failed", Replica, 502, true, FAIL, Some("replica_failed"), "api_error")
            }
            Kind::ReplicaTimeout => {
                ("replica_timeout", Replica, 504, true, FAIL, Some("replica_timeout"), "timeout_error")
            }
            Kind::Internal => ("internal", Router, 500, false, FAIL, Some("internal_error"), "api_error"),
        }
    }
}

type Row = (&'static str, Source, u16, bool, &'static str, Option<&'static str>, &'static str);

/// In whose shape an error is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorShape {
    /// `{"error":{"message","type","param","code"}}`
    #[default]
    OpenAi,
    /// `{"type":"error","error":{"type","message"},"request_id"}`
    Anthropic,
}

impl From<Shape> for ErrorShape {
    fn from(shape: Shape) -> Self {
        if shape == Shape::Messages { ErrorShape::Anthropic } else { ErrorShape::OpenAi }
    }
}

/// Why a request got no answer, or only part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Whose fault it is.
    pub source: Source,
    /// What happened.
    pub kind: Kind,
    /// May the same request succeed when it is sent again?
    pub retryable: bool,
    /// HTTP status.
    pub status: u16,
    /// For the client.
    pub message: Cow<'static, str>,
    /// The parameter that is wrong.
    pub param: Option<&'static str>,
    /// When to come again, in seconds (`Retry-After`).
    pub retry_after: Option<u32>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Problem {}

/// Most model names that an error lists, and the longest name that is repeated to the client.
const LISTED: usize = 20;
const NAME: usize = 100;

impl Problem {
    /// A problem of this kind with the kind's own source, status and retryability.
    pub fn new(kind: Kind, message: impl Into<Cow<'static, str>>) -> Self {
        let (_, source, status, retryable, ..) = kind.row();
        let message = message.into();
        Problem { source, kind, retryable, status, message, param: None, retry_after: None }
    }

    fn param(self, param: &'static str) -> Self {
        Problem { param: Some(param), ..self }
    }

    /// The same, to be tried again after so many seconds.
    pub fn after(self, seconds: u32) -> Self {
        Problem { retry_after: Some(seconds), ..self }
    }

    /// The body is not a JSON object.
    pub fn bad_json(bad: &BadJson) -> Self {
        let BadJson { line, column, detail } = bad;
        Self::new(
            Kind::BadJson,
            format!("The body is not valid JSON: {detail} at line {line}, column {column}."),
        )
    }

    /// The request can't be understood, for this reason (a whole sentence).
    pub fn bad_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::BadRequest, message)
    }

    /// No replica serves `name`; `known` are the models there are.
    pub fn model_not_found<S: AsRef<str>>(name: &str, known: impl IntoIterator<Item = S>) -> Self {
        let cut: String = name.chars().take(NAME).collect();
        let dots = if cut.len() < name.len() { "…" } else { "" };
        let mut message = format!("The model `{cut}{dots}` does not exist. ");
        let mut listed = 0;
        for model in known {
            if listed == LISTED {
                message.push_str(", and others (see /v1/models)");
                break;
            }
            let before = if listed == 0 { "Models here: " } else { ", " };
            // Writing to a string doesn't fail.
            let _ = write!(message, "{before}`{}`", model.as_ref());
            listed += 1;
        }
        message.push_str(if listed == 0 { "No replica serves a model at the moment." } else { "." });
        Self::new(Kind::ModelNotFound, message).param("model")
    }

    /// The body has more than `limit` bytes.
    pub fn payload_too_large(limit: u64) -> Self {
        Self::new(
            Kind::PayloadTooLarge,
            format!("The body is longer than the {limit} bytes that are accepted here."),
        )
    }

    /// The headers have more than `limit` bytes.
    pub fn header_too_large(limit: u64) -> Self {
        Self::new(
            Kind::HeaderTooLarge,
            format!("The headers are longer than the {limit} bytes that are accepted here."),
        )
    }

    /// Headers or body did not arrive within `seconds`.
    pub fn request_timeout(seconds: u32) -> Self {
        Self::new(Kind::RequestTimeout, format!("The request did not arrive completely within {seconds} s."))
    }

    /// The prompt has about `prompt` tokens; the longest context of any replica that has the model is `max`.
    pub fn context_too_long(prompt: u64, max: u64) -> Self {
        let message = format!(
            "This model's maximum context length is {max} tokens, but the prompt has about {prompt}. Shorten the prompt."
        );
        Self::new(Kind::ContextTooLong, message).param("messages")
    }

    /// No replica can take the request; come again in `retry_after` seconds.
    pub fn no_capacity(retry_after: u32) -> Self {
        Self::new(Kind::NoCapacity, "No replica can take the request at the moment. Try again later.")
            .after(retry_after)
    }

    /// The tenant has used up its quota.
    pub fn quota(retry_after: u32) -> Self {
        Self::new(Kind::Quota, "The rate limit of this key is reached. Try again later.").after(retry_after)
    }

    /// The request was not answered within `seconds`.
    pub fn deadline(seconds: u32) -> Self {
        Self::new(Kind::Deadline, format!("The request was not answered within its {seconds} s."))
    }

    /// The replica closed the connection, reset it, or sent what isn't HTTP.
    pub fn replica_failed() -> Self {
        Self::new(Kind::ReplicaFailed, "The replica that worked on the request failed. It can be sent again.")
    }

    /// No connection to the replicas that were tried.
    pub fn replica_unreachable() -> Self {
        Self::new(
            Kind::ReplicaUnreachable,
            "No connection to a replica could be made. The request can be sent again.",
        )
    }

    /// The replica did not begin to answer within `seconds`.
    pub fn replica_timeout(seconds: u32) -> Self {
        Self::new(Kind::ReplicaTimeout, format!("The replica did not begin to answer within {seconds} s."))
    }

    /// The key is missing or wrong.
    pub fn unauthorized() -> Self {
        Self::new(
            Kind::Unauthorized,
            "The API key is missing or wrong. Send it as `Authorization: Bearer <key>`.",
        )
    }

    /// The router has no fleet yet, or is going away.
    pub fn not_ready(retry_after: u32) -> Self {
        Self::new(Kind::NotReady, "The router is starting or shutting down. Try again later.")
            .after(retry_after)
    }

    /// There is nothing at this path.
    pub fn not_found() -> Self {
        Self::new(Kind::NotFound, "There is nothing at this path.")
    }

    /// The path is there, but not for this method.
    pub fn method_not_allowed() -> Self {
        Self::new(Kind::MethodNotAllowed, "This path does not take this method.")
    }

    /// A fault of the router.
    pub fn internal() -> Self {
        Self::new(Kind::Internal, "The router made a mistake. Report it with the request id.")
    }

    /// The JSON body of the answer. The message names the request.
    pub fn body(&self, shape: ErrorShape, request_id: &str) -> Vec<u8> {
        let (.., ty, code, anthropic) = self.kind.row();
        let message = format!("{} (request id: {request_id})", self.message);
        let body = match shape {
            ErrorShape::OpenAi => {
                json!({"error": {"message": message, "type": ty, "param": self.param, "code": code}})
            }
            ErrorShape::Anthropic => {
                json!({"type": "error", "error": {"type": anthropic, "message": message}, "request_id": request_id})
            }
        };
        body.to_string().into_bytes()
    }

    /// The event that ends a stream which had begun. No end mark follows it: what came before is not a whole answer.
    pub fn sse_event(&self, shape: ErrorShape, request_id: &str) -> Vec<u8> {
        let mut event = match shape {
            ErrorShape::OpenAi => b"data: ".to_vec(),
            ErrorShape::Anthropic => b"event: error\ndata: ".to_vec(),
        };
        event.extend(self.body(shape, request_id));
        event.extend(b"\n\n");
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::{Facts, Framer, FramerMode};
    use serde_json::Value;
    use std::collections::HashSet;

    #[test]
    fn labels_are_distinct_and_statuses_are_errors() {
        let labels: HashSet<_> = Kind::ALL.iter().map(|k| k.as_label()).collect();
        assert_eq!(labels.len(), Kind::ALL.len());
        for kind in Kind::ALL {
            let p = Problem::new(kind, "");
            assert_eq!(p.source == Source::Client, p.status < 500, "{kind:?}");
        }
    }

    #[test]
    fn openai_shape() {
        let p = Problem::model_not_found("gp\"t", ["a", "b"]);
        let v: Value = serde_json::from_slice(&p.body(ErrorShape::OpenAi, "req-1")).unwrap();
        assert_eq!(p.status, 404);
        assert_eq!(v["error"]["type"], "invalid_request_error");
        assert_eq!(v["error"]["code"], "model_not_found");
        assert_eq!(v["error"]["param"], "model");
        let message = "The model `gp\"t` does not exist. Models here: `a`, `b`. (request id: req-1)";
        assert_eq!(v["error"]["message"], message);
        let v: Value =
            serde_json::from_slice(&Problem::no_capacity(3).body(ErrorShape::OpenAi, "r")).unwrap();
        assert_eq!(
            (&v["error"]["type"], &v["error"]["param"]),
            (&json!("service_unavailable"), &Value::Null)
        );
    }

    #[test]
    fn anthropic_shape() {
        let p = Problem::context_too_long(10, 5);
        let v: Value = serde_json::from_slice(&p.body(Shape::Messages.into(), "r1")).unwrap();
        assert_eq!((&v["type"], &v["request_id"]), (&json!("error"), &json!("r1")));
        assert_eq!(v["error"]["type"], "invalid_request_error");
    }

    #[test]
    fn strangers_cannot_make_messages_long() {
        let many: Vec<String> = (0..1000).map(|i| format!("model-{i}")).collect();
        let p = Problem::model_not_found(&"é".repeat(100_000), &many);
        assert!(p.message.len() < 1000 && p.message.contains("others"));
        assert!(Problem::model_not_found("x", [""; 0]).message.contains("No replica serves"));
    }

    #[test]
    fn bad_json_says_where() {
        let p = Problem::bad_json(&BadJson { line: 2, column: 7, detail: "expected a colon" });
        assert_eq!((p.status, p.retryable), (400, false));
        assert!(p.message.contains("expected a colon at line 2, column 7"));
    }

    #[test]
    fn a_broken_stream_ends_with_an_error_and_no_end_mark() {
        for shape in [ErrorShape::OpenAi, ErrorShape::Anthropic] {
            let event = Problem::replica_failed().sse_event(shape, "r");
            let mut framer = Framer::new(FramerMode::default());
            framer.push(event.into());
            assert_eq!(framer.facts(), &Facts { error: true, ..Facts::default() });
        }
    }
}
