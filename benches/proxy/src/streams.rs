//! How late the chunks of many concurrent SSE streams are.
//!
//! The back end writes into each chunk when it sent it, on the clock that both processes share. Two measures: *transit*, receipt
//! less sending; and *gap*, by how much the time between two chunks of a stream differs from the time between their sendings, which is
//! what a reader sees as jitter. Both contain the generator's own part: measure without a proxy as well.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::args::Args;
use crate::body::{Ask, request};
use crate::http::{Dechunk, head, status};
use crate::net::{Poll, Reading, Socket, Timers, wall_ns};
use crate::stats::Samples;

#[derive(Default)]
struct Totals {
    streams: u64,
    failed: u64,
    chunks: u64,
    transit_us: Samples,
    gap_us: Samples,
    first_us: Samples,
}

struct Client {
    socket: Socket,
    started: Instant,
    in_body: bool,
    ok: bool,
    dechunk: Dechunk,
    text: Vec<u8>,
    /// Sending and receipt of the last chunk, in nanoseconds.
    last: Option<(u64, u64)>,
    saw_done: bool,
}

/// `streams --to ADDR [--streams 200] [--seconds 10] [--size 1024] [--spread-ms 2000]`
///
/// Each connection begins a new stream when one ends. The first ones start spread over `spread-ms`, so that chunks come evenly.
pub(crate) fn run(args: &Args) -> Outcome {
    let to: SocketAddr = args.need("to")?;
    let count: usize = args.get("streams", 200)?;
    let size: usize = args.get("size", 1024)?;
    let spread = Duration::from_millis(args.get("spread-ms", 2000)?);
    let bodies: Vec<_> = (0..64).map(|which| request(which, size, Ask { stream: true, mock: "" })).collect();
    let mut poll = Poll::new()?;
    let mut clients = Vec::new();
    let mut starts = Timers::new();
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(args.get("seconds", 10.0)?);
    for index in 0..count {
        clients.push(None);
        // Multiples of the golden ratio lie evenly however many there are, and in no step with the chunks' pace.
        starts.at(begin + spread.mul_f64((index as f64 * 0.618_033_988_75).fract()), index);
    }
    let mut totals = Totals::default();
    let mut tokens = Vec::new();
    while starts.next().is_some() || clients.iter().any(Option::is_some) {
        poll.wait(Some(starts.next().unwrap_or(end + Duration::from_secs(60))), &mut tokens)?;
        let now = Instant::now();
        if now > end + Duration::from_secs(30) {
            totals.failed += clients.iter().flatten().count() as u64;
            break;
        }
        while let Some((_, index)) = starts.due(now) {
            let client = Client::start(to, &bodies[index % bodies.len()])?;
            poll.add(&client.socket.stream, index as u64)?;
            clients[index] = Some(client);
        }
        for &token in &tokens {
            let index = token as usize;
            let Some(client) = &mut clients[index] else { continue };
            if !client.news(&mut totals) {
                continue;
            }
            let reusable = client.ok && client.dechunk.done();
            totals.streams += 1;
            totals.failed += u64::from(!(reusable && client.saw_done));
            if Instant::now() >= end {
                clients[index] = None;
            } else if reusable {
                client.again(&bodies[index % bodies.len()]);
            } else {
                clients[index] = None;
                starts.at(Instant::now() + Duration::from_millis(100), index);
            }
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    let [t50, t99] = totals.transit_us.percentiles([50.0, 99.0]);
    let [g50, g99] = totals.gap_us.percentiles([50.0, 99.0]);
    let [f50, f99] = totals.first_us.percentiles([50.0, 99.0]);
    println!(
        r#"{{"streams":{},"failed":{},"chunks":{},"seconds":{seconds:.3},"transit_p50_us":{t50},"transit_p99_us":{t99},"gap_p50_us":{g50},"gap_p99_us":{g99},"first_p50_us":{f50},"first_p99_us":{f99}}}"#,
        totals.streams, totals.failed, totals.chunks
    );
    Ok(())
}

impl Client {
    fn start(to: SocketAddr, body: &[u8]) -> Outcome<Self> {
        let mut client = Self {
            socket: Socket::connect(to)?,
            started: Instant::now(),
            in_body: false,
            ok: true,
            dechunk: Dechunk::default(),
            text: Vec::new(),
            last: None,
            saw_done: false,
        };
        client.again(body);
        Ok(client)
    }

    fn again(&mut self, body: &[u8]) {
        (self.started, self.in_body, self.dechunk, self.last, self.saw_done) =
            (Instant::now(), false, Dechunk::default(), None, false);
        self.text.clear();
        self.socket.send(body);
    }

    /// Takes in what came; true when the stream is over, well or not.
    fn news(&mut self, totals: &mut Totals) -> bool {
        self.socket.flush();
        let reading = self.socket.fill();
        let received = wall_ns();
        if !self.in_body {
            let Some(found) = head(self.socket.input()) else {
                self.ok = reading == Reading::Open;
                return !self.ok;
            };
            if status(self.socket.input()) != 200 {
                self.ok = false;
                return true;
            }
            self.socket.consume(found.len);
            self.in_body = true;
        }
        let used = self.dechunk.feed(self.socket.input(), &mut self.text);
        self.socket.consume(used);
        let mut from = 0;
        while let Some(len) = self.text[from..].windows(2).position(|w| w == b"\n\n") {
            self.event(from, from + len, received, totals);
            from += len + 2;
        }
        self.text.drain(..from);
        self.ok = reading == Reading::Open || self.dechunk.done();
        self.dechunk.done() || !self.ok
    }

    fn event(&mut self, from: usize, to: usize, received: u64, totals: &mut Totals) {
        let data = &self.text[from..to];
        self.saw_done |= data == b"data: [DONE]";
        let Some(sent) = sent_at(data) else { return };
        totals.chunks += 1;
        totals.transit_us.add(received.saturating_sub(sent) / 1000);
        match self.last {
            None => totals.first_us.add(self.started.elapsed().as_micros() as u64),
            Some((sent_before, received_before)) => {
                let gap = (received - received_before).abs_diff(sent.saturating_sub(sent_before));
                totals.gap_us.add(gap / 1000);
            }
        }
        self.last = Some((sent, received));
    }
}

/// The send time in a chunk: the number after the last `"t":`.
fn sent_at(data: &[u8]) -> Option<u64> {
    let at = data.windows(5).rposition(|w| w == br#","t":"#)? + 5;
    let digits = data[at..].split(|b| !b.is_ascii_digit()).next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_send_time() {
        assert_eq!(sent_at(br#"data: {"choices":[],"t":123}"#), Some(123));
        assert_eq!(sent_at(b"data: [DONE]"), None);
    }
}
