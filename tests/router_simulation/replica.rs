//! A replica as far as a router sees it: it answers, slowly or not, or it doesn't.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

/// How a request to it fails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// Nobody listens.
    Refused,
    /// It died.
    Reset,
    /// It answers 500.
    Error,
    /// It asks for patience.
    Busy,
}

/// One replica. What is set takes effect at once, also for requests that it is working on.
pub(crate) struct Replica {
    /// Where it is: `http://r<number>`.
    pub(crate) number: u32,
    /// It runs.
    pub(crate) up: Cell<bool>,
    /// Probes don't reach it, requests do.
    pub(crate) partitioned: Cell<bool>,
    /// It prints no metrics.
    pub(crate) mute: Cell<bool>,
    /// It takes so many times as long.
    pub(crate) slow: Cell<f64>,
    /// Share of requests that it answers with an error, and with a request for patience.
    pub(crate) errors: Cell<f64>,
    pub(crate) busy: Cell<f64>,
    /// What it has computed.
    cache: RefCell<HashSet<u64>>,
    working: Cell<u32>,
    /// Lives so far; who waits for an answer of an earlier one is cut.
    life: watch::Sender<u32>,
}

impl Replica {
    pub(crate) fn new(number: u32) -> Rc<Self> {
        Rc::new(Replica {
            number,
            up: Cell::new(true),
            partitioned: Cell::new(false),
            mute: Cell::new(false),
            slow: Cell::new(1.0),
            errors: Cell::new(0.0),
            busy: Cell::new(0.0),
            cache: RefCell::default(),
            working: Cell::new(0),
            life: watch::Sender::new(0),
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://r{}:8000", self.number)
    }

    pub(crate) fn kill(&self) {
        self.up.set(false);
        self.cache.borrow_mut().clear();
        self.life.send_modify(|n| *n += 1);
    }

    pub(crate) fn start(&self) {
        self.up.set(true);
    }

    pub(crate) fn working(&self) -> u32 {
        self.working.get()
    }

    /// Takes so long, unless it dies first.
    async fn takes(&self, seconds: f64, life: &mut watch::Receiver<u32>) -> Result<(), Fault> {
        let time = Duration::from_secs_f64(seconds * self.slow.get());
        tokio::select! {
            biased;
            _ = life.changed() => Err(Fault::Reset),
            () = sleep(time) => Ok(()),
        }
    }

    /// A request: tokens of its prompt found in the cache when the first token comes.
    pub(crate) async fn prefill(&self, chain: &[u64], dice: f64) -> Result<(u32, Work<'_>), Fault> {
        if !self.up.get() {
            return Err(Fault::Refused);
        }
        let mut life = self.life.subscribe();
        let work = Work::new(self);
        if dice < self.errors.get() {
            self.takes(0.01, &mut life).await?;
            return Err(Fault::Error);
        }
        if dice > 1.0 - self.busy.get() {
            return Err(Fault::Busy);
        }
        let cached = {
            let cache = self.cache.borrow();
            chain.iter().take_while(|b| cache.contains(b)).count()
        };
        let new = chain.len() - cached;
        self.takes(0.02 + new as f64 * 0.01 * f64::from(self.working.get()), &mut life).await?;
        self.cache.borrow_mut().extend(chain);
        Ok((cached as u32 * 64, Work { life: Some(life), ..work }))
    }
}

/// A request that a replica works on.
pub(crate) struct Work<'a> {
    replica: &'a Replica,
    life: Option<watch::Receiver<u32>>,
    _count: Counted<'a>,
}

struct Counted<'a>(&'a Replica);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.working.set(self.0.working.get() - 1);
    }
}

impl<'a> Work<'a> {
    fn new(replica: &'a Replica) -> Self {
        replica.working.set(replica.working.get() + 1);
        Work { replica, life: None, _count: Counted(replica) }
    }

    /// The next token.
    pub(crate) async fn token(&mut self) -> Result<(), Fault> {
        let Some(life) = &mut self.life else { return Err(Fault::Reset) };
        self.replica.takes(0.03, life).await
    }
}
