//! Opening a connection to a replica.

use super::io;
use super::upstream::Upstream;
use crate::router::Endpoint;
use std::io::{Error, ErrorKind};
use std::net::IpAddr;
use std::time::Duration;
use tokio::net::TcpStream;

/// Connects within `limit`. A host name is looked up each time, as its address may have changed; its addresses are
/// tried in turn.
///
/// # Errors
/// What the system says, or `TimedOut`.
pub(super) async fn connect(endpoint: &Endpoint, limit: Duration) -> Result<Box<Upstream>, Error> {
    let open = async {
        let host = endpoint.host.trim_start_matches('[').trim_end_matches(']');
        let stream = match host.parse::<IpAddr>() {
            Ok(ip) => TcpStream::connect((ip, endpoint.port)).await?,
            Err(_) => TcpStream::connect((host, endpoint.port)).await?,
        };
        io::tune(&stream)?;
        Upstream::handshake(stream).await.map_err(Error::other)
    };
    match tokio::time::timeout(limit, open).await {
        Ok(opened) => opened,
        Err(_) => Err(Error::new(ErrorKind::TimedOut, "no connection in time")),
    }
}
