//! Placing a request and trying it, on another replica if need be.
//!
//! Nothing of an answer has reached the client while this goes on, so a request may be tried again: on another
//! replica, with the same bytes, within the budget. What a replica says in its own words (429, 503, 500) is kept, and
//! passed on if nobody else can do better.

use super::exchange::{Call, Failed};
use super::headers;
use super::hedge;
use super::record::Record;
use super::reply::Reply;
use crate::core::Failure;
use crate::openai::{Kind, Problem};
use crate::router::{Ask, Refusal, Reservation};
use http::StatusCode;
use std::time::{Duration, Instant};

/// Seconds after which to come again when replicas can't be reached: about what it takes to notice that they can.
const RETRY_AFTER: u32 = 2;

/// What may be tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Generating, or only reading: doing it twice is doing it once, but slower.
    Always,
    /// Anything: only what hasn't gone out.
    Unsent,
}

/// An answer and what is still booked for it.
pub(super) type Served = (Reply, Option<Reservation>);

/// Places and tries until there is an answer to pass on, or no hope of one.
///
/// # Errors
/// What to tell the client.
pub(super) async fn run(
    record: &mut Record,
    ask: &mut Ask,
    call: &mut Call,
    repeat: Repeat,
) -> Result<Served, Problem> {
    let worker = record.worker.clone();
    let shared = &worker.shared;
    // The best there is to say when nobody else can be asked.
    let mut last: Option<Result<Reply, Problem>> = None;
    loop {
        let asked = Instant::now();
        let reservation = match shared.router.place(ask).await {
            Ok(reservation) => reservation,
            Err(refusal) => {
                record.waited_in_vain(asked.elapsed());
                if let Some(reason) = refusal.shed_reason() {
                    shared.metrics.shed(reason);
                }
                match last {
                    Some(last) => return last.map(|reply| (reply, None)),
                    None => return Err(refused(refusal, ask, shared.settings().patience)),
                }
            }
        };
        record.placed(&reservation);
        let Some(endpoint) = reservation.endpoint().cloned() else { continue };
        call.rank = reservation.rank();
        let begun = Instant::now();
        let delay = hedge::delay(&worker, ask, call).filter(|_| record.attempts == 1);
        let (result, reservation) = match delay {
            None => (call.attempt(&worker, &endpoint).await, reservation),
            Some(delay) => hedge::race(record, ask, call, reservation, &endpoint, delay).await,
        };
        let replica = reservation.replica();
        let (outcome, unsent, reason) = match result {
            Ok(reply) => match verdict(&reply, repeat, shared.settings().max_retry_after.as_secs()) {
                Verdict::Pass => {
                    if ask.streams {
                        shared.recent.observe(begun.elapsed());
                    }
                    return Ok((reply, Some(reservation)));
                }
                Verdict::Blameless => {
                    reservation.fail(Failure::Blameless);
                    return Ok((reply, None));
                }
                Verdict::Failed(failure) => {
                    reservation.fail(failure);
                    (Ok(reply), false, if matches!(failure, Failure::Status(_)) { "status" } else { "busy" })
                }
            },
            Err(failed) => {
                tracing::debug!(%failed, replica = &*endpoint.name, id = record.id(), "an attempt failed");
                reservation.fail(failed.failure());
                let seconds = shared.settings().first_byte.map_or(0, |d| d.as_secs());
                (Err(problem(&failed, seconds)), failed.unsent(), failed.reason())
            }
        };
        ask.tried.push(replica);
        if !(repeat == Repeat::Always || unsent) || record.attempts >= shared.settings().attempts {
            return outcome.map(|reply| (reply, None));
        }
        if !shared.live.budget().withdraw(shared.router.now()) {
            shared.metrics.budget_exhausted.inc();
            return outcome.map(|reply| (reply, None));
        }
        shared.metrics.retried(reason);
        last = Some(outcome);
    }
}

pub(super) enum Verdict {
    /// The client's answer.
    Pass,
    /// The client's answer, and its own fault.
    Blameless,
    /// The replica failed or has enough to do.
    Failed(Failure),
}

pub(super) fn verdict(reply: &Reply, repeat: Repeat, max_retry_after: u64) -> Verdict {
    let status = reply.head.status;
    let asked = headers::retry_after(&reply.head.headers).map(|s| s.min(max_retry_after) as f64);
    match status {
        StatusCode::TOO_MANY_REQUESTS => Verdict::Failed(Failure::BackPressure { retry_after: asked }),
        StatusCode::SERVICE_UNAVAILABLE if asked.is_some() => {
            Verdict::Failed(Failure::BackPressure { retry_after: asked })
        }
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE => {
            Verdict::Failed(Failure::Status(status.as_u16()))
        }
        // Of an endpoint that the router doesn't know, it can't tell whose fault an error is.
        StatusCode::INTERNAL_SERVER_ERROR if repeat == Repeat::Always => {
            Verdict::Failed(Failure::Status(status.as_u16()))
        }
        _ if status.is_client_error() || status.is_server_error() => Verdict::Blameless,
        _ => Verdict::Pass,
    }
}

fn problem(failed: &Failed, first_byte: u64) -> Problem {
    match failed {
        // Nothing has happened to the request: like a fleet that is full, this passes.
        Failed::Connect(_) => Problem { status: 503, ..Problem::replica_unreachable().after(RETRY_AFTER) },
        Failed::Client(_) => Problem::bad_request("The request's body broke off."),
        Failed::Broken(_) | Failed::Switched | Failed::Spent => Problem::replica_failed(),
        Failed::Timeout => Problem::replica_timeout(u32::try_from(first_byte).unwrap_or(u32::MAX)),
    }
}

fn refused(refusal: Refusal, ask: &Ask, patience: Duration) -> Problem {
    match refusal {
        Refusal::UnknownModel { known } => {
            Problem::model_not_found(ask.model.as_deref().unwrap_or_default(), known.iter())
        }
        Refusal::TooLong { prompt, max } => Problem::context_too_long(prompt.into(), max.into()),
        Refusal::NoReplica { retry_after }
        | Refusal::QueueFull { retry_after }
        | Refusal::Shed { retry_after } => Problem::no_capacity(retry_after),
        Refusal::Deadline { retry_after } => {
            let seconds = patience.as_secs_f64();
            let message = format!(
                "No replica could start the request within {seconds} s. Try again later, or with a shorter prompt."
            );
            Problem::new(Kind::Deadline, message).after(retry_after)
        }
        Refusal::PinnedGone => Problem::bad_request(
            "The replica that stored `previous_response_id` has left. Send the conversation's messages instead.",
        ),
    }
}
