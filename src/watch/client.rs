//! A GET over a connection that is kept: the least that polling needs.
//!
//! One connection a replica, opened when needed. The body goes into one buffer that is used again, so that a page of
//! 55 KB each second costs a copy, and no memory. Every wait has an end.

use crate::router::Endpoint;
use bytes::Bytes;
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Most bytes of an answer. A page of vLLM has 55 KB; more than this isn't a page.
const MAX_BODY: usize = 4 << 20;
/// Bytes of the buffer that are kept from one answer to the next.
const KEPT: usize = 256 << 10;
/// hyper's own buffer. It would grow to 400 KB with each page that fills it, times the number of replicas.
const READ_BUFFER: usize = 32 << 10;

/// Why there was no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// No connection.
    Connect(std::io::Error),
    /// No answer in time.
    Timeout(Duration),
    /// The connection broke off.
    Broken(hyper::Error),
    /// The answer is too long.
    TooLong,
    /// The address can't be put into a request.
    Address(http::Error),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Connect(e) => write!(f, "no connection: {e}"),
            Failure::Timeout(t) => write!(f, "no answer within {} s", t.as_secs_f64()),
            Failure::Broken(e) => write!(f, "the connection broke off: {e}"),
            Failure::TooLong => write!(f, "the answer has more than {MAX_BODY} bytes"),
            Failure::Address(e) => write!(f, "{e}"),
        }
    }
}

/// Asks one replica.
pub(super) struct Client {
    endpoint: Arc<Endpoint>,
    connection: Option<Connection>,
    body: Vec<u8>,
}

struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Client {
    pub(super) fn new(endpoint: Arc<Endpoint>) -> Self {
        Client { endpoint, connection: None, body: Vec::new() }
    }

    /// The body of the last answer.
    pub(super) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Asks for `path` below the replica's base path; the answer's status, its body is in [`Client::body`].
    pub(super) async fn get(&mut self, path: &str, limit: Duration) -> Result<StatusCode, Failure> {
        self.body.clear();
        self.body.shrink_to(KEPT);
        let answer = match timeout(limit, self.exchange(path)).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::Timeout(limit)),
        };
        if answer.is_err() {
            // What may still come on it would be taken for the next answer.
            self.connection = None;
        }
        answer
    }

    async fn exchange(&mut self, path: &str) -> Result<StatusCode, Failure> {
        if let Some(kept) = self.connection.take_if(|c| !c.sender.is_closed()) {
            match self.ask(kept, path).await {
                // The other end may have closed a connection that lay idle, at the moment at which it was used again.
                Err(Failure::Broken(_)) => self.body.clear(),
                answer => return answer,
            }
        }
        let fresh = self.connect().await?;
        self.ask(fresh, path).await
    }

    async fn connect(&self) -> Result<Connection, Failure> {
        let to = (&*self.endpoint.host, self.endpoint.port);
        let socket = TcpStream::connect(to).await.map_err(Failure::Connect)?;
        socket.set_nodelay(true).map_err(Failure::Connect)?;
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(READ_BUFFER)
            .handshake(TokioIo::new(socket))
            .await
            .map_err(Failure::Broken)?;
        let driver = tokio::spawn(async move {
            // What goes wrong is told to whoever asks on it.
            let _ = connection.await;
        });
        Ok(Connection { sender, driver })
    }

    /// Asks on this connection, and keeps it if all went well.
    async fn ask(&mut self, mut connection: Connection, path: &str) -> Result<StatusCode, Failure> {
        let request = self.request(path).map_err(Failure::Address)?;
        connection.sender.ready().await.map_err(Failure::Broken)?;
        let answer = connection.sender.send_request(request).await.map_err(Failure::Broken)?;
        let status = answer.status();
        let mut body = answer.into_body();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(Failure::Broken)?.into_data() else { continue };
            if self.body.len() + data.len() > MAX_BODY {
                return Err(Failure::TooLong);
            }
            self.body.extend_from_slice(&data);
        }
        self.connection = Some(connection);
        Ok(status)
    }

    fn request(&self, path: &str) -> Result<Request<Empty<Bytes>>, http::Error> {
        let e = &*self.endpoint;
        let uri = Uri::try_from(format!("{}{path}", e.base_path))?;
        let mut request = Request::builder()
            .method(Method::GET)
            .uri(uri)
            .header(header::HOST, &e.authority)
            .header(header::USER_AGENT, concat!("homing/", env!("CARGO_PKG_VERSION")));
        if let Some(key) = &e.authorization {
            request = request.header(header::AUTHORIZATION, key);
        }
        for (name, value) in &e.extra_headers {
            request = request.header(name, value);
        }
        request.body(Empty::new())
    }
}
