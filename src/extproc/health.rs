//! The gRPC health service: is the picker up, and can it pick?

use crate::proxy::Phase;
use crate::router::Router;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tonic::codegen::tokio_stream::Stream;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

/// How soon watchers hear of a change.
const LOOK: Duration = Duration::from_millis(200);

/// Answers the questions.
#[derive(Clone)]
pub(super) struct Pulse {
    router: Arc<Router>,
    phase: watch::Receiver<Phase>,
}

impl Pulse {
    pub(super) fn new(router: Arc<Router>, phase: watch::Receiver<Phase>) -> Self {
        Pulse { router, phase }
    }

    fn of(&self, service: &str) -> Option<ServingStatus> {
        let serving = match service {
            "liveness" => true,
            "" | "readiness" | "envoy.service.ext_proc.v3.ExternalProcessor" => {
                *self.phase.borrow() == Phase::Running && self.router.ready()
            }
            _ => return None,
        };
        Some(if serving { ServingStatus::Serving } else { ServingStatus::NotServing })
    }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl Health for Pulse {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = &request.get_ref().service;
        let names = "known services: \"\", liveness, readiness, envoy.service.ext_proc.v3.ExternalProcessor";
        let status = self.of(service).ok_or_else(|| Status::not_found(names))?;
        Ok(Response::new(answer(status)))
    }

    type WatchStream = Watching;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Watching>, Status> {
        let mut tick = interval(LOOK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let service = request.into_inner().service;
        Ok(Response::new(Watching { pulse: self.clone(), service, told: None, tick }))
    }
}

/// Tells a watcher each change.
pub(super) struct Watching {
    pulse: Pulse,
    service: String,
    told: Option<ServingStatus>,
    tick: Interval,
}

impl Stream for Watching {
    type Item = Result<HealthCheckResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            ready!(self.tick.poll_tick(cx));
            // Of a service that isn't known a watcher is told so, and stays: that is how the protocol has it.
            let status = self.pulse.of(&self.service).unwrap_or(ServingStatus::ServiceUnknown);
            if self.told.replace(status) != Some(status) {
                return Poll::Ready(Some(Ok(answer(status))));
            }
        }
    }
}
