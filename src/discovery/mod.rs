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

/// A new configuration, and whom to tell that it is followed.
type Told = (Box<Config>, mpsc::Sender<()>);

/// Keeps the router's fleet as the sources say. Dropping it ends that; the replicas stay.
#[derive(Debug)]
pub struct Discovery {
    /// The thread ends when this is dropped.
    told: Option<mpsc::Sender<Told>>,
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
        let (told, hears) = mpsc::channel::<Told>();
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
                    Ok((config, done)) => {
                        keeper.reconfigure(&config);
                        // Who told may have stopped waiting.
                        let _ = done.send(());
                    }
                    Err(RecvTimeoutError::Timeout) => keeper.look(),
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        })?;
        Ok(Discovery { told: Some(told), thread: Some(thread) })
    }

    /// Follows the sources of that configuration from now on. Who is in both stays, with all that is known of it. Waits
    /// until it is done, but not for a file that can't be read for `patience`: it is done later then.
    pub fn reconfigure(&self, config: &Config, patience: Duration) {
        let Some(told) = &self.told else { return };
        let (done, waits) = mpsc::channel();
        if told.send((Box::new(config.clone()), done)).is_ok() {
            let _ = waits.recv_timeout(patience);
        }
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        drop(self.told.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to hand back; a panic in it was reported when it happened.
            let _ = thread.join();
        }
    }
}
