//! Replicas from Kubernetes: the pods that an InferencePool (or labels) select, each port of them a replica.
//!
//! Up to four kinds are followed, each by a list and a watch of its own: the pool, its pods, and, where the cluster has them,
//! InferenceObjective and InferenceModelRewrite. While the API server can't be reached, what is known holds and is routed by, for
//! however long that lasts: told once, as a metric and in the log. When it is back, all is listed anew, and what isn't
//! in the list leaves.
//!
//! - `reflector`: the order of lists, watches and pauses, without I/O
//! - `cluster`: what is known; events in, replicas out, without I/O; `pods`: which replicas a pod is
//! - `objects`: the fields that are read
//! - `client`: the API server

mod client;
mod cluster;
mod objects;
mod pods;
mod reflector;

use super::board::Listing;
use super::trouble::Trouble;
use crate::config::Kubernetes;
use crate::observe::{Flag, Loud};
use crate::router::Router;
use client::{Api, News, Query};
use cluster::{Change, Cluster, Wish};
use objects::{ModelRewrite, Objective, Pod, Pool, Watched};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// What one of the followed kinds tells.
enum Seen {
    Pool(News<Pool>),
    /// With the number of the watch: another selector makes another watch, and what the old one still said doesn't count.
    Pods(u32, News<Pod>),
    Objectives(News<Objective>),
    Rewrites(News<ModelRewrite>),
}

/// A task that ends with its handle.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Follows the cluster until it is dropped, and posts whom it finds.
pub(super) async fn run(
    settings: &Kubernetes,
    router: Arc<Router>,
    loud: &Loud,
    post: impl Fn(Vec<Listing>),
) {
    let mut trouble = Trouble::new(loud, "kubernetes");
    let api = loop {
        match client::connect(settings).await {
            Ok(api) => break Arc::new(api),
            Err(why) => {
                trouble.bad("configuration", &why, u32::MAX);
                sleep(settings.look_again.get()).await;
            }
        }
    };
    trouble.good("configuration");
    let (send, mut news) = unbounded_channel();
    let mut follower = Follower::new(settings, api, router, loud, trouble, send);
    follower.start(settings);
    loop {
        follower.follow_pods();
        post(follower.cluster.listings(follower.now()));
        follower.hear(&mut news).await;
    }
}

struct Follower {
    api: Arc<Api>,
    router: Arc<Router>,
    cluster: Cluster,
    trouble: Trouble,
    /// The API server says that there is no such pool.
    missing: Flag,
    begun: Instant,
    send: UnboundedSender<Seen>,
    /// What follows the pods, and which selection that is.
    pods: Option<(Task, Wish)>,
    /// Number of that watch.
    watch: u32,
    others: Vec<Task>,
}

