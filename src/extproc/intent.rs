//! What a request's headers say about how it wants to be treated.

use super::address::Wanted;
use super::message::Head;
use super::names;
use super::policies::Policies;
use crate::observe::{request_id, valid_request_id};
use crate::openai::Shape;
use std::time::Duration;

/// What the door goes by, the same for all streams.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Bytes of a body after which it is decided where it goes, though its end hasn't come.
    pub decide: usize,
    /// Most bytes held of a body.
    pub held: usize,
    /// Next best endpoints named beside the choice.
    pub fallbacks: usize,
    /// Do the headers that steer count?
    pub trusted: bool,
    /// Conformance tests may say what to choose.
    pub testing: bool,
}

/// Who asks for what, and how urgently.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wishes {
    /// By the objective; below zero: shed first.
    pub priority: i32,
    /// Whose request it is.
    pub tenant: Option<String>,
    /// Time to the first token that is wanted.
    pub ttft: Option<Duration>,
    /// Time a token that is wanted.
    pub tpot: Option<Duration>,
}

/// What the headers say.
#[derive(Clone, Debug, Default)]
pub(super) struct Intent {
    /// It generates: whose body is to be read, and how.
    pub(super) shape: Option<Shape>,
    pub(super) wishes: Wishes,
    pub(super) request_id: String,
    /// The model that the gateway wants to be asked for instead.
    pub(super) rewrite: Option<String>,
    pub(super) content_length: Option<u64>,
    /// A test's choice.
    pub(super) follow: Option<Vec<Wanted>>,
    /// The stored response that the path is about.
    pub(super) stored: Option<String>,
}

impl Intent {
    pub(super) fn of(head: &Head, rules: &Rules, policies: &Policies) -> Self {
        let path = head.text(":path").unwrap_or("/");
        let path = path.split(['?', '#']).next().unwrap_or(path);
        // A route may have put something before it.
        let path = path.rfind("/v1/").map_or(path, |at| &path[at..]);
        let id = head.get(names::REQUEST_ID).filter(|id| valid_request_id(id));
        let id = id.and_then(|id| std::str::from_utf8(id).ok());
        let steer = |list| head.first(list).filter(|_| rules.trusted);
        let millis = |list| {
            let ms: f64 = steer(list)?.parse().ok()?;
            Duration::try_from_secs_f64(ms / 1e3).ok().filter(|d| !d.is_zero())
        };
        Intent {
            shape: Shape::of_path(path).filter(|_| head.text(":method") == Some("POST") && is_json(head)),
            wishes: Wishes {
                priority: steer(names::OBJECTIVE).map_or(0, |name| policies.priority(name)),
                tenant: steer(names::FAIRNESS).map(str::to_owned),
                ttft: millis(names::SLO_TTFT),
                tpot: millis(names::SLO_TPOT),
            },
            request_id: id.map_or_else(request_id, str::to_owned),
            rewrite: steer(names::REWRITE).map(str::to_owned),
            content_length: head.text("content-length").and_then(|n| n.parse().ok()),
            follow: head
                .text(names::TEST_SELECTION)
                .filter(|_| rules.testing)
                .map(|list| Wanted::list(list).collect()),
            stored: stored(path),
        }
    }
}

/// Of a request without a content type it is found out by reading.
fn is_json(head: &Head) -> bool {
    head.text("content-type").is_none_or(|t| {
        let kind = t.split(';').next().unwrap_or(t).trim_end().to_ascii_lowercase();
        kind == "application/json" || kind.ends_with("+json")
    })
}

/// The response that a path is about: only the replica that stored it knows it.
fn stored(path: &str) -> Option<String> {
    let id = path.strip_prefix("/v1/responses/")?.split('/').next()?;
    (!id.is_empty()).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        Rules { decide: 100, held: 1000, fallbacks: 2, trusted: true, testing: false }
    }

    fn of(pairs: &[(&str, &str)], rules: &Rules) -> Intent {
        let head = Head(pairs.iter().map(|&(k, v)| (k.to_owned(), v.into())).collect());
        let policies = Policies { objectives: [("batch".to_owned(), -2)].into(), ..Policies::default() };
        Intent::of(&head, rules, &policies)
    }

    #[test]
    fn old_and_new_names_of_headers() {
        for (objective, tenant, rewrite) in [
            ("x-llm-d-inference-objective", "x-llm-d-inference-fairness-id", "x-llm-d-model-name-rewrite"),
            (
                "x-gateway-inference-objective",
                "x-gateway-inference-fairness-id",
                "x-gateway-model-name-rewrite",
            ),
        ] {
            let pairs =
                [(objective, "batch"), (tenant, "acme"), (rewrite, "m2"), ("x-llm-d-slo-ttft-ms", "250")];
            let i = of(&pairs, &rules());
            assert_eq!((i.wishes.priority, i.wishes.tenant.as_deref()), (-2, Some("acme")));
            assert_eq!((i.rewrite.as_deref(), i.wishes.ttft), (Some("m2"), Some(Duration::from_millis(250))));
            let untrusted = of(&pairs, &Rules { trusted: false, ..rules() });
            assert_eq!((untrusted.wishes, untrusted.rewrite), (Wishes::default(), None));
        }
        let old = of(&[("x-slo-tpot-ms", "0.5"), ("x-slo-ttft-ms", "-1")], &rules());
        assert_eq!((old.wishes.tpot, old.wishes.ttft), (Some(Duration::from_micros(500)), None));
    }

    #[test]
    fn the_canonical_name_counts_before_the_alias() {
        let pairs = [("x-gateway-inference-fairness-id", "old"), ("x-llm-d-inference-fairness-id", "new")];
        assert_eq!(of(&pairs, &rules()).wishes.tenant.as_deref(), Some("new"));
    }

    #[test]
    fn only_json_posted_to_a_known_path_is_read() {
        let post =
            |path, kind| of(&[(":method", "POST"), (":path", path), ("content-type", kind)], &rules()).shape;
        assert_eq!(post("/v1/chat/completions?x=1", "application/json; charset=utf-8"), Some(Shape::Chat));
        assert_eq!(post("/tenant/v1/completions", "Application/JSON"), Some(Shape::Completions));
        assert_eq!(post("/v1/chat/completions", "multipart/form-data"), None);
        assert_eq!(post("/v1/embeddings", "application/json"), None);
        assert_eq!(of(&[(":method", "GET"), (":path", "/v1/completions")], &rules()).shape, None);
        let stored = of(&[(":method", "GET"), (":path", "/v1/responses/resp_1?x")], &rules()).stored;
        assert_eq!(stored.as_deref(), Some("resp_1"));
    }

    #[test]
    fn a_tests_choice_counts_only_in_tests() {
        let pairs = [(names::TEST_SELECTION, "10.0.0.1:1,10.0.0.2")];
        assert!(of(&pairs, &rules()).follow.is_none());
        let testing = Rules { testing: true, ..rules() };
        assert_eq!(of(&pairs, &testing).follow.map(|f| f.len()), Some(2));
    }

    #[test]
    fn ids_are_kept_or_made() {
        assert_eq!(of(&[("x-request-id", "abc")], &rules()).request_id, "abc");
        assert!(!of(&[("x-request-id", "a b")], &rules()).request_id.contains(' '));
        assert!(!of(&[], &rules()).request_id.is_empty());
    }
}
