//! The life of the router as a process: reloads, restarts, snapshots, sockets that are handed over. Real processes of
//! `homing serve`, a simulated replica, and clients that count each answer that didn't come whole.

#![expect(clippy::unwrap_used, reason = "tests")]

mod load;
mod process;
mod reload;
mod restart;
mod snapshot;
