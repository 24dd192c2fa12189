//! One lane for each replica: requests that chose it and wait until it can start them soon.
//!
//! Masking busy replicas and sending a request to any free one wrecks locality exactly when it matters. So a request
//! chooses first, by price, and waits where it chose. What waits in a lane is part of that replica's price, so later ones
//! see it.
//!
//! Order: priority band; then the tenant that was served least; then own prefill seconds less α times the time waited
//! ("short first, with aging"). Since all wait at the same pace, that last key never changes while a request waits.

use super::rules::LaneRules;
use super::tenants::Tenants;
use crate::core::ids::{Holder, ModelId, ReplicaId, RequestId};
use crate::core::time::Time;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// A request in a lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::core) struct Entry {
    pub(in crate::core) id: RequestId,
    /// Whose lane.
    pub(in crate::core) replica: ReplicaId,
    pub(in crate::core) model: Option<ModelId>,
    pub(in crate::core) rank: Rank,
    /// When it began to wait, in whatever lane.
    pub(in crate::core) since: Time,
    /// It is over for it then.
    pub(in crate::core) deadline: Option<Time>,
    /// Seconds of its own prefill on that replica.
    pub(in crate::core) prefill: f64,
    /// Tokens that it will pin in the cache there, beyond what it finds.
    pub(in crate::core) fresh: f64,
    /// Not before this: it was looked at and could not go.
    pub(in crate::core) after: Time,
    /// It is priced again then, turn or not.
    pub(in crate::core) again: Time,
}

/// What decides who goes first; the smaller goes first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::core) struct Rank {
    /// The higher, the sooner.
    pub(in crate::core) band: i8,
    /// The account of its tenant.
    pub(in crate::core) tenant: u64,
    /// Own prefill plus α times the time of arrival, seconds.
    pub(in crate::core) key: f64,
}

impl Rank {
    /// The rank of a request whose own prefill takes `prefill` seconds and that waits since `since`.
    pub(in crate::core) fn new(rules: &LaneRules, band: i8, tenant: u64, prefill: f64, since: Time) -> Self {
        Rank { band, tenant, key: prefill + rules.aging * since.secs() }
    }

    fn order(&self, other: &Rank, tenants: &Tenants) -> Ordering {
        let tenant = || match self.tenant == other.tenant {
            true => Ordering::Equal,
            false => tenants.served(self.tenant).total_cmp(&tenants.served(other.tenant)),
        };
        other.band.cmp(&self.band).then_with(tenant).then_with(|| self.key.total_cmp(&other.key))
    }
}

/// All lanes.
#[derive(Clone, Debug, Default)]
pub(in crate::core) struct Lanes {
    lanes: Vec<Vec<Entry>>,
    slots: BTreeMap<RequestId, Holder>,
}

impl Lanes {
    /// Requests in all lanes.
    pub(in crate::core) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Those in the lane of a slot.
    pub(in crate::core) fn lane(&self, slot: Holder) -> &[Entry] {
        self.lanes.get(usize::from(slot)).map_or(&[], Vec::as_slice)
    }

    /// The lanes that aren't empty.
    pub(in crate::core) fn busy(&self) -> impl Iterator<Item = &[Entry]> {
        self.lanes.iter().filter(|l| !l.is_empty()).map(Vec::as_slice)
    }

    /// Where and how `id` waits, if it does.
    pub(in crate::core) fn get(&self, id: RequestId) -> Option<&Entry> {
        let slot = *self.slots.get(&id)?;
        self.lane(slot).iter().find(|e| e.id == id)
    }

    /// Joins the lane of its replica; it must not be in another.
    pub(in crate::core) fn join(&mut self, entry: Entry) {
        let slot = usize::from(entry.replica.slot);
        if self.lanes.len() <= slot {
            self.lanes.resize_with(slot + 1, Vec::new);
        }
        if self.slots.insert(entry.id, entry.replica.slot).is_none() {
            self.lanes[slot].push(entry);
        }
    }

    /// Leaves its lane.
    pub(in crate::core) fn leave(&mut self, id: RequestId) -> Option<Entry> {
        let slot = self.slots.remove(&id)?;
        let lane = self.lanes.get_mut(usize::from(slot))?;
        let at = lane.iter().position(|e| e.id == id)?;
        Some(lane.swap_remove(at))
    }

    /// Who goes first in the lane of a slot.
    pub(in crate::core) fn head(&self, slot: Holder, tenants: &Tenants) -> Option<&Entry> {
        first(self.lane(slot), tenants)
    }

    /// Would anybody in the lane of `slot` go before `rank`? `id` itself doesn't count.
    pub(in crate::core) fn behind(
        &self,
        slot: Holder,
        id: RequestId,
        rank: &Rank,
        tenants: &Tenants,
    ) -> bool {
        self.lane(slot).iter().any(|e| e.id != id && e.rank.order(rank, tenants) == Ordering::Less)
    }

