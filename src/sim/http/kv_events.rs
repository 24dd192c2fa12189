//! The KV events of a simulated server: a publisher that speaks ZeroMQ, and its memory for those who ask again.
//!
//! The engine model knows its blocks by hashes only; what is in them is told when a request comes, and kept here for as
//! long as it can be announced.

use super::faults::KvFaults;
use crate::core::prefix::exact::{KvEvent, Removed, Stored};
use crate::engine::kv::zmtp::{Kind, Received, Wire, WireError};
use crate::engine::kv::{Layout, encode};
use crate::sim::engine::PoolChange;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, watch};

/// Batches kept for those who ask again, as vLLM keeps them.
const KEPT: usize = 10_000;
/// Batches that a slow subscriber may lag behind before it loses some.
const LAG: usize = 8192;
/// Blocks whose content is kept; one that is announced later than this many others has none.
const CONTENTS: usize = 1 << 18;

/// Where a simulated server publishes.
#[derive(Clone, Debug, PartialEq)]
pub struct KvEvents {
    /// Where subscribers come; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where those come who ask again.
    pub replay: SocketAddr,
    /// Topic of the messages.
    pub topic: String,
    /// How they are laid out.
    pub layout: Layout,
    /// Which data-parallel rank it says it is.
    pub rank: Option<u32>,
    /// Batches kept for those who ask again; fewer make a late router miss something.
    pub kept: usize,
}

impl Default for KvEvents {
    fn default() -> Self {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        KvEvents {
            listen: any,
            replay: any,
            topic: "kv@mock".into(),
            layout: Layout::Maps,
            rank: Some(0),
            kept: KEPT,
        }
    }
}

#[derive(Clone)]
struct Content {
    parent: Option<u64>,
    tokens: Box<[u32]>,
    lora: Option<Box<str>>,
    salt: Option<Box<str>>,
}

/// A batch on its way: topic, number, payload.
type Sent = Arc<(Vec<u8>, u64, Bytes)>;

struct Desk {
    next: u64,
    kept: VecDeque<(u64, Bytes)>,
    contents: HashMap<u64, Content>,
    order: VecDeque<u64>,
    faults: KvFaults,
    rng: fastrand::Rng,
    held_back: Option<Sent>,
}

pub(super) struct Publisher {
    config: KvEvents,
    block: u32,
    endpoints: (SocketAddr, SocketAddr),
    desk: Mutex<Desk>,
    out: broadcast::Sender<Sent>,
    stop: watch::Sender<bool>,
}

