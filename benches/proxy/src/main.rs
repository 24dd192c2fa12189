//! Instant model servers and load generators on loopback, to measure what a proxy between them costs.
//!
//! One thread a process and raw sockets over epoll, so that on two shared cores most of the time is the proxy's. The scripts beside
//! this package start the processes, read the proxy's CPU from the OS and print the result; each command here prints one JSON object.
//!
//! * `backends` – model servers that answer at once: a fixed answer of about 1 KB, or SSE chunks at a steady pace.
//! * `load` – closed loop: N connections, each sends the next request when its answer is complete.
//! * `streams` – N concurrent SSE streams; how late each chunk is, by the send time the back end writes into it.
//! * `endings` – requests that end in every way a request can end.

mod args;
mod backend;
mod body;
mod endings;
mod http;
mod load;
mod net;
mod page;
mod stats;
mod streams;

use std::process::ExitCode;

use args::Args;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let command = words.next().unwrap_or_default();
    let result = Args::parse(words).and_then(|args| match command.as_str() {
        "backends" => backend::run(&args),
        "load" => load::run(&args),
        "streams" => streams::run(&args),
        "endings" => endings::run(&args),
        _ => Err("usage: proxybench backends|load|streams|endings --name value …".into()),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("proxybench: {message}");
            ExitCode::from(2)
        }
    }
}

/// What a command can fail with: a sentence for the person who ran it.
type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;