    /// Seconds of prefill that wait in the lane of `slot` and would go before `rank`, and how many wait behind it. `id`
    /// itself doesn't count. Tenants are left out: whose turn it is changes with each that goes.
    pub(in crate::core) fn around(&self, slot: Holder, id: RequestId, rank: &Rank) -> (f64, u32) {
        let (mut ahead, mut behind) = (0.0, 0);
        for e in self.lane(slot).iter().filter(|e| e.id != id) {
            let before = e.rank.band > rank.band || (e.rank.band == rank.band && e.rank.key <= rank.key);
            if before { ahead += e.prefill } else { behind += 1 }
        }
        (ahead, behind)
    }

    /// The last of the lowest band below `band`, in any lane.
    pub(in crate::core) fn lowest_below(&self, band: i8) -> Option<RequestId> {
        let all = self.lanes.iter().flatten().filter(|e| e.rank.band < band);
        let last = |a: &&Entry, b: &&Entry| {
            a.rank.band.cmp(&b.rank.band).then(b.rank.key.total_cmp(&a.rank.key)).then(a.id.cmp(&b.id))
        };
        all.min_by(last).map(|e| e.id)
    }

    /// Recounts.
    pub(in crate::core) fn check(&self) -> Result<(), String> {
        let n: usize = self.lanes.iter().map(Vec::len).sum();
        if n != self.slots.len() {
            return Err(format!("{n} requests in lanes, {} on the list", self.slots.len()));
        }
        for (slot, lane) in self.lanes.iter().enumerate() {
            for e in lane {
                if usize::from(e.replica.slot) != slot || self.slots.get(&e.id) != Some(&e.replica.slot) {
                    return Err(format!("{:?} stands in lane {slot} and believes in {:?}", e.id, e.replica));
                }
                if !(e.rank.key.is_finite() && e.prefill >= 0.0 && e.fresh >= 0.0) {
                    return Err(format!("{:?} has no sane rank: {:?}", e.id, e.rank));
                }
            }
        }
        Ok(())
    }
}

/// Who goes first.
fn first<'a>(lane: &'a [Entry], tenants: &Tenants) -> Option<&'a Entry> {
    lane.iter().min_by(|a, b| a.rank.order(&b.rank, tenants).then(a.id.cmp(&b.id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: LaneRules = LaneRules::ON;

    fn entry(id: u64, slot: Holder, band: i8, tenant: u64, prefill: f64, since: f64) -> Entry {
        let since = Time::from_secs(since);
        Entry {
            id: RequestId(id),
            replica: ReplicaId { slot, life: 1 },
            model: None,
            rank: Rank::new(&RULES, band, tenant, prefill, since),
            since,
            deadline: None,
            prefill,
            fresh: 0.0,
            after: Time(0),
            again: Time(0),
        }
    }

    fn drain(lanes: &mut Lanes, tenants: &mut Tenants, cost: f64) -> Vec<u64> {
        let mut order = Vec::new();
        while let Some(e) = lanes.head(0, tenants).copied() {
            lanes.leave(e.id);
            tenants.placed(e.rank.tenant, cost);
            order.push(e.id.0);
            lanes.check().unwrap();
        }
        order
    }

    #[test]
    fn bands_are_strict_then_short_first_with_aging() {
        let (mut lanes, mut tenants) = (Lanes::default(), Tenants::default());
        let t = tenants.open(9);
        // The long one came 9 s before the short one: at α = 0.1 that is worth 0.9 s of prefill.
        lanes.join(entry(1, 0, 0, t, 1.0, 0.0));
        lanes.join(entry(2, 0, 0, t, 0.05, 9.0));
        lanes.join(entry(3, 0, 0, t, 0.2, 9.0));
        lanes.join(entry(4, 0, -1, t, 0.0, 0.0));
        lanes.join(entry(5, 0, 7, t, 30.0, 9.0));
        lanes.join(entry(6, 1, 7, t, 1.0, 0.0));
        assert_eq!(lanes.around(0, RequestId(3), &entry(3, 0, 0, t, 0.2, 9.0).rank), (31.05, 1));
        assert_eq!(lanes.lowest_below(7), Some(RequestId(4)));
        assert_eq!(lanes.lowest_below(-1), None);
        assert_eq!(drain(&mut lanes, &mut tenants, 1.0), [5, 2, 1, 3, 4]);
        assert_eq!(lanes.len(), 1);
    }

    #[test]
    fn a_tenant_with_a_hundred_waiting_does_not_hold_up_one_with_two() {
        let (mut lanes, mut tenants) = (Lanes::default(), Tenants::default());
        let (a, b) = (tenants.open(1), tenants.open(2));
        (0..100).for_each(|i| lanes.join(entry(i, 0, 0, a, 0.1, 0.0)));
        lanes.join(entry(200, 0, 0, b, 5.0, 3.0));
        lanes.join(entry(201, 0, 0, b, 5.0, 3.0));
        let order = drain(&mut lanes, &mut tenants, 10.0);
        assert!(order.iter().position(|&i| i == 201).unwrap() <= 4, "{order:?}");
    }
}
