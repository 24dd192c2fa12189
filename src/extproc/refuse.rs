//! Refusals, as the endpoint picker protocol tells them.

use super::message::{Immediate, Set};
use super::names;
use crate::openai::{ErrorShape, Kind, Problem};
use crate::router::Refusal;

/// Why a request isn't passed on: the problem as the client reads it, and the reason as gateways count it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The problem.
    pub problem: Problem,
    /// The value of `x-llm-d-request-dropped-reason`, if it was dropped for want of room.
    pub reason: Option<&'static str>,
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Refused { problem, reason: None }
    }
}

impl Refused {
    /// No endpoint is eligible.
    pub fn no_endpoints(retry_after: u32) -> Self {
        Refused { problem: Problem::no_capacity(retry_after), reason: Some("rejected-no-endpoints") }
    }

    /// The router said no.
    pub fn from_router(refusal: Refusal, model: Option<&str>) -> Self {
        match refusal {
            Refusal::UnknownModel { known } => {
                Problem::model_not_found(model.unwrap_or_default(), known.iter()).into()
            }
            Refusal::TooLong { prompt, max } => Problem::context_too_long(prompt.into(), max.into()).into(),
            Refusal::NoReplica { retry_after } => Self::no_endpoints(retry_after),
            // Shed, not broken: 429 is what gateways and their clients back off from.
            Refusal::QueueFull { retry_after } | Refusal::Shed { retry_after } => Refused {
                problem: Problem { status: 429, ..Problem::no_capacity(retry_after) },
                reason: Some("rejected-saturated"),
            },
            Refusal::Deadline { retry_after } => Refused {
                problem: Problem::no_capacity(retry_after),
                reason: Some("rejected-ttl-expired"),
            },
            Refusal::PinnedGone => Problem::bad_request(
                "The replica that stored `previous_response_id` has left. Send the conversation's messages instead.",
            )
            .into(),
        }
    }

    /// The body names no model.
    pub fn no_model() -> Self {
        let message = "The body names no model: set `model`.";
        Problem { param: Some("model"), ..Problem::new(Kind::BadRequest, message) }.into()
    }

    /// The answer instead of the replica's.
    pub fn answer(&self, shape: ErrorShape, request_id: &str) -> Immediate {
        let mut set: Vec<Set> =
            vec![("content-type", "application/json".into()), ("x-request-id", request_id.to_owned().into())];
        if let Some(seconds) = self.problem.retry_after {
            set.push(("retry-after", seconds.to_string().into()));
        }
        if let Some(reason) = self.reason {
            set.push((names::DROPPED, reason.into()));
        }
        Immediate {
            status: self.problem.status,
            set,
            body: self.problem.body(shape, request_id),
            details: self.problem.kind.as_label(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_its_status_and_reason() {
        let of = |r| {
            let a = Refused::from_router(r, Some("m")).answer(ErrorShape::OpenAi, "id");
            let get = |name: &str| a.set.iter().find(|(k, _)| *k == name).map(|(_, v)| v.to_string());
            (a.status, get(names::DROPPED), get("retry-after"))
        };
        let some = |s: &str| Some(s.to_owned());
        let after = |n| some(n);
        assert_eq!(
            of(Refusal::NoReplica { retry_after: 2 }),
            (503, some("rejected-no-endpoints"), after("2"))
        );
        assert_eq!(of(Refusal::QueueFull { retry_after: 7 }), (429, some("rejected-saturated"), after("7")));
        assert_eq!(of(Refusal::Deadline { retry_after: 1 }), (503, some("rejected-ttl-expired"), after("1")));
        assert_eq!(of(Refusal::TooLong { prompt: 9, max: 3 }), (400, None, None));
        assert_eq!(of(Refusal::UnknownModel { known: [].into() }), (404, None, None));
        assert_eq!(of(Refusal::PinnedGone), (400, None, None));
        let body = Refused::no_model().answer(ErrorShape::OpenAi, "id-1").body;
        let told: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(told["error"]["param"], "model");
        assert!(told["error"]["message"].as_str().unwrap().contains("id-1"));
    }
}
