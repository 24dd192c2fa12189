//! Requests that end in every way a request can end, to see afterwards whether the proxy's books balance.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::args::Args;
use crate::body::{Ask, request};
use crate::http::{BodyLen, Dechunk, head, status};
use crate::net::{Poll, Reading, Socket, Timers};

/// A kind of ending: what is asked of the back end, and what the client does.
struct Kind {
    name: &'static str,
    /// How often, in percent.
    share: u64,
    mock: &'static str,
    stream: bool,
    /// The client leaves after this long.
    leave: Option<Duration>,
    /// What the client should see.
    expect: &'static str,
}

const KINDS: [Kind; 9] = [
    Kind { name: "ok", share: 40, mock: "", stream: false, leave: None, expect: "200" },
    Kind { name: "stream_ok", share: 20, mock: "", stream: true, leave: None, expect: "200" },
    Kind { name: "slow_ok", share: 5, mock: "slow", stream: false, leave: None, expect: "200" },
    Kind {
        name: "leave_before_headers",
        share: 8,
        mock: "slow",
        stream: false,
        leave: Some(Duration::from_millis(8)),
        expect: "left",
    },
    Kind {
        name: "leave_mid_stream",
        share: 8,
        mock: "",
        stream: true,
        leave: Some(Duration::from_millis(12)),
        expect: "left",
    },
    Kind { name: "status400", share: 8, mock: "status400", stream: false, leave: None, expect: "400" },
    Kind { name: "status500", share: 3, mock: "status500", stream: false, leave: None, expect: "500" },
    Kind {
        name: "hang",
        share: 4,
        mock: "hang",
        stream: false,
        leave: Some(Duration::from_millis(100)),
        expect: "left",
    },
    Kind { name: "reset_mid_stream", share: 4, mock: "reset", stream: true, leave: None, expect: "cut" },
];

struct Client {
    socket: Option<Socket>,
    kind: usize,
    stamp: u64,
    status: Option<u16>,
    dechunk: Option<Dechunk>,
    text: Vec<u8>,
}

struct Run {
    to: SocketAddr,
    poll: Poll,
    clients: Vec<Client>,
    timers: Timers<(usize, u64)>,
    bodies: Vec<Vec<Vec<u8>>>,
    left: u64,
    seed: u64,
    outcomes: BTreeMap<(&'static str, String), u64>,
}

/// `endings --to ADDR [--count 100000] [--concurrency 64] [--seed 1] [--only KIND]`; for each kind of ending, what clients saw.
pub(crate) fn run(args: &Args) -> Outcome {
    let concurrency: usize = args.get("concurrency", 64)?;
    let only: String = args.get("only", String::new())?;
    let bodies = |kind: &Kind| {
        (0..64).map(|which| request(which, 2048, Ask { stream: kind.stream, mock: kind.mock })).collect()
    };
    let mut run = Run {
        to: args.need("to")?,
        poll: Poll::new()?,
        clients: Vec::new(),
        timers: Timers::new(),
        bodies: KINDS.iter().map(bodies).collect(),
        left: args.get("count", 100_000)?,
        seed: args.get("seed", 1_u64)? | 1,
        outcomes: BTreeMap::new(),
    };
    let started = Instant::now();
    for index in 0..concurrency {
        run.clients.push(Client {
            socket: None,
            kind: 0,
            stamp: 0,
            status: None,
            dechunk: None,
            text: Vec::new(),
        });
        run.next(index, &only)?;
    }
    let mut tokens = Vec::new();
    while run.clients.iter().any(|client| client.socket.is_some()) {
        run.poll.wait(run.timers.next(), &mut tokens)?;
        for &token in &tokens {
            run.news(token as usize, &only)?;
        }
        while let Some((_, (index, stamp))) = run.timers.due(Instant::now()) {
            if run.clients[index].stamp == stamp {
                let saw = if KINDS[run.clients[index].kind].leave.is_some() { "left" } else { "no end" };
                run.over(index, saw.into(), false, &only)?;
            }
        }
    }
    run.print(started.elapsed());
    Ok(())
}

impl Run {
    fn random(&mut self) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed >> 8
    }

