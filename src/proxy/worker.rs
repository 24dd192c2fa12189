//! One worker: its connections, its pool, its sweep, and its way out.

use super::conn;
use super::hedge::Recent;
use super::io::{Client, Order, Patience};
use super::pool::Pool;
use super::prompt::PromptReader;
use super::server::Phase;
use super::settings::{LiveSettings, Settings};
use crate::observe::{AccessLog, Metrics};
use crate::router::Router;
use arc_swap::Guard;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::spawn_local;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// How often a worker looks over its connections. Half of the second within which an engine must see a client leave.
const SWEEP: Duration = Duration::from_millis(400);
/// Time that a connection has to send its first request when the process is closing.
const FRESH: Duration = Duration::from_millis(500);

/// What all workers share.
#[derive(Clone)]
pub(super) struct Shared {
    /// Settings, and what is made of them; they may change at any time.
    pub(super) live: LiveSettings,
    pub(super) router: Arc<Router>,
    /// How long streams take to begin.
    pub(super) recent: Arc<Recent>,
    /// Bytes remembered of streams that may be continued.
    pub(super) remembered: Arc<AtomicUsize>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) access: AccessLog,
}

impl Shared {
    /// The settings as they are now.
    pub(super) fn settings(&self) -> Guard<Arc<Settings>> {
        self.live.settings()
    }
}

/// What the requests of one worker share.
pub(super) struct Worker {
    pub(super) shared: Shared,
    pub(super) pool: RefCell<Pool>,
    pub(super) prompts: RefCell<PromptReader>,
    clients: RefCell<HashMap<u64, Rc<Client>>>,
    last: Cell<u64>,
    empty: Notify,
    open: Arc<AtomicUsize>,
    draining: Cell<bool>,
}

impl Worker {
    /// The process is on its way out: answers say that their connection won't be kept.
    pub(super) fn draining(&self) -> bool {
        self.draining.get()
    }

    fn enter(self: &Rc<Self>, client: &Rc<Client>) -> Seat {
        let id = self.last.get() + 1;
        self.last.set(id);
        self.clients.borrow_mut().insert(id, client.clone());
        Seat { worker: self.clone(), id }
    }

    fn tell_all(&self, order: Order) {
        for client in self.clients.borrow().values() {
            client.tell(order);
        }
    }
}

/// A connection's entry among its worker's; gone when dropped, whichever way the connection ended.
struct Seat {
    worker: Rc<Worker>,
    id: u64,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut clients = self.worker.clients.borrow_mut();
        clients.remove(&self.id);
        self.worker.open.fetch_sub(1, Relaxed);
        if clients.is_empty() {
            self.worker.empty.notify_one();
        }
    }
}

/// A worker as a closure to be run on a thread of its own.
pub(super) fn run(
    shared: Shared,
    mut incoming: mpsc::UnboundedReceiver<TcpStream>,
    open: Arc<AtomicUsize>,
    mut phase: watch::Receiver<Phase>,
) -> impl AsyncFnOnce() + Send + 'static {
    async move || {
        let worker = Rc::new(Worker {
            pool: RefCell::new(Pool::new(shared.settings().pool_idle)),
            prompts: RefCell::new(PromptReader::new(&shared.router)),
            shared,
            clients: RefCell::default(),
            last: Cell::new(0),
            empty: Notify::new(),
            open,
            draining: Cell::new(false),
        });
        let sweeper = spawn_local(sweep(worker.clone()));
        let mut watching = true;
        // The accepting thread drops its end once it has handed over its last socket.
        loop {
            tokio::select! {
                socket = incoming.recv() => match socket {
                    Some(socket) => serve(&worker, socket),
                    None => break,
                },
                changed = phase.changed(), if watching => {
                    watching = changed.is_ok();
                    worker.draining.set(!watching || *phase.borrow() != Phase::Running);
                }
            }
        }
        worker.draining.set(true);
        let grace = worker.shared.settings().drain_grace;
        let _ = timeout(grace, finish(&worker)).await;
        worker.tell_all(Order::Kill);
        let _ = timeout(Duration::from_secs(1), all_gone(&worker)).await;
        sweeper.abort();
    }
}

/// Idle connections end now. Those that were accepted a moment ago may say what they came for first: their client
/// can't know that it came too late.
async fn finish(worker: &Worker) {
    for client in worker.clients.borrow().values().filter(|c| c.served()) {
        client.tell(Order::Finish);
    }
    let _ = timeout(FRESH, all_gone(worker)).await;
    worker.tell_all(Order::Finish);
    all_gone(worker).await;
}

async fn all_gone(worker: &Worker) {
    while !worker.clients.borrow().is_empty() {
        worker.empty.notified().await;
    }
}

fn serve(worker: &Rc<Worker>, socket: TcpStream) {
    let stream = tokio::net::TcpStream::from_std(socket).and_then(|s| super::io::tune(&s).map(|()| s));
    match stream {
        Ok(stream) => {
            let client = Client::new(stream);
            let seat = worker.enter(&client);
            let worker = worker.clone();
            spawn_local(async move {
                conn::serve(worker, client).await;
                drop(seat);
            });
        }
        Err(error) => {
            tracing::debug!(%error, "a connection was lost before it was served");
            worker.open.fetch_sub(1, Relaxed);
        }
    }
}

/// Looks at each connection for what would need a timer of its own otherwise, and at the pool for what is too old.
async fn sweep(worker: Rc<Worker>) {
    let mut tick = interval(SWEEP);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let settings = worker.shared.settings();
        let patience =
            Patience { head: settings.header_timeout, idle: settings.client_idle, stall: settings.stall };
        let now = Instant::now();
        // Giving an answer up may end a connection: the list must not be held meanwhile.
        let clients: Vec<Rc<Client>> = worker.clients.borrow().values().cloned().collect();
        for client in clients {
            if let Some(order) = client.overdue(now, patience) {
                client.tell(order);
            }
        }
        let members = worker.shared.router.endpoints();
        let mut pool = worker.pool.borrow_mut();
        pool.keep_idle(settings.pool_idle);
        pool.sweep(now, |id| members.iter().any(|e| e.id == id));
    }
}
