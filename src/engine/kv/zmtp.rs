//! The wire protocol of ZeroMQ (ZMTP 3.0, NULL mechanism), as far as events need it: publish, subscribe, replay.
//!
//! Our own two hundred lines instead of a library, for one reason: every length on this wire is bounded before anything
//! is allocated for it. The library at hand reserves whatever a frame's header announces, up to 2^63 bytes, so that one
//! corrupt header ends the process. Both ends of a connection do the same: greeting, READY, then messages of frames.

use bytes::{Buf, Bytes, BytesMut};
use smallvec::SmallVec;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Most bytes of a message. A step of an engine announces some thousand blocks; ten times that is far below.
pub const MAX_MESSAGE: usize = 32 << 20;
/// Most frames of a message: events have 3, replayed ones 4.
const MAX_FRAMES: usize = 16;
/// Bytes read at once; the buffer grows with a message and is given back after it.
const READ: usize = 16 << 10;

/// Kinds of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Publishes.
    Pub,
    /// Subscribes.
    Sub,
    /// Asks, and gets any number of answers.
    Dealer,
    /// Answers.
    Router,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Pub => "PUB",
            Kind::Sub => "SUB",
            Kind::Dealer => "DEALER",
            Kind::Router => "ROUTER",
        }
    }

    /// Who may be at the other end.
    fn suits(self, peer: &[u8]) -> bool {
        let fit: &[&[u8]] = match self {
            Kind::Pub => &[b"SUB", b"XSUB"],
            Kind::Sub => &[b"PUB", b"XPUB"],
            Kind::Dealer => &[b"ROUTER", b"DEALER", b"REP"],
            Kind::Router => &[b"DEALER", b"ROUTER", b"REQ"],
        };
        fit.contains(&peer)
    }
}

/// Why a connection can't go on.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The connection itself.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// What is at the other end speaks something else.
    #[error("{0}")]
    Protocol(&'static str),
    /// A message is longer than is allowed.
    #[error("a message has more than {MAX_MESSAGE} bytes or {MAX_FRAMES} frames")]
    TooLong,
}

/// The frames of a message.
pub type Message = SmallVec<[Bytes; 4]>;

/// What came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A message.
    Message(Message),
    /// A command of the protocol, with its name; `SUBSCRIBE` and `CANCEL` concern publishers.
    Command(Bytes, Bytes),
}

/// A connection after its handshake.
#[derive(Debug)]
pub struct Wire<S> {
    stream: S,
    buf: BytesMut,
    frames: Message,
    held: usize,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    /// Shakes hands as a socket of kind `me`. The caller bounds the time.
    ///
    /// # Errors
    /// The connection broke, or the other end isn't a fitting ZeroMQ socket without security.
    pub async fn open(stream: S, me: Kind) -> Result<Self, WireError> {
        let mut wire = Wire { stream, buf: BytesMut::new(), frames: Message::new(), held: 0 };
        let mut greeting = [0u8; 64];
        greeting[0] = 0xff;
        greeting[9] = 0x7f;
        greeting[10] = 3;
        greeting[12..16].copy_from_slice(b"NULL");
        wire.stream.write_all(&greeting).await?;
        wire.greeted().await?;
        let name = me.name();
        let mut ready = b"\x05READY\x0bSocket-Type\0\0\0".to_vec();
        ready.push(name.len() as u8);
        ready.extend_from_slice(name.as_bytes());
        if matches!(me, Kind::Dealer | Kind::Router) {
            ready.extend_from_slice(b"\x08Identity\0\0\0\0");
        }
        wire.stream.write_all(&[4, ready.len() as u8]).await?;
        wire.stream.write_all(&ready).await?;
        match wire.recv().await? {
            Received::Command(command, body) if command == "READY" => match property(&body, b"socket-type") {
                Some(peer) if me.suits(peer) => Ok(wire),
                _ => Err(WireError::Protocol("the other end is a ZeroMQ socket of another kind")),
            },
            Received::Command(..) => Err(WireError::Protocol("the other end refused the handshake")),
            Received::Message(_) => Err(WireError::Protocol("a message before the handshake's end")),
        }
    }

    async fn greeted(&mut self) -> Result<(), WireError> {
        while self.buf.len() < 64 {
            self.fill().await?;
            // A first byte is enough to tell that this isn't ZeroMQ (a web server, perhaps, at a wrong port).
            if self.buf.first() != Some(&0xff) || self.buf.len() > 9 && self.buf[9] & 1 == 0 {
                return Err(WireError::Protocol("the other end doesn't speak ZeroMQ"));
            }
        }
        let greeting = self.buf.split_to(64);
        if greeting[10] < 3 {
            return Err(WireError::Protocol("the other end speaks an old version of ZeroMQ's protocol"));
        }
        if greeting[12..32].trim_ascii_end().split(|&b| b == 0).next() != Some(b"NULL") {
            return Err(WireError::Protocol("the other end asks for a security mechanism"));
        }
        Ok(())
    }

    async fn fill(&mut self) -> Result<(), WireError> {
        self.buf.reserve(READ);
        if self.stream.read_buf(&mut self.buf).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        Ok(())
    }

    /// The next message or command. Can be dropped and called again without losing anything.
    ///
    /// # Errors
    /// The connection ended or broke, or what came is too long.
    pub async fn recv(&mut self) -> Result<Received, WireError> {
        loop {
            if let Some(received) = self.parse()? {
                return Ok(received);
            }
            self.fill().await?;
        }
    }

