//! The API server: connecting, listing, watching. Only here is the client library named.

use super::cluster::{Change, MAX_OBJECTS};
use super::objects::{List, Watched};
use super::reflector::{End, Reflector, Step};
use crate::config::Kubernetes;
use futures_util::StreamExt;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Request;
use kube::{Client, Config, Error};
use std::fmt::Display;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// Objects in a page of a list.
const PAGE: u32 = 500;
/// A watch that the server should have ended this long ago has died silently. Never more than the watch itself may last.
const SLACK: Duration = Duration::from_secs(5);

/// A connection to one cluster, and the namespace that is looked at.
pub(super) struct Api {
    client: Client,
    pub(super) namespace: String,
    timeout: Duration,
    watch: Duration,
    retry: Duration,
    look_again: Duration,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub(super) struct Query {
    /// Of the kind, up to `/namespaces/`: `/api/v1`.
    pub(super) group: String,
    /// The kind as it stands in paths: `pods`.
    pub(super) plural: &'static str,
    /// Labels that are selected.
    pub(super) labels: Option<String>,
    /// Fields that are selected.
    pub(super) fields: Option<String>,
}

/// What following one kind tells.
#[derive(Clone, Debug)]
pub(super) enum News<T> {
    /// Objects changed.
    Change(Change<T>),
    /// The server doesn't know the kind.
    Absent,
    /// It can't be read, for this reason; so many failures in a row.
    Trouble(String, u32),
    /// It is being watched.
    Fine,
}

/// Reaches for the cluster that the settings mean.
pub(super) async fn connect(settings: &Kubernetes) -> Result<Api, String> {
    let mut config = configuration(settings).await?;
    // Retries are ours: they pause longer, and are told.
    config.default_retry = false;
    config.connect_timeout = Some(settings.timeout.get());
    let namespace = settings.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let client = Client::try_from(config).map_err(|e| format!("the client of the API server: {e}"))?;
    Ok(Api {
        client,
        namespace,
        timeout: settings.timeout.get(),
        watch: settings.watch_timeout.get(),
        retry: settings.retry.get(),
        look_again: settings.look_again.get(),
    })
}

async fn configuration(settings: &Kubernetes) -> Result<Config, String> {
    let options = KubeConfigOptions { context: settings.context.clone(), ..KubeConfigOptions::default() };
    if let Some(path) = &settings.kubeconfig {
        let told = |e: &dyn Display| format!("kubeconfig {}: {e}", path.display());
        let file = Kubeconfig::read_from(path).map_err(|e| told(&e))?;
        return Config::from_custom_kubeconfig(file, &options).await.map_err(|e| told(&e));
    }
    // Whoever names a context means a kubeconfig.
    let inside = match &settings.context {
        None => match Config::incluster() {
            Ok(config) => return Ok(config),
            Err(e) => e.to_string(),
        },
        Some(_) => "a context was named".to_owned(),
    };
    Config::from_kubeconfig(&options)
        .await
        .map_err(|e| format!("not in a cluster ({inside}); kubeconfig: {e}"))
}

impl Api {
    /// Follows one kind until it is dropped.
    pub(super) async fn follow<T: Watched>(&self, query: &Query, mut tell: impl FnMut(News<T>)) {
        let mut reflector = Reflector::new(self.retry, self.look_again);
        let mut gathered: Vec<T> = Vec::new();
        loop {
            match reflector.step() {
                Step::Pause(pause) => {
                    sleep(pause.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
                    reflector.rested();
                }
                Step::List(token) => {
                    if token.is_none() {
                        gathered.clear();
                    }
                    match self.list::<T>(query, token).await {
                        Ok(list) => {
                            let room = MAX_OBJECTS.saturating_sub(gathered.len());
                            gathered.extend(list.items.into_iter().take(room));
                            if reflector.page(&list.metadata.resource_version, list.metadata.more) {
                                tell(News::Change(Change::All(std::mem::take(&mut gathered))));
                            }
                        }
                        Err(failure) => failure.tell(&mut reflector, &mut tell),
                    }
                }
                Step::Watch(version) => {
                    if let Err(failure) = self.watch(query, &version, &mut reflector, &mut tell).await {
                        failure.tell(&mut reflector, &mut tell);
                    }
                }
            }
        }
    }

    fn path(&self, query: &Query) -> Request {
        Request::new(format!("{}/namespaces/{}/{}", query.group, self.namespace, query.plural))
    }

    async fn list<T: Watched>(&self, query: &Query, token: Option<String>) -> Result<List<T>, Failure> {
        let params = ListParams {
            label_selector: query.labels.clone(),
            field_selector: query.fields.clone(),
            limit: Some(PAGE),
            continue_token: token,
            ..ListParams::default()
        };
        let request = self.path(query).list(&params).map_err(|e| Failure::other(&e))?;
        let answer = self.client.request_text(request);
        let text =
            timeout(self.timeout, answer).await.map_err(|_| self.silent("list"))?.map_err(Failure::of)?;
        serde_json::from_str(&text).map_err(|e| Failure::other(&format!("a list of {}: {e}", query.plural)))
    }

    /// Watches until the watch ends; an end in good order is no failure.
    async fn watch<T: Watched>(
        &self,
        query: &Query,
        version: &str,
        reflector: &mut Reflector,
        tell: &mut impl FnMut(News<T>),
    ) -> Result<(), Failure> {
        let params = WatchParams {
            label_selector: query.labels.clone(),
            field_selector: query.fields.clone(),
            timeout: u32::try_from(self.watch.as_secs()).ok(),
            ..WatchParams::default()
        };
        let request = self.path(query).watch(&params, version).map_err(|e| Failure::other(&e))?;
        let opening = self.client.request_events::<T>(request);
        let events =
            timeout(self.timeout, opening).await.map_err(|_| self.silent("watch"))?.map_err(Failure::of)?;
        let mut events = std::pin::pin!(events);
        reflector.opened();
        tell(News::Fine);
        let begun = Instant::now();
        loop {
            let Ok(next) = timeout(self.watch + SLACK.min(self.watch), events.next()).await else {
                return Err(Failure::other(&"the watch has fallen silent"));
            };
            let change = match next {
                None => {
                    reflector.ended(End::Closed(begun.elapsed()));
                    return Ok(());
                }
                Some(Err(e)) => return Err(Failure::of(e)),
                Some(Ok(WatchEvent::Error(status))) => return Err(Failure::of(Error::Api(status))),
                Some(Ok(WatchEvent::Bookmark(b))) => {
                    reflector.heard(&b.metadata.resource_version);
                    continue;
                }
                Some(Ok(WatchEvent::Added(e) | WatchEvent::Modified(e))) => Change::Put(e),
                Some(Ok(WatchEvent::Deleted(e))) => Change::Gone(e),
            };
            if let Change::Put(object) | Change::Gone(object) = &change {
                reflector.heard(&object.meta().resource_version);
            }
            tell(News::Change(change));
        }
    }

    fn silent(&self, what: &str) -> Failure {
        Failure::other(&format!("no answer to a {what} within {:?}", self.timeout))
    }
}

/// Why a step failed.
struct Failure {
    end: End,
    why: String,
}

impl Failure {
    fn other(why: &dyn Display) -> Self {
        Failure { end: End::Failed, why: why.to_string() }
    }

    fn of(error: Error) -> Self {
        match error {
            Error::Api(status) => {
                let end = match status.code {
                    404 => End::Absent,
                    410 => End::Gone,
                    _ => End::Failed,
                };
                Failure { end, why: format!("{} {}", status.code, status.message) }
            }
            other => Failure::other(&other),
        }
    }

    fn tell<T>(self, reflector: &mut Reflector, tell: &mut impl FnMut(News<T>)) {
        let absent = self.end == End::Absent;
        reflector.ended(self.end);
        tell(if absent { News::Absent } else { News::Trouble(self.why, reflector.failures()) });
    }
}
