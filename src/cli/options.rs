//! Flags that say what a configuration file can say. A flag wins over `HOMING_…`, that over the file.

use crate::config::{self, AccessTarget, Config, ConfigError, LogFormat, Overrides, Report};
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Where the configuration comes from.
#[derive(Clone, Debug, Args)]
pub(super) struct ServeArgs {
    /// Configuration file (YAML); see config/homing.yaml.
    #[arg(long, short, env = "HOMING_CONFIG", value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Base URL of a replica; repeat it. Replaces the file's list.
    #[arg(long, env = "HOMING_REPLICA", value_name = "URL", value_delimiter = ',')]
    replica: Vec<String>,
    /// File with a list of replicas, watched.
    #[arg(long, env = "HOMING_REPLICA_FILE", value_name = "FILE")]
    replica_file: Option<PathBuf>,
    /// File with the API key of the replicas.
    #[arg(long, env = "HOMING_API_KEY_FILE", value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Data port [default: 0.0.0.0:8080].
    #[arg(long, env = "HOMING_LISTEN", value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Be an endpoint picker for Envoy at this address (ext_proc, gRPC), like 0.0.0.0:9002.
    #[arg(long, env = "HOMING_EXTPROC", value_name = "ADDR")]
    extproc: Option<SocketAddr>,
    /// gRPC health service of the endpoint picker [default: 0.0.0.0:9003].
    #[arg(long, env = "HOMING_EXTPROC_HEALTH", value_name = "ADDR")]
    extproc_health: Option<SocketAddr>,
    /// The endpoint picker speaks without TLS.
    #[arg(long, env = "HOMING_EXTPROC_PLAINTEXT")]
    extproc_plaintext: bool,
    /// Only the endpoint picker: no data port.
    #[arg(long, env = "HOMING_EXTPROC_ALONE")]
    extproc_alone: bool,
    /// Health and metrics port [default: 0.0.0.0:9090].
    #[arg(long, env = "HOMING_METRICS", value_name = "ADDR")]
    metrics: Option<SocketAddr>,
    /// Admin port [default: 127.0.0.1:9091].
    #[arg(long, env = "HOMING_ADMIN", value_name = "ADDR")]
    admin: Option<SocketAddr>,
    /// File with the bearer token of the admin port.
    #[arg(long, env = "HOMING_ADMIN_TOKEN_FILE", value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
    /// Level of the program's own log, like `info` or `warn,homing=debug`.
    #[arg(long, env = "HOMING_LOG_LEVEL", value_name = "LEVEL")]
    log_level: Option<String>,
    /// Form of the program's own log: `text` or `json`.
    #[arg(long, env = "HOMING_LOG_FORMAT", value_name = "FORM", value_parser = log_format)]
    log_format: Option<LogFormat>,
    /// Access log: `stdout`, `stderr`, `off`, or a file's path.
    #[arg(long, env = "HOMING_LOG_ACCESS", value_name = "WHERE")]
    log_access: Option<String>,
    /// Add lengths and keyed block identities to the access log. Never any text.
    #[arg(long, env = "HOMING_LOG_BLOCKS")]
    log_blocks: bool,
    /// Threads that move bytes [default: as many as cores].
    #[arg(long, env = "HOMING_WORKERS", value_name = "N")]
    workers: Option<usize>,
}

impl ServeArgs {
    /// The configuration that file, environment and flags make together, and its warnings.
    pub(super) fn load(&self) -> Result<(Config, Report), ConfigError> {
        let overrides = Overrides {
            listen: self.listen,
            extproc: self.extproc,
            extproc_health: self.extproc_health,
            extproc_plaintext: self.extproc_plaintext,
            extproc_alone: self.extproc_alone,
            metrics: self.metrics,
            admin: self.admin,
            admin_token_file: self.admin_token_file.clone(),
            replicas: self.replica.clone(),
            replica_file: self.replica_file.clone(),
            api_key_file: self.api_key_file.clone(),
            log_level: self.log_level.clone(),
            log_format: self.log_format,
            log_access: self.log_access.clone().map(AccessTarget::from),
            log_blocks: self.log_blocks,
            workers: self.workers,
        };
        config::load(self.config.as_deref(), &overrides)
    }
}

fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("text or json".to_owned()),
    }
}