impl Follower {
    fn new(
        settings: &Kubernetes,
        api: Arc<Api>,
        router: Arc<Router>,
        loud: &Loud,
        trouble: Trouble,
        send: UnboundedSender<Seen>,
    ) -> Self {
        let cluster = match &settings.pool {
            Some(name) => Cluster::of_pool(name.clone(), settings.pool_grace.get()),
            None => {
                let (labels, ports) = (settings.selector.clone(), settings.ports.clone());
                Cluster::of_labels(Wish { labels, ports })
            }
        };
        let missing = loud.flag("kubernetes_pool_missing", "");
        let begun = Instant::now();
        Follower {
            api,
            router,
            cluster,
            trouble,
            missing,
            begun,
            send,
            pods: None,
            watch: 0,
            others: Vec::new(),
        }
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Begins to follow the pool and what goes with it.
    fn start(&mut self, settings: &Kubernetes) {
        let Some(name) = &settings.pool else { return };
        let only = Some(format!("metadata.name={name}"));
        let query = |group: String, plural, fields| Query { group, plural, labels: None, fields };
        let pool = query("/apis/inference.networking.k8s.io/v1".into(), "inferencepools", only);
        self.others.push(self.task(pool, Seen::Pool));
        if let Some(group) = &settings.extensions {
            let group = format!("/apis/{group}/v1alpha2");
            let objectives = query(group.clone(), "inferenceobjectives", None);
            self.others.push(self.task(objectives, Seen::Objectives));
            self.others.push(self.task(query(group, "inferencemodelrewrites", None), Seen::Rewrites));
        }
    }

    fn task<T: Watched>(&self, query: Query, wrap: impl Fn(News<T>) -> Seen + Send + Sync + 'static) -> Task {
        let (api, send) = (self.api.clone(), self.send.clone());
        Task(tokio::spawn(async move {
            // Closed: the follower has ended, and with it this task is about to.
            api.follow(&query, |news| drop(send.send(wrap(news)))).await;
        }))
    }

    /// Follows the pods that are meant now. Those of another selection stay until the list of the new one is there.
    fn follow_pods(&mut self) {
        let Some(wish) = self.cluster.wish() else { return };
        if wish.labels.is_empty() {
            self.pods = None;
        } else if self.pods.as_ref().is_none_or(|(_, followed)| followed.labels != wish.labels) {
            let wish = wish.clone();
            self.watch += 1;
            let number = self.watch;
            let query = Query {
                group: "/api/v1".into(),
                plural: "pods",
                labels: Some(wish.selector()),
                fields: None,
            };
            tracing::info!(namespace = self.api.namespace, selector = wish.selector(), "watching pods");
            self.pods = Some((self.task(query, move |news| Seen::Pods(number, news)), wish));
        }
    }

    /// Waits for news, or for the end of a missing pool's grace, and takes in all that there is.
    async fn hear(&mut self, news: &mut UnboundedReceiver<Seen>) {
        let left = self.cluster.deadline().and_then(|at| at.checked_sub(self.now()));
        let first = tokio::select! {
            seen = news.recv() => seen,
            () = sleep(left.unwrap_or_default()), if left.is_some() => None,
        };
        let mut next = first;
        while let Some(seen) = next {
            self.take(seen);
            next = news.try_recv().ok();
        }
    }

    fn take(&mut self, seen: Seen) {
        match seen {
            Seen::Pool(news) => {
                // A pool can't be where its kind isn't, but a server that has just started may not know its kinds yet:
                // what is known stays.
                if let Some(change) = self.judge("InferencePool", news) {
                    self.cluster.pools(self.now(), change);
                    self.tell_pool();
                }
            }
            Seen::Pods(number, news) if number == self.watch => {
                if let Some(change) = self.judge("pods", news) {
                    self.cluster.pods(change);
                }
            }
            Seen::Pods(..) => {}
            Seen::Objectives(news) => {
                if let Some(change) = self.optional("InferenceObjective", news) {
                    self.cluster.objectives(change);
                    self.router.set_objectives(self.cluster.table());
                }
            }
            Seen::Rewrites(news) => {
                if let Some(change) = self.optional("InferenceModelRewrite", news) {
                    self.cluster.rewrites(change);
                    self.router.set_rewrites(self.cluster.rules());
                }
            }
        }
    }

    /// The change in some news of a kind; that it can't be read is told.
    fn judge<T>(&mut self, part: &'static str, news: News<T>) -> Option<Change<T>> {
        match news {
            News::Change(change) => return Some(change),
            News::Fine => self.trouble.good(part),
            News::Absent => self.trouble.bad(
                part,
                "the API server doesn't know this kind: is its CRD installed?",
                u32::MAX,
            ),
            News::Trouble(why, failures) => self.trouble.bad(part, &why, failures),
        }
        None
    }

    /// The same of a kind that need not be there: where there is no kind there is no object of it, and no trouble.
    fn optional<T>(&mut self, part: &'static str, news: News<T>) -> Option<Change<T>> {
        if matches!(news, News::Absent) {
            self.trouble.good(part);
            return Some(Change::All(Vec::new()));
        }
        self.judge(part, news)
    }

    fn tell_pool(&self) {
        if self.cluster.pool_missing() {
            let namespace = &self.api.namespace;
            self.missing.raise(|| {
                format!("namespace {namespace} has no such InferencePool; its replicas leave soon")
            });
        } else {
            self.missing.clear();
        }
    }
}
