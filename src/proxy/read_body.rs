//! Reading a request's body into memory, for the requests whose prompt has to be read before they can be placed.
//!
//! A body that came with its head is one piece and isn't copied. A longer one is copied once. What a client *says*
//! about its length reserves no memory; what it *sends* is bounded by the limit. Large bodies also take from a store of
//! bytes that all of them share, so that many of them at once wait instead of filling the memory. A body that comes at a good
//! pace has room for all of it (bodies that are half there would wait for each other); one that doesn't gives back what it
//! isn't using, and takes room as its bytes come. Of a body that is too long for that, only the first part is read.

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Bodies up to this size don't take from the store: the number of connections bounds them.
const SMALL: usize = 64 * 1024;
/// Unit of the store.
const STEP: usize = 64 * 1024;
/// Most that is reserved on the word of `content-length` alone.
const TRUST: usize = 1 << 20;
/// Of a body that is known to be too long to be read, so much is read.
const FIRST: usize = 256 * 1024;
/// How often a body that is waited for is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// What a refused client may still send before it is answered, so that it reads the answer instead of a reset.
const LINGER: Duration = Duration::from_secs(1);

/// What is asked of a body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Most bytes.
    pub(super) bytes: usize,
    /// Longer ones aren't read to their end.
    pub(super) scan: usize,
    /// Time to send them.
    pub(super) within: Duration,
    /// Time without a byte.
    pub(super) silence: Duration,
    /// Time to wait for a place in the store.
    pub(super) patience: Duration,
}

/// The limits, and the store that all bodies share.
#[derive(Clone)]
pub(super) struct BodyLimits {
    limits: Limits,
    store: Arc<Semaphore>,
    /// Size of the store.
    units: usize,
}

impl BodyLimits {
    /// Limits with a store of `total` bytes, but never less than one body.
    pub(super) fn new(limits: Limits, total: usize) -> Self {
        let units = units(&limits, total);
        BodyLimits { limits, store: Arc::new(Semaphore::new(units)), units }
    }

    /// Other limits with the same store, which grows if it is to hold more.
    pub(super) fn changed(&self, limits: Limits, total: usize) -> Self {
        let units = self.units.max(units(&limits, total));
        self.store.add_permits(units - self.units);
        BodyLimits { limits, store: self.store.clone(), units }
    }
}

/// Units that a store of `total` bytes has, at the least room for one body.
fn units(limits: &Limits, total: usize) -> usize {
    total.max(limits.bytes.min(limits.scan) + TRUST).div_ceil(STEP).min(Semaphore::MAX_PERMITS)
}

impl std::ops::Deref for BodyLimits {
    type Target = Limits;

    fn deref(&self) -> &Limits {
        &self.limits
    }
}

/// Room in the store: shrinks and grows while its body is read.
struct Room<'a> {
    limits: &'a BodyLimits,
    permit: RefCell<Option<OwnedSemaphorePermit>>,
}

impl Room<'_> {
    fn bytes(&self) -> usize {
        self.permit.borrow().as_ref().map_or(0, |p| p.num_permits() * STEP)
    }

    /// Waits for room for `bytes` more.
    async fn grow(&self, bytes: usize) -> Result<(), BodyError> {
        let permits = u32::try_from(bytes.div_ceil(STEP)).unwrap_or(u32::MAX);
        let more = self.limits.store.clone().acquire_many_owned(permits);
        let Ok(Ok(more)) = timeout(self.limits.patience, more).await else { return Err(BodyError::NoRoom) };
        match &mut *self.permit.borrow_mut() {
            Some(permit) => permit.merge(more),
            none => *none = Some(more),
        }
        Ok(())
    }

    /// Gives back what goes beyond `bytes`.
    fn shrink(&self, bytes: usize) {
        if let Some(permit) = &mut *self.permit.borrow_mut() {
            let kept = bytes.div_ceil(STEP);
            drop(permit.split(permit.num_permits().saturating_sub(kept)));
        }
    }
}

/// A body in memory, or its first part. The memory counts against the store until it is dropped.
pub(super) struct Read {
    /// What was read.
    pub(super) bytes: Bytes,
    /// What comes behind it, if it is too long to be read.
    pub(super) rest: Option<Incoming>,
    _room: Option<OwnedSemaphorePermit>,
}

/// Why there is no body.
#[derive(Debug)]
pub(super) enum BodyError {
    /// Longer than allowed.
    TooLarge,
    /// The client took too long to send it.
    TimedOut,
    /// Too many large bodies at once.
    NoRoom,
    /// The client left or broke the protocol.
    Broken,
}

