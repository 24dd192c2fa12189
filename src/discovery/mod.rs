//! Who is in the fleet: the list in the configuration, a file that is watched, Kubernetes, and DNS.
//!
//! What is wanted and what is there are compared afresh each time, so a source that was away for ten minutes, or a
//! change that was missed, leaves nothing behind: the next comparison puts it right. While a source can't be read, what
//! it said last holds; replicas are never removed because of that.
//!
//! - `plan`: from what is there and what is wanted to who joins and who leaves; a pure function
//! - `file`: the replica file, read until it stands still, refused when it is wrong
//! - `kube`: the pods of an InferencePool; `dns`: the addresses of names
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
mod trouble;

pub use board::{Listing, Standing};
pub use plan::{Entrant, Plan, Present, Wanted, plan};

use crate::config::Config;
use crate::observe::Loud;
use crate::router::Router;
use board::Board;
use keeper::Keeper;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// Time between two looks at the replica file. It is a few kilobytes, so it is read as a whole each time: times of
/// modification lie on network file systems, and behind symbolic links that are swapped.
pub const EVERY: Duration = Duration::from_secs(1);

/// Keeps the router's fleet as the sources say. Dropping it ends that; the replicas stay.
#[derive(Debug)]
pub struct Discovery {
    /// Ends the threads, and wakes the keeper to see it.
    ending: Arc<AtomicBool>,
    bell: SyncSender<()>,
    /// The sources end when this is dropped.
    stop: Option<oneshot::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Discovery {
    /// Lets the replicas of the configuration and of its file join, then watches the file each `every`, and Kubernetes and DNS
    /// as the configuration says. A source that can't be used is told loudly and doesn't keep the others from serving.
    ///
    /// # Errors
    /// A thread couldn't be started.
    pub fn start(config: &Config, router: Arc<Router>, loud: &Loud, every: Duration) -> io::Result<Self> {
        let (bell, heard) = sync_channel(1);
        let board = Board::new(bell.clone());
        let mut keeper = Keeper::new(config, router.clone(), loud, board.clone());
        keeper.look();
        let ending = Arc::new(AtomicBool::new(false));
        let mut discovery = Discovery { ending: ending.clone(), bell, stop: None, threads: Vec::new() };
        let searching = config.kubernetes.is_some() || !config.dns.names.is_empty();
        if searching {
            let (stop, stopped) = oneshot::channel();
            discovery.stop = Some(stop);
            discovery.threads.push(search(config, router, loud, board, stopped)?);
        }
        if config.replica_file.is_some() || searching || !keeper.settled() {
            // A thread of its own: a network file system that hangs then hangs nothing else.
            let thread = std::thread::Builder::new().name("homing-discovery".into()).spawn(move || {
                while heard.recv_timeout(every) != Err(RecvTimeoutError::Disconnected)
                    && !ending.load(Relaxed)
                {
                    keeper.look();
                }
            })?;
            discovery.threads.push(thread);
        }
        Ok(discovery)
    }
}

/// Starts the thread of those sources that find replicas by themselves.
fn search(
    config: &Config,
    router: Arc<Router>,
    loud: &Loud,
    board: Board,
    stopped: oneshot::Receiver<()>,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (config, loud) = (config.clone(), loud.clone());
    std::thread::Builder::new().name("homing-sources".into()).spawn(move || {
        runtime.block_on(async {
            let all = async {
                tokio::join!(
                    cluster(&config, router, &loud, &board),
                    dns::run(&config.dns, &loud, |place, list| board.post(place + 1, list)),
                )
            };
            tokio::select! {
                _ = all => {}
                // An error says that the other end was dropped, which is what it is for.
                _ = stopped => {}
            }
        });
        runtime.shutdown_background();
    })
}

#[cfg(feature = "kubernetes")]
async fn cluster(config: &Config, router: Arc<Router>, loud: &Loud, board: &Board) {
    if let Some(settings) = &config.kubernetes {
        kube::run(settings, router, loud, |list| board.post(0, list)).await;
    }
}

/// Without the feature the configuration is refused before this is reached.
#[cfg(not(feature = "kubernetes"))]
async fn cluster(_: &Config, _: Arc<Router>, _: &Loud, _: &Board) {}

impl Drop for Discovery {
    fn drop(&mut self) {
        self.ending.store(true, Relaxed);
        drop(self.stop.take());
        // Full: it has been rung already.
        let _ = self.bell.try_send(());
        for thread in self.threads.drain(..) {
            // It has nothing to hand back; a panic in it was reported when it happened.
            let _ = thread.join();
        }
    }
}
