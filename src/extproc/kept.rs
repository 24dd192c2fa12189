//! Reservations whose end can't be seen.
//!
//! Where Envoy keeps an answer's body to itself, or ends its stream before the answer has ended, what was booked stays booked
//! until it can be believed that the work is done: the replica's own page shows fewer requests than are on the books, or,
//! where there is no such page, the time that was expected of it is over. Age alone is no reason: a replica that says
//! it still works on as many as are booked is believed.

use crate::core::{Outcome, ReplicaId};
use crate::router::{Counts, Reservation};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Most that are kept; the one that should have ended first goes for another.
const MAX: usize = 65_536;

struct Entry {
    reservation: Reservation,
    placed: Instant,
    due: Instant,
}

/// All of them.
pub(super) struct Kept {
    entries: Mutex<Vec<Entry>>,
    /// A request this young may not be on a page yet.
    young: Duration,
}

impl Kept {
    /// `poll`: time between two pages of a replica.
    pub(super) fn new(poll: Duration) -> Self {
        Kept { entries: Mutex::default(), young: 2 * poll + Duration::from_millis(500) }
    }

    /// Keeps one that was placed at `placed`.
    pub(super) fn keep(&self, reservation: Reservation, placed: Instant) {
        let now = Instant::now();
        let due = now.checked_add(reservation.remaining()).unwrap_or(now);
        let full = {
            let mut entries = self.entries.lock();
            let full = entries.len() >= MAX;
            let first = if full { earliest(&entries, |_| true) } else { None };
            let gone = first.map(|at| entries.swap_remove(at));
            entries.push(Entry { reservation, placed, due });
            gone
        };
        if let Some(entry) = full {
            entry.reservation.finish(Outcome::default());
        }
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.lock().len()
    }

    /// Gives back what can be believed to have ended.
    pub(super) fn sweep(&self, now: Instant, counts: impl Fn(ReplicaId) -> Option<Counts>) {
        let ended = {
            let mut entries = self.entries.lock();
            let mut replicas: HashMap<ReplicaId, Option<Counts>> = HashMap::new();
            for e in &*entries {
                replicas.entry(e.reservation.replica()).or_insert_with(|| counts(e.reservation.replica()));
            }
            let mut ended = Vec::new();
            for (id, counts) in replicas {
                let here = |e: &Entry| e.reservation.replica() == id;
                match counts {
                    Some(Counts { believed, told: Some(told) }) => {
                        for _ in told..believed {
                            let seen = |e: &Entry| here(e) && now.duration_since(e.placed) >= self.young;
                            let Some(at) = earliest(&entries, seen) else { break };
                            ended.push(entries.swap_remove(at));
                        }
                    }
                    Some(Counts { told: None, .. }) => {
                        ended.extend(entries.extract_if(.., |e| here(e) && now >= e.due));
                    }
                    None => ended.extend(entries.extract_if(.., |e| here(e))),
                }
            }
            ended
        };
        // Outside the lock: giving back takes the router's.
        for entry in ended {
            entry.reservation.finish(Outcome::default());
        }
    }
}

/// Of those, the one that should have ended first.
fn earliest(entries: &[Entry], of: impl Fn(&Entry) -> bool) -> Option<usize> {
    let those = entries.iter().enumerate().filter(|(_, e)| of(e));
    those.min_by_key(|(_, e)| e.due).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, ReplicaSpec};
    use crate::core::health::Probe;
    use crate::router::{Ask, Member, Page, Router};
    use std::sync::Arc;

    async fn kept(n: usize) -> (Arc<Router>, ReplicaId, Kept) {
        let router = Router::new(&Config::default(), 1);
        let id = router.join(Member::new(ReplicaSpec::new("http://10.0.0.1:80")).unwrap()).unwrap();
        router.probe(id, Probe::Ok);
        let kept = Kept::new(Duration::from_secs(1));
        for _ in 0..n {
            let ask = Ask { generates: true, choices: 1, text_bytes: 400, ..Ask::default() };
            kept.keep(router.place(&ask).await.unwrap(), Instant::now());
        }
        (router, id, kept)
    }

    fn page(router: &Router, id: ReplicaId, running: u32) {
        router.page(id, Page { running: Some(running), waiting: Some(0), ..Page::default() });
    }

    #[tokio::test]
    async fn the_replicas_own_count_says_how_many_have_ended() {
        let (router, id, kept) = kept(5).await;
        page(&router, id, 3);
        kept.sweep(Instant::now(), |id| router.counts(id));
        assert_eq!(kept.len(), 5, "too young to be on that page");
        let later = Instant::now() + Duration::from_secs(10);
        kept.sweep(later, |id| router.counts(id));
        assert_eq!((kept.len(), router.load().0), (3, 3));
        let much_later = Instant::now() + Duration::from_secs(100_000);
        kept.sweep(much_later, |id| router.counts(id));
        assert_eq!(kept.len(), 3, "never by age while the replica says it works on them");
        page(&router, id, 0);
        kept.sweep(much_later, |id| router.counts(id));
        assert_eq!((kept.len(), router.load().0), (0, 0));
    }

    #[tokio::test]
    async fn without_a_page_the_expected_end_counts() {
        let (router, _, kept) = kept(2).await;
        kept.sweep(Instant::now(), |id| router.counts(id));
        assert_eq!(kept.len(), 2);
        kept.sweep(Instant::now() + Duration::from_secs(3600), |id| router.counts(id));
        assert_eq!((kept.len(), router.load().0), (0, 0));
    }

    #[tokio::test]
    async fn of_a_replica_that_is_gone_nothing_is_kept() {
        let (router, _, kept) = kept(2).await;
        kept.sweep(Instant::now(), |_| None);
        assert_eq!((kept.len(), router.load().0), (0, 0));
    }
}
