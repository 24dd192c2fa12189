//! The live picture: both sides next to each other.

use crate::sim::driver::Snapshot;
use std::fmt::Write;
use std::io::Write as _;

/// One side at one moment.
pub(super) struct Frame {
    pub(super) now: Snapshot,
    /// Requests in each replica now.
    pub(super) loads: Vec<u32>,
    /// Requests that each replica has had in all.
    pub(super) had: Vec<u64>,
}

/// Draws over itself on a terminal; elsewhere it prints a line now and then.
pub(super) struct View {
    terminal: bool,
    seed: u64,
    lines: usize,
    frames: usize,
}

/// Without a terminal, every so many frames give a line (5 seconds).
const LINE_EVERY: usize = 10;
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

impl View {
    pub(super) fn new(terminal: bool, seed: u64) -> Self {
        View { terminal, seed, lines: 0, frames: 0 }
    }

    pub(super) fn draw(&mut self, sides: &[Frame; 2], last: bool) {
        if self.terminal {
            let text = picture(sides, self.seed);
            let mut out = std::io::stdout().lock();
            // A terminal that has gone away is noticed by the Ctrl-C that it sends.
            if self.lines > 0 {
                let _ = write!(out, "\x1b[{}A\x1b[J", self.lines);
            }
            let _ = out.write_all(text.as_bytes());
            let _ = out.flush();
            self.lines = text.lines().count();
        } else if last || self.frames.is_multiple_of(LINE_EVERY) {
            println!("{}", line(sides));
        }
        self.frames += 1;
    }
}

fn ms(seconds: f64) -> String {
    format!("{:.0} ms", seconds * 1e3)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A bar a replica: how many requests it has.
fn bars(loads: &[u32]) -> String {
    let mut out = String::new();
    for &n in loads {
        let _ = write!(out, "{}{n:<3}", EIGHTHS[(n as usize).min(8)]);
    }
    out.trim_end().to_owned()
}

fn list(had: &[u64]) -> String {
    had.iter().map(|n| format!("{n:>4}")).collect::<String>().trim_start().to_owned()
}

fn picture(sides: &[Frame; 2], seed: u64) -> String {
    let [h, r] = sides;
    let mut out = String::new();
    let mut row = |name: &str, a: String, b: String| {
        let _ = writeln!(out, "  {name:<26}{a:>20}{b:>20}");
    };
    let at = format!("{:.0} s", h.now.elapsed.max(r.now.elapsed));
    row(&format!("seed {seed}, {at}"), "Homing".into(), "round robin".into());
    row("TTFT p50", ms(h.now.ttft.p50), ms(r.now.ttft.p50));
    row("TTFT p90", ms(h.now.ttft.p90), ms(r.now.ttft.p90));
    row("TTFT p99", ms(h.now.ttft.p99), ms(r.now.ttft.p99));
    row("prompt tokens cached", percent(h.now.cached_share()), percent(r.now.cached_share()));
    row("  one infinite cache", percent(h.now.infinite_cache_share), percent(r.now.infinite_cache_share));
    row(
        "requests a second",
        format!("{:.1}", h.now.requests_per_second()),
        format!("{:.1}", r.now.requests_per_second()),
    );
    row("answered", h.now.completed.to_string(), r.now.completed.to_string());
    row("failed", h.now.failed.to_string(), r.now.failed.to_string());
    let progress = |s: &Snapshot| format!("{}/{}", s.sessions_ended, s.sessions);
    row("conversations done", progress(&h.now), progress(&r.now));
    row("in each replica now", bars(&h.loads), bars(&r.loads));
    row("requests to each so far", list(&h.had), list(&r.had));
    out
}

fn line(sides: &[Frame; 2]) -> String {
    let one = |f: &Frame| {
        format!(
            "TTFT p50 {:>7} p99 {:>7}, cached {:>6}, {:>3} answered, load {}",
            ms(f.now.ttft.p50),
            ms(f.now.ttft.p99),
            percent(f.now.cached_share()),
            f.now.completed,
            f.loads.iter().map(u32::to_string).collect::<Vec<_>>().join("/"),
        )
    };
    let at = sides[0].now.elapsed.max(sides[1].now.elapsed);
    format!("{at:>3.0} s  Homing: {}  |  round robin: {}", one(&sides[0]), one(&sides[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_picture_lines_up() {
        let frame = || Frame { now: Snapshot::default(), loads: vec![0, 3, 12, 1], had: vec![9, 90, 900, 9] };
        let text = picture(&[frame(), frame()], 1);
        assert!(text.lines().all(|l| l.chars().count() == 68), "{text}");
        assert!(text.contains("round robin") && text.contains("TTFT p99"));
        assert!(line(&[frame(), frame()]).contains("load 0/3/12/1"));
    }
}
