//! For doors that don't carry the request themselves: where else it could go, and where it went.
//!
//! A gateway is told a choice and the next best after it, and may send the request to one of those. Then what was booked
//! must be booked where the work is.

use super::decision::Placed;
use super::fleet::Fleet;
use super::ids::ReplicaId;
use super::place::Seen;
use super::request::Request;
use super::time::Time;
use smallvec::SmallVec;

/// Replicas in the order of their price.
pub type Next = SmallVec<[ReplicaId; 4]>;

impl Fleet {
    /// The `n` cheapest eligible replicas beside `chosen`, cheapest first.
    pub fn runners_up(&self, now: Time, req: &Request, seen: &Seen<'_>, chosen: ReplicaId, n: usize) -> Next {
        let load = self.size(req);
        let mut list = self.survey(now, req, seen, &load, false);
        list.retain(|c| c.replica != chosen && c.excluded.is_none_or(|e| e.soft()));
        let politely = |c: &super::decision::Candidate| (c.excluded.is_some(), c.price.total());
        list.sort_unstable_by(|a, b| {
            let ((x, p), (y, q)) = (politely(a), politely(b));
            x.cmp(&y).then(p.total_cmp(&q))
        });
        list.iter().take(n).map(|c| c.replica).collect()
    }

    /// Books a request on `replica`, where somebody else has sent it. `None` if that one has left.
    pub fn book_on(
        &mut self,
        now: Time,
        req: &Request,
        seen: &Seen<'_>,
        replica: ReplicaId,
    ) -> Option<Placed> {
        let load = self.size(req);
        let list = self.survey(now, req, seen, &load, true);
        let there = list.iter().find(|c| c.replica == replica)?;
        let account = self.tenants.open(req.tenant);
        Some(self.book(now, req, &load, there, account))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::health::Probe;
    use crate::core::replica::Facts;
    use crate::core::{Arrival, ModelId, RequestId, Settings};

    fn fleet(n: usize) -> (Fleet, Vec<ReplicaId>) {
        let mut fleet = Fleet::new(Settings { slow_start: 0.0, ..Settings::default() });
        let ids: Vec<_> =
            (0..n).map(|k| fleet.join(Facts { key: k as u64, ..Facts::default() }).unwrap()).collect();
        for &id in &ids {
            fleet.probe(Time(0), id, Probe::Ok);
        }
        (fleet, ids)
    }

    #[test]
    fn the_next_best_come_in_the_order_of_price_and_only_from_the_subset() {
        let (mut fleet, ids) = fleet(4);
        let seen = Seen { matched: &[10, 30, 20, 0], ..Seen::default() };
        let mut req = Request::text(1, ModelId(1), 40 * 256);
        let Arrival::Placed(placed) = fleet.arrive(Time(0), &req, &seen) else { panic!("placed") };
        assert_eq!(placed.replica, ids[1]);
        let next = fleet.runners_up(Time(0), &req, &seen, placed.replica, 2);
        assert_eq!(next.as_slice(), [ids[2], ids[0]]);
        req.only = Some([ids[1], ids[3]].into());
        assert_eq!(fleet.runners_up(Time(0), &req, &seen, ids[1], 5).as_slice(), [ids[3]]);
        assert!(fleet.runners_up(Time(0), &req, &seen, ids[1], 0).is_empty());
    }

    #[test]
    fn a_subset_holds_and_an_empty_one_is_nowhere() {
        let (mut fleet, ids) = fleet(3);
        let seen = Seen { matched: &[30, 0, 0], ..Seen::default() };
        let mut req = Request { only: Some([ids[2]].into()), ..Request::text(1, ModelId(1), 40 * 256) };
        let Arrival::Placed(placed) = fleet.arrive(Time(0), &req, &seen) else { panic!("placed") };
        assert_eq!(placed.replica, ids[2], "of one, whatever the prices");
        req.id = RequestId(2);
        req.only = Some([].into());
        assert_eq!(fleet.arrive(Time(0), &req, &seen), Arrival::Rejected(crate::core::Rejection::NoReplica));
    }

    #[test]
    fn what_went_elsewhere_is_booked_there() {
        let (mut fleet, ids) = fleet(2);
        let req = Request::text(1, ModelId(1), 4096);
        let Arrival::Placed(placed) = fleet.arrive(Time(0), &req, &Seen::default()) else { panic!("placed") };
        let other = ids.iter().copied().find(|id| *id != placed.replica).unwrap();
        fleet.cancel(Time(0), req.id);
        let moved = fleet.book_on(Time(0), &req, &Seen::default(), other).unwrap();
        assert_eq!(moved.replica, other);
        assert_eq!(fleet.get(other).unwrap().ledger.in_flight(), 1);
        assert_eq!(fleet.get(placed.replica).unwrap().ledger.in_flight(), 0);
        fleet.check_invariants().unwrap();
        fleet.finish(Time(1), req.id, Default::default());
        assert_eq!(fleet.in_flight(), 0);
        assert!(fleet.book_on(Time(1), &req, &Seen::default(), ReplicaId { slot: 9, life: 1 }).is_none());
    }
}
