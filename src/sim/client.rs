//! One keep-alive connection to a server, as light as it can be.

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::io;
use tokio::net::TcpStream;

/// A connection that is opened when needed, and again after the server has closed it.
pub(super) struct Link {
    authority: String,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Link {
    /// A link to `host:port`.
    pub(super) fn new(authority: impl Into<String>) -> Self {
        Link { authority: authority.into(), sender: None }
    }

    /// Host and port, for the `Host` header.
    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    /// Send a request. One that a closed connection didn't take is sent once more over a new one.
    pub(super) async fn send(&mut self, request: Request<Full<Bytes>>) -> io::Result<Response<Incoming>> {
        let mut request = request;
        if let Some(mut sender) = self.sender.take()
            && sender.ready().await.is_ok()
        {
            match sender.try_send_request(request).await {
                Ok(response) => {
                    self.sender = Some(sender);
                    return Ok(response);
                }
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(io::Error::other(failed.into_error())),
                },
            }
        }
        let mut sender = self.connect().await?;
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        self.sender = Some(sender);
        Ok(response)
    }

    async fn connect(&self) -> io::Result<SendRequest<Full<Bytes>>> {
        let stream = TcpStream::connect(&self.authority).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        // Ends when the sender is dropped or the server closes.
        tokio::spawn(connection);
        Ok(sender)
    }
}
