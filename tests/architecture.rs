//! Reads the sources and holds the house to its plan: who may import whom, and that the core is pure.

#![expect(clippy::unwrap_used, reason = "a test that can't read the sources has failed")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Who may import whom; ARCHITECTURE.md says why. A room that isn't here may import nothing of the project.
const MAY: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("openai", &["core"]),
    ("engine", &["core"]),
    ("config", &["core"]),
    ("observe", &["core", "config"]),
    ("tokenize", &[]),
    ("door", &[]),
    ("router", &["core", "observe", "config", "tokenize"]),
    ("discovery", &["router", "engine", "config", "observe", "core"]),
    ("watch", &["router", "engine", "config", "observe", "core"]),
    ("proxy", &["router", "openai", "config", "observe", "core", "door"]),
    ("extproc", &["proxy", "router", "openai", "config", "observe", "core", "door"]),
    ("control", &["router", "openai", "config", "observe", "core", "door"]),
    ("sim", &["core", "openai", "engine"]),
];

/// What the core may not name, and why.
const IMPURE: &[(&str, &str)] = &[
    ("tokio", "tasks and timers belong to the shell"),
    ("hyper", "sockets belong to the shell"),
    ("axum", "sockets belong to the shell"),
    ("std::net", "sockets belong to the shell"),
    ("std::fs", "files belong to the shell"),
    ("std::io", "I/O belongs to the shell"),
    ("std::env", "the environment belongs to the shell"),
    ("std::thread", "threads belong to the shell"),
    ("thread_local", "threads belong to the shell"),
    ("Mutex", "locks belong to the shell"),
    ("RwLock", "locks belong to the shell"),
    ("parking_lot", "locks belong to the shell"),
    ("Instant::now", "time comes in as an argument"),
    ("SystemTime", "time comes in as an argument"),
    ("thread_rng", "randomness comes in as a seed"),
    ("rand::rng", "randomness comes in as a seed"),
    ("fastrand", "randomness comes in as a seed"),
    ("RandomState", "randomness comes in as a seed"),
    ("tracing", "the shell logs"),
    ("println!", "the shell prints"),
];

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The lines of a file that are code: no comments.
fn code(path: &Path) -> Vec<(usize, String)> {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().enumerate();
    lines.map(|(i, l)| (i + 1, l.split("//").next().unwrap_or("").to_owned())).collect()
}

/// The part of a file before its unit tests: tests may use clocks and threads.
fn production(path: &Path) -> Vec<(usize, String)> {
    if path.file_name().is_some_and(|n| n.to_string_lossy().contains("test")) {
        return Vec::new();
    }
    code(path).into_iter().take_while(|(_, l)| !l.trim_start().starts_with("#[cfg(test)]")).collect()
}

fn room_of(path: &Path) -> String {
    let relative = path.strip_prefix(src()).unwrap();
    let first = relative.components().next().unwrap().as_os_str().to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

/// Rooms named in `crate::room` paths of a line, in `use crate::{a, b}` lists too.
fn named(line: &str, rooms: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in line.match_indices("crate::") {
        let rest = &line[at + 7..];
        let list = rest.strip_prefix('{').map(|r| r.split('}').next().unwrap_or(r));
        let heads: Vec<&str> = match list {
            Some(list) => list.split(',').collect(),
            None => vec![rest],
        };
        for head in heads {
            let name: String = head.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if rooms.contains(&name.as_str()) {
                found.push(name);
            }
        }
    }
    found
}

#[test]
fn rooms_import_only_what_the_plan_allows() {
    let may: BTreeMap<&str, &[&str]> = MAY.iter().copied().collect();
    let mut files = Vec::new();
    sources(&src(), &mut files);
    let rooms: Vec<String> = fs::read_dir(src())
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().trim_end_matches(".rs").to_owned())
        .filter(|n| n != "lib" && n != "main")
        .collect();
    let names: Vec<&str> = rooms.iter().map(String::as_str).collect();
    let mut faults = Vec::new();
    for file in &files {
        let room = room_of(file);
        if matches!(room.as_str(), "cli" | "main" | "lib") {
            continue;
        }
        let allowed = may.get(room.as_str()).copied().unwrap_or(&[]);
        for (number, line) in code(file) {
            for other in named(&line, &names) {
                if other != room && !allowed.contains(&other.as_str()) {
                    faults.push(format!("{}:{number}: {room} imports {other}", file.display()));
                }
            }
        }
    }
    assert!(faults.is_empty(), "not in the plan:\n{}", faults.join("\n"));
}

#[test]
fn the_import_reader_sees_lists_and_paths() {
    let rooms = ["core", "openai", "router"];
    assert_eq!(named("use crate::{core::Time, openai};", &rooms), ["core", "openai"]);
    assert_eq!(named("    crate::router::Router::new()", &rooms), ["router"]);
    assert!(named("use std::core;", &rooms).is_empty());
}

