//! Closed loop: each of N connections sends its next request when the answer to the last one is complete.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::args::Args;
use crate::body::{Ask, request};
use crate::http::{BodyLen, Dechunk, Head, head, status};
use crate::net::{Poll, Reading, Socket};
use crate::stats::Samples;

struct Client {
    socket: Socket,
    sent: Instant,
    head: Option<Head>,
    status: u16,
    dechunk: Dechunk,
    busy: bool,
}

struct Load {
    to: SocketAddr,
    poll: Poll,
    clients: Vec<Client>,
    bodies: Bodies,
    budget: u64,
    end: Instant,
    sent: u64,
    ok: u64,
    failed: u64,
    times_us: Samples,
    scratch: Vec<u8>,
}

/// Where the next request comes from.
enum Bodies {
    /// A fixed set, in turn.
    Some(Vec<Vec<u8>>),
    /// A new prompt each time: the number of the next one, and the size.
    New(u64, usize),
}

/// `load --to ADDR [--concurrency 32] [--size 1024] [--prompts 64] [--stream 0|1] [--seconds 5] [--count MAX] [--first N]`
///
/// `--prompts 0` makes every prompt a new one, numbered from `--first`.
pub(crate) fn run(args: &Args) -> Outcome {
    let to: SocketAddr = args.need("to")?;
    let size: usize = args.get("size", 1024)?;
    let prompts: u64 = args.get("prompts", 64)?;
    let ask = Ask { stream: args.get("stream", 0)? == 1, mock: "" };
    let bodies = match prompts {
        0 => Bodies::New(args.get("first", 0)?, size),
        _ => Bodies::Some((0..prompts).map(|which| request(which, size, ask)).collect()),
    };
    let concurrency: usize = args.get("concurrency", 32)?;
    let started = Instant::now();
    let end = started + Duration::from_secs_f64(args.get("seconds", 5.0)?);
    let mut load = Load {
        to,
        poll: Poll::new()?,
        clients: Vec::new(),
        bodies,
        budget: args.get("count", u64::MAX)?,
        end,
        sent: 0,
        ok: 0,
        failed: 0,
        times_us: Samples::default(),
        scratch: Vec::new(),
    };
    for index in 0..concurrency {
        let client = load.connect(index as u64)?;
        load.clients.push(client);
        load.next(index);
    }
    load.drive()?;
    let seconds = started.elapsed().as_secs_f64();
    let [p50, p99, worst] = load.times_us.percentiles([50.0, 99.0, 100.0]);
    println!(
        r#"{{"requests":{},"failed":{},"seconds":{seconds:.3},"rps":{:.0},"p50_us":{p50},"p99_us":{p99},"max_us":{worst}}}"#,
        load.ok,
        load.failed,
        load.ok as f64 / seconds
    );
    Ok(())
}

impl Load {
    fn connect(&self, token: u64) -> Outcome<Client> {
        let socket = Socket::connect(self.to)?;
        self.poll.add(&socket.stream, token)?;
        Ok(Client {
            socket,
            sent: Instant::now(),
            head: None,
            status: 0,
            dechunk: Dechunk::default(),
            busy: false,
        })
    }

    /// Sends the next request on this connection, if there is to be one.
    fn next(&mut self, index: usize) {
        let client = &mut self.clients[index];
        let now = Instant::now();
        client.busy = now < self.end && self.sent < self.budget;
        if !client.busy {
            return;
        }
        (client.head, client.dechunk, client.sent) = (None, Dechunk::default(), now);
        match &mut self.bodies {
            Bodies::Some(all) => client.socket.send(&all[self.sent as usize % all.len()]),
            Bodies::New(next, size) => {
                let bytes = request(*next, *size, Ask::default());
                *next += 1;
                // Making it takes time that isn't the answer's.
                client.sent = Instant::now();
                client.socket.send(&bytes);
            }
        }
        self.sent += 1;
    }

    fn drive(&mut self) -> Outcome {
        let mut tokens = Vec::new();
        // What hasn't been answered long after the end never will be.
        let give_up = self.end + Duration::from_secs(30);
        while self.clients.iter().any(|client| client.busy) {
            if Instant::now() > give_up {
                self.failed += self.clients.iter().filter(|client| client.busy).count() as u64;
                break;
            }
            self.poll.wait(Some(give_up), &mut tokens)?;
            for &token in &tokens {
                self.news(token as usize)?;
            }
        }
        Ok(())
    }

    fn news(&mut self, index: usize) -> Outcome {
        let client = &mut self.clients[index];
        client.socket.flush();
        let reading = client.socket.fill();
        if client.busy && client.answered(&mut self.scratch) {
            if client.status == 200 {
                self.ok += 1;
                self.times_us.add(client.sent.elapsed().as_micros() as u64);
            } else {
                self.failed += 1;
            }
            if reading == Reading::Open {
                self.next(index);
                return Ok(());
            }
            self.clients[index].busy = false;
        }
        if reading == Reading::Closed && Instant::now() < self.end {
            self.failed += u64::from(self.clients[index].busy);
            self.clients[index] = self.connect(index as u64)?;
            self.next(index);
        } else if reading == Reading::Closed {
            self.failed += u64::from(self.clients[index].busy);
            self.clients[index].busy = false;
        }
        Ok(())
    }
}

impl Client {
    /// Takes in what was read; true when the answer is complete.
    fn answered(&mut self, scratch: &mut Vec<u8>) -> bool {
        if self.head.is_none() {
            let input = self.socket.input();
            self.status = status(input);
            self.head = head(input);
            let Some(found) = &self.head else { return false };
            if found.body == BodyLen::Chunked {
                let len = found.len;
                self.socket.consume(len);
            }
        }
        match &self.head {
            Some(Head { len, body: BodyLen::Exact(body) }) => {
                let all = len + body;
                if self.socket.input().len() < all {
                    return false;
                }
                self.socket.consume(all);
                true
            }
            Some(_) => {
                scratch.clear();
                let used = self.dechunk.feed(self.socket.input(), scratch);
                self.socket.consume(used);
                self.dechunk.done()
            }
            None => false,
        }
    }
}
