//! Seats for those who wait in line.

use super::Router;
use crate::core::RequestId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Between two looks of one request: timers aren't finer anyhow.
const SHORTEST: Duration = Duration::from_millis(2);

/// Who sits where.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    seats: Mutex<HashMap<RequestId, Arc<Notify>>>,
}

/// A place in the line. Dropping it gives the place up and wakes the next.
pub(super) struct Seat {
    router: Arc<Router>,
    id: RequestId,
    bell: Arc<Notify>,
}

impl Waiters {
    pub(super) fn sit(&self, router: &Arc<Router>, id: RequestId) -> Seat {
        let bell = Arc::new(Notify::new());
        self.seats.lock().insert(id, bell.clone());
        Seat { router: router.clone(), id, bell }
    }

    pub(super) fn wake(&self, id: RequestId) {
        if let Some(bell) = self.seats.lock().get(&id) {
            bell.notify_one();
        }
    }
}

impl Seat {
    /// When it should ask again if nobody rings; `None`: it stands in the line, where others ring.
    pub(super) fn look(&self) -> Option<Instant> {
        let now = self.router.now();
        let at = self.router.fleet.lock().looks_at(now, self.id)?;
        Some(Instant::now() + Duration::from_secs_f64(at.since(now)).max(SHORTEST))
    }

    /// Resolves when it may be this request's turn.
    pub(super) async fn turn(&self) {
        self.bell.notified().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.router.waiters.seats.lock().remove(&self.id);
        let more = {
            let mut fleet = self.router.fleet.lock();
            fleet.unqueue(self.id);
            fleet.waiting() > 0
        };
        if more {
            self.router.wake();
        }
    }
}
