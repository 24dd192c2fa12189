//! `homing explain`: asks a running router where a request would go, and why.

use super::{Failure, small_runtime};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// File with the request's JSON body; `-` reads it from standard input.
    #[arg(value_name = "BODY")]
    body: PathBuf,
    /// Admin port of the router.
    #[arg(long, env = "HOMING_ADMIN", default_value = "127.0.0.1:9091", value_name = "ADDR")]
    admin: String,
    /// Path that the request would be sent to: it says how to read the body.
    #[arg(long, default_value = "/v1/chat/completions")]
    path: String,
    /// File with the admin port's bearer token.
    #[arg(long, env = "HOMING_ADMIN_TOKEN_FILE", value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
}

/// An explanation is a few kilobytes a replica.
const MOST: usize = 16 << 20;
/// Patience with the router.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let body = read(&args.body)?;
    let token = match &args.admin_token_file {
        Some(file) => Some(std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?),
        None => None,
    };
    let (status, answer) = small_runtime()?.block_on(async {
        let asked = ask(&args.admin, &args.path, token.as_deref().map(str::trim), body);
        tokio::time::timeout(TIMEOUT, asked).await.map_err(|_| format!("{}: no answer", args.admin))?
    })?;
    if status != 200 {
        let message = answer["error"]["message"].as_str().unwrap_or("no explanation");
        eprintln!("homing: {message} ({status})");
        return Ok(ExitCode::FAILURE);
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&answer)?);
    } else {
        print!("{}", table(&answer));
    }
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().read_to_end(&mut body)?;
    } else {
        body = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(body)
}

async fn ask(admin: &str, path: &str, token: Option<&str>, body: Vec<u8>) -> Result<(u16, Value), Failure> {
    let stream = tokio::net::TcpStream::connect(admin)
        .await
        .map_err(|e| format!("{admin}: {e}; is a router running, and is this its admin port?"))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let mut request = hyper::Request::post(format!("/explain?path={path}"))
        .header("host", admin)
        .header("content-type", "application/json");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let answer = sender.send_request(request.body(Full::new(bytes::Bytes::from(body)))?).await?;
    let status = answer.status().as_u16();
    let text = Limited::new(answer.into_body(), MOST).collect().await.map_err(|e| e.to_string())?.to_bytes();
    Ok((status, serde_json::from_slice(&text).unwrap_or(Value::Null)))
}

const TERMS: [&str; 8] = ["wait", "prefill", "harm", "decode", "memory", "regret", "trouble", "total"];

/// The explanation for a terminal.
fn table(answer: &Value) -> String {
    use std::fmt::Write;
    let mut out = String::new();
    let n = |v: &Value| v.as_u64().unwrap_or(0);
    // Writing to a string can't fail.
    let _ = writeln!(
        out,
        "{}\nprompt ≈ {} tokens in {} blocks, ≈ {} tokens of answer expected; prices in ms\n",
        answer["why"].as_str().unwrap_or(""),
        n(&answer["prompt_tokens"]),
        n(&answer["blocks"]),
        n(&answer["expected_output_tokens"]),
    );
    let _ = write!(out, "{:<28} {:>8}", "replica", "cached");
    for term in TERMS {
        let _ = write!(out, " {term:>9}");
    }
    let _ = writeln!(out);
    for c in answer["candidates"].as_array().into_iter().flatten() {
        let name = c["replica"].as_str().unwrap_or("?");
        let mark = if answer["chosen"].as_str() == Some(name) { "→ " } else { "  " };
        let _ = write!(out, "{:<28} {:>8}", format!("{mark}{name}"), n(&c["matched_tokens"]));
        for term in TERMS {
            let _ = write!(out, " {:>9.1}", c["price_ms"][term].as_f64().unwrap_or(0.0));
        }
        match c["excluded"].as_str() {
            Some(why) => {
                let _ = writeln!(out, "  not eligible: {why}");
            }
            None => {
                let _ = writeln!(out);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_marks_the_choice_and_says_why_others_are_out() {
        let price = serde_json::json!({"wait": 1.5, "prefill": 20.0, "harm": 0, "decode": 3, "memory": 0, "regret": 0, "trouble": 0, "total": 24.5});
        let answer = serde_json::json!({
            "chosen": "b", "why": "b is the cheapest", "prompt_tokens": 900, "blocks": 14, "expected_output_tokens": 200,
            "candidates": [
                {"replica": "b", "matched_tokens": 512, "price_ms": price},
                {"replica": "a", "matched_tokens": 0, "price_ms": price, "excluded": "draining"},
            ],
        });
        let text = table(&answer);
        assert!(text.contains("→ b") && text.contains("512") && text.contains("24.5"), "{text}");
        assert!(text.contains("not eligible: draining"), "{text}");
    }
}
