//! A double of a Kubernetes API server: lists in pages, watches as chunked lines with bookmarks, 410, 404, 403, slow answers and
//! broken lines, as the test tells it.

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

pub(crate) const POOLS: &str = "/apis/inference.networking.k8s.io/v1/namespaces/ns/inferencepools";
pub(crate) const PODS: &str = "/api/v1/namespaces/ns/pods";
pub(crate) const OBJECTIVES: &str = "/apis/llm-d.ai/v1alpha2/namespaces/ns/inferenceobjectives";
pub(crate) const REWRITES: &str = "/apis/llm-d.ai/v1alpha2/namespaces/ns/inferencemodelrewrites";

type Body = BoxBody<Bytes, Infallible>;

/// One change of one object: what it was, and what it is.
#[derive(Clone)]
struct Event {
    version: u64,
    kind: String,
    before: Option<Value>,
    after: Option<Value>,
}

#[derive(Default)]
pub(crate) struct State {
    version: u64,
    objects: BTreeMap<String, BTreeMap<String, Value>>,
    events: Vec<Event>,
    kinds: BTreeSet<String>,
    /// Watches from versions before this are too old.
    compacted: u64,
    /// Answer with this status instead, by kind.
    refusals: BTreeMap<String, u16>,
    /// Objects on a page of a list.
    page: Option<usize>,
    /// The next token of a list is too old.
    stale_token: bool,
    /// Lists take this long.
    delay: Duration,
    /// Every connection is closed at once.
    down: bool,
    /// Watches of an earlier number have died: they say nothing more and don't end.
    alive: u64,
    /// Lines to be put into running watches as they stand.
    lines: Vec<(String, String)>,
    pub(crate) asked: Vec<String>,
    pub(crate) tokens: BTreeSet<String>,
}

/// The server.
pub(crate) struct Api {
    pub(crate) addr: SocketAddr,
    state: Arc<Mutex<State>>,
    /// Rings when something changed.
    bell: watch::Sender<u64>,
    /// Another number: watches end, in good order (even) or cut off (odd).
    cut: watch::Sender<u64>,
    task: JoinHandle<()>,
}

impl Api {
    pub(crate) async fn start() -> Self {
        Self::with_tls(None).await
    }

