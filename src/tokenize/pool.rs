//! Threads for work that would hold up those that move bytes.
//!
//! Bounded in every way: so many threads, so many waiting. What is submitted is done even when nobody waits for it any
//! more: its results are remembered, so that the next turn finds them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::{io, thread};

use parking_lot::Mutex;

type Job = Box<dyn FnOnce() + Send>;

/// The queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// Threads and their queue. Dropping it lets the threads finish what is queued, and end.
#[derive(Clone, Debug)]
pub struct Pool {
    queue: SyncSender<Job>,
}

impl Pool {
    /// A pool of `threads` threads (at least 1), in front of which up to `queue` jobs wait.
    ///
    /// # Errors
    /// A thread can't be started.
    pub fn start(threads: usize, queue: usize) -> io::Result<Pool> {
        let (sender, receiver) = sync_channel::<Job>(queue);
        let receiver = Arc::new(Mutex::new(receiver));
        for n in 0..threads.max(1) {
            let receiver = receiver.clone();
            thread::Builder::new().name(format!("homing-token-{n}")).spawn(move || serve(&receiver))?;
        }
        Ok(Pool { queue: sender })
    }

    /// Hands `job` to the threads.
    ///
    /// # Errors
    /// The queue is full; the job won't be done.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) -> Result<(), Busy> {
        match self.queue.try_send(Box::new(job)) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => Err(Busy),
        }
    }
}

fn serve(receiver: &Mutex<Receiver<Job>>) {
    loop {
        // One thread waits for the next job, the others for the lock: each job wakes one.
        let next = receiver.lock().recv();
        let Ok(job) = next else { return };
        // A body that trips a library up costs its own job, not the thread.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn the_queue_is_bounded_and_a_panic_costs_only_its_job() {
        let pool = Pool::start(1, 2).unwrap();
        let (go, gate) = channel::<()>();
        let (done, seen) = channel();
        let (begun, began) = channel();
        pool.submit(move || {
            begun.send(()).unwrap();
            let _ = gate.recv();
        })
        .unwrap();
        began.recv().unwrap();
        pool.submit(|| panic!("a job that fails")).unwrap();
        pool.submit(move || done.send(thread::current().name().map(str::to_owned)).unwrap()).unwrap();
        assert_eq!(pool.submit(|| {}), Err(Busy), "one runs, two wait");
        go.send(()).unwrap();
        assert_eq!(seen.recv().unwrap().as_deref(), Some("homing-token-0"));
    }
}
