//! Model servers that answer at once, many ports in one thread.
//!
//! A prompt is "cached" on a port that has seen its first kilobyte before, so that usage looks like an engine's. The field
//! `"x_mock"` in a body changes how it is answered:
//!
//! * `status400`, `status500` – that error, in vLLM's shape
//! * `slow` – the answer comes after 30 ms
//! * `hang` – no answer at all
//! * `reset` – the connection is reset: before the answer, or after two chunks of a stream
//!
//! `GET /mock` tells what is going on: `{"open": connections, "active": requests not yet answered, "answered": …}` over all ports.

mod conn;
mod reply;

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::args::Args;
use crate::net::{Poll, Reading, Socket, Timers};
use crate::page::{self, Facts};
use conn::{Conn, Work};

/// How many prompts a port remembers; then it forgets all.
const SEEN_MAX: usize = 65_536;
const SLOW: Duration = Duration::from_millis(30);

/// One simulated replica: what its page tells.
#[derive(Default)]
struct Replica {
    running: usize,
    prompt_tokens: u64,
    cached_tokens: u64,
    answered: u64,
    seen: HashSet<u64>,
}

/// The options of the command.
struct Options {
    full_page: bool,
    kv_blocks: u64,
    chunks: u32,
    every: Duration,
}

struct Server {
    poll: Poll,
    listeners: Vec<TcpListener>,
    replicas: Vec<Replica>,
    conns: HashMap<u64, Conn>,
    /// Connection and the stamp of the work that is due.
    timers: Timers<(u64, u64)>,
    next_token: u64,
    options: Options,
}

/// `backends --port P [--count 4] [--page minimal|full] [--kv-blocks 65536] [--chunks 100] [--every-us 20000]`; runs until killed.
pub(crate) fn run(args: &Args) -> Outcome {
    let first: u16 = args.need("port")?;
    let count: u16 = args.get("count", 4)?;
    let options = Options {
        full_page: args.get("page", "minimal".to_string())? == "full",
        kv_blocks: args.get("kv-blocks", 65_536)?,
        chunks: args.get("chunks", 100)?,
        every: Duration::from_micros(args.get("every-us", 20_000)?),
    };
    let poll = Poll::new()?;
    let mut listeners = Vec::new();
    for port in first..first + count {
        let listener = TcpListener::bind(("127.0.0.1", port)).map_err(|e| format!("port {port}: {e}"))?;
        listener.set_nonblocking(true)?;
        poll.add(&listener, listeners.len() as u64)?;
        listeners.push(listener);
    }
    let next_token = listeners.len() as u64;
    let replicas = listeners.iter().map(|_| Replica::default()).collect();
    Server { poll, listeners, replicas, conns: HashMap::new(), timers: Timers::new(), next_token, options }
        .serve()
}

impl Server {
    fn serve(mut self) -> Outcome {
        let mut tokens = Vec::new();
        loop {
            self.poll.wait(self.timers.next(), &mut tokens)?;
            for &token in &tokens {
                if token < self.listeners.len() as u64 {
                    self.accept(token as usize)?
                } else {
                    self.news(token)
                }
            }
            let now = Instant::now();
            while let Some((when, (token, stamp))) = self.timers.due(now) {
                self.due(token, stamp, when);
            }
        }
    }

    fn accept(&mut self, replica: usize) -> Outcome {
        // Edge-triggered: take all that wait.
        while let Ok((stream, _)) = self.listeners[replica].accept() {
            let socket = Socket::new(stream)?;
            self.poll.add(&socket.stream, self.next_token)?;
            self.conns.insert(self.next_token, Conn::new(replica, socket));
            self.next_token += 1;
        }
        Ok(())
    }

    fn news(&mut self, token: u64) {
        let Some(conn) = self.conns.get_mut(&token) else { return };
        conn.socket.flush();
        if conn.socket.fill() == Reading::Closed {
            self.close(token, false);
            return;
        }
        self.requests(token);
    }

    /// Answers the complete requests that are in the connection's input.
    fn requests(&mut self, token: u64) {
        while let Some(conn) = self.conns.get_mut(&token) {
            if conn.work != Work::None {
                return;
            }
            let Some((used, request)) = conn.request() else { return };
            self.answer(token, &request);
            if let Some(conn) = self.conns.get_mut(&token) {
                conn.done_reading(used);
            }
        }
    }

