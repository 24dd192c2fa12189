//! The board on which sources post whom they found, and from which the keeper reads.
//!
//! Each source has a place of its own and posts its whole list each time, so the keeper never sees half of one. A source that
//! can't find out anything posts nothing: what it said last stays.

use crate::config::ReplicaSpec;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

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
#[derive(Clone, Debug)]
pub(super) struct Board {
    lists: Arc<Mutex<BTreeMap<usize, Vec<Listing>>>>,
    bell: SyncSender<()>,
}

impl Board {
    pub(super) fn new(bell: SyncSender<()>) -> Self {
        Board { lists: Arc::default(), bell }
    }

    /// This is what `source` knows from now on.
    pub(super) fn post(&self, source: usize, list: Vec<Listing>) {
        let mut lists = self.lists.lock();
        if lists.get(&source) == Some(&list) {
            return;
        }
        lists.insert(source, list);
        drop(lists);
        // Full: it has been rung and not yet heard. Gone: the keeper has ended.
        let _ = self.bell.try_send(());
    }

    /// All lists, in the order of the sources.
    pub(super) fn read(&self) -> Vec<Listing> {
        self.lists.lock().values().flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    #[test]
    fn lists_are_replaced_as_a_whole_and_the_bell_rings_once_a_change() {
        let (bell, heard) = sync_channel(1);
        let board = Board::new(bell);
        let list = |url: &str| vec![Listing::new(ReplicaSpec::new(url))];
        board.post(1, list("http://b"));
        board.post(0, list("http://a"));
        let urls: Vec<_> = board.read().into_iter().map(|l| l.spec.url).collect();
        assert_eq!(urls, ["http://a", "http://b"]);
        assert!(heard.try_recv().is_ok() && heard.try_recv().is_err(), "two changes, one ring");
        board.post(1, list("http://b"));
        assert!(heard.try_recv().is_err(), "nothing new");
        board.post(1, Vec::new());
        assert!(heard.try_recv().is_ok());
        assert_eq!(board.read().len(), 1);
        drop(heard);
        board.post(1, list("http://c"));
    }
}
