//! One attempt: a request to one replica, up to the first piece of its answer.

use super::connect::connect;
use super::headers;
use super::payload::{Payload, Pieces};
use super::reply::{HOLD, Reply};
use super::through::Through;
use super::upstream::{Broken, Upstream};
use super::worker::Worker;
use crate::core::Failure;
use crate::router::Endpoint;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, UPGRADE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// A connection that lay idle and fails within this time had been closed by the replica; one that fails later has
/// failed with the request.
const IDLE_CLOSE: Duration = Duration::from_secs(1);
/// A body that can't be sent twice goes out on a connection that rested no longer than this.
const FRESH: Duration = Duration::from_secs(1);
/// An error's body is waited for this long before the error passes without being whole.
const ERROR_BODY: Duration = Duration::from_secs(2);

/// Makes vLLM announce the blocks that it finds cached. Engines take the last of keys that are there twice, so a client's
/// own arguments, which come later, stay as they are.
const REPORT: &[u8] = b"\"vllm_xargs\":{\"kv_cache_report_mode\":\"full\"},";
/// The header by which vLLM lets a client choose a data-parallel rank.
const RANK: http::HeaderName = http::HeaderName::from_static("x-data-parallel-rank");

/// The body with a key added at `at`, an offset in its first piece.
fn with_key(pieces: &Pieces, at: usize, key: &'static [u8]) -> Pieces {
    let Some(first) = pieces.first().filter(|first| at <= first.len()) else { return pieces.clone() };
    let front = [first.slice(..at), Bytes::from_static(key), first.slice(at..)];
    front.into_iter().chain(pieces.iter().skip(1).cloned()).collect()
}

/// The body of a request.
pub(super) enum Body {
    /// In memory: can be sent again.
    Memory(Pieces),
    /// The client's own, passed through as it comes; taken by the attempt that sends it.
    Stream(Option<Box<Through>>),
}

/// A request as it goes to any replica.
pub(super) struct Call {
    pub(super) method: Method,
    pub(super) target: PathAndQuery,
    pub(super) headers: HeaderMap,
    pub(super) request_id: HeaderValue,
    pub(super) body: Body,
    /// Where the question for a report of what is cached can be added to the body, if it can.
    pub(super) report_at: Option<usize>,
    /// The data-parallel rank that it is meant for.
    pub(super) rank: Option<u32>,
    /// A head without the first piece of its body is no answer yet.
    pub(super) generates: bool,
    /// The answer is read here: no compression.
    pub(super) plain: bool,
    /// The client wants to speak this protocol afterwards.
    pub(super) upgrade: Option<HeaderValue>,
}

/// Why an attempt brought no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    /// No connection.
    #[error("no connection: {0}")]
    Connect(std::io::Error),
    /// The connection broke before the first piece of an answer.
    #[error("broken connection: {0}")]
    Broken(hyper::Error),
    /// The client's body, which passes through, broke off.
    #[error("the client broke off: {0}")]
    Client(hyper::Error),
    /// The replica changed to another protocol, which nobody asked for.
    #[error("an unasked change of protocols")]
    Switched,
    /// The first piece took too long.
    #[error("no answer in time")]
    Timeout,
    /// The body had gone out already and can't be sent again.
    #[error("the body can't be sent again")]
    Spent,
}

/// Is it this machine that can't open a connection? (Linux: `ENFILE`, `EMFILE`, `EADDRNOTAVAIL`, `ENOBUFS`.)
fn ours(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(23 | 24 | 99 | 105))
}

impl From<Broken> for Failed {
    fn from(broken: Broken) -> Self {
        if broken.by_client { Failed::Client(broken.error) } else { Failed::Broken(broken.error) }
    }
}

impl Failed {
    /// What the router is told.
    pub(super) fn failure(&self) -> Failure {
        match self {
            // Out of descriptors or ports: that is this process's trouble, not the replica's.
            Failed::Connect(error) if ours(error) => Failure::Blameless,
            Failed::Connect(_) => Failure::Connect,
            Failed::Broken(_) | Failed::Switched | Failed::Spent => Failure::Reset,
            Failed::Timeout => Failure::Timeout,
            Failed::Client(_) => Failure::Blameless,
        }
    }

    /// Its name in metrics.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Failed::Connect(_) => "connect",
            Failed::Broken(_) | Failed::Switched | Failed::Spent => "reset",
            Failed::Timeout => "timeout",
            Failed::Client(_) => "client",
        }
    }

    /// Nothing of the request has gone out.
    pub(super) fn unsent(&self) -> bool {
        matches!(self, Failed::Connect(_))
    }
}

impl Call {
    fn target_at(&self, endpoint: &Endpoint) -> Uri {
        if endpoint.base_path.is_empty() {
            return Uri::from(self.target.clone());
        }
        // Both parts are valid, and so is their concatenation.
        format!("{}{}", endpoint.base_path, self.target)
            .parse()
            .unwrap_or_else(|_| Uri::from(self.target.clone()))
    }