    pub(crate) async fn with_tls(tls: Option<tokio_rustls::TlsAcceptor>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let mut first = State { version: 100, ..State::default() };
        first.kinds.extend([POOLS.to_owned(), PODS.to_owned()]);
        let state = Arc::new(Mutex::new(first));
        let (bell, cut) = (watch::channel(0).0, watch::channel(0).0);
        let (shared, rings, cuts) = (state.clone(), bell.clone(), cut.clone());
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                if shared.lock().down {
                    continue;
                }
                let tls = tls.clone();
                let (state, bell, cut) = (shared.clone(), rings.subscribe(), cuts.subscribe());
                connections.spawn(async move {
                    match tls {
                        Some(tls) => {
                            if let Ok(socket) = tls.accept(socket).await {
                                serve(socket, state, bell, cut).await;
                            }
                        }
                        None => serve(socket, state, bell, cut).await,
                    }
                });
            }
        });
        Api { addr, state, bell, cut, task }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.bell.send_modify(|n| *n += 1);
    }

    /// Creates or replaces an object.
    pub(crate) fn put(&self, kind: &str, object: Value) {
        self.change(|s| s.set(kind, object["metadata"]["name"].as_str().unwrap().to_owned(), Some(object)));
    }

    pub(crate) fn delete(&self, kind: &str, name: &str) {
        self.change(|s| s.set(kind, name.to_owned(), None));
    }

    /// The server knows this kind from now on.
    pub(crate) fn knows(&self, kind: &str) {
        self.state.lock().kinds.insert(kind.to_owned());
    }

    pub(crate) fn forgets(&self, kind: &str) {
        self.state.lock().kinds.remove(kind);
    }

    /// All that happened so far can't be watched any more.
    pub(crate) fn compact(&self) {
        self.change(|s| {
            s.version += 1;
            s.compacted = s.version;
        });
    }

    pub(crate) fn refuse(&self, kind: &str, status: Option<u16>) {
        self.change(|s| match status {
            Some(status) => drop(s.refusals.insert(kind.to_owned(), status)),
            None => drop(s.refusals.remove(kind)),
        });
    }

    pub(crate) fn pages(&self, size: usize, stale_token: bool) {
        self.change(|s| (s.page, s.stale_token) = (Some(size), stale_token));
    }

    pub(crate) fn delay(&self, delay: Duration) {
        self.state.lock().delay = delay;
    }

    /// Ends all connections; while it is down, new ones end at once, too.
    pub(crate) fn down(&self, down: bool) {
        self.state.lock().down = down;
        if down {
            self.end_watches(true);
        }
    }

    /// Ends the running watches: cut off in the middle, or in good order.
    pub(crate) fn end_watches(&self, cut: bool) {
        self.cut.send_modify(|n| *n += if (*n % 2 == 1) == cut { 2 } else { 1 });
    }

    /// The running watches stay open and say nothing any more.
    pub(crate) fn silence_watches(&self) {
        self.change(|s| s.alive += 1);
    }

    /// Sends a line to the running watches of a kind.
    pub(crate) fn line(&self, kind: &str, line: &str) {
        self.change(|s| s.lines.push((kind.to_owned(), line.to_owned())));
    }

    /// Tells the running watches of a kind that nothing else happened up to a new version; that version.
    pub(crate) fn bookmark(&self, kind: &str) -> u64 {
        let mut version = 0;
        self.change(|s| {
            s.version += 50;
            version = s.version;
            let metadata = json!({"resourceVersion": version.to_string()});
            let line = json!({"type": "BOOKMARK", "object": {"kind": "X", "apiVersion": "v1", "metadata": metadata}});
            s.lines.push((kind.to_owned(), line.to_string()));
        });
        version
    }

    /// What it was asked for, paths with queries.
    pub(crate) fn asked(&self, part: &str) -> Vec<String> {
        self.state.lock().asked.iter().filter(|a| a.contains(part)).cloned().collect()
    }

    pub(crate) fn tokens(&self) -> BTreeSet<String> {
        self.state.lock().tokens.clone()
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl State {
    fn set(&mut self, kind: &str, name: String, object: Option<Value>) {
        self.version += 1;
        let after = object.map(|mut o| {
            o["metadata"]["resourceVersion"] = json!(self.version.to_string());
            if o["metadata"]["uid"].is_null() {
                o["metadata"]["uid"] = json!(format!("uid-{name}"));
            }
            o
        });
        let objects = self.objects.entry(kind.to_owned()).or_default();
        let before = match &after {
            Some(object) => objects.insert(name, object.clone()),
            None => objects.remove(&name),
        };
        self.events.push(Event { version: self.version, kind: kind.to_owned(), before, after });
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    socket: S,
    state: Arc<Mutex<State>>,
    bell: watch::Receiver<u64>,
    mut cut: watch::Receiver<u64>,
) {
    let mut cuts = cut.clone();
    cuts.mark_unchanged();
    let service = service_fn(move |request: Request<Incoming>| {
        let (state, bell, cut) = (state.clone(), bell.clone(), cuts.clone());
        async move { Ok::<_, Infallible>(answer(&request, state, bell, cut).await) }
    });
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service);
    cut.mark_unchanged();
    let broken = async {
        while cut.changed().await.is_ok() {
            if *cut.borrow_and_update() % 2 == 1 {
                return;
            }
        }
        std::future::pending().await
    };
    tokio::select! { _ = connection => {}, () = broken => {} }
}

async fn answer(
    request: &Request<Incoming>,
    state: Arc<Mutex<State>>,
    bell: watch::Receiver<u64>,
    cut: watch::Receiver<u64>,
) -> Response<Body> {
    let kind = request.uri().path().to_owned();
    let query: BTreeMap<String, String> = request
        .uri()
        .query()
        .unwrap_or_default()
        .split('&')
        .filter_map(|p| p.split_once('='))
        .map(|(k, v)| (k.to_owned(), v.replace("%3D", "=").replace("%2C", ",").replace("%2F", "/")))
        .collect();
    let delay = {
        let mut s = state.lock();
        if let Some(token) = request.headers().get("authorization") {
            s.tokens.insert(token.to_str().unwrap().to_owned());
        }
        s.delay
    };
    tokio::time::sleep(delay).await;
    let mut s = state.lock();
    // In one step with what the watch begins from: who sees it here may rely on the watch.
    s.asked.push(request.uri().to_string());
    if let Some(status) = s.refusals.get(&kind) {
        return failure(*status, "told to refuse");
    }
    if !s.kinds.contains(&kind) {
        let text = Full::new(Bytes::from_static(b"404 page not found\n")).boxed();
        return Response::builder().status(StatusCode::NOT_FOUND).body(text).unwrap();
    }
    if query.get("watch").is_some_and(|w| w == "true") {
        let from: u64 = query.get("resourceVersion").unwrap().parse().unwrap();
        if from < s.compacted {
            return failure(410, "too old resource version");
        }
        let (lines, alive) = (s.lines.len(), s.alive);
        drop(s);
        return watching((kind, query), from, (lines, alive), state, bell, cut);
    }
    listing(s, &kind, &query)
}

fn listing(
    mut s: parking_lot::MutexGuard<'_, State>,
    kind: &str,
    query: &BTreeMap<String, String>,
) -> Response<Body> {
    let all: Vec<Value> = s
        .objects
        .get(kind)
        .into_iter()
        .flatten()
        .map(|o| o.1)
        .filter(|o| selected(o, query))
        .cloned()
        .collect();
    let start: usize = query.get("continue").map_or(0, |t| t.parse().unwrap());
    if start > 0 && std::mem::take(&mut s.stale_token) {
        return failure(410, "the continue token is too old");
    }
    let size = s.page.unwrap_or(usize::MAX);
    let mut metadata = json!({"resourceVersion": s.version.to_string()});
    if all.len().saturating_sub(start) > size {
        metadata["continue"] = json!((start + size).to_string());
    }
    let items: Vec<Value> = all.into_iter().skip(start).take(size).collect();
    // As Go does it.
    let items = if items.is_empty() { Value::Null } else { json!(items) };
    let text = json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items}).to_string();
    Response::new(Full::new(Bytes::from(text)).boxed())
}

