//! Going on with a stream whose replica has died.
//!
//! What the client has seen so far is given to another replica as token ids, and that one's events go on where the
//! first one's ended (see [`Weave`](crate::openai::Weave)). Nothing but the client's stream waits meanwhile: if the client
//! leaves, the search ends with it.

use super::attempts::{Repeat, Verdict, verdict};
use super::exchange::{Body, Call};
use super::headers::{is_event_stream, is_plain};
use super::reply::Reply;
use super::worker::Worker;
use crate::core::{Failure, ReplicaId};
use crate::router::{Ask, Reservation};
use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method};
use smallvec::smallvec;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Where a stream goes on: completions take token ids, also for chats.
const TARGET: &str = "/v1/completions";
/// Pause before a fleet that has nobody is asked again. About as long as it takes to notice that a replica is back.
const PAUSE: Duration = Duration::from_millis(100);

/// A replica that goes on, or `None` if there is none in time. Dropping it gives the search up.
pub(super) type Going = Pin<Box<dyn Future<Output = Option<(Reply, Reservation)>>>>;

/// What a stream needs to be continued.
pub(super) struct Resume {
    worker: Rc<Worker>,
    ask: Ask,
    headers: HeaderMap,
    request_id: HeaderValue,
    held: Held,
}

/// Memory that counts against what all streams may remember.
struct Held {
    total: Arc<AtomicUsize>,
    bytes: usize,
}

impl Held {
    /// Holds `bytes` in all; false if that is more than there is.
    fn set(&mut self, bytes: usize, limit: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        self.total.fetch_add(more, Relaxed);
        self.total.fetch_sub(self.bytes.saturating_sub(bytes), Relaxed);
        self.bytes = bytes;
        more == 0 || self.total.load(Relaxed) <= limit
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Relaxed);
    }
}

impl Resume {
    /// For a request that was asked for as `ask`, with the client's `headers`.
    pub(super) fn new(worker: Rc<Worker>, ask: Ask, headers: HeaderMap, request_id: HeaderValue) -> Self {
        let total = worker.shared.remembered.clone();
        Resume { worker, ask, headers, request_id, held: Held { total, bytes: 0 } }
    }

    /// The stream remembers so much; false if it must not.
    pub(super) fn holds(&mut self, bytes: usize) -> bool {
        self.held.set(bytes, self.worker.shared.settings().resume.total_bytes.as_usize())
    }

    /// Longest prompt and answer together.
    pub(super) fn context(&self) -> Option<u32> {
        self.worker.shared.router.context_of(self.ask.model.as_deref())
    }

    /// Looks for a replica that takes `body`; `dead` is asked only if nobody else is there.
    pub(super) fn go(&self, dead: Option<ReplicaId>, body: Vec<u8>) -> Going {
        let worker = self.worker.clone();
        let call = Call {
            method: Method::POST,
            target: PathAndQuery::from_static(TARGET),
            headers: self.headers.clone(),
            request_id: self.request_id.clone(),
            body: Body::Memory(smallvec![Bytes::from(body)]),
            report_at: None,
            rank: None,
            generates: true,
            plain: true,
            upgrade: None,
        };
        let mut ask = self.ask.clone();
        ask.tried.clear();
        ask.tried.extend(dead);
        let within = worker.shared.settings().resume.within.get();
        Box::pin(async move { tokio::time::timeout(within, search(worker, ask, call)).await.ok().flatten() })
    }
}

async fn search(worker: Rc<Worker>, mut ask: Ask, mut call: Call) -> Option<(Reply, Reservation)> {
    let shared = worker.shared.clone();
    loop {
        let Ok(reservation) = shared.router.place(&ask).await else {
            // Whoever failed may be back by now.
            ask.tried.clear();
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let Some(endpoint) = reservation.endpoint().cloned() else { continue };
        ask.tried.push(reservation.replica());
        call.rank = reservation.rank();
        match call.attempt(&worker, &endpoint).await {
            Ok(reply) => match verdict(&reply, Repeat::Always, u64::MAX) {
                Verdict::Pass if is_event_stream(&reply.head.headers) && is_plain(&reply.head.headers) => {
                    return Some((reply, reservation));
                }
                // It doesn't speak of this as others do, and won't do so a second time.
                Verdict::Pass | Verdict::Blameless => {
                    reservation.fail(Failure::Blameless);
                    return None;
                }
                Verdict::Failed(failure) => reservation.fail(failure),
            },
            Err(failed) => {
                tracing::debug!(%failed, replica = &*endpoint.name, "can't continue a stream here");
                reservation.fail(failed.failure());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_given_back() {
        let total = Arc::new(AtomicUsize::new(0));
        let mut a = Held { total: total.clone(), bytes: 0 };
        let mut b = Held { total: total.clone(), bytes: 0 };
        assert!(a.set(60, 100) && b.set(40, 100));
        assert!(!b.set(50, 100), "over the limit");
        assert!(b.set(10, 100) && b.set(30, 100));
        drop(a);
        assert_eq!(total.load(Relaxed), 30);
        drop(b);
        assert_eq!(total.load(Relaxed), 0);
    }
}