    fn request(&mut self, endpoint: &Endpoint) -> Option<Request<Payload>> {
        let payload = match &mut self.body {
            Body::Memory(pieces) => match self.report_at.filter(|_| endpoint.wants_report()) {
                Some(at) => Payload::pieces(&with_key(pieces, at, REPORT)),
                None => Payload::pieces(pieces),
            },
            Body::Stream(body) => Payload::Stream(body.take()?),
        };
        let mut request = Request::new(payload);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.target_at(endpoint);
        *request.headers_mut() = headers::to_replica(&self.headers, endpoint, &self.request_id, self.plain);
        if let Some(rank) = self.rank {
            request.headers_mut().insert(RANK, rank.into());
        }
        if let Some(protocol) = &self.upgrade {
            request.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
            request.headers_mut().insert(UPGRADE, protocol.clone());
        }
        Some(request)
    }

    /// The same once more, if its body allows that.
    pub(super) fn fork(&self) -> Option<Call> {
        let Body::Memory(pieces) = &self.body else { return None };
        Some(Call {
            method: self.method.clone(),
            target: self.target.clone(),
            headers: self.headers.clone(),
            request_id: self.request_id.clone(),
            body: Body::Memory(pieces.clone()),
            report_at: self.report_at,
            rank: None,
            generates: self.generates,
            plain: self.plain,
            upgrade: self.upgrade.clone(),
        })
    }

    fn repeatable(&self) -> bool {
        !matches!(self.body, Body::Stream(None))
    }

    /// Sends the request to `endpoint` and waits for the first piece of the answer, or for all of it if it is short.
    ///
    /// # Errors
    /// See [`Failed`]. Nothing of an answer has been seen then.
    pub(super) async fn attempt(
        &mut self,
        worker: &Rc<Worker>,
        endpoint: &Endpoint,
    ) -> Result<Reply, Failed> {
        let first_byte = worker.shared.settings().first_byte;
        match first_byte {
            // A body that passes through takes the time that its client takes.
            Some(limit) if matches!(self.body, Body::Memory(_)) => {
                timeout(limit, self.first_piece(worker, endpoint)).await.unwrap_or(Err(Failed::Timeout))
            }
            _ => self.first_piece(worker, endpoint).await,
        }
    }

    async fn first_piece(&mut self, worker: &Rc<Worker>, endpoint: &Endpoint) -> Result<Reply, Failed> {
        let mut reply = self.head(worker, endpoint).await?;
        if reply.head.status == StatusCode::SWITCHING_PROTOCOLS {
            return if self.upgrade.is_some() { Ok(reply) } else { Err(Failed::Switched) };
        }
        if reply.head.status.is_success() {
            let json = reply
                .head
                .headers
                .get(CONTENT_TYPE)
                .is_some_and(|v| v.as_bytes().starts_with(b"application/json"));
            if json {
                reply.read(HOLD).await?;
            } else if self.generates && headers::is_event_stream(&reply.head.headers) {
                // Half an event is of no use to anybody, so a replica that dies in its first has cost nothing yet.
                reply.read_event(HOLD).await?;
            } else if self.generates {
                reply.read(0).await?;
            }
        } else if let Ok(read) = timeout(ERROR_BODY, reply.read(HOLD)).await {
            read?;
        }
        Ok(reply)
    }

    async fn head(&mut self, worker: &Rc<Worker>, endpoint: &Endpoint) -> Result<Reply, Failed> {
        let rested = matches!(self.body, Body::Stream(_)).then_some(FRESH);
        let pooled = worker.pool.borrow_mut().take(endpoint.id, Instant::now(), rested);
        if let Some(upstream) = pooled {
            let sent = Instant::now();
            match self.send(worker, endpoint, upstream).await {
                Err((failed, true)) if self.repeatable() && sent.elapsed() < IDLE_CLOSE => {
                    tracing::debug!(%failed, replica = &*endpoint.name, "closed while idle: once more");
                }
                other => return other.map_err(|(failed, _)| failed),
            }
        }
        let limit = worker.shared.settings().connect;
        let upstream = connect(endpoint, limit).await.map_err(Failed::Connect)?;
        self.send(worker, endpoint, upstream).await.map_err(|(failed, _)| failed)
    }

    /// The error's flag: it may have been the close of an idle connection.
    async fn send(
        &mut self,
        worker: &Rc<Worker>,
        endpoint: &Endpoint,
        mut upstream: Box<Upstream>,
    ) -> Result<Reply, (Failed, bool)> {
        let request = self.request(endpoint).ok_or((Failed::Spent, false))?;
        match upstream.send(request).await {
            Ok(response) => Ok(Reply::new(worker.clone(), endpoint.id, upstream, response)),
            Err(error) => {
                if let (Body::Stream(body), Some(unsent)) = (&mut self.body, error.unsent) {
                    *body = Some(unsent);
                }
                Err((error.broken.into(), error.idle_close))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_added_in_front_and_moves_nothing() {
        let pieces: Pieces = ["{", "\"a\":1,", "\"b\":2}"].into_iter().map(Bytes::from).collect();
        let whole = with_key(&pieces, 1, REPORT).concat();
        assert_eq!(whole, [b"{", REPORT, b"\"a\":1,\"b\":2}"].concat());
        assert_eq!(with_key(&pieces, 5, REPORT).concat(), pieces.concat(), "nowhere to put it");
    }

    #[test]
    fn running_out_of_descriptors_is_not_the_replicas_failure() {
        let failure = |code| Failed::Connect(std::io::Error::from_raw_os_error(code)).failure();
        assert_eq!(failure(24), Failure::Blameless);
        assert_eq!(failure(99), Failure::Blameless);
        assert_eq!(failure(111), Failure::Connect, "refused");
    }
}
