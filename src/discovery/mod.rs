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
use std::sync::atomic::{AtomicBool, Ordering::AcqRel};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two looks at the replica file. It is a few kilobytes, so it is read as a whole each time: times of
/// modification lie on network file systems, and behind symbolic links that are swapped.
pub const EVERY: Duration = Duration::from_secs(1);

/// What the keeper's thread is told.
enum Told {
    /// A source has posted something.
    Look,
    /// A new configuration, and whom to tell that it is followed.
    Follow(Box<Config>, mpsc::Sender<()>),
    /// That's it.
    End,
}

/// Keeps the router's fleet as the sources say. Dropping it ends that; the replicas stay.
#[derive(Debug)]
pub struct Discovery {
    search: Option<Search>,
    told: mpsc::Sender<Told>,
    thread: Option<JoinHandle<()>>,
}

impl Discovery {
    /// Lets the replicas of the configuration and of its file join, then watches the file each `every`, and Kubernetes and DNS
    /// as the configuration says. A source that can't be used is told loudly and doesn't keep the others from serving.
    ///
    /// # Errors
    /// A thread couldn't be started.
    pub fn start(config: &Config, router: Arc<Router>, loud: &Loud, every: Duration) -> io::Result<Self> {
        let (told, hears) = mpsc::channel::<Told>();
        let (bell, rung) = (told.clone(), Arc::new(AtomicBool::new(false)));
        let ring = rung.clone();
        let board = Board::new(move || {
            // Once until it is heard: a thread that hangs at a file isn't buried under calls.
            if !ring.swap(true, AcqRel) {
                // Nobody listens any more: the keeper has ended.
                let _ = bell.send(Told::Look);
            }
        });
        let mut keeper = Keeper::new(config, router.clone(), loud, board.clone());
        keeper.look();
        let search = Search::start(config, router, loud, board)?;
        // A thread of its own: a network file system that hangs then hangs nothing else.
        let thread = std::thread::Builder::new().name("homing-discovery".into()).spawn(move || {
            loop {
                // Without a file, and with everybody in, there is nothing to look at.
                let news = if keeper.idle() {
                    hears.recv().map_err(|_| RecvTimeoutError::Disconnected)
                } else {
                    hears.recv_timeout(every)
                };
                match news {
                    Ok(Told::Look) => {
                        // Before the look: what is posted during it rings again.
                        rung.swap(false, AcqRel);
                        keeper.look();
                    }
                    Ok(Told::Follow(config, done)) => {
                        keeper.reconfigure(&config);
                        // Who told may have stopped waiting.
                        let _ = done.send(());
                    }
                    Err(RecvTimeoutError::Timeout) => keeper.look(),
                    Ok(Told::End) | Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        })?;
        Ok(Discovery { search, told, thread: Some(thread) })
    }

    /// Follows the lists of that configuration from now on: the replicas in it, and its file. Who is in both stays, with all
    /// that is known of it. Waits until it is done, but not for a file that can't be read for `patience`: it is done
    /// later then. Kubernetes and DNS stay as they are; a change of those needs a restart, and is told so.
    pub fn reconfigure(&self, config: &Config, patience: Duration) {
        let (done, waits) = mpsc::channel();
        if self.told.send(Told::Follow(Box::new(config.clone()), done)).is_ok() {
            let _ = waits.recv_timeout(patience);
        }
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        drop(self.search.take());
        // An error says that the thread has ended already.
        let _ = self.told.send(Told::End);
        if let Some(thread) = self.thread.take() {
            // It has nothing to hand back; a panic in it was reported when it happened.
            let _ = thread.join();
        }
    }
}
