//! Connections to what engines publish.

use crate::engine::kv::KvEndpoint;
use crate::engine::kv::zmtp::{Kind, Wire, WireError};
use std::io;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Time to connect and to shake hands.
const CONNECT: Duration = Duration::from_secs(2);

/// Why nothing comes from an engine.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error("{0}")]
    Wire(#[from] WireError),
    #[error("no answer within {} s", .0.as_secs_f64())]
    Silent(Duration),
    #[error("an answer in a layout that isn't known")]
    Layout,
}

impl From<io::Error> for Trouble {
    fn from(e: io::Error) -> Self {
        Trouble::Wire(e.into())
    }
}

/// Connects to a socket that the engine has bound.
pub(super) async fn connect(to: &KvEndpoint, kind: Kind) -> Result<Wire<TcpStream>, Trouble> {
    let connect = async {
        let stream = TcpStream::connect((&*to.host, to.port)).await?;
        shake(stream, kind).await
    };
    timeout(CONNECT, connect).await.map_err(|_| Trouble::Silent(CONNECT))?
}

/// Waits for the engine that is to connect here.
pub(super) async fn accept(listener: &TcpListener) -> Result<Wire<TcpStream>, Trouble> {
    let (stream, _) = listener.accept().await?;
    timeout(CONNECT, shake(stream, Kind::Sub)).await.map_err(|_| Trouble::Silent(CONNECT))?
}

async fn shake(stream: TcpStream, kind: Kind) -> Result<Wire<TcpStream>, Trouble> {
    stream.set_nodelay(true)?;
    // A replica whose machine has vanished sends no reset; the system asks after it.
    let alive =
        socket2::TcpKeepalive::new().with_time(Duration::from_secs(10)).with_interval(Duration::from_secs(5));
    socket2::SockRef::from(&stream).set_tcp_keepalive(&alive)?;
    Ok(Wire::open(stream, kind).await?)
}