impl Publisher {
    pub(super) async fn start(config: &KvEvents, block: u32) -> io::Result<Arc<Self>> {
        let (publish, replay) = (bind(config.listen)?, bind(config.replay)?);
        let desk = Desk {
            next: 0,
            kept: VecDeque::new(),
            contents: HashMap::new(),
            order: VecDeque::new(),
            faults: KvFaults::default(),
            rng: fastrand::Rng::with_seed(7),
            held_back: None,
        };
        let publisher = Arc::new(Publisher {
            config: config.clone(),
            block: block.max(1),
            endpoints: (publish.local_addr()?, replay.local_addr()?),
            desk: Mutex::new(desk),
            out: broadcast::channel(LAG).0,
            stop: watch::channel(false).0,
        });
        let mut stopped = publisher.stop.subscribe();
        let weak = Arc::downgrade(&publisher);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    Ok((stream, _)) = publish.accept() => serve(&weak, stream, Kind::Pub),
                    Ok((stream, _)) = replay.accept() => serve(&weak, stream, Kind::Router),
                    // An error says that the publisher is gone.
                    _ = stopped.changed() => return,
                }
            }
        });
        Ok(publisher)
    }

    pub(super) fn endpoints(&self) -> (SocketAddr, SocketAddr) {
        self.endpoints
    }

    /// Ends all connections and closes the ports.
    pub(super) fn stop(&self) {
        self.stop.send_replace(true);
    }

    pub(super) fn set_faults(&self, faults: KvFaults) {
        self.desk.lock().faults = faults;
    }

    /// What the blocks of this chain will have in them.
    pub(super) fn contents(&self, chain: &[u64], ids: &[u32], lora: Option<&str>, salt: Option<&str>) {
        let mut desk = self.desk.lock();
        let mut parent = None;
        for (&hash, tokens) in chain.iter().zip(ids.chunks_exact(self.block as usize)) {
            let Desk { contents, order, .. } = &mut *desk;
            contents.entry(hash).or_insert_with(|| {
                order.push_back(hash);
                Content {
                    parent,
                    tokens: tokens.into(),
                    lora: lora.map(Into::into),
                    salt: salt.filter(|_| parent.is_none()).map(Into::into),
                }
            });
            parent = Some(hash);
        }
        while desk.order.len() > CONTENTS {
            if let Some(hash) = desk.order.pop_front() {
                desk.contents.remove(&hash);
            }
        }
    }

    /// The cache has changed: a batch, if there is anything in it.
    pub(super) fn changes(&self, changes: &[PoolChange]) {
        if changes.is_empty() {
            return;
        }
        let mut desk = self.desk.lock();
        let mut events: Vec<KvEvent> = Vec::new();
        for change in changes {
            match *change {
                PoolChange::Stored(hash) => self.store(&desk, hash, &mut events),
                PoolChange::Removed(hash) => {
                    events.push(KvEvent::Removed(Removed { hashes: vec![hash], ..Removed::default() }));
                }
                PoolChange::Cleared => events.push(KvEvent::Cleared),
            }
        }
        self.publish(&mut desk, &events);
    }

    /// Announces cached blocks once more.
    pub(super) fn report(&self, chain: &[u64]) {
        let mut desk = self.desk.lock();
        let mut events = Vec::new();
        chain.iter().for_each(|&hash| self.store(&desk, hash, &mut events));
        if !events.is_empty() {
            self.publish(&mut desk, &events);
        }
    }

    fn store(&self, desk: &Desk, hash: u64, events: &mut Vec<KvEvent>) {
        let Some(content) = desk.contents.get(&hash) else { return };
        if let Some(KvEvent::Stored(last)) = events.last_mut()
            && content.parent.is_some()
            && last.hashes.last().copied() == content.parent
        {
            last.hashes.push(hash);
            last.tokens.extend_from_slice(&content.tokens);
            return;
        }
        events.push(KvEvent::Stored(Stored {
            hashes: vec![hash],
            parent: content.parent,
            tokens: content.tokens.to_vec(),
            block: self.block,
            whole: true,
            lora: content.lora.clone(),
            salt: content.salt.clone(),
            ..Stored::default()
        }));
    }

    fn publish(&self, desk: &mut Desk, events: &[KvEvent]) {
        let seq = desk.next;
        desk.next += 1;
        let payload =
            Bytes::from(encode(super::state::unix_now(), events, self.config.rank, self.config.layout));
        if desk.kept.len() >= self.config.kept.max(1) {
            desk.kept.pop_front();
        }
        desk.kept.push_back((seq, payload.clone()));
        self.send(desk, seq, payload);
    }

    /// Sends a batch, under the faults of now.
    fn send(&self, desk: &mut Desk, seq: u64, mut payload: Bytes) {
        let f = desk.faults.clone();
        let mut happens = |share: f64| share > 0.0 && desk.rng.f64() < share;
        if f.silent || happens(f.loss) {
            return;
        }
        let (twice, later) = (happens(f.duplicate), happens(f.reorder));
        let (cut, foreign, strange) = (happens(f.truncate), happens(f.wrong_topic), happens(f.strange));
        if cut {
            payload = payload.slice(..desk.rng.usize(0..payload.len()));
        }
        if strange {
            payload = strange_batch(super::state::unix_now());
        }
        let topic = if foreign { "other@topic" } else { &*self.config.topic };
        let sent: Sent = Arc::new((topic.as_bytes().to_vec(), seq, payload));
        let mut all = Vec::new();
        if later && desk.held_back.is_none() {
            desk.held_back = Some(sent);
        } else {
            all.push(sent.clone());
            all.extend(twice.then_some(sent));
            all.extend(desk.held_back.take());
        }
        let out = self.out.clone();
        let send = move || {
            for sent in all {
                // Nobody listens: nothing is lost that somebody wanted.
                let _ = out.send(sent);
            }
        };
        match Duration::try_from_secs_f64(f.delay) {
            Ok(delay) if !delay.is_zero() => {
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    send();
                });
            }
            _ => send(),
        }
    }
}

