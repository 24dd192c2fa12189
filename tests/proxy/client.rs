//! A client that sees every frame and every header.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) const CHAT: &str = "/v1/chat/completions";

/// A keep-alive connection.
pub(crate) struct Client {
    sender: http1::SendRequest<Full<Bytes>>,
    _conn: tokio::task::JoinHandle<()>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self._conn.abort();
    }
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    /// What came, also if it was cut off.
    pub(crate) body: Vec<u8>,
    /// The body ended as HTTP says it must.
    pub(crate) complete: bool,
}

impl Got {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Client {
    pub(crate) async fn connect(addr: SocketAddr) -> Client {
        let stream = TcpStream::connect(addr).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (sender, conn) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        let conn = tokio::spawn(async move {
            let _ = conn.await;
        });
        Client { sender, _conn: conn }
    }

    /// Sends a request; the answer's body is left to the caller.
    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        self.sender.ready().await?;
        self.sender.send_request(request).await
    }

    /// Has the router closed the connection?
    pub(crate) fn closed(&self) -> bool {
        self.sender.is_closed()
    }

    pub(crate) async fn post(
        &mut self,
        path: &str,
        body: impl Into<Bytes>,
    ) -> hyper::Result<Response<Incoming>> {
        self.send(post(path, body)).await
    }
}

pub(crate) fn post(path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    Request::post(path)
        .header("host", "router")
        .header("content-type", "application/json")
        .body(Full::new(body.into()))
        .unwrap()
}

/// A chat request's body; different `what`, different prompt.
pub(crate) fn chat(what: &str, stream: bool) -> String {
    format!(
        "{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"content\":\"{what}\"}}],\"stream\":{stream}}}"
    )
}

/// Reads an answer to its end, or to where it breaks off.
pub(crate) async fn read(response: Response<Incoming>) -> Got {
    let (head, mut body) = response.into_parts();
    let mut got =
        Got { status: head.status.as_u16(), headers: head.headers, body: Vec::new(), complete: true };
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => got.body.extend_from_slice(frame.data_ref().map_or(&[], |d| d)),
            Err(_) => {
                got.complete = false;
                break;
            }
        }
    }
    got
}

/// One request on a connection of its own.
pub(crate) async fn call(addr: SocketAddr, request: Request<Full<Bytes>>) -> Got {
    let mut client = Client::connect(addr).await;
    let response = client.send(request).await.unwrap();
    read(response).await
}

/// One POST on a connection of its own.
pub(crate) async fn ask(addr: SocketAddr, path: &str, body: impl Into<Bytes>) -> Got {
    call(addr, post(path, body)).await
}

/// One GET on a connection of its own.
pub(crate) async fn get(addr: SocketAddr, path: &str) -> Got {
    call(addr, Request::get(path).header("host", "router").body(Full::default()).unwrap()).await
}

/// Sends bytes and reads until the connection ends.
pub(crate) async fn raw(addr: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut all = Vec::new();
    // A reset after the answer is as good as an end.
    let _ = stream.read_to_end(&mut all).await;
    String::from_utf8_lossy(&all).into_owned()
}
