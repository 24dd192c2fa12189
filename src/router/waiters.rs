//! Seats for those who wait in line.

use super::Router;
use crate::core::RequestId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Notify;

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
