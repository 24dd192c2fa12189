//! The program's own log, on standard error; its level can be changed while it runs.

use crate::config::LogFormat;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

/// Changes the level of the running log.
#[derive(Clone, Debug)]
pub struct LogHandle(reload::Handle<EnvFilter, Registry>);

impl LogHandle {
    /// New directives, like `info` or `warn,homing=debug`. On an error the old ones stay.
    pub fn set_level(&self, directives: &str) -> Result<(), String> {
        self.0.reload(filter(directives)?).map_err(|e| e.to_string())
    }
}

fn filter(directives: &str) -> Result<EnvFilter, String> {
    EnvFilter::builder().parse(directives).map_err(|e| format!("log level `{directives}`: {e}"))
}

/// Starts the log, once a process: JSON lines, or text for people. The error says what is wrong with the directives, or
/// that a log is running already.
pub fn init(directives: &str, format: LogFormat) -> Result<LogHandle, String> {
    let (filter, handle) = reload::Layer::new(filter(directives)?);
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = if format == LogFormat::Json {
        lines.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed()
    } else {
        lines.with_target(false).boxed()
    };
    tracing_subscriber::registry().with(filter).with(lines).try_init().map_err(|e| e.to_string())?;
    Ok(LogHandle(handle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_changes_while_it_runs_and_bad_ones_change_nothing() {
        assert!(init("homing=loud", LogFormat::Json).is_err());
        let handle = init("off,homing::observe=warn", LogFormat::Json).unwrap();
        assert!(tracing::enabled!(tracing::Level::WARN));
        assert!(!tracing::enabled!(tracing::Level::INFO));
        handle.set_level("off,homing::observe=info").unwrap();
        assert!(tracing::enabled!(tracing::Level::INFO));
        assert!(handle.set_level("homing=loud").is_err());
        assert!(tracing::enabled!(tracing::Level::INFO));
        handle.set_level("off").unwrap();
        assert!(init("info", LogFormat::Json).is_err(), "one log a process");
    }
}