/// Streams what happened after `from` and what happens from now on.
fn watching(
    (kind, query): (String, BTreeMap<String, String>),
    from: u64,
    (mut lines, alive): (usize, u64),
    state: Arc<Mutex<State>>,
    mut bell: watch::Receiver<u64>,
    mut cut: watch::Receiver<u64>,
) -> Response<Body> {
    let (send, receive) = mpsc::channel::<String>(16);
    cut.mark_unchanged();
    tokio::spawn(async move {
        let mut seen = from;
        loop {
            let news: Option<Vec<String>> = {
                let s = state.lock();
                // Lines first: a bookmark is older than what the test does after it.
                let told = s.lines.iter().skip(lines).filter(|(k, _)| *k == kind).map(|(_, l)| l.clone());
                let changed = s.events.iter().filter(|e| e.version > seen && e.kind == kind);
                let news = told.chain(changed.filter_map(|e| line(e, &query))).collect();
                (seen, lines) = (seen.max(s.version), s.lines.len());
                (s.alive == alive).then_some(news)
            };
            let Some(news) = news else { return send.closed().await };
            for line in news {
                if send.send(line + "\n").await.is_err() {
                    return;
                }
            }
            tokio::select! {
                _ = bell.changed() => {}
                _ = cut.changed() => return,
                () = send.closed() => return,
            }
        }
    });
    let frames = futures_util::stream::unfold(receive, |mut receive| async {
        let line = receive.recv().await?;
        Some((Ok::<_, Infallible>(Frame::data(Bytes::from(line))), receive))
    });
    Response::new(BodyExt::boxed(StreamBody::new(frames)))
}

/// An event as this watch sees it: an object that is no longer selected was deleted.
fn line(event: &Event, query: &BTreeMap<String, String>) -> Option<String> {
    let fits = |o: &Option<Value>| o.as_ref().filter(|o| selected(o, query)).cloned();
    let (what, mut object) = match (fits(&event.before), fits(&event.after)) {
        (None, Some(after)) => ("ADDED", after),
        (Some(_), Some(after)) => ("MODIFIED", after),
        (Some(before), None) => ("DELETED", before),
        (None, None) => return None,
    };
    object["metadata"]["resourceVersion"] = json!(event.version.to_string());
    Some(json!({"type": what, "object": object}).to_string())
}

fn selected(object: &Value, query: &BTreeMap<String, String>) -> bool {
    let pairs = |key: &str| {
        let text = query.get(key).cloned().unwrap_or_default();
        text.split(',')
            .filter_map(|p| p.split_once('='))
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .collect::<Vec<_>>()
    };
    pairs("labelSelector").iter().all(|(k, v)| object["metadata"]["labels"][k] == json!(v))
        && pairs("fieldSelector")
            .iter()
            .all(|(k, v)| k == "metadata.name" && object["metadata"]["name"] == json!(v))
}

fn failure(status: u16, message: &str) -> Response<Body> {
    let text = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message,
        "reason": "Told", "code": status})
    .to_string();
    Response::builder().status(status).body(Full::new(Bytes::from(text)).boxed()).unwrap()
}
