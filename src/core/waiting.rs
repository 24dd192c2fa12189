//! The fleet's side of waiting: who must, who may go, who is shed.
//!
//! A request chooses first and waits in the lane of the replica that it chose. It goes when that replica can start it soon and
//! nobody in the lane goes before it. Then it is priced again, and leaves for another replica only if that is clearly cheaper.

use super::admission::{self, Entry, Rank};
use super::cost::{Load, Price};
use super::decision::{Arrival, Candidate, Rejection, Ticket};
use super::fleet::Fleet;
use super::health::State;
use super::ids::{ReplicaId, RequestId};
use super::replica::Replica;
use super::request::Request;
use super::time::Time;
use smallvec::SmallVec;

/// Whose turn it is, and when to ask again if nothing happens before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// Requests that are to arrive again now, in this order.
    pub go: SmallVec<[RequestId; 4]>,
    /// When to look again; `None`: only what happens to requests and replicas can change anything.
    pub look: Option<Time>,
}

/// Seconds after which a request that was looked at and couldn't go is looked at again.
const AGAIN: f64 = 0.05;
/// With so many in all lanes each is priced again half as often: the work of it stays bounded.
const CROWD: f64 = 64.0;
/// Seconds between two looks at most and at least while anybody waits in a lane.
const LOOK: (f64, f64) = (0.01, 1.0);

impl Fleet {
    /// Requests whose turn it is to arrive again, and when to look next. Call it after anything that may have made room (a
    /// first token, an end, a change of a replica), and at [`Turns::look`]; when one that went was placed or moved, once more.
    pub fn turns(&self, now: Time) -> Turns {
        let mut turns = Turns { go: self.queue.heads(), look: None };
        turns.go.extend(self.shed.iter().copied());
        for lane in self.lanes.busy() {
            self.lane_turns(now, lane, &mut turns);
        }
        turns
    }

    fn lane_turns(&self, now: Time, lane: &[Entry], turns: &mut Turns) {
        let mut look = |at: Time| turns.look = Some(turns.look.map_or(at, |t| t.min(at)));
        let Some(slot) = lane.first().map(|e| e.replica.slot) else { return };
        for e in lane {
            // Its replica can't take it any more: it chooses again.
            let lost = !self.get(e.replica).is_some_and(takes_new);
            if lost || e.deadline.is_some_and(|d| d <= now) {
                turns.go.push(e.id);
            } else {
                e.deadline.into_iter().for_each(&mut look);
                if e.again <= now {
                    turns.go.push(e.id);
                } else {
                    look(e.again);
                }
            }
        }
        let Some(head) = self.lanes.head(slot, &self.tenants).filter(|e| !turns.go.contains(&e.id)) else {
            return;
        };
        let Some(r) = self.get(head.replica) else { return };
        if head.after > now {
            look(head.after);
        } else if self.starts_soon(now, r, head.fresh) {
            turns.go.push(head.id);
        } else {
            look(self.soon(now, r));
        }
    }

    /// When `id`, which waits in a lane, should arrive again if nothing happens before; `None`: it isn't in one.
    pub fn looks_at(&self, now: Time, id: RequestId) -> Option<Time> {
        if self.shed.contains(&id) {
            return Some(now);
        }
        let e = self.lanes.get(id)?;
        let Some(r) = self.get(e.replica).filter(|r| takes_new(r)) else { return Some(now) };
        let mut at = e.deadline.map_or(e.again, |d| d.min(e.again));
        if self.lanes.head(e.replica.slot, &self.tenants).is_some_and(|head| head.id == id) {
            let soon = if self.starts_soon(now, r, e.fresh) { now } else { self.soon(now, r) };
            at = at.min(soon.max(e.after));
        }
        Some(at)
    }

    /// When `r`, which is busy, may be able to start another.
    fn soon(&self, now: Time, r: &Replica) -> Time {
        let over = r.ledger.wait(now) - self.settings.lanes.pending;
        now.plus(if over > 0.0 { over.clamp(LOOK.0, LOOK.1) } else { LOOK.1 })
    }

