//! `homing mock`: one simulated vLLM replica.

use super::{Failure, small_runtime};
use crate::sim::engine::Profile;
use crate::sim::http::{Adapter, KvEvents, Mock, MockConfig};
use std::net::SocketAddr;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where it listens.
    #[arg(long, default_value = "127.0.0.1:8000", value_name = "ADDR")]
    listen: SocketAddr,
    /// Model that it serves; repeat it for more.
    #[arg(long, default_value = "mock", value_name = "NAME")]
    model: Vec<String>,
    /// LoRA adapter that it serves, on the first model; repeat it for more.
    #[arg(long, value_name = "NAME")]
    adapter: Vec<String>,
    /// How fast it is: dense-32b, dense-32b-small, moe, plain-8k, demo or instant.
    #[arg(long, default_value = "demo", value_name = "NAME")]
    profile: String,
    /// Longest prompt plus answer, in tokens.
    #[arg(long, default_value_t = 32_768)]
    max_model_len: u32,
    /// Tokens that its cache holds [default: the profile's].
    #[arg(long)]
    kv_tokens: Option<u64>,
    /// Seconds until it is ready.
    #[arg(long, default_value_t = 0.0)]
    startup: f64,
    /// Key that it asks for.
    #[arg(long)]
    api_key: Option<String>,
    /// Publish KV events on this port, and answer for earlier ones on the next.
    #[arg(long, value_name = "PORT")]
    kv_events: Option<u16>,
    /// Seed of its answers.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let Some(mut profile) = Profile::named(&args.profile) else {
        return Err(format!("no profile {:?}; there are: {}", args.profile, Profile::NAMES.join(", ")).into());
    };
    profile.startup = args.startup.max(0.0);
    profile.kv_tokens = args.kv_tokens.unwrap_or(profile.kv_tokens);
    let parent = args.model.first().cloned().unwrap_or_default();
    let adapters =
        args.adapter.iter().map(|name| Adapter { name: name.clone(), parent: parent.clone() }).collect();
    let config = MockConfig {
        models: args.model.clone(),
        adapters,
        max_model_len: args.max_model_len,
        listen: args.listen,
        api_key: args.api_key.clone(),
        seed: args.seed,
        kv_events: args.kv_events.map(|port| KvEvents {
            listen: SocketAddr::new(args.listen.ip(), port),
            replay: SocketAddr::new(args.listen.ip(), port.saturating_add(1)),
            topic: format!("kv@{}@{parent}", args.listen),
            ..KvEvents::default()
        }),
        ..MockConfig::with_profile(profile)
    };
    small_runtime()?.block_on(async {
        let mock = Mock::start(config).await.map_err(|e| format!("{}: {e}", args.listen))?;
        println!("simulated replica at {} (profile {}); Ctrl-C stops it", mock.url(), args.profile);
        tokio::signal::ctrl_c().await?;
        mock.stop(std::time::Duration::from_secs(1)).await;
        Ok(ExitCode::SUCCESS)
    })
}
