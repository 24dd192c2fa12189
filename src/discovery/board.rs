//! The board on which sources post whom they found, and from which the keeper reads.
//!
//! Each source has a place of its own and posts its whole list each time, so the keeper never sees half of one. A source that
//! can't find out anything posts nothing: what it said last stays.

use crate::config::ReplicaSpec;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a source says of a replica's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// It may serve, if its health is good.
    #[default]
    Serves,
    /// It isn't ready: good health pages don't count for now.
    Held,
    /// It is about to go: nothing new, what it does goes on.
    Drains,
}

/// A replica that a source found.
#[derive(Clone, Debug, PartialEq)]
pub struct Listing {
    /// What is known of it.
    pub spec: ReplicaSpec,
    /// Which incarnation of its address it is; 0 where the source can't tell.
    pub incarnation: u64,
    /// Its state.
    pub standing: Standing,
}

impl Listing {
    /// One that serves, of which only the specification is known.
    pub fn new(spec: ReplicaSpec) -> Self {
        Listing { spec, incarnation: 0, standing: Standing::Serves }
    }
}

/// The lists by source, and the bell that wakes the keeper.
#[derive(Clone)]
pub(super) struct Board {
    lists: Arc<Mutex<BTreeMap<usize, Vec<Listing>>>>,
    ring: Arc<dyn Fn() + Send + Sync>,
}

impl Board {
    /// `ring` is called when something has changed.
    pub(super) fn new(ring: impl Fn() + Send + Sync + 'static) -> Self {
        Board { lists: Arc::default(), ring: Arc::new(ring) }
    }

    /// This is what `source` knows from now on.
    pub(super) fn post(&self, source: usize, list: Vec<Listing>) {
        let mut lists = self.lists.lock();
        if lists.get(&source) == Some(&list) {
            return;
        }
        lists.insert(source, list);
        drop(lists);
        (self.ring)();
    }

    /// All lists, in the order of the sources.
    pub(super) fn read(&self) -> Vec<Listing> {
        self.lists.lock().values().flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    #[test]
    fn lists_are_replaced_as_a_whole_and_the_bell_rings_when_they_change() {
        let rung = Arc::new(AtomicUsize::new(0));
        let bell = rung.clone();
        let board = Board::new(move || {
            bell.fetch_add(1, Relaxed);
        });
        let list = |url: &str| vec![Listing::new(ReplicaSpec::new(url))];
        board.post(1, list("http://b"));
        board.post(0, list("http://a"));
        let urls: Vec<_> = board.read().into_iter().map(|l| l.spec.url).collect();
        assert_eq!((urls, rung.load(Relaxed)), (vec!["http://a".to_owned(), "http://b".to_owned()], 2));
        board.post(1, list("http://b"));
        assert_eq!(rung.load(Relaxed), 2, "nothing new");
        board.post(1, Vec::new());
        assert_eq!((board.read().len(), rung.load(Relaxed)), (1, 3));
    }
}
