//! The access log: what is in a line, and what happens when the writer can't keep up.

use super::*;
use parking_lot::Mutex;
use std::sync::mpsc::channel;

#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn line(id: &str) -> Box<AccessLine> {
    Box::new(AccessLine {
        ts: 1_700_000_000.123_456,
        id: id.into(),
        shape: "chat",
        status: 200,
        ..AccessLine::default()
    })
}

#[test]
fn one_json_object_a_line_and_unknowns_left_out() {
    let memory = Memory::default();
    let dropped = Counter::default();
    let log = AccessLog::to(memory.clone(), 16, dropped.clone()).unwrap();
    let mut full = line("a");
    full.model = Some("m\n\"".into());
    full.ttft_ms = Some(12.345_678);
    full.blocks = Some(Blocks { input_length: 600, output_length: 7, hash_ids: vec![1, 2] });
    log.log(full);
    log.log(line("b"));
    drop(log);
    let text = String::from_utf8(memory.0.lock().clone()).unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["ts"], 1_700_000_000.123);
    assert_eq!(lines[0]["ttft_ms"], 12.346);
    assert_eq!(lines[0]["model"], "m\n\"");
    assert_eq!(lines[0]["hash_ids"], serde_json::json!([1, 2]));
    assert_eq!(lines[0]["input_length"], 600);
    for unknown in ["ttft_ms", "model", "replica", "hash_ids", "blocks", "actual_cached"] {
        assert!(lines[1].get(unknown).is_none(), "{unknown}");
    }
    assert_eq!(lines[1]["status"], 200);
    assert_eq!(dropped.get(), 0);
}

/// A writer that stands still until it is let go.
struct Stuck(Receiver<()>);

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.0.recv();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_writer_that_stands_still_costs_lines_and_never_a_request() {
    let (go, gate) = channel();
    let dropped = Counter::default();
    let log = AccessLog::to(Stuck(gate), 4, dropped.clone()).unwrap();
    for i in 0..100 {
        log.log(line(&i.to_string()));
    }
    // Four wait, and the writer holds at most the batches of four that it took before it stood still.
    assert!(dropped.get() >= 80, "{}", dropped.get());
    drop(go);
    drop(log);
}

struct Broken;

impl Write for Broken {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn lines_that_cannot_be_written_are_counted() {
    let dropped = Counter::default();
    let log = AccessLog::to(Broken, 16, dropped.clone()).unwrap();
    log.log(line("a"));
    log.log(line("b"));
    drop(log);
    assert_eq!(dropped.get(), 2);
}

#[test]
fn files_are_appended_to() {
    let path = std::env::temp_dir().join(format!("homing-access-{}.log", std::process::id()));
    let target = AccessTarget::File(path.clone());
    for id in ["a", "b"] {
        AccessLog::open(&target, Counter::default()).unwrap().log(line(id));
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let _ = std::fs::remove_file(&path);
    assert_eq!(text.lines().count(), 2);
    assert!(AccessLog::open(&AccessTarget::File("/nonexistent/x".into()), Counter::default()).is_err());
    assert!(!AccessLog::open(&AccessTarget::Off, Counter::default()).unwrap().is_on());
}