    /// Are there lanes at all?
    pub(super) fn lanes_on(&self) -> bool {
        self.settings.lanes.on && self.settings.queue > 0
    }

    /// Is there no place for `id` on `r`, not even to wait: at its cap, or with lanes, its lane is full?
    pub(super) fn shut(&self, now: Time, r: &Replica, id: RequestId) -> bool {
        if self.lanes_on() {
            let full = self.lanes.lane(r.id.slot).len() >= self.settings.lanes.per_lane;
            return full && self.waits_at(id) != Some(r.id);
        }
        r.cap(now).is_some_and(|cap| r.ledger.in_flight() >= cap)
    }

    /// Could `r` start a request soon that pins `fresh` more tokens?
    fn starts_soon(&self, now: Time, r: &Replica, fresh: f64) -> bool {
        let n = r.ledger.in_flight();
        if n == 0 {
            return r.cap(now) != Some(0);
        }
        r.cap(now).is_none_or(|cap| n < cap)
            && r.ledger.wait(now) <= self.settings.lanes.pending
            && fits(now, r, fresh)
    }

    /// When `id` began to wait; now, if it doesn't.
    fn waits_since(&self, now: Time, id: RequestId) -> Time {
        self.lanes.get(id).map_or(now, |e| e.since)
    }

    /// What waits in the lane of `r` counts in its price: those before me in my waiting, those behind me in the harm that I
    /// do. At its cap, the time until a place is free comes on top.
    pub(super) fn price_lane(&self, now: Time, req: &Request, r: &Replica, load: &Load, price: &mut Price) {
        let slot = r.id.slot;
        let since = self.waits_since(now, req.id);
        let rank = Rank::new(&self.settings.lanes, req.priority, 0, price.prefill, since);
        let (ahead, behind) = self.lanes.around(slot, req.id, &rank);
        price.wait += ahead;
        // All of it: unlike those that decode already, they stand still meanwhile.
        price.harm += price.prefill * f64::from(behind);
        let n = r.ledger.in_flight();
        if r.cap(now).is_some_and(|cap| n >= cap) {
            let step = self.fit.shape().decode_step(r.ledger.sequences(now), r.ledger.context(now));
            let before = self.lanes.lane(slot).iter().filter(|e| e.id != req.id).count() as f64;
            price.wait += (before + 1.0) * load.output * step / f64::from(n.max(1));
        }
    }

    /// Where `id` waits, if it does.
    pub fn waits_at(&self, id: RequestId) -> Option<ReplicaId> {
        self.lanes.get(id).map(|e| e.replica)
    }

    /// What ends a request's waiting before it is priced: its deadline, or having been shed.
    pub(super) fn turned_away(&mut self, now: Time, req: &Request) -> Option<Rejection> {
        if self.shed.remove(&req.id) {
            return Some(Rejection::Shed);
        }
        if req.deadline.is_some_and(|d| d <= now) {
            self.unqueue(req.id);
            return Some(Rejection::Deadline);
        }
        None
    }

