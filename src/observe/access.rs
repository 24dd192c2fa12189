//! The access log: one JSON line a request, written by a thread of its own.
//!
//! A log must not hold up traffic: lines go through a bounded channel, and when the disk or the pipe can't keep up they
//! are dropped and counted. No text of a prompt or an answer is ever in it.

use super::cells::Counter;
use crate::config::AccessTarget;
use serde::{Serialize, Serializer};
use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, SystemTime};

/// What happened to one request. Unknown fields are left out of the line.
#[derive(Clone, Debug, Default, Serialize)]
pub struct AccessLine {
    /// When it arrived, in Unix seconds, to the millisecond.
    #[serde(serialize_with = "milli")]
    pub ts: f64,
    /// Its `x-request-id`.
    pub id: String,
    /// The model, if it is one that some replica serves; a name that a client made up isn't logged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<Arc<str>>,
    /// Which API: `chat`, `completions`, `responses`, `messages`, or `other`.
    pub shape: &'static str,
    /// Was a stream asked for?
    pub stream: bool,
    /// The replica that answered, or the last one tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<Arc<str>>,
    /// Status sent to the client; 0 if it left before there was one.
    pub status: u16,
    /// How it ended: `ok`, `client_error`, `cancelled`, `failed`, …
    pub outcome: &'static str,
    /// Why: the label `reason` of `homing_requests_total`.
    pub reason: &'static str,
    /// Prompt tokens: from the engine's usage, else as estimated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u32>,
    /// Tokens that the router believed cached on the replica it chose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_cached: Option<u32>,
    /// Tokens that the engine said were cached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actual_cached: Option<u32>,
    /// Output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u32>,
    /// Milliseconds waited in the router.
    #[serde(serialize_with = "milli")]
    pub queue_ms: f64,
    /// Microseconds that the choice took.
    #[serde(serialize_with = "milli")]
    pub decision_us: f64,
    /// Milliseconds from arrival to the first token.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "milli_known")]
    pub ttft_ms: Option<f64>,
    /// Milliseconds from arrival to the end.
    #[serde(serialize_with = "milli")]
    pub total_ms: f64,
    /// Replicas it was sent to.
    pub attempts: u32,
    /// Bytes of the request's body.
    pub bytes_in: u64,
    /// Bytes of the answer's body.
    pub bytes_out: u64,
    /// With `log.blocks`: what a replay needs.
    #[serde(flatten)]
    pub blocks: Option<Blocks>,
}

/// Lengths and identities, in the form of published traces.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Blocks {
    /// Prompt tokens.
    pub input_length: u32,
    /// Output tokens.
    pub output_length: u32,
    /// Keyed identities of the prompt's blocks of 512 tokens; each stands for everything up to its end.
    pub hash_ids: Vec<u64>,
}

/// Three decimals are enough, and lines stay short.
fn milli<S: Serializer>(v: &f64, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_f64((v * 1e3).round() / 1e3)
}

fn milli_known<S: Serializer>(v: &Option<f64>, s: S) -> Result<S::Ok, S::Error> {
    milli(&v.unwrap_or_default(), s)
}

/// The time of day in Unix seconds, for [`AccessLine::ts`].
pub fn now_unix() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// Lines that may wait for the writer: a second's worth at a rate that few fleets reach, 2 MB.
const QUEUE: usize = 4096;
/// How long the end waits for the last lines to be written.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Takes lines; clones share the writer. Dropping the last one writes what is waiting.
#[derive(Clone, Debug)]
pub struct AccessLog(Option<Arc<Queue>>);

#[derive(Debug)]
struct Queue {
    /// `None` once closing.
    lines: Option<SyncSender<Box<AccessLine>>>,
    dropped: Counter,
    done: parking_lot::Mutex<Receiver<()>>,
}

impl AccessLog {
    /// A log that takes nothing.
    pub fn off() -> Self {
        AccessLog(None)
    }

    /// A log to where the configuration says; a file is appended to, and made if it isn't there. `dropped` counts lines
    /// that couldn't be written. Fails if the file can't be opened.
    pub fn open(target: &AccessTarget, dropped: Counter) -> io::Result<Self> {
        match target {
            AccessTarget::Off => Ok(Self::off()),
            AccessTarget::Stdout => Self::to(io::stdout(), QUEUE, dropped),
            AccessTarget::Stderr => Self::to(io::stderr(), QUEUE, dropped),
            AccessTarget::File(path) => {
                let file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
                Self::to(file, QUEUE, dropped)
            }
        }
    }

    /// Writes to `out`, with room for `queue` waiting lines. Fails if no thread can be started.
    pub fn to(out: impl Write + Send + 'static, queue: usize, dropped: Counter) -> io::Result<Self> {
        let (lines, waiting) = sync_channel(queue);
        let (finished, done) = sync_channel(1);
        let lost = dropped.clone();
        std::thread::Builder::new().name("access-log".into()).spawn(move || {
            write_all(&waiting, out, &lost);
            // Nobody may be waiting any more.
            let _ = finished.send(());
        })?;
        Ok(AccessLog(Some(Arc::new(Queue {
            lines: Some(lines),
            dropped,
            done: parking_lot::Mutex::new(done),
        }))))
    }

    /// Are lines wanted at all? Asked before one is put together.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Hands a line to the writer; never waits.
    pub fn log(&self, line: Box<AccessLine>) {
        if let Some(queue) = &self.0
            && let Some(lines) = &queue.lines
            && let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = lines.try_send(line)
        {
            queue.dropped.inc();
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // The writer ends when no sender is left; a pipe that nobody reads must not hold up the exit for ever.
        self.lines = None;
        let _ = self.done.get_mut().recv_timeout(LAST_LINES);
    }
}

fn write_all(waiting: &Receiver<Box<AccessLine>>, out: impl Write, lost: &Counter) {
    let mut out = BufWriter::new(out);
    while let Ok(first) = waiting.recv() {
        let mut written = 0;
        let mut result = Ok(());
        // One flush for all that is there: under load many lines share a system call.
        for line in std::iter::once(first).chain(waiting.try_iter().take(QUEUE)) {
            result = result.and_then(|()| {
                serde_json::to_writer(&mut out, &line)?;
                out.write_all(b"\n")
            });
            written += 1;
        }
        if result.and_then(|()| out.flush()).is_err() {
            lost.add(written);
        }
    }
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;
