//! `homing tokens`: the token ids that the engine will see for a body, to check that a model's files fit the engine.

use super::Failure;
use crate::tokenize::{Kind, Model, Source};
use serde_json::{Value, json};
use std::io::{BufRead, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Folder with `tokenizer.json` and `tokenizer_config.json`, or a folder of a Hugging Face cache.
    #[arg(long, value_name = "PATH")]
    tokenizer: PathBuf,
    /// File of the chat template, if not the model's own.
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
    /// File with the request's JSON body; `-` reads it from standard input.
    #[arg(value_name = "BODY", default_value = "-")]
    body: PathBuf,
    /// Print the text that the chat template makes instead.
    #[arg(long)]
    text: bool,
    /// Take each line for a body; print each one's answer as a line of JSON.
    #[arg(long, conflicts_with = "text")]
    lines: bool,
}

/// Memory of segments; enough for one run.
const CACHE: usize = 64 << 20;

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let source = Source { path: args.tokenizer.clone(), template: args.template.clone(), cache_bytes: CACHE };
    let model = Model::load(&source)?;
    let mut input: Box<dyn BufRead> = if args.body == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        let file = std::fs::File::open(&args.body).map_err(|e| format!("{}: {e}", args.body.display()))?;
        Box::new(std::io::BufReader::new(file))
    };
    let mut out = std::io::stdout().lock();
    if args.lines {
        for line in input.lines() {
            writeln!(out, "{}", answer(&model, line?.as_bytes()))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut body = Vec::new();
    input.read_to_end(&mut body)?;
    if args.text {
        write!(out, "{}", model.text(&body)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "{}", json!(model.ids(kind(&body), &body)?))?;
    Ok(ExitCode::SUCCESS)
}

fn answer(model: &Model, body: &[u8]) -> Value {
    match model.ids(kind(body), body) {
        Ok(ids) => json!({"tokens": ids}),
        Err(why) => json!({"error": why.to_string(), "reason": why.label()}),
    }
}

/// A body with messages is a chat.
fn kind(body: &[u8]) -> Kind {
    let chat = serde_json::from_slice::<Value>(body).is_ok_and(|b| b.get("messages").is_some());
    if chat { Kind::Chat } else { Kind::Completion }
}
