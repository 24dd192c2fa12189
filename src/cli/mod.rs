//! The command line: one file a command.

mod check;
mod demo;
mod descriptors;
mod explain;
mod mock;
mod options;
mod replay;
mod serve;
mod tokens;

pub use serve::{Origin, Running, ServeError, Source};

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// A cache-aware router for LLM inference: each request goes to the replica that already holds its prefix, unless
/// waiting there would cost more than computing it again elsewhere.
#[derive(Debug, Parser)]
#[command(name = "homing", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Route requests to replicas.
    Serve(options::ServeArgs),
    /// See it work: simulated replicas, a workload, Homing beside plain round robin.
    Demo(demo::Args),
    /// Serve one simulated vLLM replica.
    Mock(mock::Args),
    /// Check a configuration and print what would run.
    Check(check::Args),
    /// Replay a trace against a simulated fleet, policy beside policy.
    Replay(Box<replay::Args>),
    /// Ask a running router where a request would go, and why.
    Explain(explain::Args),
    /// Print the token ids that the engine will see for a body.
    Tokens(tokens::Args),
}

/// Parses the command line and runs one command.
pub fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Mock(args) => mock::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Tokens(args) => tokens::run(&args),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("homing: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Is this a command line that Homing takes? For tests of the documentation.
///
/// # Errors
/// What the parser says of it.
pub fn check_command_line(words: &[&str]) -> Result<(), String> {
    Cli::try_parse_from(words).map(drop).map_err(|e| e.to_string())
}

/// A failure of a command, told to the person who ran it.
type Failure = Box<dyn std::error::Error>;

/// A runtime for a command that does little more than wait.
fn small_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
