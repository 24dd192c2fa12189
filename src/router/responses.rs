//! Which replica has a stored response.

use crate::core::ReplicaId;
use std::collections::{HashMap, VecDeque};
use xxhash_rust::xxh3::xxh3_64;

/// Responses remembered; the oldest are forgotten first.
const MAX: usize = 65_536;

/// A bounded map from a response's id (by its hash) to the replica that stored it.
#[derive(Debug)]
pub(super) struct Responses {
    by_id: HashMap<u64, ReplicaId>,
    order: VecDeque<u64>,
}

impl Responses {
    pub(super) fn new() -> Self {
        Responses { by_id: HashMap::new(), order: VecDeque::new() }
    }

    pub(super) fn insert(&mut self, response: &str, replica: ReplicaId) {
        let key = xxh3_64(response.as_bytes());
        if self.by_id.insert(key, replica).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > MAX
            && let Some(old) = self.order.pop_front()
        {
            self.by_id.remove(&old);
        }
    }

    pub(super) fn get(&self, response: &str) -> Option<ReplicaId> {
        self.by_id.get(&xxh3_64(response.as_bytes())).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten() {
        let mut r = Responses::new();
        let id = ReplicaId { slot: 3, life: 1 };
        for i in 0..=MAX {
            r.insert(&format!("resp_{i}"), id);
        }
        assert_eq!(r.get("resp_0"), None);
        assert_eq!(r.get("resp_1"), Some(id));
        assert_eq!(r.by_id.len(), MAX);
    }
}
