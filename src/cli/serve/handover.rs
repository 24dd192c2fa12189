//! Restart without loss: the sockets, and what is known, go to the process that comes after.
//!
//! ```text
//! old                                      new (same program, same arguments)
//! ─ starts it: sockets as LISTEN_FDS,
//!   one end of a pipe as standard input ─▶ takes the sockets, lets nobody in yet
//! ─ length and snapshot into the pipe ───▶ reads it, looks at the replicas
//!                                          lets in who comes
//! ─ stops accepting ◀──────────────────── says "ready"
//!   drains within the grace, exits
//! ```
//!
//! The listening sockets are never closed in between, and both processes accept for a moment: nobody is refused. If the new
//! one ends before it is ready, or takes too long, the old one goes on as if nothing had happened.

use super::Running;
use crate::observe::now_unix;
use crate::router::Snapshot;
use command_fds::{CommandFdExt, FdMapping};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Tells a process that it takes over, and from whom.
const PREDECESSOR: &str = "HOMING_PREDECESSOR";
/// First descriptor of those that are handed over, as systemd numbers them.
const FIRST: i32 = 3;
/// Time for the new process to become ready, and for each step on its way there.
const PATIENCE: Duration = Duration::from_secs(60);
/// What the new process says.
const READY: &[u8] = b"ready\n";

/// The program and its arguments, as they were when this process began: by the time of a restart another file lies there,
/// and that is the one to start.
#[derive(Clone, Debug)]
pub(super) struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// This one.
    ///
    /// # Errors
    /// The system doesn't say where it is.
    pub(super) fn this() -> io::Result<Self> {
        Ok(Program { path: std::env::current_exe()?, arguments: std::env::args_os().skip(1).collect() })
    }
}

/// What a successor gets.
pub(super) struct Estate {
    sockets: Vec<(&'static str, OwnedFd)>,
    snapshot: Vec<u8>,
}

impl Estate {
    /// What `running` has to give.
    ///
    /// # Errors
    /// Out of descriptors, or the sockets were given away already.
    pub(super) fn of(running: &Running) -> io::Result<Self> {
        let mut sockets = Vec::new();
        let mut add = |name, door: &crate::door::Door| {
            let listener = door.listener().ok_or(io::ErrorKind::NotConnected)?;
            sockets.push((name, OwnedFd::from(listener.try_clone()?)));
            Ok::<_, io::Error>(())
        };
        for (name, door) in running.all_doors() {
            add(name, door)?;
        }
        Ok(Estate { sockets, snapshot: running.router.snapshot(now_unix() as u64) })
    }
}

/// Starts the successor and waits until it serves. Blocks.
///
/// # Errors
/// It couldn't be started, ended before it was ready, or took too long (then it is ended). The message says which.
pub(super) fn pass_on(program: &Program, estate: Estate) -> Result<u32, String> {
    let (ours, theirs) = UnixStream::pair().map_err(|e| format!("a pipe: {e}"))?;
    let mut child = start(program, estate.sockets, theirs)
        .map_err(|e| format!("{} can't be started: {e}", program.path.display()))?;
    match wait(ours, &estate.snapshot) {
        Ok(()) => Ok(child.id()),
        Err(why) => {
            let ended = child.try_wait().ok().flatten();
            // It may be alive and stuck; it must not hold the sockets.
            let _ = child.kill();
            let _ = child.wait();
            Err(ended.map_or(why, |status| format!("it ended before it was ready: {status}")))
        }
    }
}

fn start(program: &Program, sockets: Vec<(&'static str, OwnedFd)>, pipe: UnixStream) -> io::Result<Child> {
    let names: Vec<&str> = sockets.iter().map(|(name, _)| *name).collect();
    let mut command = Command::new(&program.path);
    command
        .args(&program.arguments)
        .stdin(Stdio::from(OwnedFd::from(pipe)))
        .env(PREDECESSOR, std::process::id().to_string())
        .env("LISTEN_FDS", names.len().to_string())
        .env("LISTEN_FDNAMES", names.join(":"))
        // Its number isn't known before it runs.
        .env_remove("LISTEN_PID");
    let map = |(n, (_, fd))| FdMapping { parent_fd: fd, child_fd: FIRST + n };
    let mappings = (0..).zip(sockets).map(map).collect();
    command.fd_mappings(mappings).map_err(|e| io::Error::other(e.to_string()))?;
    command.spawn()
}

fn wait(mut pipe: UnixStream, snapshot: &[u8]) -> Result<(), String> {
    let told = |e: io::Error| match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("it wasn't ready within {} s", PATIENCE.as_secs())
        }
        _ => "it ended before it was ready".to_owned(),
    };
    pipe.set_write_timeout(Some(PATIENCE))
        .and_then(|()| pipe.set_read_timeout(Some(PATIENCE)))
        .map_err(told)?;
    pipe.write_all(&(snapshot.len() as u64).to_le_bytes()).map_err(told)?;
    pipe.write_all(snapshot).map_err(told)?;
    let mut word = [0; READY.len()];
    pipe.read_exact(&mut word).map_err(told)?;
    if word == READY { Ok(()) } else { Err("it said something else than that it is ready".to_owned()) }
}

/// The process that this one takes over from.
pub(super) struct Predecessor {
    pipe: UnixStream,
    /// What it knew; why not, if that can't be used.
    pub(super) snapshot: Result<Snapshot, String>,
}

impl Predecessor {
    /// The one that started this process to take over; `None` if it was started otherwise. `max_blocks` bounds what is
    /// read.
    ///
    /// # Errors
    /// Standard input isn't the pipe that it should be, or the predecessor is gone.
    pub(super) fn find(max_blocks: u64) -> io::Result<Option<Self>> {
        if std::env::var_os(PREDECESSOR).is_none() {
            return Ok(None);
        }
        let mut pipe = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        pipe.set_read_timeout(Some(PATIENCE))?;
        let mut len = [0; 8];
        pipe.read_exact(&mut len)?;
        let len = u64::from_le_bytes(len);
        let most = Snapshot::most_bytes(max_blocks);
        let mut bytes = Vec::new();
        (&mut pipe).take(len.min(most)).read_to_end(&mut bytes)?;
        // What is more than a smaller index may hold is read past, so that the other side isn't stuck.
        io::copy(&mut (&mut pipe).take(len.saturating_sub(most)), &mut io::sink())?;
        let snapshot = Snapshot::decode(&bytes).map_err(|e| e.to_string());
        Ok(Some(Predecessor { pipe, snapshot }))
    }

    /// Tells it that this process serves. One that is gone meanwhile needn't be told.
    pub(super) fn ready(mut self) {
        if let Err(error) = self.pipe.write_all(READY) {
            tracing::warn!(%error, "the process that this one takes over from is gone already");
        }
    }
}
