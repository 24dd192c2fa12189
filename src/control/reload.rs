//! Reading the configuration anew, as the admin port asks for it and shows it. What is done then is the process's business.

use super::Context;
use super::reply::Refused;
use crate::openai::Problem;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use serde::Serialize;

/// What came of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReloadOutcome {
    /// What can change has changed.
    Applied,
    /// It says what it said before.
    Unchanged,
    /// It can't be used; what held before holds.
    Refused,
}

impl ReloadOutcome {
    /// The label in metrics.
    pub fn label(self) -> &'static str {
        match self {
            ReloadOutcome::Applied => "applied",
            ReloadOutcome::Unchanged => "unchanged",
            ReloadOutcome::Refused => "refused",
        }
    }
}

/// One reload, as it is told.
#[derive(Clone, Debug, Serialize)]
pub struct ReloadReport {
    /// What came of it.
    pub outcome: ReloadOutcome,
    /// What asked for it: `signal`, `file` or `admin`.
    pub by: &'static str,
    /// Seconds since 1970.
    pub at: u64,
    /// Keys whose new values hold now.
    pub changed: Vec<String>,
    /// Keys that say something new which only a restart can bring about; the old values hold until then.
    pub restart_needed: Vec<String>,
    /// What is odd about the new configuration.
    pub warnings: Vec<String>,
    /// Why it was refused.
    pub reason: Option<String>,
}

/// Who can do it.
pub trait Reload: Send + Sync {
    /// Reads the configuration and adopts it, or refuses it. Blocks for as long as reading files takes.
    fn reload(&self, by: &'static str) -> ReloadReport;

    /// The last one that changed something or was refused, if there was one.
    fn last(&self) -> Option<ReloadReport>;
}

/// `POST /reload`.
pub(super) async fn now(State(c): State<Context>) -> Result<Response, Refused> {
    let Some(reload) = c.reload.clone() else {
        return Err(Problem::bad_request("This router was started without a configuration to read.").into());
    };
    match tokio::task::spawn_blocking(move || reload.reload("admin")).await {
        Ok(report) => {
            let status = match report.outcome {
                ReloadOutcome::Refused => StatusCode::UNPROCESSABLE_ENTITY,
                ReloadOutcome::Applied | ReloadOutcome::Unchanged => StatusCode::OK,
            };
            Ok((status, Json(report)).into_response())
        }
        Err(_) => Err(Problem::internal().into()),
    }
}

/// `GET /reload`.
pub(super) async fn last(State(c): State<Context>) -> Json<Option<ReloadReport>> {
    Json(c.reload.as_ref().and_then(|r| r.last()))
}
