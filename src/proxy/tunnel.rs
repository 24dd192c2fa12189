//! A connection that has become something else (`Upgrade`): WebSocket, mostly, as `/v1/realtime` speaks it.
//!
//! Bytes pass both ways as they come, and nothing is understood of them: pings, their answers and closes are between the
//! two ends. When one side has nothing more to say the other is told so and may still speak. Silence is no fault here,
//! however long: a vanished host is noticed by TCP's own probes. The tunnel counts as in flight until both sides have ended.

use super::io::{Client, ClientIo, Order, ReplicaIo};
use super::record::{Ending, Record};
use super::upstream::Upstream;
use crate::router::Reservation;
use bytes::Bytes;
use hyper_util::rt::TokioIo;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy_bidirectional};

/// The replica's end of a tunnel, waiting for the client's.
pub(super) struct Far {
    io: ReplicaIo,
    /// What the replica has said already.
    first: Bytes,
    record: Box<Record>,
    reservation: Option<Reservation>,
}

impl Far {
    /// Takes the socket out of a connection over which the replica has agreed to the change.
    ///
    /// # Errors
    /// The connection broke instead; the record comes back.
    pub(super) async fn new(
        upstream: Box<Upstream>,
        record: Box<Record>,
        reservation: Option<Reservation>,
    ) -> Result<Self, Box<Record>> {
        match upstream.into_io().await {
            Some((io, first)) => Ok(Far { io, first, record, reservation }),
            None => Err(record),
        }
    }
}

/// Passes bytes between a client, of which `said` came early, and the replica, until both have ended.
pub(super) async fn run(client: &Rc<Client>, near: TokioIo<ClientIo>, said: Bytes, far: Far) {
    let Far { io: mut replica, first, mut record, reservation } = far;
    let mut near = near.into_inner();
    let ended = or_kill(client, join(&mut near, &mut replica, &said, &first)).await;
    record.end(match ended {
        Some(Err(_)) => Ending::CutOff,
        _ => Ending::Ok,
    });
    if let (Some(reservation), Some(_)) = (reservation, ended) {
        reservation.finish(crate::core::Outcome::default());
    }
}

/// Everything that either side says goes to the other.
async fn join<A, B>(near: &mut A, far: &mut B, said: &[u8], first: &[u8]) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    far.write_all(said).await?;
    near.write_all(first).await?;
    copy_bidirectional(near, far).await.map(drop)
}

/// The future's output, or `None` if the connection is told to end at once.
async fn or_kill<F: Future>(client: &Client, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        client.register(cx.waker());
        if client.order() == Order::Kill {
            return Poll::Ready(None);
        }
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, duplex};

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_bears_an_hour_of_quiet() {
        let (mut client, mut near) = duplex(64);
        let (mut replica, mut far) = duplex(64);
        let tunnel = tokio::spawn(async move { join(&mut near, &mut far, b"early ", b"hello ").await });
        let mut got = [0; 6];
        replica.read_exact(&mut got).await.unwrap();
        client.read_exact(&mut got).await.unwrap();
        for n in 0..3 {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            client.write_all(&[n; 6]).await.unwrap();
            replica.read_exact(&mut got).await.unwrap();
            assert_eq!(got, [n; 6]);
            replica.write_all(b"pong__").await.unwrap();
            client.read_exact(&mut got).await.unwrap();
        }
        // One side is done; the other may still speak.
        client.shutdown().await.unwrap();
        assert_eq!(replica.read(&mut got).await.unwrap(), 0);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        replica.write_all(b"last__").await.unwrap();
        client.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"last__");
        assert!(!tunnel.is_finished());
        drop(replica);
        tunnel.await.unwrap().unwrap();
    }
}