    fn answer(&mut self, token: u64, request: &conn::Request) {
        let Some(conn) = self.conns.get(&token) else { return };
        if !request.generate {
            let reply = self.fact(conn.replica, &request.path);
            if let Some(conn) = self.conns.get_mut(&token) {
                conn.socket.send(&reply);
            }
            return;
        }
        let Some(conn) = self.conns.get_mut(&token) else { return };
        let replica = &mut self.replicas[conn.replica];
        let (prompt, cached) = replica.tokens(request);
        replica.running += 1;
        conn.work = Work::Answer {
            stream: request.stream,
            usage: request.usage,
            mock: request.mock,
            prompt,
            cached,
            chunk: 0,
        };
        match request.mock {
            conn::Mock::Slow => self.later(token, Instant::now() + SLOW),
            conn::Mock::Hang => {}
            _ => self.step(token, Instant::now()),
        }
    }

    /// The answer to a request for facts.
    fn fact(&self, replica: usize, path: &[u8]) -> Vec<u8> {
        match path {
            b"/metrics" => {
                let page = page::render(
                    &self.replicas[replica].facts(self.options.kv_blocks),
                    self.options.full_page,
                );
                reply::ok("text/plain; version=0.0.4; charset=utf-8", page.as_bytes())
            }
            b"/v1/models" => reply::ok("application/json", reply::MODELS.as_bytes()),
            b"/health" => reply::ok("application/json", b""),
            b"/mock" => {
                let active: usize = self.replicas.iter().map(|r| r.running).sum();
                let answered: u64 = self.replicas.iter().map(|r| r.answered).sum();
                let body =
                    format!(r#"{{"open":{},"active":{active},"answered":{answered}}}"#, self.conns.len());
                reply::ok("application/json", body.as_bytes())
            }
            _ => reply::error(404, "Not Found"),
        }
    }

    fn later(&mut self, token: u64, when: Instant) {
        if let Some(conn) = self.conns.get_mut(&token) {
            conn.stamp += 1;
            self.timers.at(when, (token, conn.stamp));
        }
    }

    fn due(&mut self, token: u64, stamp: u64, when: Instant) {
        if self.conns.get(&token).is_some_and(|conn| conn.stamp == stamp) {
            self.step(token, when);
            self.requests(token);
        }
    }

    /// Sends what is due of the answer at work.
    fn step(&mut self, token: u64, when: Instant) {
        let chunks = self.options.chunks;
        let Some(conn) = self.conns.get_mut(&token) else { return };
        match conn.step(chunks) {
            conn::Step::Again => self.later(token, when + self.options.every),
            conn::Step::Done => {
                let replica = &mut self.replicas[conn.replica];
                replica.running -= 1;
                replica.answered += 1;
            }
            conn::Step::Reset => self.close(token, true),
        }
    }

    fn close(&mut self, token: u64, reset: bool) {
        if let Some(conn) = self.conns.remove(&token) {
            if conn.work != Work::None {
                self.replicas[conn.replica].running -= 1;
            }
            if reset {
                conn.socket.reset_on_close();
            }
        }
    }
}

impl Replica {
    fn facts(&self, kv_blocks: u64) -> Facts {
        Facts {
            running: self.running,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            answered: self.answered,
            kv_blocks,
        }
    }

    /// Prompt tokens, and how many of them were cached: whole blocks, never the last token.
    fn tokens(&mut self, request: &conn::Request) -> (u64, u64) {
        let mut hasher = DefaultHasher::new();
        request.first.hash(&mut hasher);
        if self.seen.len() >= SEEN_MAX {
            self.seen.clear();
        }
        let known = !self.seen.insert(hasher.finish());
        let prompt = (request.len as u64 / 4).max(1);
        let cached = if known { (prompt - 1) / page::BLOCK_TOKENS * page::BLOCK_TOKENS } else { 0 };
        self.prompt_tokens += prompt;
        self.cached_tokens += cached;
        (prompt, cached)
    }
}
