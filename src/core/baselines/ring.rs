//! Hash rings: consistent hashing with bounded loads, and sticky sessions.

use super::books::Books;
use super::heads::Heads;
use super::rng::{Rng, mix};
use crate::core::ids::RequestId;
use crate::core::policy::{Arriving, Policy, Sight};
use crate::core::time::Time;

/// Points of a replica on the ring: KubeAI's default `replication`.
const POINTS: u64 = 256;
/// How much of the mean load a replica may have: KubeAI's default `meanLoadPercentage`, 125.
const BOUND: f64 = 1.25;

/// A ring over the replicas that are up; built anew when these change.
#[derive(Clone, Debug, Default)]
struct Ring {
    up: Vec<usize>,
    points: Vec<(u64, usize)>,
}

impl Ring {
    /// Replicas from `key` on, once round, with repetitions.
    fn from<'a>(&'a mut self, key: u64, up: &[usize]) -> impl Iterator<Item = usize> + use<'a> {
        if self.up != up {
            self.up = up.to_vec();
            let points = |&i: &usize| (0..POINTS).map(move |k| (mix(mix(i as u64 + 1).wrapping_add(k)), i));
            self.points = up.iter().flat_map(points).collect();
            self.points.sort_unstable();
        }
        let at = self.points.partition_point(|&(point, _)| point < key);
        self.points[at..].iter().chain(&self.points[..at]).map(|&(_, i)| i)
    }
}

/// Consistent hashing with bounded loads on the prompt's head.
///
/// KubeAI, strategy `PrefixHash` (`balance_chwbl.go` at 08e69e5), defaults. The key is the first 100 characters of the
/// first *user* message: a system prompt that all requests share doesn't count. Traces have no roles, so it is the
/// session where there is one, else the first block behind what everybody shares ([`Heads`]); a prompt that ends
/// before it has a key of its own. From the key on round the ring, the first replica with
/// `in-flight + 1 <= 1.25·(total + 1)/n`; if there is none, the first of all.
#[derive(Clone, Debug, Default)]
pub(super) struct BoundedHash {
    ring: Ring,
    books: Books,
    heads: Heads,
}

impl Policy for BoundedHash {
    fn name(&self) -> &str {
        "chwbl"
    }

    fn place(&mut self, _now: Time, request: &Arriving<'_>, sight: &Sight<'_>) -> usize {
        let up = sight.up;
        let key = mix(request.session.or(self.heads.own(request.chain)).unwrap_or(request.id.0));
        let total: f64 = up.iter().map(|&i| self.books.requests(i)).sum();
        let bound = BOUND * (total + 1.0) / up.len().max(1) as f64;
        let mut home = None;
        let books = &self.books;
        let chosen = self.ring.from(key, up).find(|&i| {
            home.get_or_insert(i);
            total == 0.0 || books.requests(i) + 1.0 <= bound
        });
        let chosen = chosen.or(home).unwrap_or(0);
        self.books.place(request.id, chosen, 0);
        chosen
    }

    fn finish(&mut self, _now: Time, id: RequestId, _output_tokens: u32, _cached: u32) {
        self.books.finish(id);
    }

    fn left(&mut self, _now: Time, replica: usize) {
        self.books.left(replica);
    }
}

/// Session sticky: vLLM production-stack, routing logic `session`.
///
/// Consistent hashing of the session; a request without one goes where there is least, by requests in flight (the
/// project goes by requests a second, which is worse).
#[derive(Clone, Debug)]
pub(super) struct Session {
    ring: Ring,
    books: Books,
    rng: Rng,
}

impl Session {
    pub(super) fn new(seed: u64) -> Self {
        Session { ring: Ring::default(), books: Books::default(), rng: Rng::new(seed) }
    }
}

impl Policy for Session {
    fn name(&self) -> &str {
        "session"
    }

    fn place(&mut self, _now: Time, request: &Arriving<'_>, sight: &Sight<'_>) -> usize {
        let home = request.session.and_then(|s| self.ring.from(mix(s), sight.up).next());
        let chosen = home.unwrap_or_else(|| self.rng.least(sight.up, |i| self.books.requests(i)));
        self.books.place(request.id, chosen, 0);
        chosen
    }

    fn finish(&mut self, _now: Time, id: RequestId, _output_tokens: u32, _cached: u32) {
        self.books.finish(id);
    }

    fn left(&mut self, _now: Time, replica: usize) {
        self.books.left(replica);
    }
}

#[cfg(test)]
mod tests {
    use super::super::hand::{ask, see};
    use super::*;

    const UP: [usize; 4] = [0, 1, 2, 3];

    #[test]
    fn one_head_stays_home_until_the_bound_and_then_goes_to_the_next() {
        let mut p = BoundedHash::default();
        let mut place = |id| p.place(Time(0), &ask(id, &[77, 78], 1100), &see(&UP));
        let home = place(1);
        // With 1 in flight the bound is 1.25·2/4 = 0.625: nobody meets it, so home it is. With 2: 0.94, the same.
        assert_eq!((place(2), place(3)), (home, home));
        // With 3: 1.25·4/4 = 1.25, met by those with none.
        let next = place(4);
        assert_ne!(next, home);
        // With 4: 1.25·5/4 = 1.56, met by those with none; the third in the order of the ring.
        let third = place(5);
        assert!(third != home && third != next);
    }

    #[test]
    fn heads_spread_and_only_those_of_a_lost_replica_move() {
        let mut p = BoundedHash::default();
        let mut homes = |up: &[usize]| -> Vec<usize> {
            (0..1000)
                .map(|id| {
                    let home = p.place(Time(0), &ask(id, &[mix(id)], 600), &see(up));
                    p.finish(Time(0), RequestId(id), 1, 0);
                    home
                })
                .collect()
        };
        let (before, after) = (homes(&UP), homes(&[0, 1, 3]));
        for i in UP {
            assert!(before.iter().filter(|&&h| h == i).count() > 150);
        }
        assert!(before.iter().zip(&after).all(|(b, a)| *b == 2 || a == b));
    }

    #[test]
    fn sessions_stick_and_strangers_go_where_there_is_least() {
        let mut p = Session::new(1);
        let of = |id, session| Arriving { session, ..ask(id, &[], 10) };
        let home = p.place(Time(0), &of(1, Some(5)), &see(&UP));
        assert!((2..9).all(|id| p.place(Time(0), &of(id, Some(5)), &see(&UP)) == home));
        let mut others: Vec<usize> = (9..12).map(|id| p.place(Time(0), &of(id, None), &see(&UP))).collect();
        others.push(home);
        others.sort_unstable();
        assert_eq!(others, UP);
    }
}
