//! Traces from files: one JSON object a line, in one of three forms, told apart by their fields.
//!
//! | form | field that tells it | when requests come |
//! |---|---|---|
//! | session trace | `session_id` | closed loop: `delay` ms after the session's last turn ended |
//! | Homing's access log with `log.blocks` | `ts` | open loop, `ts` in seconds |
//! | Mooncake | `timestamp` | open loop, `timestamp` in ms |
//!
//! All have `input_length`, `output_length` and `hash_ids`. An id stands for a block of 512 tokens and all before it, so
//! the ids are a chain as they are. The last block may be partial: engines share only full ones, so it is dropped.

use super::workload::{Ask, Plan, Session, Stage, Workload, chain_hash};
use serde::Deserialize;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Tokens of a block in traces.
pub const TRACE_BLOCK: u32 = 512;
/// Longest prompt or answer that is taken, in tokens: more is a damaged line.
const MOST_TOKENS: u32 = 1 << 26;

/// Why a trace can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file can't be opened or read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A line isn't what it should be.
    #[error("{path}:{line}: {why}")]
    Line {
        /// The file.
        path: String,
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// There is nothing to replay.
    #[error("{path}: {why}")]
    Empty {
        /// The file.
        path: String,
        /// What was expected.
        why: &'static str,
    },
}

/// Fields of all forms; unknown ones don't matter.
#[derive(Deserialize)]
struct Line {
    timestamp: Option<f64>,
    ts: Option<f64>,
    session_id: Option<serde_json::Value>,
    turn: Option<u32>,
    delay: Option<f64>,
    input_length: Option<u32>,
    output_length: Option<u32>,
    hash_ids: Option<Vec<u64>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Mooncake,
    Sessions,
    Access,
}

impl Form {
    fn of(line: &Line) -> Option<Form> {
        if line.session_id.is_some() {
            Some(Form::Sessions)
        } else if line.ts.is_some() {
            Some(Form::Access)
        } else {
            line.timestamp.map(|_| Form::Mooncake)
        }
    }
}

/// A trace, and how many lines of it say nothing that can be replayed (requests in an access log that carry no blocks,
/// as those that were refused).
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// What is replayed.
    pub workload: Workload,
    /// Lines left out.
    pub skipped: usize,
}

/// Reads a trace file.
///
/// # Errors
/// When the file can't be read, a line is malformed (with its number), or nothing in it can be replayed.
pub fn read(path: &Path) -> Result<Trace, ReadError> {
    let shown = path.display().to_string();
    let io = |source| ReadError::Io { path: shown.clone(), source };
    let name = path.file_stem().map_or_else(|| shown.clone(), |s| s.to_string_lossy().into_owned());
    parse(&name, &shown, BufReader::new(File::open(path).map_err(io)?))
}

/// Reads a trace from `input`; `path` is for messages.
///
/// # Errors
/// As [`read`].
pub fn parse(name: &str, path: &str, input: impl BufRead) -> Result<Trace, ReadError> {
    let mut reader = Reader::default();
    for (i, text) in input.lines().enumerate() {
        let text = text.map_err(|source| ReadError::Io { path: path.to_owned(), source })?;
        if !text.trim().is_empty() {
            reader.line(&text).map_err(|why| ReadError::Line { path: path.to_owned(), line: i + 1, why })?;
        }
    }
    let skipped = reader.skipped;
    match reader.plan() {
        Some((asks, plan)) => {
            let workload = Workload { name: name.to_owned(), block_tokens: TRACE_BLOCK, asks, plan };
            Ok(Trace { workload, skipped })
        }
        None if skipped > 0 => Err(ReadError::Empty {
            path: path.to_owned(),
            why: "no line has blocks; access logs have them with `log.blocks`",
        }),
        None => Err(ReadError::Empty { path: path.to_owned(), why: "no requests" }),
    }
}

#[derive(Default)]
struct Reader {
    form: Option<Form>,
    asks: Vec<Ask>,
    /// Seconds, for open loops.
    times: Vec<f64>,
    sessions: Vec<Vec<(u32, f64, usize)>>,
    numbers: HashMap<String, usize>,
    skipped: usize,
}