/// Reads a body to its end, or to where it is too long for that.
///
/// # Errors
/// See [`BodyError`]. After `TooLarge` and `TimedOut` the rest of what the client sends has been read for a moment.
pub(super) async fn read_body(mut body: Incoming, limits: &BodyLimits) -> Result<Read, BodyError> {
    let room = Room { limits, permit: RefCell::new(None) };
    match read(&mut body, &room).await {
        Ok((bytes, whole)) => {
            room.shrink(bytes.len());
            let rest = (!whole).then_some(body);
            Ok(Read { bytes, rest, _room: room.permit.into_inner() })
        }
        Err(error) => {
            if matches!(error, BodyError::TooLarge | BodyError::TimedOut) {
                let rest = async { while let Some(Ok(_)) = body.frame().await {} };
                let _ = timeout(LINGER, rest).await;
            }
            Err(error)
        }
    }
}

/// What was read; the flag says that it is all there is.
async fn read(body: &mut Incoming, room: &Room<'_>) -> Result<(Bytes, bool), BodyError> {
    let limits = room.limits;
    let expected = body.size_hint().upper().map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    if expected.is_some_and(|n| n > limits.bytes) {
        return Err(BodyError::TooLarge);
    }
    let got = Cell::new(0);
    // A small body is there already: no timer for it.
    let mut collect = pin!(collect(body, expected, room, &got));
    if let Poll::Ready(collected) = poll_fn(|cx| Poll::Ready(collect.as_mut().poll(cx))).await {
        return collected;
    }
    let begun = Instant::now();
    let (mut before, mut heard) = (0, begun);
    loop {
        let left = limits.within.saturating_sub(begun.elapsed());
        if let Ok(collected) = timeout(left.min(LOOK).min(limits.silence), collect.as_mut()).await {
            return collected;
        }
        let now = Instant::now();
        let came = got.get() - before;
        if came > 0 {
            (before, heard) = (got.get(), now);
        }
        if begun.elapsed() >= limits.within || now.duration_since(heard) >= limits.silence {
            return Err(BodyError::TimedOut);
        }
        // At this pace it would not be whole in time.
        let pace = expected.unwrap_or(limits.bytes) as f64 / limits.within.as_secs_f64().max(1.0);
        if (came as f64) < pace {
            room.shrink(got.get() + STEP);
        }
    }
}

async fn collect(
    body: &mut Incoming,
    expected: Option<usize>,
    room: &Room<'_>,
    got: &Cell<usize>,
) -> Result<(Bytes, bool), BodyError> {
    let limits = room.limits;
    // Where reading ends, though the body doesn't.
    let enough = if expected.is_some_and(|n| n > limits.scan) { FIRST.min(limits.scan) } else { limits.scan };
    let Some(first) = next(body).await? else { return Ok((Bytes::new(), true)) };
    let whole = body.is_end_stream();
    if whole || first.len() >= enough {
        return if first.len() > limits.bytes { Err(BodyError::TooLarge) } else { Ok((first, whole)) };
    }
    let all = expected.unwrap_or(limits.bytes).min(enough);
    // Memory for all of it only once there is room for all of it.
    let begin = if all > SMALL { 0 } else { all };
    let mut whole = BytesMut::with_capacity(begin.max(2 * first.len()));
    let mut piece = Some(first);
    while let Some(data) = piece {
        let len = whole.len() + data.len();
        if len > limits.bytes {
            return Err(BodyError::TooLarge);
        }
        if len > SMALL && room.bytes() < len {
            let wish = if room.bytes() == 0 { all.max(len) } else { len - room.bytes() };
            room.grow(wish).await?;
        }
        if len > whole.capacity() {
            // Of a known length at once, as far as that is to be trusted; else by doubling twice.
            let step = if expected.is_some() { TRUST.max(4 * len) } else { 4 * len };
            let wish = if len > SMALL { step.min(all) } else { 2 * SMALL };
            whole.reserve(wish.max(len) - whole.len());
        }
        whole.extend_from_slice(&data);
        got.set(len);
        if len >= enough && !body.is_end_stream() {
            return Ok((whole.freeze(), false));
        }
        piece = next(body).await?;
    }
    Ok((whole.freeze(), true))
}

/// The next data of a body; trailers are of no use to anybody here.
async fn next(body: &mut Incoming) -> Result<Option<Bytes>, BodyError> {
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Err(_) => return Err(BodyError::Broken),
        }
    }
    Ok(None)
}
