//! Who is in the fleet: the list in the configuration, a file that is watched, Kubernetes, and DNS.
//!
//! What is wanted and what is there are compared afresh each time, so a source that was away for ten minutes, or a
//! change that was missed, leaves nothing behind: the next comparison puts it right. While a source can't be read, what
//! it said last holds; replicas are never removed because of that.
//!
//! - `plan`: from what is there and what is wanted to who joins and who leaves; a pure function
//! - `file`: the replica file, read until it stands still, refused when it is wrong
//! - `kube`: the pods of an InferencePool; `dns`: the addresses of names
//! - `search`: the thread of those two
//! - `board`: where sources that find replicas by themselves post them
//! - `trouble`: what a source can't find out, told once
//! - `keeper`: puts them together and drives the router

mod board;
mod dns;
mod file;
mod keeper;
#[cfg(feature = "kubernetes")]
mod kube;
mod plan;
mod search;
mod trouble;

pub use board::{Listing, Standing};
pub use plan::{Entrant, Plan, Present, Wanted, plan};

use crate::config::Config;
use crate::observe::Loud;
use crate::router::Router;
use board::Board;
use keeper::Keeper;
use search::Search;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two looks at the replica file. It is a few kilobytes, so it is read as a whole each time: times of
/// modification lie on network file systems, and behind symbolic links that are swapped.
pub const EVERY: Duration = Duration::from_secs(1);

/// Keeps the router's fleet as the sources say. Dropping it ends that; the replicas stay.
#[derive(Debug)]
pub struct Discovery {
    search: Option<Search>,
    /// Ends the thread, once the bell wakes it.
    ending: Arc<AtomicBool>,
    bell: SyncSender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Discovery {
    /// Lets the replicas of the configuration and of its file join, then watches the file each `every`, and Kubernetes and DNS
    /// as the configuration says. A source that can't be used is told loudly and doesn't keep the others from serving.
    ///
    /// # Errors
    /// A thread couldn't be started.
    pub fn start(config: &Config, router: Arc<Router>, loud: &Loud, every: Duration) -> io::Result<Self> {
        let (bell, heard) = sync_channel(1);
        let ring = bell.clone();
        let board = Board::new(move || {
            // Full: it has been rung and not yet heard. Gone: nobody listens any more.
            let _ = ring.try_send(());
        });
        let mut keeper = Keeper::new(config, router.clone(), loud, board.clone());
        keeper.look();
        let search = Search::start(config, router, loud, board)?;
        let idle = config.replica_file.is_none() && search.is_none() && keeper.settled();
        let ending = Arc::new(AtomicBool::new(false));
        let mut discovery = Discovery { search, ending: ending.clone(), bell, thread: None };
        if idle {
            return Ok(discovery);
        }
        // A thread of its own: a network file system that hangs then hangs nothing else.
        let thread = std::thread::Builder::new().name("homing-discovery".into()).spawn(move || {
            while heard.recv_timeout(every) != Err(RecvTimeoutError::Disconnected) && !ending.load(Relaxed) {
                keeper.look();
            }
        })?;
        discovery.thread = Some(thread);
        Ok(discovery)
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        drop(self.search.take());
        self.ending.store(true, Relaxed);
        // Full: it has been rung already.
        let _ = self.bell.try_send(());
        if let Some(thread) = self.thread.take() {
            // It has nothing to hand back; a panic in it was reported when it happened.
            let _ = thread.join();
        }
    }
}
