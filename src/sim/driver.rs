//! A closed-loop client: runs conversations against a server over real HTTP and measures what its users would feel.

use super::client::Link;
use super::histogram::{Histogram, Quantiles};
use super::workload::{InfiniteCache, Session, Talk};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Request, Uri};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// A client with its target.
#[derive(Clone)]
pub struct Driver {
    authority: String,
    path: String,
    model: String,
    api_key: Option<String>,
    timeout: Duration,
    stats: Arc<Stats>,
}

/// Live measurements, shared with whoever shows them.
#[derive(Default)]
pub struct Stats(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    started: Option<Instant>,
    ended: Option<Instant>,
    now: Snapshot,
    ttft: Histogram,
    tpot: Histogram,
    bound: InfiniteCache,
}

/// Measurements at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Seconds since the run began; stands still after its end.
    pub elapsed: f64,
    /// Conversations in all.
    pub sessions: usize,
    /// Conversations that have ended.
    pub sessions_ended: usize,
    /// Requests sent and not ended.
    pub in_flight: u64,
    /// Requests answered in full.
    pub completed: u64,
    /// Requests that failed in any way.
    pub failed: u64,
    /// What the last failure said.
    pub last_error: Option<String>,
    /// Prompt tokens by the server's count.
    pub prompt_tokens: u64,
    /// Those of them that were cached.
    pub cached_tokens: u64,
    /// Output tokens by the server's count.
    pub output_tokens: u64,
    /// Time from sending a request to its first word.
    pub ttft: Quantiles,
    /// Time a token after the first, one value a request.
    pub tpot: Quantiles,
    /// Cached share that one infinite cache would have reached with the same requests, 0..=1.
    pub infinite_cache_share: f64,
}

impl Snapshot {
    /// Cached share of prompt tokens, 0..=1.
    pub fn cached_share(&self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64
    }

    /// Answered requests a second, over the whole run.
    pub fn requests_per_second(&self) -> f64 {
        if self.elapsed > 0.0 { self.completed as f64 / self.elapsed } else { 0.0 }
    }
}

impl Stats {
    /// The measurements of now.
    pub fn snapshot(&self) -> Snapshot {
        let inner = self.0.lock();
        let mut now = inner.now.clone();
        let until = inner.ended.unwrap_or_else(Instant::now);
        now.elapsed = inner.started.map_or(0.0, |s| until.duration_since(s).as_secs_f64());
        now.ttft = inner.ttft.quantiles();
        now.tpot = inner.tpot.quantiles();
        now.infinite_cache_share = inner.bound.share();
        now
    }
}

/// A chunk of the stream, as much of it as matters.
#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Part>,
    usage: Option<Usage>,
    error: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Part {
    delta: Option<Delta>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

/// One answer, read to its end.
#[derive(Default)]
struct Answer {
    text: String,
    first: Option<Instant>,
    last: Option<Instant>,
    usage: Option<Usage>,
    done: bool,
}

impl Driver {
    /// A client of the server at `base_url` (`http://host:port`, with a base path or without), which asks for `model`.
    ///
    /// # Errors
    /// When the URL isn't one of plain HTTP.
    pub fn new(base_url: &str, model: &str) -> io::Result<Driver> {
        let uri: Uri = base_url.parse().map_err(io::Error::other)?;
        let authority = uri.authority().map(ToString::to_string).filter(|_| uri.scheme_str() == Some("http"));
        let authority = authority.ok_or_else(|| io::Error::other("the driver speaks http:// only"))?;
        let authority = if uri.port().is_some() { authority } else { format!("{authority}:80") };
        Ok(Driver {
            authority,
            path: format!("{}/v1/chat/completions", uri.path().trim_end_matches('/')),
            model: model.to_owned(),
            api_key: None,
            timeout: Duration::from_secs(120),
            stats: Arc::default(),
        })
    }

    /// Send this bearer token.
    pub fn api_key(mut self, key: &str) -> Self {
        self.api_key = Some(key.to_owned());
        self
    }

    /// Give up on a request after so long; it counts as failed.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The live measurements.
    pub fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }

    /// Run all sessions to their ends. Dropping the future stops them.
    pub async fn run(&self, sessions: Vec<Session>) -> Snapshot {
        let started = Instant::now();
        {
            let mut inner = self.stats.0.lock();
            inner.started = Some(started);
            inner.now.sessions += sessions.len();
        }
        let mut running = JoinSet::new();
        for session in sessions {
            let driver = self.clone();
            running.spawn(async move {
                let arrive = Duration::try_from_secs_f64(session.arrive).unwrap_or_default();
                tokio::time::sleep_until((started + arrive).into()).await;
                driver.session(&session).await;
                driver.stats.0.lock().now.sessions_ended += 1;
            });
        }
        while running.join_next().await.is_some() {}
        self.stats.0.lock().ended = Some(Instant::now());
        self.stats.snapshot()
    }

    /// One conversation. A failure ends it: without the answer there is no next turn.
    async fn session(&self, session: &Session) {
        let mut link = Link::new(self.authority.as_str());
        let mut talk = Talk::new(session);
        let mut messages = json!({"role": "system", "content": &*session.system}).to_string();
        for turn in &session.turns {
            tokio::time::sleep(Duration::try_from_secs_f64(turn.think).unwrap_or_default()).await;
            messages.push(',');
            messages.push_str(&json!({"role": "user", "content": turn.user}).to_string());
            let body = format!(
                "{{\"model\":{},\"stream\":true,\"stream_options\":{{\"include_usage\":true}},\"ignore_eos\":true,\
                 \"max_tokens\":{},\"messages\":[{messages}]}}",
                json!(self.model),
                turn.max_tokens
            );
            let prompt = talk.ask(&turn.user);
            let sent = Instant::now();
            {
                let mut inner = self.stats.0.lock();
                inner.now.in_flight += 1;
                inner.bound.ask(&prompt);
            }
            let result = tokio::time::timeout(self.timeout, self.request(&mut link, body)).await;
            let result = result.unwrap_or_else(|_| Err(io::Error::other("timed out")));
            let mut inner = self.stats.0.lock();
            inner.now.in_flight -= 1;
            match result {
                Ok(answer) => {
                    inner.book(sent, &answer);
                    inner.bound.answered(&prompt, &answer.text);
                    drop(inner);
                    talk.answered(&answer.text);
                    messages.push(',');
                    messages.push_str(&json!({"role": "assistant", "content": answer.text}).to_string());
                }
                Err(error) => {
                    inner.now.failed += 1;
                    inner.now.last_error = Some(error.to_string());
                    return;
                }
            }
        }
    }

    async fn request(&self, link: &mut Link, body: String) -> io::Result<Answer> {
        let mut request = Request::post(&self.path)
            .header(HOST, link.authority())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(io::Error::other)?;
        if let Some(key) = &self.api_key {
            let value = format!("Bearer {key}").parse().map_err(io::Error::other)?;
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        let response = link.send(request).await?;
        let status = response.status();
        let mut body = response.into_body();
        let mut answer = Answer::default();
        let mut buffer = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(io::Error::other)?.into_data() else { continue };
            buffer.extend_from_slice(&data);
            if status.is_success() {
                answer.read_lines(&mut buffer)?;
            } else if buffer.len() > 4096 {
                break;
            }
        }
        if !status.is_success() {
            return Err(io::Error::other(format!("{status}: {}", String::from_utf8_lossy(&buffer))));
        }
        match answer.done && answer.first.is_some() {
            true => Ok(answer),
            false => Err(io::Error::other("the stream ended early")),
        }
    }
}

