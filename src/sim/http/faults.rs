//! Faults that can be switched while the server runs.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// What is wrong with the server. The default is nothing. `POST /mock/faults` takes these as JSON; what isn't named is
/// switched off. Faults of requests hit every call under `/v1/` but `/v1/models`, and `/score`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Take the request and never answer.
    pub hang_before_headers: bool,
    /// Fall silent after so many tokens of a stream (0: after the headers).
    pub hang_mid_stream: Option<u32>,
    /// Reset the connection instead of answering.
    pub reset: bool,
    /// Reset the connection after so many tokens of a stream.
    pub reset_mid_stream_after: Option<u32>,
    /// End the stream after so many tokens, without the last chunk of its encoding.
    pub cut_mid_stream_after: Option<u32>,
    /// Answer with this status and vLLM's error body.
    pub status: Option<u16>,
    /// `Retry-After` in seconds, beside `status`.
    pub retry_after: Option<u32>,
    /// Steps of the engine take this many times as long.
    pub slow: Option<f64>,
    /// Seconds until the headers of an answer are sent.
    pub delay_headers: Option<f64>,
    /// Close connections that have been idle for so many seconds.
    pub close_idle_after: Option<f64>,
    /// Answer 200 with an error in the body, and in a stream an error event without `[DONE]`.
    pub error_body_200: bool,
    /// Status of `/health`.
    pub health: Option<u16>,
    /// Never answer `/health`.
    pub hang_health: bool,
    /// Never answer `/metrics`.
    pub hang_metrics: bool,
    /// Answer `/metrics` with a page that has none of the engine's series.
    pub empty_metrics: bool,
    /// Faults of its KV events.
    pub kv: KvFaults,
    /// Hit only so many requests, then be healthy to the others (`slow` and the faults of `/health`, `/metrics` and
    /// idle connections go on).
    pub times: Option<u32>,
}

/// What happens to published KV events on their way. Shares are of batches, 0..1; what is asked for again comes whole.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct KvFaults {
    /// Lost.
    pub loss: f64,
    /// Sent twice.
    pub duplicate: f64,
    /// Sent behind the next one.
    pub reorder: f64,
    /// Cut in the middle.
    pub truncate: f64,
    /// Under another topic.
    pub wrong_topic: f64,
    /// With an event of an unknown type, and with one that can't be read.
    pub strange: f64,
    /// Seconds until they are sent.
    pub delay: f64,
    /// Nothing is sent, and nothing is answered.
    pub silent: bool,
}

/// The faults of now.
#[derive(Default)]
pub(super) struct Switch(Mutex<Faults>);

impl Switch {
    pub(super) fn set(&self, faults: Faults) {
        *self.0.lock() = faults;
    }

    pub(super) fn get(&self) -> Faults {
        self.0.lock().clone()
    }

    /// The faults that hit one more request.
    pub(super) fn hit(&self) -> Faults {
        let mut faults = self.0.lock();
        match &mut faults.times {
            None => {}
            Some(0) => return Faults::default(),
            Some(left) => *left -= 1,
        }
        faults.clone()
    }
}
