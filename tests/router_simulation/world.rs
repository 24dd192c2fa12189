//! The schedule: who comes, what breaks, and what must hold.

use crate::replica::{Fault, Replica};
use fastrand::Rng;
use homing::config::{Config, ReplicaSpec, Seconds};
use homing::core::health::Probe;
use homing::core::{Failure, Outcome, ReplicaId};
use homing::discovery::{Present, Standing, Wanted, plan};
use homing::router::{Ask, Member, ModelInfo, Page, Refusal, Reservation, Router, Snapshot};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, timeout};

/// Seconds of trouble, and of peace after it.
const STORM: f64 = 40.0;
const PEACE: f64 = 30.0;
/// Attempts for one request.
const ATTEMPTS: usize = 3;

/// What happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) answered: u64,
    pub(crate) cancelled: u64,
    pub(crate) refused: u64,
    pub(crate) retried: u64,
    pub(crate) broken: u64,
    pub(crate) failed: u64,
    pub(crate) reloads: u64,
    /// A hash of every event, its time and its order.
    pub(crate) trace: u64,
}

impl Report {
    pub(crate) fn add(&mut self, other: &Report) {
        for (to, from) in [
            (&mut self.answered, other.answered),
            (&mut self.cancelled, other.cancelled),
            (&mut self.refused, other.refused),
            (&mut self.retried, other.retried),
            (&mut self.broken, other.broken),
            (&mut self.failed, other.failed),
            (&mut self.reloads, other.reloads),
        ] {
            *to += from;
        }
    }
}

struct World {
    router: Arc<Router>,
    replicas: RefCell<Vec<Rc<Replica>>>,
    report: RefCell<Report>,
    began: Instant,
    /// Reservations that are held, by replica: the books as they should be.
    held: RefCell<BTreeMap<String, i64>>,
    asking: Cell<u64>,
    config: RefCell<Config>,
    /// Requests that a replica may have, as the list says.
    cap: Cell<Option<u32>>,
}

/// What is counted while a reservation is held.
struct Held<'a> {
    world: &'a World,
    replica: String,
}

impl<'a> Held<'a> {
    fn new(world: &'a World, of: &Reservation) -> Self {
        let replica = of.replica();
        let replica = format!("{}.{}", replica.slot, replica.life);
        *world.held.borrow_mut().entry(replica.clone()).or_default() += 1;
        Held { world, replica }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        *self.world.held.borrow_mut().entry(self.replica.clone()).or_default() -= 1;
    }
}

pub(crate) async fn run(seed: u64) -> Report {
    let mut rng = Rng::with_seed(seed);
    let mut config = Config::default();
    config.queue.max = rng.u32(1..40);
    config.queue.timeout = Seconds::from_millis(rng.u64(500..8000));
    config.health.slow_start = Seconds::from_millis(rng.u64(0..10_000));
    config.index.max_blocks = rng.u64(200..3000);
    let world = Rc::new(World {
        router: Router::new(&config, seed),
        replicas: RefCell::default(),
        report: RefCell::default(),
        began: Instant::now(),
        held: RefCell::default(),
        asking: Cell::new(0),
        config: RefCell::new(config),
        cap: Cell::new(None),
    });
    for n in 0..rng.u32(2..6) {
        world.replicas.borrow_mut().push(Replica::new(n));
    }
    world.reload(&mut rng);
    let watch = spawn_local(watch(world.clone()));
    let storm = spawn_local(storm(world.clone(), rng.fork()));
    let mut clients = Vec::new();
    for n in 0..rng.u64(40..120) {
        sleep(Duration::from_secs_f64(rng.f64() * STORM / 60.0)).await;
        world.check();
        clients.push(spawn_local(client(world.clone(), n, rng.fork())));
    }
    storm.await.unwrap();
    world.peace(&mut rng);
    for client in clients {
        // However long the line: nobody waits for ever.
        timeout(Duration::from_secs(600), client)
            .await
            .unwrap_or_else(|_| panic!("a request was lost"))
            .unwrap();
    }
    sleep(Duration::from_secs_f64(PEACE)).await;
    world.check();
    world.end();
    world.healthy_again(&mut rng).await;
    world.survives_a_restart();
    watch.abort();
    world.report.borrow().clone()
}