impl Reader {
    fn line(&mut self, text: &str) -> Result<(), String> {
        let line: Line = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let form = Form::of(&line).ok_or("none of `timestamp`, `ts` and `session_id` is there")?;
        if *self.form.get_or_insert(form) != form {
            return Err("this line's form is not that of the lines before".into());
        }
        if form == Form::Access && line.hash_ids.is_none() {
            self.skipped += 1;
            return Ok(());
        }
        let tokens = |v: Option<u32>, field: &str| match v {
            Some(n) if n <= MOST_TOKENS => Ok(n),
            Some(n) => Err(format!("`{field}` is {n}, more than {MOST_TOKENS}")),
            None => Err(format!("`{field}` is missing")),
        };
        let prompt = tokens(line.input_length, "input_length")?;
        let output = tokens(line.output_length, "output_length")?;
        if prompt == 0 {
            return Err("`input_length` is 0".into());
        }
        let mut ids = line.hash_ids.ok_or("`hash_ids` is missing")?;
        ids.truncate((prompt / TRACE_BLOCK) as usize);
        let index = self.asks.len();
        let session = if form == Form::Sessions {
            Some(self.turn(&line.session_id, line.turn, line.delay)?)
        } else {
            None
        };
        let seconds = match form {
            Form::Mooncake => line.timestamp.map(|ms| ms / 1e3),
            _ => line.ts,
        };
        if form != Form::Sessions {
            self.times.push(seconds.filter(|s| *s >= 0.0).ok_or("the time is negative")?);
        }
        self.asks.push(Ask {
            chain: ids.into_iter().map(chain_hash).collect(),
            prompt_tokens: prompt,
            output_tokens: output.max(1),
            session: session.map(|s| s as u64),
        });
        debug_assert_eq!(self.asks.len(), index + 1);
        Ok(())
    }

    /// Books the next ask as a turn of its session; returns the session's number.
    fn turn(
        &mut self,
        id: &Option<serde_json::Value>,
        turn: Option<u32>,
        delay: Option<f64>,
    ) -> Result<usize, String> {
        let id = match id {
            Some(serde_json::Value::String(s)) => s.clone(),
            Some(serde_json::Value::Number(n)) => n.to_string(),
            _ => return Err("`session_id` is neither a string nor a number".into()),
        };
        let delay = delay.unwrap_or(0.0);
        if delay < 0.0 {
            return Err("`delay` is negative".into());
        }
        let next = self.numbers.len();
        let number = *self.numbers.entry(id).or_insert(next);
        if number == self.sessions.len() {
            self.sessions.push(Vec::new());
        }
        let turns = &mut self.sessions[number];
        let turn = turn.unwrap_or(turns.len() as u32);
        if turns.iter().any(|(t, ..)| *t == turn) {
            return Err(format!("turn {turn} of this session was there already"));
        }
        turns.push((turn, delay / 1e3, self.asks.len()));
        Ok(number)
    }

