//! Reading a request's body into memory, for the requests whose prompt has to be read before they can be placed.
//!
//! A body that came with its head is one piece and isn't copied. A longer one is copied once. What a client *says*
//! about its length reserves no memory beyond a first step; what it *sends* is bounded by the limit. Large bodies
//! also take from a store of bytes that all of them share, so that many of them at once wait instead of filling the
//! memory. The room is taken as a whole, or bodies that are half there would wait for each other; so while others wait,
//! a client that announces much and sends little loses its place.

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::cell::Cell;
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
/// How often a body that is waited for is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// A body that holds room may be late by this much while others wait for it.
const GRACE: Duration = Duration::from_secs(2);
/// What a refused client may still send before it is answered, so that it reads the answer instead of a reset.
const LINGER: Duration = Duration::from_secs(1);

/// What is asked of a body.
#[derive(Clone)]
pub(super) struct BodyLimits {
    /// Most bytes.
    pub(super) bytes: usize,
    /// Time to send them.
    pub(super) within: Duration,
    /// Time to wait for a place in the store.
    pub(super) patience: Duration,
    /// The store.
    pub(super) store: Arc<Semaphore>,
    /// Units that the store has in all.
    units: usize,
}

impl BodyLimits {
    /// Limits with a store of `total` bytes, but never less than one body.
    pub(super) fn new(bytes: usize, within: Duration, patience: Duration, total: usize) -> Self {
        let permits = total.max(bytes).div_ceil(STEP).min(Semaphore::MAX_PERMITS);
        BodyLimits { bytes, within, patience, store: Arc::new(Semaphore::new(permits)), units: permits }
    }

    /// Other limits with the same store, which grows where one body wouldn't fit in.
    pub(super) fn changed(&self, bytes: usize, within: Duration, patience: Duration) -> Self {
        let units = self.units.max(bytes.div_ceil(STEP)).min(Semaphore::MAX_PERMITS);
        self.store.add_permits(units - self.units);
        BodyLimits { bytes, within, patience, store: self.store.clone(), units }
    }

    /// Does a body of which `got` bytes came in `spent` keep others waiting, while at this pace it would not be whole
    /// within its time?
    fn late(&self, expected: Option<usize>, got: usize, spent: Duration) -> bool {
        let expected = expected.unwrap_or(self.bytes);
        // Nothing is left of the store when somebody waits for it.
        let awaited = self.store.available_permits() == 0;
        let due = spent.saturating_sub(GRACE).as_secs_f64() / self.within.as_secs_f64().max(1e-3);
        awaited && (expected > SMALL) && (got as f64) < due * expected as f64
    }

    async fn reserve(&self, bytes: usize) -> Result<OwnedSemaphorePermit, BodyError> {
        let permits = u32::try_from(bytes.div_ceil(STEP)).unwrap_or(u32::MAX);
        match timeout(self.patience, self.store.clone().acquire_many_owned(permits)).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(BodyError::NoRoom),
        }
    }
}

/// A whole body. The memory counts against the store until it is dropped.
pub(super) struct Whole {
    /// The body.
    pub(super) bytes: Bytes,
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

/// Reads a body to its end.
///
/// # Errors
/// See [`BodyError`]. After `TooLarge` and `TimedOut` the rest of what the client sends has been read for a moment.
pub(super) async fn read_body(mut body: Incoming, limits: &BodyLimits) -> Result<Whole, BodyError> {
    let result = read(&mut body, limits).await;
    if matches!(result, Err(BodyError::TooLarge | BodyError::TimedOut)) {
        let rest = async { while let Some(Ok(_)) = body.frame().await {} };
        let _ = timeout(LINGER, rest).await;
    }
    result
}

async fn read(body: &mut Incoming, limits: &BodyLimits) -> Result<Whole, BodyError> {
    let expected = body.size_hint().upper().map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    if expected.is_some_and(|n| n > limits.bytes) {
        return Err(BodyError::TooLarge);
    }
    let room = match expected {
        Some(n) if n <= SMALL => None,
        Some(n) => Some(limits.reserve(n).await?),
        None => None,
    };
    let got = Cell::new(0);
    // A small body is there already: no timer for it.
    let collected = {
        let mut collect = pin!(collect(body, expected, limits, room.is_some(), &got));
        match poll_fn(|cx| Poll::Ready(collect.as_mut().poll(cx))).await {
            Poll::Ready(collected) => collected,
            Poll::Pending => {
                let begun = Instant::now();
                loop {
                    let left = limits.within.saturating_sub(begun.elapsed());
                    match timeout(left.min(LOOK), collect.as_mut()).await {
                        Ok(collected) => break collected,
                        Err(_) if left <= LOOK => break Err(BodyError::TimedOut),
                        Err(_) if limits.late(expected, got.get(), begun.elapsed()) => {
                            break Err(BodyError::TimedOut);
                        }
                        Err(_) => {}
                    }
                }
            }
        }
    }?;
    Ok(Whole { bytes: collected.0, _room: room.or(collected.1) })
}

async fn collect(
    body: &mut Incoming,
    expected: Option<usize>,
    limits: &BodyLimits,
    mut reserved: bool,
    got: &Cell<usize>,
) -> Result<(Bytes, Option<OwnedSemaphorePermit>), BodyError> {
    let Some(first) = next(body).await? else { return Ok((Bytes::new(), None)) };
    if body.is_end_stream() {
        return if first.len() > limits.bytes { Err(BodyError::TooLarge) } else { Ok((first, None)) };
    }
    let mut room = None;
    let mut whole = BytesMut::with_capacity(expected.unwrap_or(0).min(TRUST).max(2 * first.len()));
    let mut piece = Some(first);
    while let Some(data) = piece {
        let len = whole.len() + data.len();
        if len > limits.bytes {
            return Err(BodyError::TooLarge);
        }
        if !reserved && len > SMALL {
            // Nothing is known of how long it will be.
            room = Some(limits.reserve(limits.bytes).await?);
            reserved = true;
        }
        if len > whole.capacity() {
            let wish = expected.unwrap_or(usize::MAX).min(4 * len).min(limits.bytes);
            whole.reserve(wish.max(len) - whole.len());
        }
        whole.extend_from_slice(&data);
        got.set(len);
        piece = next(body).await?;
    }
    Ok((whole.freeze(), room))
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