/// A batch whose events are of no use: one of a type from the future, one that is broken.
fn strange_batch(ts: f64) -> Bytes {
    let mut payload = encode(ts, &[], None, Layout::Maps);
    // The list of events is empty and last: two take its place.
    payload.pop();
    payload.extend_from_slice(b"\x92\x81\xa4type\xacBlockRotated\x91\xabBlockStored");
    payload.into()
}

fn bind(at: SocketAddr) -> io::Result<TcpListener> {
    let socket =
        if at.is_ipv4() { tokio::net::TcpSocket::new_v4()? } else { tokio::net::TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    socket.listen(64)
}

fn serve(publisher: &Weak<Publisher>, stream: TcpStream, kind: Kind) {
    let Some(publisher) = publisher.upgrade() else { return };
    let mut stopped = publisher.stop.subscribe();
    tokio::spawn(async move {
        let served = async {
            // A connection that breaks is the other end's business.
            let _ = match kind {
                Kind::Router => answer(&publisher, stream).await,
                _ => forward(&publisher, stream).await,
            };
        };
        tokio::select! {
            () = served => {}
            _ = stopped.changed() => {}
        }
    });
}

/// Sends a subscriber what it asked for.
async fn forward(publisher: &Publisher, stream: TcpStream) -> Result<(), WireError> {
    stream.set_nodelay(true)?;
    let mut wire = Wire::open(stream, Kind::Pub).await?;
    let mut out = publisher.out.subscribe();
    let mut topics: Vec<Bytes> = Vec::new();
    loop {
        tokio::select! {
            received = wire.recv() => match received? {
                Received::Message(frames) => match frames.first() {
                    Some(frame) if frame.first() == Some(&1) => topics.push(frame.slice(1..)),
                    Some(frame) if frame.first() == Some(&0) => topics.retain(|topic| topic[..] != frame[1..]),
                    _ => {}
                },
                Received::Command(name, topic) if name == "SUBSCRIBE" => topics.push(topic),
                Received::Command(..) => {}
            },
            sent = out.recv() => match sent {
                Ok(sent) if topics.iter().any(|topic| sent.0.starts_with(topic)) => {
                    wire.send(&[&sent.0, &sent.1.to_be_bytes(), &sent.2]).await?;
                }
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return Ok(()),
            }
        }
    }
}

/// Answers for earlier batches.
async fn answer(publisher: &Publisher, stream: TcpStream) -> Result<(), WireError> {
    stream.set_nodelay(true)?;
    let mut wire = Wire::open(stream, Kind::Router).await?;
    loop {
        let Received::Message(frames) = wire.recv().await? else { continue };
        let Some(first) = frames.last().and_then(|seq| <[u8; 8]>::try_from(&**seq).ok()) else { continue };
        let first = u64::from_be_bytes(first);
        let batches: Vec<(u64, Bytes)> = {
            let desk = publisher.desk.lock();
            if desk.faults.silent {
                continue;
            }
            desk.kept.iter().filter(|(seq, _)| *seq >= first).cloned().collect()
        };
        let topic = publisher.config.topic.as_bytes();
        for (seq, payload) in batches {
            match publisher.config.layout {
                Layout::Maps => wire.send(&[b"", topic, &seq.to_be_bytes(), &payload]).await?,
                // As vLLM did while its events were arrays.
                Layout::Arrays | Layout::ByteHashes => {
                    wire.send(&[b"", &seq.to_be_bytes(), &payload]).await?
                }
            }
        }
        wire.send(&[b"", b"", &(-1i64).to_be_bytes(), b""]).await?;
    }
}
