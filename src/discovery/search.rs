//! The thread of those sources that find replicas by themselves: Kubernetes and DNS.

use super::board::Board;
use super::dns;
use crate::config::Config;
use crate::observe::Loud;
use crate::router::Router;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// Place of Kubernetes on the board; the names in DNS come after it.
const CLUSTER: usize = 0;

/// Sources that run. Dropping it ends them; what they posted stays.
#[derive(Debug)]
pub(super) struct Search {
    /// They end when this is dropped.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Search {
    /// Starts those that the configuration names; `None` if it names none.
    pub(super) fn start(
        config: &Config,
        router: Arc<Router>,
        loud: &Loud,
        board: Board,
    ) -> io::Result<Option<Self>> {
        if config.kubernetes.is_none() && config.dns.names.is_empty() {
            return Ok(None);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let (config, loud) = (config.clone(), loud.clone());
        let thread = std::thread::Builder::new().name("homing-sources".into()).spawn(move || {
            runtime.block_on(async {
                let all = async {
                    tokio::join!(
                        cluster(&config, router, &loud, &board),
                        dns::run(&config.dns, &loud, |place, list| board.post(CLUSTER + 1 + place, list)),
                    )
                };
                tokio::select! {
                    _ = all => {}
                    // An error says that the other end was dropped, which is what it is for.
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        })?;
        Ok(Some(Search { stop: Some(stop), thread: Some(thread) }))
    }
}

#[cfg(feature = "kubernetes")]
async fn cluster(config: &Config, router: Arc<Router>, loud: &Loud, board: &Board) {
    if let Some(settings) = &config.kubernetes {
        super::kube::run(settings, router, loud, |list| board.post(CLUSTER, list)).await;
    }
}

/// Without the feature the configuration is refused before this is reached.
#[cfg(not(feature = "kubernetes"))]
async fn cluster(_: &Config, _: Arc<Router>, _: &Loud, _: &Board) {}

impl Drop for Search {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to hand back; a panic in it was reported when it happened.
            let _ = thread.join();
        }
    }
}
