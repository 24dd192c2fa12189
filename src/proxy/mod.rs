//! Door one: an OpenAI-compatible HTTP server. Clients change their base URL and nothing else.
//!
//! The way of a request: `server` accepts and deals connections to workers; `conn` speaks HTTP/1 or HTTP/2;
//! `handler` tells the endpoints apart; `generate` reads a prompt (`read_body`, `prompt`) and `pass` what has
//! none; `attempts` places it and tries it (`exchange`), again elsewhere if that fails (`budget`); `respond`
//! starts the answer and `live` passes it through. A `record` goes along and tells of it once.
//!
//! Everything of a request stays on one thread (`worker`). Its connection to the replica (`upstream`, from the
//! `pool`) belongs to it and is polled by it. So whatever drops the request closes that connection at once, in every
//! phase: this is how an engine sees a client leave.

mod answer;
mod attempts;
mod budget;
mod conn;
mod connect;
mod exchange;
mod generate;
mod handler;
mod headers;
mod io;
mod live;
mod models;
mod pass;
mod payload;
mod pool;
mod prompt;
mod read_body;
mod record;
mod reply;
mod request_id;
mod respond;
mod server;
mod settings;
mod target;
mod upstream;
mod watch;
mod worker;

pub use prompt::{Prompt, PromptReader, tokenized};
pub use server::{Phase, Proxy};
pub use settings::{LiveSettings, Settings};
