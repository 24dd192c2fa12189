//! For doors whose gateway carries the requests: replicas by address, where else a request could go, and where it went.

use super::reservation::Reservation;
use super::{Ask, Endpoint, Router, SCRATCH};
use crate::core::fallback::Next;
use crate::core::{Failure, ReplicaId, RequestId, Seen};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// What a replica is believed to have in flight, and what it says itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// In flight through this router.
    pub believed: u32,
    /// Running and waiting in the engine, if a fresh page says so.
    pub told: Option<u32>,
}

impl Router {
    /// The replicas at an address; without a port all of that host.
    pub fn at(&self, ip: IpAddr, port: Option<u16>) -> impl Iterator<Item = ReplicaId> {
        let slots = self.slots.load();
        let wanted = |p: u16| port.is_none_or(|wanted| wanted == p);
        slots.at(ip).filter(|(p, _)| wanted(*p)).map(|(_, id)| id).collect::<Next>().into_iter()
    }

    /// Those replicas whose address is a number, sorted: a gateway can't be sent to others. `None` if that is all of them.
    pub fn numbered(&self) -> Option<Arc<[ReplicaId]>> {
        self.slots.load().numbered()
    }

    /// The endpoint of a replica, while it is a member.
    pub fn endpoint(&self, id: ReplicaId) -> Option<Arc<Endpoint>> {
        self.slots.load().get(id)
    }

    /// What a replica has in flight.
    pub fn counts(&self, id: ReplicaId) -> Option<Counts> {
        let now = self.now();
        let fleet = self.fleet.lock();
        let ledger = &fleet.get(id)?.ledger;
        let told = ledger.polled(now).and_then(|p| match (p.running, p.waiting) {
            (None, None) => None,
            (r, w) => Some(r.unwrap_or(0).saturating_add(w.unwrap_or(0))),
        });
        Some(Counts { believed: ledger.in_flight(), told })
    }

    /// Time until a placed request should have ended; zero once that is past.
    pub(super) fn remaining(&self, id: RequestId) -> Duration {
        let seconds = self.fleet.lock().remaining(self.now(), id).unwrap_or(0.0);
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO)
    }
}

impl Reservation {
    /// Where the request could go as well, cheapest first.
    pub fn fallbacks(&self) -> impl Iterator<Item = Arc<Endpoint>> + '_ {
        let slots = self.router.slots.load();
        self.next.iter().filter_map(move |id| slots.get(*id))
    }

    /// Where the request is believed to be.
    pub fn address(&self) -> Option<SocketAddr> {
        self.endpoint()?.address
    }

    /// Time until the request should have ended, by what is expected of it.
    pub fn remaining(&self) -> Duration {
        self.router.remaining(self.id)
    }

    /// The gateway sent the request to `to` instead: what was booked is booked there, and the replica that was chosen has
    /// failed it. `None` if that one has just left: then nothing is booked any more.
    #[must_use]
    pub fn moved(self, ask: &Ask, to: ReplicaId) -> Option<Reservation> {
        let router = self.router.clone();
        if to == self.replica() {
            return Some(self);
        }
        let (waited, decided) = (self.waited(), self.decision_time());
        // No connection to it could be made, or it refused: why else would the gateway have gone on to the next?
        self.fail(Failure::Connect);
        let id = router.next_id();
        let request = router.request(id, ask);
        let now = router.now();
        let placed = SCRATCH.with_borrow_mut(|s| {
            router.look(ask, s);
            let seen =
                Seen { matched: s.matches.as_slice(), space: &s.space, continues: s.matches.at_leaf() };
            router.fleet.lock().book_on(now, &request, &seen, to)
        })?;
        let at = router.enter(now, id, ask, placed, Next::new());
        Some(Reservation::new(router, id, at, waited, decided))
    }
}