#[test]
fn the_core_is_pure() {
    let mut files = Vec::new();
    sources(&src().join("core"), &mut files);
    assert!(files.len() > 10, "the core has moved: {} files", files.len());
    let mut faults = Vec::new();
    for file in &files {
        for (number, line) in production(file) {
            for (word, why) in IMPURE {
                if line.contains(word) {
                    faults.push(format!("{}:{number}: core names {word}: {why}", file.display()));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn files_hold_one_idea() {
    let mut files = Vec::new();
    sources(&src(), &mut files);
    let long: Vec<String> = files
        .iter()
        .map(|f| (f, fs::read_to_string(f).unwrap().lines().count()))
        .filter(|(_, n)| *n > 500)
        .map(|(f, n)| format!("{}: {n} lines", f.display()))
        .collect();
    assert!(long.is_empty(), "over 500 lines:\n{}", long.join("\n"));
}

#[test]
fn no_reminders_and_no_machine_paths_are_left() {
    let mut files = Vec::new();
    sources(&src(), &mut files);
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"), &mut files);
    let words = [
        ["TO", "DO"].concat(),
        ["FIX", "ME"].concat(),
        ["unimplemented", "!("].concat(),
        ["todo", "!("].concat(),
    ];
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        for word in &words {
            assert!(!text.contains(word.as_str()), "{} has {word}", file.display());
        }
    }
}

/// Cases that docs/field-cases.md must have a test for.
const CASES: &[&str] = &[
    "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "15", "16", "16a", "16b", "17",
    "18", "19", "20", "21", "22", "23", "24", "25", "26", "27", "28", "29", "30", "31", "32", "33", "34",
    "35", "36", "37", "37a", "37b", "37c", "37d", "37e", "37f", "38", "40", "41", "41a", "41b",
];

/// Is `name` a test that runs in this file?
fn has_test(text: &str, name: &str) -> bool {
    let head = format!("fn {name}(");
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let Some(at) = lines.iter().position(|l| l.strip_prefix("async ").unwrap_or(l).starts_with(&head)) else {
        return false;
    };
    let attributes: Vec<&&str> = lines[..at].iter().rev().take_while(|l| l.starts_with("#[")).collect();
    attributes.iter().any(|l| l.starts_with("#[test]") || l.starts_with("#[tokio::test"))
        && !attributes.iter().any(|l| l.starts_with("#[ignore"))
}

/// Rows of the tables: case, and pairs of file and test.
fn cases(document: &str) -> Vec<(&str, Vec<(&str, &str)>)> {
    let rows = document.lines().filter_map(|l| l.strip_prefix('|')?.strip_suffix('|'));
    rows.filter_map(|row| {
        let mut cells = row.split('|').map(str::trim);
        let (case, _, tests) = (cells.next()?, cells.next()?, cells.next()?);
        case.starts_with(|c: char| c.is_ascii_digit()).then(|| {
            let named = tests.split(';').filter_map(|part| part.split_once(':')).flat_map(|(file, names)| {
                names.split('`').skip(1).step_by(2).map(move |name| (file.trim(), name))
            });
            (case, named.collect())
        })
    })
    .collect()
}

#[test]
fn the_field_cases_name_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = fs::read_to_string(root.join("docs/field-cases.md")).unwrap();
    let found = cases(&document);
    let numbers: Vec<&str> = found.iter().map(|(case, _)| *case).collect();
    assert_eq!(numbers, CASES, "each case once, in order");
    for (case, tests) in &found {
        assert!(!tests.is_empty(), "case {case} names no test");
        for (file, name) in tests {
            let text = fs::read_to_string(root.join(file)).unwrap_or_default();
            assert!(has_test(&text, name), "case {case}: no test {name} in {file:?}");
        }
    }
}

#[test]
fn the_promises_name_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = fs::read_to_string(root.join("docs/promises.md")).unwrap();
    let found = cases(&document);
    assert!(found.len() >= 15, "{} promises", found.len());
    for (promise, tests) in &found {
        assert!(!tests.is_empty(), "promise {promise} names no test");
        for (file, name) in tests {
            let text = fs::read_to_string(root.join(file)).unwrap_or_default();
            assert!(has_test(&text, name), "promise {promise}: no test {name} in {file:?}");
        }
    }
}

#[test]
fn the_reader_of_tests_is_not_fooled() {
    let text = "#[test]\nfn a() {}\n#[tokio::test]\n#[expect(x)]\nasync fn b() {}\nfn c() {}\n#[test]\n#[ignore]\nfn d() {}\n";
    assert!(has_test(text, "a") && has_test(text, "b"));
    assert!(!has_test(text, "c") && !has_test(text, "d") && !has_test(text, "e"));
    let table =
        "| case | symptom | tests |\n|---|---|---|\n| 37a | it hurts | src/x.rs: `a`, `b`; y.rs: `c` |\n";
    assert_eq!(cases(table), [("37a", vec![("src/x.rs", "a"), ("src/x.rs", "b"), ("y.rs", "c")])]);
}