    fn parse(&mut self) -> Result<Option<Received>, WireError> {
        loop {
            let Some(&flags) = self.buf.first() else { return Ok(None) };
            let long = flags & 2 != 0;
            let head = if long { 9 } else { 2 };
            if self.buf.len() < head {
                return Ok(None);
            }
            let len = if long {
                let announced = (&self.buf[1..9]).get_u64();
                usize::try_from(announced).ok().filter(|&n| n <= MAX_MESSAGE).ok_or(WireError::TooLong)?
            } else {
                usize::from(self.buf[1])
            };
            if self.held + len > MAX_MESSAGE || self.frames.len() >= MAX_FRAMES {
                return Err(WireError::TooLong);
            }
            if self.buf.len() < head + len {
                return Ok(None);
            }
            self.buf.advance(head);
            let body = self.buf.split_to(len).freeze();
            if flags & 4 != 0 {
                return Ok(Some(command(body)?));
            }
            self.held += len;
            self.frames.push(body);
            if flags & 1 == 0 {
                self.held = 0;
                return Ok(Some(Received::Message(std::mem::take(&mut self.frames))));
            }
        }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn send(&mut self, frames: &[&[u8]]) -> Result<(), WireError> {
        let mut out = BytesMut::with_capacity(frames.iter().map(|frame| frame.len() + 9).sum());
        for (i, frame) in frames.iter().enumerate() {
            let more = u8::from(i + 1 < frames.len());
            match u8::try_from(frame.len()) {
                Ok(len) => out.extend_from_slice(&[more, len]),
                Err(_) => {
                    out.extend_from_slice(&[more | 2]);
                    out.extend_from_slice(&(frame.len() as u64).to_be_bytes());
                }
            }
            out.extend_from_slice(frame);
        }
        self.stream.write_all(&out).await?;
        Ok(())
    }

    /// Asks a publisher for all messages whose first frame begins with `topic`.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn subscribe(&mut self, topic: &[u8]) -> Result<(), WireError> {
        self.send(&[&[&[1], topic].concat()]).await
    }
}

fn command(body: Bytes) -> Result<Received, WireError> {
    let bad = WireError::Protocol("a command without a name");
    let Some(&len) = body.first() else { return Err(bad) };
    let end = 1 + usize::from(len);
    if body.len() < end {
        return Err(bad);
    }
    Ok(Received::Command(body.slice(1..end), body.slice(end..)))
}

/// A property of a READY command.
fn property<'a>(mut body: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    while !body.is_empty() {
        let (name, rest) = body[1..].split_at_checked(body[0].into())?;
        let (len, rest) = rest.split_at_checked(4)?;
        let len = usize::try_from(u32::from_be_bytes(len.try_into().ok()?)).ok()?;
        let (value, rest) = rest.split_at_checked(len)?;
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        body = rest;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn pair(
        a: Kind,
        b: Kind,
    ) -> (Result<Wire<tokio::io::DuplexStream>, WireError>, Result<Wire<tokio::io::DuplexStream>, WireError>)
    {
        let (x, y) = tokio::io::duplex(1 << 16);
        tokio::join!(Wire::open(x, a), Wire::open(y, b))
    }

    #[tokio::test]
    async fn messages_of_every_size_pass() {
        let (a, b) = pair(Kind::Dealer, Kind::Router).await;
        let (mut a, mut b) = (a.unwrap(), b.unwrap());
        for n in [0, 1, 255, 256, 70_000] {
            let big = vec![n as u8; n];
            let frames: [&[u8]; 2] = [b"", &big];
            let (sent, got) = tokio::join!(a.send(&frames), b.recv());
            sent.unwrap();
            let Received::Message(frames) = got.unwrap() else { panic!("a command") };
            assert_eq!(frames.to_vec(), [Bytes::new(), Bytes::from(big)]);
        }
    }

    #[tokio::test]
    async fn kinds_that_do_not_fit_refuse_each_other() {
        let (a, b) = pair(Kind::Sub, Kind::Router).await;
        assert!(a.unwrap_err().to_string().contains("another kind") && b.is_err());
    }

    #[tokio::test]
    async fn announced_lengths_are_not_believed() {
        let (a, b) = pair(Kind::Pub, Kind::Sub).await;
        let (mut a, mut b) = (a.unwrap(), b.unwrap());
        a.stream.write_all(&[2, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]).await.unwrap();
        assert!(matches!(b.recv().await, Err(WireError::TooLong)));
        assert!(b.buf.capacity() < 1 << 20);
        let (a, b) = pair(Kind::Pub, Kind::Sub).await;
        let (mut a, mut b) = (a.unwrap(), b.unwrap());
        a.stream.write_all(&[1, 0].repeat(20)).await.unwrap();
        assert!(matches!(b.recv().await, Err(WireError::TooLong)));
    }

    /// Whatever comes after a handshake ends, in messages or in an error.
    #[tokio::test]
    async fn random_bytes_do_no_harm() {
        let mut rng = fastrand::Rng::with_seed(9);
        for _ in 0..300 {
            let (a, b) = pair(Kind::Pub, Kind::Sub).await;
            let (mut a, mut b) = (a.unwrap(), b.unwrap());
            let n = rng.usize(0..600);
            let bytes: Vec<u8> = (0..n).map(|_| if rng.bool() { rng.u8(0..8) } else { rng.u8(..) }).collect();
            a.stream.write_all(&bytes).await.unwrap();
            drop(a);
            let mut received = 0;
            while b.recv().await.is_ok() {
                received += 1;
            }
            assert!(received <= n, "more messages than bytes");
        }
    }

    #[tokio::test]
    async fn a_web_server_is_no_publisher() {
        let (x, mut y) = tokio::io::duplex(1 << 16);
        y.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let error = Wire::open(x, Kind::Sub).await.unwrap_err();
        assert!(error.to_string().contains("doesn't speak ZeroMQ"), "{error}");
    }
}