impl Answer {
    /// Take all whole lines out of the buffer.
    fn read_lines(&mut self, buffer: &mut BytesMut) -> io::Result<()> {
        while let Some(end) = memchr::memchr(b'\n', buffer) {
            let line = buffer.split_to(end + 1);
            let Some(data) = line.strip_prefix(b"data:") else { continue };
            let data = data.trim_ascii();
            if data == b"[DONE]" {
                self.done = true;
                continue;
            }
            let chunk: Chunk = serde_json::from_slice(data)?;
            if let Some(error) = chunk.error {
                return Err(io::Error::other(error.to_string()));
            }
            let word = chunk.choices.into_iter().next().and_then(|c| c.delta).and_then(|d| d.content);
            if let Some(word) = word.filter(|w| !w.is_empty()) {
                let now = Instant::now();
                self.first.get_or_insert(now);
                self.last = Some(now);
                self.text.push_str(&word);
            }
            self.usage = chunk.usage.or(self.usage.take());
        }
        Ok(())
    }
}

impl Inner {
    fn book(&mut self, sent: Instant, answer: &Answer) {
        self.now.completed += 1;
        let (Some(first), Some(last)) = (answer.first, answer.last) else { return };
        self.ttft.observe(first.duration_since(sent).as_secs_f64());
        let Some(usage) = &answer.usage else { return };
        self.now.prompt_tokens += usage.prompt_tokens;
        self.now.output_tokens += usage.completion_tokens;
        let cached = usage.prompt_tokens_details.as_ref().and_then(|d| d.cached_tokens);
        self.now.cached_tokens += cached.unwrap_or(0);
        if usage.completion_tokens > 1 {
            self.tpot
                .observe(last.duration_since(first).as_secs_f64() / (usage.completion_tokens - 1) as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::http::{Faults, Mock, MockConfig};
    use crate::sim::workload::Workload;

    fn short() -> Vec<Session> {
        let mut sessions = Workload::demo().sessions(1);
        sessions.truncate(4);
        for session in &mut sessions {
            session.arrive = 0.0;
            session.turns.truncate(3);
            session.turns.iter_mut().for_each(|turn| turn.think = 0.0);
        }
        sessions
    }

    #[tokio::test]
    async fn one_server_reaches_the_infinite_cache() {
        let mock = Mock::start(MockConfig::default()).await.unwrap();
        let done = Driver::new(&mock.url(), "mock").unwrap().run(short()).await;
        assert_eq!((done.completed, done.failed, done.in_flight), (12, 0, 0), "{:?}", done.last_error);
        assert_eq!((done.sessions, done.sessions_ended), (4, 4));
        let stats = mock.stats();
        assert_eq!((done.prompt_tokens, done.cached_tokens), (stats.prompt_tokens, stats.cached_tokens));
        // At the beginning, prompts on their way don't help each other yet.
        assert!(done.cached_share() > 0.8 * done.infinite_cache_share, "{done:?}");
        assert!(done.cached_share() <= done.infinite_cache_share + 1e-9);
        assert!(done.ttft.mean > 0.0 && done.tpot.p50 >= 0.001, "{done:?}");
    }

    #[tokio::test]
    async fn failures_are_counted_and_told() {
        let mock = Mock::start(MockConfig::instant()).await.unwrap();
        for faults in [
            Faults { status: Some(503), ..Faults::default() },
            Faults { error_body_200: true, ..Faults::default() },
            Faults { reset_mid_stream_after: Some(3), ..Faults::default() },
            Faults { cut_mid_stream_after: Some(3), ..Faults::default() },
        ] {
            mock.set_faults(faults.clone());
            let done = Driver::new(&mock.url(), "mock").unwrap().run(short()).await;
            assert_eq!((done.completed, done.failed), (0, 4), "{faults:?}");
            assert!(done.last_error.is_some());
        }
        assert!(Driver::new("https://example.org", "mock").is_err());
    }
}
