//! The admin port: what the router believes, why it decides as it does, and taking replicas out of service.

use super::probes::why_not;
use super::reply::{Refused, not_found, wrong_method};
use super::{Context, ReloadOutcome, guard, reload};
use crate::openai::{Kind, Problem};
use crate::router::{Explanation, ReplicaView};
use axum::body::{Body, to_bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::middleware::from_fn_with_state;
use axum::response::Json;
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::{Value, json};
use std::fmt::Write;
use tokio::time::timeout;

/// The routes of the port.
pub(super) fn routes(context: Context) -> axum::Router {
    axum::Router::new()
        .route("/", get(front))
        .route("/replicas", get(replicas))
        .route("/config", get(config))
        .route("/explain", post(explain))
        .route("/reload", get(reload::last).post(reload::now))
        .route("/replicas/{id}/drain", post(drain))
        .route("/replicas/{id}/undrain", post(undrain))
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(context.clone(), guard::check))
        .with_state(context)
}

const ROUTES: &str = "\
GET  /replicas               what is believed of each replica, the index, what is degraded
POST /explain                where a request with this body would go, and why (?path=/v1/completions for other shapes)
GET  /config                 the running configuration, secrets hidden
POST /reload                 read the configuration anew; what can change does, what needs a restart is named
GET  /reload                 the last reload that changed something or was refused
POST /replicas/{id}/drain    no new requests to this replica (its id or name); those in flight go on
POST /replicas/{id}/undrain  new requests again
";

async fn front(State(c): State<Context>) -> String {
    let mut page = format!("homing {}\n", env!("CARGO_PKG_VERSION"));
    // Writing to a String can't fail.
    let _ = match why_not(&c) {
        None => writeln!(page, "ready"),
        Some(why) => writeln!(page, "not ready: {why}"),
    };
    for d in c.loud.degradations() {
        let of = if d.replica.is_empty() { "the router" } else { &d.replica };
        let _ = writeln!(page, "DEGRADED: {of}: {}: {}", d.what, d.detail);
    }
    if let Some(last) = c.reload.as_ref().and_then(|r| r.last())
        && last.outcome == ReloadOutcome::Refused
    {
        let why = last.reason.as_deref().unwrap_or_default();
        let _ = writeln!(page, "RELOAD REFUSED (by {}): {why}", last.by);
    }
    page.push('\n');
    page.push_str(ROUTES);
    page
}

async fn replicas(State(c): State<Context>) -> Json<Value> {
    let index = c.router.index_stats();
    let (in_flight, waiting) = c.router.load();
    Json(json!({
        "degraded": c.loud.degradations(),
        "not_ready": why_not(&c),
        "reload": c.reload.as_ref().and_then(|r| r.last()),
        "in_flight": in_flight,
        "waiting": waiting,
        "models": &*c.router.model_names(),
        "index": {
            "distinct_blocks": index.distinct_blocks,
            "held_blocks": index.held_blocks,
            "bytes": index.bytes,
            "speculations": index.speculations,
            "evicted_total": index.evicted_total,
            "forgotten_total": index.forgotten_total,
        },
        "replicas": c.router.replicas(),
    }))
}

async fn config(State(c): State<Context>) -> Result<Json<Value>, Refused> {
    match serde_json::to_value(&**c.config.load()) {
        Ok(value) => Ok(Json(value)),
        Err(error) => {
            tracing::error!(%error, "the configuration can't be shown");
            Err(Problem::internal().into())
        }
    }
}

/// The shape of the body is told by the path that it would be sent to.
#[derive(Deserialize)]
struct Shape {
    #[serde(default = "chat")]
    path: String,
}

fn chat() -> String {
    "/v1/chat/completions".to_owned()
}

async fn explain(
    State(c): State<Context>,
    shape: Result<Query<Shape>, QueryRejection>,
    body: Body,
) -> Result<Json<Explanation>, Refused> {
    let Query(shape) = shape.map_err(|_| Problem::bad_request("The query takes one `path`."))?;
    let (limit, time) = {
        let limits = &c.config.load().limits;
        (limits.body_bytes.as_usize(), limits.body_timeout.get())
    };
    let body = match timeout(time, to_bytes(body, limit)).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => {
            let why = format!("The body did not arrive whole, or has more than {limit} bytes.");
            return Err(Problem::new(Kind::PayloadTooLarge, why).into());
        }
        Err(_) => return Err(Problem::request_timeout(time.as_secs() as u32).into()),
    };
    // Hashing a prompt of megabytes would keep `/livez` waiting.
    let done = tokio::task::spawn_blocking(move || {
        let ask = (c.read_prompt)(&shape.path, &body)?;
        Ok::<_, Problem>(c.router.explain(&ask))
    });
    match done.await {
        Ok(explained) => Ok(Json(explained?)),
        Err(_) => Err(Problem::internal().into()),
    }
}

async fn drain(State(c): State<Context>, Path(id): Path<String>) -> Result<Json<Value>, Refused> {
    set_draining(&c, &id, true)
}

async fn undrain(State(c): State<Context>, Path(id): Path<String>) -> Result<Json<Value>, Refused> {
    set_draining(&c, &id, false)
}

fn set_draining(c: &Context, id: &str, draining: bool) -> Result<Json<Value>, Refused> {
    let all = c.router.replicas();
    let by = |same: fn(&ReplicaView) -> &str| all.iter().find(|v| same(v) == id);
    let known = by(|v| &v.id).or_else(|| by(|v| &v.name));
    match known {
        Some(v) if c.router.drain(v.replica, draining) => {
            tracing::info!(replica = v.name, draining, "told by the admin port");
            Ok(Json(json!({"id": v.id, "name": v.name, "draining": draining, "in_flight": v.in_flight})))
        }
        _ => Err(Problem::new(Kind::NotFound, "There is no replica of that id or name.").into()),
    }
}
