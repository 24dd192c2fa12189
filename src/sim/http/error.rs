//! Errors in the shape that vLLM gives them.

use serde_json::json;

/// An error answer.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) status: u16,
    message: String,
    kind: &'static str,
    param: Option<&'static str>,
}

impl Failure {
    /// 400 for a value that can't be served.
    pub(super) fn bad(message: impl Into<String>, param: &'static str) -> Self {
        Failure { status: 400, message: message.into(), kind: "BadRequestError", param: Some(param) }
    }

    /// 400 for a body that isn't the JSON expected.
    pub(super) fn bad_json(error: &serde_json::Error) -> Self {
        let message = format!("request body: {error}");
        Failure { status: 400, message, kind: "Bad Request", param: None }
    }

    /// 404 for a model that isn't served here.
    pub(super) fn no_model(model: &str) -> Self {
        let message = format!("The model `{model}` does not exist.");
        Failure { status: 404, message, kind: "NotFoundError", param: Some("model") }
    }

    /// 404 for a response that this server doesn't have.
    pub(super) fn no_response(id: &str) -> Self {
        let message = format!("Response with id '{id}' not found.");
        Failure { status: 404, message, kind: "NotFoundError", param: Some("response_id") }
    }

    /// 400 for a prompt that doesn't fit.
    pub(super) fn too_long(limit: u32, tokens: u32) -> Self {
        let message = format!(
            "This model's maximum context length is {limit} tokens, and the request has {tokens} input tokens."
        );
        Failure::bad(message, "input_tokens")
    }

    /// An error with this status, as an engine in trouble gives it.
    pub(super) fn status(status: u16, message: impl Into<String>) -> Self {
        let kind = match status {
            429 => "RateLimitError",
            503 => "ServiceUnavailableError",
            _ => "InternalServerError",
        };
        Failure { status, message: message.into(), kind, param: None }
    }

    /// The body.
    pub(super) fn body(&self) -> String {
        json!({"error": {
            "message": self.message, "type": self.kind, "param": self.param, "code": self.status,
        }})
        .to_string()
    }
}
