//! `homing check`: is the configuration right, and what would run?

use super::Failure;
use super::options::ServeArgs;
use crate::config;
use std::io::Write;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    serve: ServeArgs,
    /// Print the JSON schema of the configuration file instead.
    #[arg(long)]
    schema: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.schema {
        // A reader that has seen enough (`| head`) is no fault.
        let _ = writeln!(std::io::stdout(), "{}", serde_json::to_string_pretty(&config::schema_json())?);
        return Ok(ExitCode::SUCCESS);
    }
    let (config, report) = match args.serve.load() {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("{error}");
            return Ok(ExitCode::from(2));
        }
    };
    for problem in &report.problems {
        eprintln!("{problem}");
    }
    let source = args.serve.config.as_ref().map_or("flags and defaults".into(), |p| p.display().to_string());
    println!("configuration of {source}: usable");
    println!("  clients   http://{}", config.listen);
    println!("  metrics   http://{}/metrics, /livez, /readyz", config.metrics);
    match config.admin {
        Some(at) => println!("  admin     http://{at}"),
        None => println!("  admin     off"),
    }
    println!("  index     {} blocks of {} bytes at most", config.index.max_blocks, config.index.block_bytes);
    for spec in &config.replicas {
        let spec = spec.clone().with_defaults(&config.replica_defaults);
        let key = if spec.api_key.is_some() { ", with a key" } else { "" };
        let cap = spec.max_in_flight.map_or("learned".to_owned(), |n| n.to_string());
        println!("  replica   {} at {} (in flight at most: {cap}{key})", spec.label(), spec.url);
    }
    if let Some(file) = &config.replica_file {
        println!("  replicas  as {} says, watched", file.display());
    }
    if let Some(k) = &config.kubernetes {
        let namespace = k.namespace.as_deref().unwrap_or("the own one");
        let what = match &k.pool {
            Some(pool) => format!("pods of the InferencePool {pool}"),
            None => format!("pods with the labels {:?}, ports {:?}", k.selector, k.ports),
        };
        println!("  replicas  {what}, namespace {namespace}");
    }
    for n in &config.dns.names {
        let port = n.port.map_or("as its SRV records say".to_owned(), |p| p.to_string());
        println!("  replicas  addresses of {} in DNS, port {port}", n.name);
    }
    Ok(ExitCode::SUCCESS)
}
