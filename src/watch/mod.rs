//! Keeps looking at the fleet: is it healthy, how busy is it, what does it serve.
//!
//! One task a replica, all of them on one small thread of their own, so that neither a busy data plane delays a probe
//! nor a slow page delays a request. What is seen goes to the router as facts; what they mean (how many failures make a
//! replica dead, what is done with a load that isn't known) is decided there.
//!
//! A round at one replica goes over one kept connection, one request after the other: health, then, if that is good and
//! the time has come, the metrics page and the models. They are separate requests on purpose. An API server whose engine
//! has died still prints its metrics, so a page is no proof of health; and a page costs the server a thousand times what
//! health costs, so it isn't asked of one that is unwell.
//!
//! - `client`: a GET over a connection that is kept
//! - `eye`: what is known of one replica; a round
//! - `reading`: from two metrics pages to what the router is told; `flags`: what is degraded
//! - `events`: follows what engines publish of their caches, on a thread of its own
//! - `rhythm`: when to look, each replica at its own time
//! - `fleet`: a task for each member, and the housekeeping once a second; `gauges`: the router's figures as metrics

mod client;
mod events;
mod eye;
mod flags;
mod fleet;
mod gauges;
mod reading;
mod rhythm;

use crate::config::Config;
use crate::observe::{Loud, Metrics};
use crate::router::Router;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// The threads that look at the fleet, and that follow its events. Dropping it ends that.
#[derive(Debug)]
pub struct Watch {
    pace: watch::Sender<Pace>,
    _eyes: Thread,
    _events: Thread,
}

/// How often to look, and how long to wait for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    health: Duration,
    health_timeout: Duration,
    poll: Duration,
    poll_timeout: Duration,
    models: Duration,
}

impl Pace {
    fn of(config: &Config) -> Self {
        Pace {
            health: config.health.interval.get(),
            health_timeout: config.health.timeout.get(),
            poll: config.poll.interval.get(),
            poll_timeout: config.poll.timeout.get(),
            models: MODELS_EVERY,
        }
    }
}

/// Time between two looks at a replica's list of models: adapters come and go, but not by the second.
const MODELS_EVERY: Duration = Duration::from_secs(30);

impl Watch {
    /// Starts looking at the members of `router`, at those that join later too, and housekeeping in the router each
    /// second.
    ///
    /// # Errors
    /// The thread or its runtime couldn't be started.
    pub fn start(
        config: &Config,
        router: Arc<Router>,
        metrics: Arc<Metrics>,
        loud: Loud,
    ) -> io::Result<Self> {
        let (pace, asked) = watch::channel(Pace::of(config));
        let max_blocks = usize::try_from(config.index.max_blocks).unwrap_or(usize::MAX);
        let followed = events::run(router.clone(), loud.clone(), max_blocks);
        let events = Thread::start("homing-events", followed)?;
        let eyes = Thread::start("homing-watch", fleet::run(asked, router, metrics, loud))?;
        Ok(Watch { pace, _eyes: eyes, _events: events })
    }

    /// Looks at the pace of that configuration from now on.
    pub fn reconfigure(&self, config: &Config) {
        let new = Pace::of(config);
        self.pace.send_if_modified(|pace| std::mem::replace(pace, new) != new);
    }
}

/// A thread with a runtime of its own, on which one task runs until this is dropped.
#[derive(Debug)]
struct Thread {
    /// The thread ends when this is dropped.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Thread {
    fn start(name: &str, task: impl Future<Output = ()> + Send + 'static) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = task => {}
                    // An error says that the other end was dropped, which is what it is for.
                    _ = stopped => {}
                }
            });
            // A name that is being looked up can't be called back; nobody waits for it.
            runtime.shutdown_background();
        })?;
        Ok(Thread { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to hand back; a panic in it was reported when it happened.
            let _ = thread.join();
        }
    }
}