    /// The chosen replica can start it now (`Err`: the account of its tenant), or it waits there, or it is refused.
    pub(super) fn wait_in_lane(
        &mut self,
        now: Time,
        req: &Request,
        load: &Load,
        c: &Candidate,
    ) -> Result<Arrival, u64> {
        let mine = self.lanes.get(req.id).copied();
        let account = mine.map_or_else(|| self.tenants.open(req.tenant), |e| e.rank.tenant);
        if !self.lanes_on() {
            return Err(account);
        }
        let since = mine.map_or(now, |e| e.since);
        let rank = Rank::new(&self.settings.lanes, req.priority, account, c.price.prefill, since);
        let fresh = (load.prompt - c.cached).max(0.0) + load.output * load.choices;
        let soon = self.get(c.replica).is_some_and(|r| self.starts_soon(now, r, fresh));
        if soon && !self.lanes.behind(c.replica.slot, req.id, &rank, &self.tenants) {
            self.lanes.leave(req.id);
            return Err(account);
        }
        // Who waits already, in a lane or in line, has been let in.
        if mine.is_none()
            && !self.queue.has(req.id)
            && let Err(rejection) = self.make_room(req, c.replica)
        {
            self.tenants.close(account);
            return Ok(Arrival::Rejected(rejection));
        }
        let stays = mine.is_some_and(|e| e.replica == c.replica);
        self.lanes.leave(req.id);
        self.queue.leave(req.id);
        self.lanes.join(Entry {
            id: req.id,
            replica: c.replica,
            model: req.model,
            rank,
            since,
            deadline: req.deadline,
            prefill: c.price.prefill,
            fresh,
            after: if stays && soon { now.plus(AGAIN) } else { now },
            again: now.plus(self.settings.lanes.again * (1.0 + self.lanes.len() as f64 / CROWD)),
        });
        Ok(Arrival::Waiting(Ticket { lane: Some(c.replica) }))
    }

    /// One more will wait in that lane: is there room, or does somebody go for it?
    fn make_room(&mut self, req: &Request, at: ReplicaId) -> Result<(), Rejection> {
        let rules = &self.settings.lanes;
        let waiting = self.queue.len() + self.lanes.len();
        let filled = (waiting as f64 / self.settings.queue.max(1) as f64)
            .max(self.lanes.lane(at.slot).len() as f64 / rules.per_lane.max(1) as f64);
        let share = admission::share(filled, rules.shed_from);
        if share <= 0.0 || admission::dice(self.settings.seed, req.id.0) >= share {
            return Ok(());
        }
        // The lowest band goes first: one that waits, if there is one below this.
        let Some(victim) = self.lanes.lowest_below(req.priority) else {
            return Err(if filled >= 1.0 { Rejection::QueueFull } else { Rejection::Shed });
        };
        self.drop_from_lane(victim);
        self.shed.insert(victim);
        Ok(())
    }

    /// Takes `id` out of its lane for good; true if it was in one.
    pub(super) fn drop_from_lane(&mut self, id: RequestId) -> bool {
        let entry = self.lanes.leave(id);
        if let Some(e) = &entry {
            self.tenants.close(e.rank.tenant);
        }
        entry.is_some()
    }

    /// Recounts what concerns waiting.
    pub(super) fn check_waiting(&self) -> Result<(), String> {
        self.lanes.check()?;
        let opened = self.tenants.opened();
        let known = self.lanes.len() + self.booked.len();
        if opened != known {
            return Err(format!(
                "{opened} requests on the tenants' accounts, {known} wait in lanes or are in flight"
            ));
        }
        for e in self.lanes.busy().flatten() {
            if self.booked.contains_key(&e.id) || self.shed.contains(&e.id) {
                return Err(format!("{:?} waits in a lane, and is in flight or shed as well", e.id));
            }
        }
        Ok(())
    }
}

/// May new requests go there at all?
fn takes_new(r: &Replica) -> bool {
    !r.left && !r.draining && r.health.state() == State::Ready
}

/// Do `fresh` more tokens fit beside those that are pinned? The engine's own page decides: sequences share what they have in
/// common, so the ledger, which counts each one whole, would call a fleet of agents full at half its load. Without a fresh
/// page nothing is known, and unknown is not full.
fn fits(now: Time, r: &Replica, fresh: f64) -> bool {
    let usage = r.ledger.polled(now).and_then(|p| p.kv_usage);
    match (usage, r.facts.capacity) {
        (Some(usage), Some(capacity)) => {
            let capacity = capacity as f64;
            usage * capacity + fresh <= capacity || r.ledger.pinned(now, None) + fresh <= capacity
        }
        _ => true,
    }
}

#[cfg(test)]
#[path = "waiting_tests.rs"]
mod tests;
