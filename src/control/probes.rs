//! Health and metrics: what probes and scrapers ask for. Nothing here needs a token, and nothing here steers.

use super::Context;
use super::reply::{Refused, not_found, wrong_method};
use crate::observe::CONTENT_TYPE;
use crate::openai::{Kind, Problem};
use crate::router::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// The routes of the port.
pub(super) fn routes(context: Context) -> axum::Router {
    axum::Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .with_state(context)
}

/// Seconds after which to ask again: replicas are looked at once a second.
const AGAIN: u32 = 1;

async fn ready(State(c): State<Context>) -> Result<&'static str, Refused> {
    match why_not(&c) {
        None => Ok("ready\n"),
        Some(why) => Err(Problem::new(Kind::NotReady, why).after(AGAIN).into()),
    }
}

/// Why new requests should go elsewhere.
pub(super) fn why_not(c: &Context) -> Option<String> {
    if (c.draining)() {
        return Some("The router is shutting down.".to_owned());
    }
    (!c.router.ready()).then(|| format!("No replica can serve: {}.", states(&c.router)))
}

/// How many replicas are in which state, like `2 starting, 1 down`.
fn states(router: &Router) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for view in router.replicas() {
        let state = if view.draining { "draining" } else { view.state };
        match counts.iter_mut().find(|(s, _)| *s == state) {
            Some((_, n)) => *n += 1,
            None => counts.push((state, 1)),
        }
    }
    if counts.is_empty() {
        return "there are none".to_owned();
    }
    counts.iter().map(|(state, n)| format!("{n} {state}")).collect::<Vec<_>>().join(", ")
}

async fn metrics(State(c): State<Context>) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], c.metrics.render()).into_response()
}