    fn plan(self) -> Option<(Vec<Ask>, Plan)> {
        if self.asks.is_empty() {
            return None;
        }
        if self.form == Some(Form::Sessions) {
            let sessions = self.sessions.into_iter().map(|mut turns| {
                turns.sort_by_key(|(turn, ..)| *turn);
                Session { turns: turns.into_iter().map(|(_, delay, ask)| (delay, ask)).collect() }
            });
            let sessions = sessions.collect();
            return Some((self.asks, Plan::Closed(sessions)));
        }
        let mut arrivals: Vec<(f64, usize)> = self.times.into_iter().zip(0..).collect();
        // An access log is in the order in which requests ended.
        arrivals.sort_by(|a, b| a.0.total_cmp(&b.0));
        let start = arrivals.first().map_or(0.0, |(t, _)| *t);
        arrivals.iter_mut().for_each(|(t, _)| *t -= start);
        Some((self.asks, Plan::Open(vec![Stage { name: "all".into(), arrivals }])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Trace, String> {
        parse("t", "t.jsonl", text.as_bytes()).map_err(|e| e.to_string())
    }

    #[test]
    fn mooncake_lines_are_an_open_loop_and_the_partial_block_is_dropped() {
        let trace = parsed(
            "{\"timestamp\": 1000, \"input_length\": 1100, \"output_length\": 0, \"hash_ids\": [0, 1, 2]}\n\n\
             {\"timestamp\": 3500, \"input_length\": 1024, \"output_length\": 9, \"hash_ids\": [0, 5]}\n",
        )
        .unwrap();
        let w = trace.workload;
        assert_eq!((w.asks.len(), w.block_tokens, trace.skipped), (2, 512, 0));
        assert_eq!(*w.asks[0].chain, [chain_hash(0), chain_hash(1)]);
        assert_eq!(*w.asks[1].chain, [chain_hash(0), chain_hash(5)]);
        assert_eq!((w.asks[0].output_tokens, w.asks[1].output_tokens), (1, 9));
        let Plan::Open(stages) = w.plan else { panic!("not open") };
        assert_eq!(stages[0].arrivals, [(0.0, 0), (2.5, 1)]);
    }

    #[test]
    fn session_lines_are_a_closed_loop_in_the_order_of_turns() {
        let line = |s: &str, turn: u32, delay: u32| {
            format!(
                "{{\"session_id\":{s},\"turn\":{turn},\"delay\":{delay},\"input_length\":600,\"output_length\":2,\"hash_ids\":[3,4]}}\n"
            )
        };
        let text = line("\"a\"", 1, 500) + &line("\"b\"", 0, 0) + &line("\"a\"", 0, 0) + &line("4", 0, 0);
        let w = parsed(&text).unwrap().workload;
        let Plan::Closed(sessions) = &w.plan else { panic!("not closed") };
        assert_eq!(sessions[0].turns, [(0.0, 2), (0.5, 0)]);
        assert_eq!((sessions.len(), &sessions[1].turns[..]), (3, &[(0.0, 1)][..]));
        assert_eq!(
            w.asks.iter().map(|a| a.session).collect::<Vec<_>>(),
            [Some(0), Some(1), Some(0), Some(2)]
        );
        let twice = parsed(&(line("\"a\"", 1, 0) + &line("\"a\"", 1, 0))).unwrap_err();
        assert_eq!(twice, "t.jsonl:2: turn 1 of this session was there already");
    }

    #[test]
    fn an_access_log_is_sorted_by_arrival_and_lines_without_blocks_are_left_out() {
        let text = "{\"ts\":1700000002.5,\"id\":\"b\",\"input_length\":512,\"output_length\":3,\"hash_ids\":[9]}\n\
             {\"ts\":1700000001.5,\"id\":\"a\",\"input_length\":700,\"output_length\":4,\"hash_ids\":[9, 8]}\n\
             {\"ts\":1700000001.0,\"id\":\"x\",\"outcome\":\"client_error\"}\n";
        let trace = parsed(text).unwrap();
        let Plan::Open(stages) = &trace.workload.plan else { panic!("not open") };
        assert_eq!((stages[0].arrivals.as_slice(), trace.skipped), (&[(0.0, 1), (1.0, 0)][..], 1));
        let bare = parsed("{\"ts\":1.0,\"id\":\"x\"}\n").unwrap_err();
        assert!(bare.contains("log.blocks"), "{bare}");
    }

    #[test]
    fn bad_lines_are_told_with_their_place() {
        let good = "{\"timestamp\":0,\"input_length\":10,\"output_length\":1,\"hash_ids\":[]}\n";
        for (bad, why) in [
            ("{\"timestamp\":0", "EOF"),
            ("{\"timestamp\":-1,\"input_length\":10,\"output_length\":1,\"hash_ids\":[]}", "negative"),
            ("{\"timestamp\":0,\"output_length\":1,\"hash_ids\":[]}", "`input_length` is missing"),
            ("{\"timestamp\":0,\"input_length\":0,\"output_length\":1,\"hash_ids\":[]}", "is 0"),
            (
                "{\"timestamp\":0,\"input_length\":4000000000,\"output_length\":1,\"hash_ids\":[]}",
                "more than",
            ),
            ("{\"timestamp\":0,\"input_length\":10,\"output_length\":1}", "`hash_ids` is missing"),
            ("{\"ts\":0,\"input_length\":10,\"output_length\":1,\"hash_ids\":[]}", "form"),
            ("{\"text\":\"hello\"}", "none of"),
            ("[1]", "invalid"),
        ] {
            let error = parsed(&format!("{good}{bad}\n")).unwrap_err();
            assert!(error.starts_with("t.jsonl:2: ") && error.contains(why), "{bad}: {error}");
        }
        assert_eq!(parsed("\n").unwrap_err(), "t.jsonl: no requests");
    }
}
