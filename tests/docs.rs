//! The documentation's examples: configurations load, command lines parse, links lead somewhere.

#![expect(clippy::unwrap_used, reason = "a test that can't read the documents has failed")]

use homing::cli::check_command_line;
use homing::config::{ConfigError, Overrides, parse, parse_replicas};
use homing::openai::{Ignore, Scratch, Shape, scan};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn documents() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        fs::read_dir(root().join("docs")).unwrap().map(|e| e.unwrap().path()).collect();
    all.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|n| root().join(n)));
    all.retain(|p| p.extension().is_some_and(|e| e == "md"));
    all
}

/// The fenced blocks of one language, with the line that each begins on.
fn blocks(text: &str, language: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, bool, String)> = None;
    for (number, line) in text.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(lang)) => open = Some((number + 1, lang == language, String::new())),
            (Some((at, wanted, body)), Some(_)) => {
                if *wanted {
                    found.push((*at, std::mem::take(body)));
                }
                open = None;
            }
            (Some((_, _, body)), None) => {
                body.push_str(line);
                body.push('\n');
            }
            (None, None) => {}
        }
    }
    found
}

#[test]
fn every_configuration_in_the_documents_loads() {
    let mut seen = 0;
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        for (line, yaml) in blocks(&text, "yaml") {
            seen += 1;
            // Files of secrets that an example names aren't there; everything else must be right.
            match parse(&yaml, &Overrides::default(), &|_| None) {
                Ok(_) => {}
                Err(ConfigError::Invalid(report)) => {
                    let wrong = report.problems.iter().find(|p| !p.message.contains("No such file"));
                    assert!(wrong.is_none(), "{}:{line}: {}", path.display(), wrong.unwrap());
                }
                Err(e) => assert_eq!(e.to_string(), "", "{}:{line}", path.display()),
            }
        }
    }
    assert!(seen >= 2, "{seen} configurations found");
}

#[test]
fn every_command_line_in_the_documents_parses() {
    let mut seen = 0;
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        for (line, script) in blocks(&text, "sh") {
            for command in script.lines() {
                let command = command.split(" #").next().unwrap_or("").trim();
                let Some(rest) =
                    command.strip_prefix("cargo run --release -- ").or(command.strip_prefix("homing "))
                else {
                    continue;
                };
                seen += 1;
                let mut words = vec!["homing"];
                words.extend(rest.split_whitespace());
                let checked = check_command_line(&words);
                assert!(checked.is_ok(), "{}:{line}: {command}: {}", path.display(), checked.unwrap_err());
            }
        }
    }
    assert!(seen >= 4, "{seen} command lines found");
}

#[test]
fn every_relative_link_leads_somewhere() {
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        for (at, _) in text.match_indices("](") {
            let target = text[at + 2..].split(')').next().unwrap_or("");
            let target = target.split('#').next().unwrap_or("");
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let file = path.parent().unwrap().join(target);
            assert!(file.exists(), "{}: {target} isn't there", path.display());
        }
    }
}

#[test]
fn the_examples_are_right() {
    let read = |name: &str| fs::read(root().join("examples").join(name)).unwrap();
    let replicas = String::from_utf8(read("replicas.yaml")).unwrap();
    assert_eq!(parse_replicas(&replicas, &|_| None).unwrap().len(), 2);
    let body = read("request.json");
    let request = scan(Shape::Chat, &body, &mut Ignore, &mut Scratch::default()).unwrap();
    assert!(request.stream && request.model.as_deref() == Some("mock") && request.text_bytes > 50);
}
