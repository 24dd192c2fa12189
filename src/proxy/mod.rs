//! Door one: an OpenAI-compatible HTTP server. Clients change their base URL and nothing else.
//!
//! The way of a request: `server` accepts and deals connections to workers; `conn` speaks HTTP/1 or HTTP/2;
//! `handler` tells the endpoints apart; `generate` reads a prompt (`read_body`, `prompt`) and `pass` what has
//! none; `attempts` places it and tries it (`exchange`), again elsewhere if that fails (`budget`) or is slow to
//! begin (`hedge`); `respond`
//! starts the answer and `live` passes it through, if need be from one replica after another (`resume`). A `record` goes along and tells of it once.
//!
//! What a client does with its answer is minded by `pace`; a body too long to be read goes `through`; `tunnel` is what a
//! connection becomes that changes its protocol.
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
mod hedge;
mod io;
mod live;
mod models;
mod pace;
mod pass;
mod payload;
mod pool;
mod prompt;
mod read_body;
mod record;
mod reply;
mod request_id;
mod respond;
mod resume;
mod server;
mod settings;
mod steer;
mod target;
mod through;
mod tunnel;
mod upstream;
mod watch;
mod worker;

pub use prompt::{Prompt, PromptReader, tokenized};
pub use record::Ending;
pub use server::{Phase, Proxy};
pub use settings::{LiveSettings, Settings};
pub use watch::Watch;
