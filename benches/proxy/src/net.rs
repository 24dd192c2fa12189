//! The event loop's parts: epoll, timers, and non-blocking sockets with what is read and what is still to be written.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{Timespec, epoll};

use crate::Outcome;

/// Edge-triggered epoll over sockets known by a number.
pub(crate) struct Poll {
    fd: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Poll {
    pub(crate) fn new() -> Outcome<Self> {
        Ok(Self { fd: epoll::create(epoll::CreateFlags::CLOEXEC)?, events: Vec::with_capacity(1024) })
    }

    /// Reports readable, writable and hung-up, each once per change. Closing the socket takes it out.
    pub(crate) fn add(&self, socket: impl AsFd, token: u64) -> Outcome {
        let flags =
            epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        Ok(epoll::add(&self.fd, socket, epoll::EventData::new_u64(token), flags)?)
    }

    /// The tokens that have news, at the latest after `until`.
    pub(crate) fn wait(&mut self, until: Option<Instant>, tokens: &mut Vec<u64>) -> Outcome {
        let left = until.map(|at| at.saturating_duration_since(Instant::now()));
        let left =
            left.map(|d| Timespec { tv_sec: d.as_secs() as i64, tv_nsec: i64::from(d.subsec_nanos()) });
        self.events.clear();
        match epoll::wait(&self.fd, rustix::buffer::spare_capacity(&mut self.events), left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        tokens.clear();
        tokens.extend(self.events.iter().map(|event| event.data.u64()));
        Ok(())
    }
}

/// What falls due when. Entries can't be taken back: give each a stamp that is checked when it fires.
pub(crate) struct Timers<T>(BinaryHeap<Reverse<(Instant, T)>>);

impl<T: Ord> Timers<T> {
    pub(crate) fn new() -> Self {
        Self(BinaryHeap::new())
    }

    pub(crate) fn at(&mut self, when: Instant, what: T) {
        self.0.push(Reverse((when, what)));
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse((when, _))| *when)
    }

    /// The next entry that is due at `now`, with its time.
    pub(crate) fn due(&mut self, now: Instant) -> Option<(Instant, T)> {
        if self.next()? > now {
            return None;
        }
        self.0.pop().map(|Reverse(entry)| entry)
    }
}

/// A non-blocking connection.
pub(crate) struct Socket {
    pub(crate) stream: TcpStream,
    input: Vec<u8>,
    filled: usize,
    output: Vec<u8>,
    written: usize,
}

/// What reading found.
#[derive(PartialEq, Eq, Clone, Copy)]
pub(crate) enum Reading {
    /// The connection is open.
    Open,
    /// The peer closed or reset it.
    Closed,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream) -> Outcome<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, input: vec![0; 16 << 10], filled: 0, output: Vec::new(), written: 0 })
    }

    pub(crate) fn connect(to: SocketAddr) -> Outcome<Self> {
        Self::new(TcpStream::connect_timeout(&to, Duration::from_secs(10)).map_err(|e| format!("{to}: {e}"))?)
    }

    /// What was read and not yet consumed.
    pub(crate) fn input(&self) -> &[u8] {
        &self.input[..self.filled]
    }

    /// Forgets the first `count` bytes of the input.
    pub(crate) fn consume(&mut self, count: usize) {
        self.input.copy_within(count..self.filled, 0);
        self.filled -= count;
    }

    /// Reads all that is there.
    pub(crate) fn fill(&mut self) -> Reading {
        loop {
            if self.filled == self.input.len() {
                self.input.resize(self.input.len() * 2, 0);
            }
            match self.stream.read(&mut self.input[self.filled..]) {
                Ok(0) => return Reading::Closed,
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Reading::Open,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Reading::Closed,
            }
        }
    }

    /// Writes now what the kernel takes, and keeps the rest for [`Socket::flush`]. A broken connection shows in the next read.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while self.output.is_empty() && !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return,
            }
        }
        self.output.extend_from_slice(rest);
    }

    /// Writes what [`Socket::send`] had to keep.
    pub(crate) fn flush(&mut self) {
        while self.written < self.output.len() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => break,
            }
        }
        self.output.clear();
        self.written = 0;
    }

    /// Makes closing send a reset instead of an orderly end.
    pub(crate) fn reset_on_close(&self) {
        // A socket that is gone already can't be reset any more, and that is as good.
        rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).ok();
    }
}

/// Nanoseconds since 1970: the one clock that two processes on a machine can compare.
pub(crate) fn wall_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}
