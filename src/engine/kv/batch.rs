//! One message's payload: a batch of events.

use super::event::{self, Read};
use super::pack::Reader;
use crate::core::prefix::exact::KvEvent;

/// The events of one step of the engine, as far as they could be read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// When it was made, in the engine's Unix seconds.
    pub ts: f64,
    /// Which data-parallel rank made it.
    pub rank: Option<u32>,
    /// Its events, in order.
    pub events: Vec<KvEvent>,
    /// Events of types that aren't known.
    pub unknown: u32,
    /// Events that couldn't be read.
    pub faulty: u32,
    /// Did the bytes end too early? What was behind is lost.
    pub cut: bool,
}

/// Reads a payload. `None`: not even a batch; all there is is lost.
pub fn decode(payload: &[u8]) -> Option<Batch> {
    let mut r = Reader::new(payload);
    let fields = r.list().ok()?;
    if fields < 2 {
        return None;
    }
    let ts = r.number().ok()?;
    let mut batch = Batch { ts, ..Batch::default() };
    // The list's own length may be a lie of a cut message: as many are read as are there.
    let Ok(n) = r.list() else {
        batch.cut = true;
        return Some(batch);
    };
    for _ in 0..n {
        let Ok(bytes) = r.skip() else {
            batch.cut = true;
            return Some(batch);
        };
        match event::read(bytes) {
            Ok(Read::Event(event)) => batch.events.push(event),
            Ok(Read::Unknown) => batch.unknown += 1,
            Err(_) => batch.faulty += 1,
        }
    }
    if fields > 2 && !r.nil() {
        match r.small(u32::MAX) {
            Ok(rank) => batch.rank = Some(rank),
            Err(_) => batch.cut = r.is_empty(),
        }
    }
    Some(batch)
}
