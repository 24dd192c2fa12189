//! Who is in the fleet: the list in the configuration, and a file that is watched.
//!
//! What is wanted and what is there are compared afresh each time, so a source that was away for ten minutes, or a
//! change that was missed, leaves nothing behind: the next comparison puts it right. While a source can't be read, what
//! it said last holds; replicas are never removed because of that.
//!
//! - `plan`: from what is there and what is wanted to who joins and who leaves; a pure function
//! - `file`: the replica file, read until it stands still, refused when it is wrong
//! - `keeper`: puts the two together and drives the router

mod file;
mod keeper;
mod plan;

pub use plan::{Entrant, Plan, Present, plan};

use crate::config::Config;
use crate::observe::Loud;
use crate::router::Router;
use keeper::Keeper;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two looks at the replica file. It is a few kilobytes, so it is read as a whole each time: times of
/// modification lie on network file systems, and behind symbolic links that are swapped.
pub const EVERY: Duration = Duration::from_secs(1);

/// Keeps the router's fleet as the sources say. Dropping it ends that; the replicas stay.
#[derive(Debug)]
pub struct Discovery {
    /// The thread ends when this is dropped.
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Discovery {
    /// Lets the replicas of the configuration and of its file join, then watches the file each `every`. A file that
    /// can't be used is told loudly and doesn't keep the others from serving.
    ///
    /// # Errors
    /// The thread couldn't be started.
    pub fn start(config: &Config, router: Arc<Router>, loud: &Loud, every: Duration) -> io::Result<Self> {
        let mut keeper = Keeper::new(config, router, loud);
        keeper.look();
        if config.replica_file.is_none() && keeper.settled() {
            return Ok(Discovery { stop: None, thread: None });
        }
        let (stop, stopped) = mpsc::channel();
        // A thread of its own: a network file system that hangs then hangs nothing else.
        let thread = std::thread::Builder::new().name("homing-discovery".into()).spawn(move || {
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                keeper.look();
            }
        })?;
        Ok(Discovery { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to hand back; a panic in it was reported when it happened.
            let _ = thread.join();
        }
    }
}