/// One client: a request, with what a proxy does for it.
async fn client(world: Rc<World>, n: u64, mut rng: Rng) {
    world.asking.set(world.asking.get() + 1);
    let patience =
        if rng.u8(..5) == 0 { Duration::from_secs_f64(rng.f64() * 4.0) } else { Duration::from_secs(500) };
    let asked = timeout(patience, world.serve(n, &mut rng)).await;
    if asked.is_err() {
        world.note(n, 1);
        world.report.borrow_mut().cancelled += 1;
    }
    world.asking.set(world.asking.get() - 1);
    world.check();
}

impl World {
    fn note(&self, who: u64, what: u64) {
        let at = self.began.elapsed().as_nanos() as u64;
        let trace = &mut self.report.borrow_mut().trace;
        for n in [at, who, what] {
            *trace = (trace.rotate_left(7) ^ n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        }
    }

    fn ask(rng: &mut Rng) -> Ask {
        let conversation = rng.u64(1..12);
        let group = conversation % 3 + 1;
        let chain: Vec<u64> = (0..rng.u64(0..24))
            .map(|i| if i < 6 { (group << 40) | i } else { (conversation << 20) | i })
            .map(|b| b | 1 << 62)
            .collect();
        Ask {
            model: Some(["a", "b"][rng.usize(..2)].into()),
            text_bytes: chain.len() as u64 * 256 + rng.u64(..256),
            head: chain.first().copied().unwrap_or(group),
            chain,
            choices: 1,
            generates: true,
            streams: true,
            max_output: Some(rng.u32(1..60)),
            ..Ask::default()
        }
    }

    /// Attempts, as long as nothing of an answer was seen.
    async fn serve(&self, n: u64, rng: &mut Rng) {
        let mut ask = Self::ask(rng);
        let begun = Instant::now();
        for attempt in 0..ATTEMPTS {
            let limit = self.config.borrow().queue.timeout.get();
            let reservation = match self.router.place(&ask).await {
                Ok(reservation) => reservation,
                Err(refusal) => {
                    self.note(n, 2);
                    self.report.borrow_mut().refused += 1;
                    return self.refused(&refusal, begun.elapsed(), limit);
                }
            };
            assert!(!ask.tried.contains(&reservation.replica()), "sent again to one that had failed it");
            let replica = reservation.replica();
            self.note(n, 100 + u64::from(replica.slot));
            match self.attempt(reservation, &ask, rng).await {
                Ok(()) => {
                    self.note(n, 3);
                    self.report.borrow_mut().answered += 1;
                    return;
                }
                // A byte has reached the client: the end, whatever comes.
                Err(true) => {
                    self.note(n, 4);
                    self.report.borrow_mut().broken += 1;
                    return;
                }
                Err(false) if attempt + 1 < ATTEMPTS => {
                    self.report.borrow_mut().retried += 1;
                    ask.tried.push(replica);
                }
                Err(false) => {}
            }
        }
        self.note(n, 5);
        self.report.borrow_mut().failed += 1;
    }

    fn refused(&self, refusal: &Refusal, waited: Duration, limit: Duration) {
        match refusal {
            Refusal::Deadline { retry_after } => {
                assert!(
                    waited >= limit.min(self.config.borrow().queue.timeout.get()),
                    "given up before its time"
                );
                assert!((1..=30).contains(retry_after));
            }
            Refusal::QueueFull { retry_after } | Refusal::NoReplica { retry_after } => {
                assert!((1..=30).contains(retry_after));
            }
            Refusal::UnknownModel { known } => assert!(known.len() < 2, "it is known"),
            Refusal::TooLong { .. } | Refusal::PinnedGone => panic!("{refusal:?}: nobody asked for that"),
            #[allow(unreachable_patterns, reason = "refusals that come with other rooms")]
            _ => {}
        }
    }

    /// The error says whether a byte was seen.
    async fn attempt(&self, mut reservation: Reservation, ask: &Ask, rng: &mut Rng) -> Result<(), bool> {
        let _held = Held::new(self, &reservation);
        let name = reservation.endpoint().map(|e| e.name.to_string());
        let found = self.replicas.borrow().iter().find(|r| Some(r.url()[7..].to_owned()) == name).cloned();
        let Some(replica) = found else {
            reservation.fail(Failure::Connect);
            return Err(false);
        };
        // Without a limit a replica that hangs keeps its client: this one has a time-out for the first byte.
        let (cached, mut work) =
            match timeout(Duration::from_secs(20), replica.prefill(&ask.chain, rng.f64())).await {
                Ok(Ok(begun)) => begun,
                Ok(Err(fault)) => {
                    reservation.fail(match fault {
                        Fault::Refused => Failure::Connect,
                        Fault::Reset => Failure::Reset,
                        Fault::Error => Failure::Status(500),
                        Fault::Busy => Failure::BackPressure { retry_after: Some(2.0) },
                    });
                    return Err(false);
                }
                Err(_) => {
                    reservation.fail(Failure::Timeout);
                    return Err(false);
                }
            };
        reservation.first_token();
        let tokens = ask.max_output.unwrap_or(1);
        for token in 1..=tokens {
            if work.token().await.is_err() {
                reservation.fail(Failure::Reset);
                return Err(true);
            }
            reservation.progress(token);
        }
        reservation.finish(Outcome {
            prompt_tokens: Some((ask.text_bytes / 4) as u32),
            cached_tokens: (rng.u8(..4) > 0).then_some(cached),
            output_tokens: Some(tokens),
        });
        Ok(())
    }

    /// The list of replicas becomes what there is now, as discovery does it, and other settings come along.
    fn reload(&self, rng: &mut Rng) {
        let mut config = self.config.borrow().clone();
        config.price.harm = rng.f64();
        config.queue.max = rng.u32(1..40);
        self.router.reconfigure(&config);
        *self.config.borrow_mut() = config;
        self.cap.set(rng.bool().then(|| rng.u32(1..6)));
        self.follow();
        self.report.borrow_mut().reloads += 1;
        self.check();
    }

    /// Brings the fleet nearer to the list.
    fn follow(&self) {
        let cap = self.cap.get();
        let spec = |r: &Rc<Replica>| ReplicaSpec {
            max_in_flight: cap,
            kv_tokens: Some(60_000),
            ..ReplicaSpec::new(r.url())
        };
        let wish = |r| Wanted { member: Member::new(spec(r)).unwrap(), standing: Standing::Serves };
        let wanted: Vec<Wanted> = self.replicas.borrow().iter().map(wish).collect();
        let views = self.router.replicas();
        let present: Vec<_> = views
            .iter()
            .filter_map(|v| {
                let member = self.router.member(v.replica)?;
                Some(Present {
                    id: v.replica,
                    key: member.key(),
                    spec: member.spec,
                    incarnation: member.incarnation,
                    ready: v.state == "ready",
                    draining: v.draining,
                    drained_here: false,
                    held: false,
                })
            })
            .collect();
        let plan = plan(&present, &wanted);
        for entrant in plan.joins {
            let id = self.router.join(entrant.member).unwrap();
            self.router.drain(id, entrant.draining);
            self.note(u64::from(id.slot), 6);
        }
        plan.leaves.into_iter().for_each(|id| self.router.leave(id));
    }

    /// The books of the router against ours.
    fn check(&self) {
        let held = self.held.borrow();
        let (in_flight, waiting) = self.router.load();
        let sum: i64 = held.values().sum();
        assert_eq!(in_flight as i64, sum, "requests in flight");
        assert!(waiting as u64 <= self.asking.get(), "more wait than there are");
        for view in self.router.replicas() {
            let ours = held.get(&view.id).copied().unwrap_or(0);
            assert_eq!(i64::from(view.in_flight), ours, "in flight on {}", view.id);
        }
        let index = self.router.index_stats();
        assert!(
            index.distinct_blocks <= self.config.borrow().index.max_blocks,
            "the index has outgrown its bound"
        );
        assert!(index.speculations <= sum as usize, "speculations of nobody");
    }

    /// Everything works again, and nothing is drained.
    fn peace(&self, rng: &mut Rng) {
        for r in self.replicas.borrow().iter() {
            r.start();
            for (cell, value) in [(&r.slow, 1.0), (&r.errors, 0.0), (&r.busy, 0.0)] {
                cell.set(value);
            }
            r.partitioned.set(false);
            r.mute.set(false);
        }
        self.reload(rng);
        self.router.replicas().iter().for_each(|v| assert!(self.router.drain(v.replica, false)));
    }

    fn end(&self) {
        assert_eq!(self.router.load(), (0, 0), "counts end at zero");
        assert_eq!(self.router.index_stats().speculations, 0, "speculations end");
        assert!(self.replicas.borrow().iter().all(|r| r.working() == 0), "a replica works for nobody");
        assert!(self.router.replicas().iter().all(|v| v.in_flight == 0));
    }

    /// After all that: every request is answered.
    async fn healthy_again(&self, rng: &mut Rng) {
        for n in 0..10 {
            let before = self.report.borrow().answered;
            self.serve(10_000 + n, rng).await;
            assert_eq!(
                self.report.borrow().answered,
                before + 1,
                "in peace, and not answered: {:?}",
                self.router.replicas()
            );
        }
    }

    /// A router that starts from this one's snapshot has the same matches.
    fn survives_a_restart(&self) {
        let snapshot = Snapshot::decode(&self.router.snapshot(0)).unwrap();
        let next = Router::new(&self.config.borrow(), snapshot.seed());
        next.remember(snapshot).unwrap();
        // Numbers are given anew.
        let views = self.router.replicas();
        for v in views.iter().rev() {
            next.join(self.router.member(v.replica).unwrap()).unwrap();
        }
        let mut rng = Rng::with_seed(7);
        for _ in 0..50 {
            let ask = Ask { model: None, ..Self::ask(&mut rng) };
            let matched = |r: &Router| -> BTreeMap<String, u32> {
                r.explain(&ask).candidates.into_iter().map(|c| (c.replica, c.matched_blocks)).collect()
            };
            assert_eq!(matched(&next), matched(&self.router));
        }
    }
}

/// What the watch does: probes, pages, models, housekeeping.
async fn watch(world: Rc<World>) {
    loop {
        for endpoint in world.router.endpoints() {
            let found = world.replicas.borrow().iter().find(|r| r.url()[7..] == *endpoint.name).cloned();
            let id: ReplicaId = endpoint.id;
            let Some(r) = found.filter(|r| r.up.get() && !r.partitioned.get()) else {
                world.router.probe(id, Probe::Unreachable);
                continue;
            };
            world.router.probe(id, Probe::Ok);
            let model = |name: &str| ModelInfo { id: name.into(), parent: None, max_model_len: Some(32_768) };
            world.router.models(id, vec![model("a"), model("b")]);
            if !r.mute.get() {
                world.router.page(
                    id,
                    Page {
                        running: Some(r.working()),
                        waiting: Some(0),
                        kv_usage: Some(0.3),
                        ..Page::default()
                    },
                );
            }
        }
        world.router.tick();
        world.follow();
        world.check();
        sleep(Duration::from_millis(500)).await;
    }
}

/// What goes wrong.
async fn storm(world: Rc<World>, mut rng: Rng) {
    let mut numbers = 100;
    while world.began.elapsed().as_secs_f64() < STORM {
        sleep(Duration::from_secs_f64(rng.f64() * 2.0)).await;
        let some = {
            let all = world.replicas.borrow();
            all.get(rng.usize(..all.len().max(1))).cloned()
        };
        let Some(r) = some else { continue };
        world.note(u64::from(r.number), 7);
        match rng.u8(..12) {
            0..=2 => r.kill(),
            3..=5 => r.start(),
            6 => r.partitioned.set(!r.partitioned.get()),
            7 => r.mute.set(!r.mute.get()),
            8 => r.slow.set([0.5, 1.0, 5.0, 1e6][rng.usize(..4)]),
            9 => {
                r.errors.set(rng.f64() * 0.5);
                r.busy.set(rng.f64() * 0.3);
            }
            10 => {
                let all = world.router.replicas();
                if let Some(v) = all.get(rng.usize(..all.len().max(1))) {
                    world.router.drain(v.replica, rng.bool());
                }
            }
            // The list changes: one comes, one goes, or both.
            _ => {
                if rng.bool() {
                    numbers += 1;
                    world.replicas.borrow_mut().push(Replica::new(numbers));
                }
                if rng.bool() && world.replicas.borrow().len() > 2 {
                    let gone = rng.usize(..world.replicas.borrow().len());
                    world.replicas.borrow_mut().swap_remove(gone);
                }
                world.reload(&mut rng);
            }
        }
        world.check();
    }
}
