//! Which path does what.

use super::body::Api;
use super::conn::{Busy, Conn};
use super::error::Failure;
use super::faults::Faults;
use super::generate;
use super::metrics;
use super::reply::{Handled, Reply};
use super::state::{Pending, State, unix_now};
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MAX_BODY: usize = 256 << 20;

/// Paths that ask something of the engine: seen by the statistics, hit by faults.
const ENGINE_PATHS: [&str; 8] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/score",
    "/v1/score",
    "/tokenize",
];

/// Answer one request.
pub(super) async fn handle(state: Arc<State>, conn: Arc<Conn>, request: Request<Incoming>) -> Handled {
    let busy = Busy::new(&conn);
    let path = request.uri().path();
    if Instant::now() < state.ready_at {
        return Ok(whole(503, Failure::status(503, "The server is starting.").body(), busy));
    }
    if let Some(key) = &state.config.api_key
        && path.starts_with("/v1")
        && !authorized(&request, key)
    {
        return Ok(whole(401, r#"{"error":"Unauthorized"}"#.to_owned(), busy));
    }
    let engine_path = ENGINE_PATHS.into_iter().find(|p| *p == path);
    let (parts, body) = request.into_parts();
    let Ok(body) = Limited::new(body, MAX_BODY).collect().await else {
        return Ok(whole(413, Failure::status(413, "The body is too large.").body(), busy));
    };
    let body = body.to_bytes();
    match engine_path {
        Some(path) if parts.method == Method::POST => {
            state.stats.seen(path, parts, body.clone());
            Ok(engine(&state, path, body, busy).await)
        }
        Some(_) => Ok(whole(405, r#"{"detail":"Method Not Allowed"}"#.to_owned(), busy)),
        None => side(&state, parts.method, parts.uri, body, busy).await,
    }
}

fn authorized(request: &Request<Incoming>, key: &str) -> bool {
    let header = request.headers().get("authorization").and_then(|v| v.to_str().ok());
    header.and_then(|v| v.strip_prefix("Bearer ")) == Some(key)
}

/// A request for the engine, under the faults of now.
async fn engine(state: &Arc<State>, path: &'static str, body: Bytes, busy: Busy) -> Response<Reply> {
    let faults = state.faults.hit();
    if faults.reset {
        let _pending = Pending::new(state, "");
        busy.0.reset();
        return std::future::pending().await;
    }
    if faults.hang_before_headers {
        let _pending = Pending::new(state, "");
        return std::future::pending().await;
    }
    if let Some(wait) = faults.delay_headers.and_then(|s| Duration::try_from_secs_f64(s).ok()) {
        tokio::time::sleep(wait).await;
    }
    if let Some(status) = faults.status {
        let mut response = whole(status, Failure::status(status, "Simulated trouble.").body(), busy);
        if let Some(seconds) = faults.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        return response;
    }
    let api = match path {
        "/v1/chat/completions" => Api::Chat,
        "/v1/completions" => Api::Completions,
        "/v1/responses" => Api::Responses,
        "/v1/messages" => Api::Messages,
        _ => return generate::pooled(state, path, &body, busy).await,
    };
    generate::answer(state, api, &body, &faults, busy).await
}

/// Everything that the engine isn't asked for.
async fn side(state: &Arc<State>, method: Method, uri: hyper::Uri, body: Bytes, busy: Busy) -> Handled {
    let get = method == Method::GET;
    let done = |body: String| (200, body);
    let (status, text) = match uri.path() {
        "/health" if get => {
            let faults = state.faults.get();
            if faults.hang_health {
                return std::future::pending().await;
            }
            (faults.health.unwrap_or(200), String::new())
        }
        "/ping" => done(String::new()),
        "/version" if get => done(json!({"version": "0.32.0"}).to_string()),
        "/v1/models" if get => done(models(state).to_string()),
        "/metrics" if get => return page(state, busy).await,
        "/load" if get => {
            let c = state.station.counters();
            done(json!({"server_load": c.running + c.waiting}).to_string())
        }
        "/is_sleeping" if get => {
            done(json!({"is_sleeping": state.station.with(|_, e| e.is_asleep())}).to_string())
        }
        "/sleep" if !get => {
            state.station.with(|now, engine| engine.sleep(now));
            done(String::new())
        }
        "/wake_up" if !get => {
            state.station.with(|now, engine| engine.wake(now));
            done(String::new())
        }
        "/reset_prefix_cache" | "/mock/clear_cache" if !get => {
            state.station.with(|now, engine| engine.clear_cache(now));
            done(String::new())
        }
        "/mock/stats" if get => done(serde_json::to_string(&state.stats.report(state)).unwrap_or_default()),
        "/mock/last_body" if get => done(String::from_utf8_lossy(&state.stats.last_body()).into_owned()),
        "/mock/faults" if get => done(serde_json::to_string(&state.faults.get()).unwrap_or_default()),
        "/mock/faults" => match serde_json::from_slice::<Faults>(&body) {
            Ok(faults) => {
                set_faults(state, faults);
                done(String::new())
            }
            Err(e) => (400, Failure::bad_json(&e).body()),
        },
        _ => (404, r#"{"detail":"Not Found"}"#.to_owned()),
    };
    Ok(whole(status, text, busy))
}

/// Set all faults.
pub(super) fn set_faults(state: &State, faults: Faults) {
    state.station.fault(faults.slow);
    state.control.send_if_modified(|control| {
        let before = std::mem::replace(&mut control.close_idle_after, faults.close_idle_after);
        before != faults.close_idle_after
    });
    if let Some(publisher) = &state.publisher {
        publisher.set_faults(faults.kv.clone());
    }
    state.faults.set(faults);
}

async fn page(state: &Arc<State>, busy: Busy) -> Handled {
    let faults = state.faults.get();
    if faults.hang_metrics {
        return std::future::pending().await;
    }
    let text = if faults.empty_metrics {
        metrics::empty(state.started)
    } else {
        let (asleep, counters) = state.station.with(|_, e| (e.is_asleep(), e.snapshot()));
        let facts = metrics::Facts {
            config: &state.config,
            asleep,
            started: state.started,
            now: unix_now(),
            adapters: state.adapters(),
        };
        metrics::page(&counters, &state.config.profile, &facts)
    };
    let mut response = whole(200, text, busy);
    let kind = HeaderValue::from_static("text/plain; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}

fn models(state: &State) -> Value {
    let config = &state.config;
    let card = |id: &str, parent: Option<&str>| {
        json!({
            "id": id, "object": "model", "created": state.started as u64, "owned_by": "vllm", "root": id,
            "parent": parent, "max_model_len": parent.is_none().then_some(config.max_model_len),
        })
    };
    let models = config.models.iter().map(|m| card(m, None));
    let adapters = config.adapters.iter().map(|a| card(&a.name, Some(&a.parent)));
    json!({"object": "list", "data": models.chain(adapters).collect::<Vec<_>>()})
}

/// A response with its whole body.
pub(super) fn whole(status: u16, body: String, busy: Busy) -> Response<Reply> {
    let mut response = Response::new(Reply::Whole { body: Some(Bytes::from(body)), _busy: busy });
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