    fn next(&mut self, index: usize, only: &str) -> Outcome {
        if self.left == 0 {
            self.clients[index].socket = None;
            self.clients[index].stamp += 1;
            return Ok(());
        }
        self.left -= 1;
        let mut draw = self.random() % 100;
        let mut kind = 0;
        while draw >= KINDS[kind].share {
            draw -= KINDS[kind].share;
            kind += 1;
        }
        if let Some(named) = KINDS.iter().position(|k| k.name == only) {
            kind = named;
        }
        let which = self.random() as usize % self.bodies[kind].len();
        if self.clients[index].socket.is_none() {
            let socket = Socket::connect(self.to)?;
            self.poll.add(&socket.stream, index as u64)?;
            self.clients[index].socket = Some(socket);
        }
        let client = &mut self.clients[index];
        (client.kind, client.status, client.dechunk) = (kind, None, None);
        client.text.clear();
        client.stamp += 1;
        // Nothing takes 20 s here: a request that does is reported as one that never ends.
        let patience = KINDS[kind].leave.unwrap_or(Duration::from_secs(20));
        self.timers.at(Instant::now() + patience, (index, client.stamp));
        if let Some(socket) = &mut client.socket {
            socket.send(&self.bodies[kind][which]);
        }
        Ok(())
    }

    fn over(&mut self, index: usize, saw: String, keep: bool, only: &str) -> Outcome {
        *self.outcomes.entry((KINDS[self.clients[index].kind].name, saw)).or_default() += 1;
        if !keep {
            self.clients[index].socket = None;
        }
        self.next(index, only)
    }

    fn news(&mut self, index: usize, only: &str) -> Outcome {
        let client = &mut self.clients[index];
        let Some(socket) = &mut client.socket else { return Ok(()) };
        socket.flush();
        let reading = socket.fill();
        match client.take_in() {
            Some(saw) => self.over(index, saw, reading == Reading::Open, only),
            None if reading == Reading::Closed => {
                let saw = if client.status.is_some() { "cut" } else { "closed without an answer" };
                self.over(index, saw.into(), false, only)
            }
            None => Ok(()),
        }
    }

    fn print(&self, elapsed: Duration) {
        let mut total = 0;
        let mut as_expected = 0;
        let mut kinds = Vec::new();
        for kind in &KINDS {
            let seen: Vec<_> = self.outcomes.iter().filter(|((name, _), _)| *name == kind.name).collect();
            for ((_, saw), count) in &seen {
                total += *count;
                as_expected += if saw == kind.expect { **count } else { 0 };
            }
            let seen: Vec<_> = seen.iter().map(|((_, saw), count)| format!(r#""{saw}":{count}"#)).collect();
            kinds.push(format!(r#""{}":{{{}}}"#, kind.name, seen.join(",")));
        }
        println!(
            r#"{{"requests":{total},"as_expected":{as_expected},"seconds":{:.3},"endings":{{{}}}}}"#,
            elapsed.as_secs_f64(),
            kinds.join(",")
        );
    }
}

impl Client {
    /// Takes in what was read; when the answer is complete, what it was. A stream that ends without `[DONE]` was cut.
    fn take_in(&mut self) -> Option<String> {
        let socket = self.socket.as_mut()?;
        if self.status.is_none() {
            let found = head(socket.input())?;
            let code = status(socket.input());
            if let BodyLen::Exact(len) = found.body {
                if socket.input().len() < found.len + len {
                    return None;
                }
                socket.consume(found.len + len);
                return Some(code.to_string());
            }
            socket.consume(found.len);
            self.status = Some(code);
            self.dechunk = Some(Dechunk::default());
        }
        let dechunk = self.dechunk.as_mut()?;
        let used = dechunk.feed(socket.input(), &mut self.text);
        socket.consume(used);
        if !dechunk.done() {
            return None;
        }
        let whole = self.text.windows(12).any(|w| w == b"data: [DONE]");
        Some(if whole { self.status.unwrap_or(0).to_string() } else { "cut".into() })
    }
}
