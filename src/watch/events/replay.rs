//! Asking an engine for batches that it has published before.
//!
//! A DEALER asks `["", first number]`; answers come one by one, in either of two layouts (`["", number, payload]` up to
//! vLLM 0.24, `["", topic, number, payload]` later), and end with number −1 or an empty payload.

use super::link::{self, Trouble};
use crate::engine::kv::KvEndpoint;
use crate::engine::kv::zmtp::{Kind, Message, Received, Wire};
use bytes::Bytes;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Time between two answers. An engine looks for questions ten times a second.
const PATIENCE: Duration = Duration::from_secs(3);

/// A replay under way.
pub(super) struct Replay(Wire<TcpStream>);

impl Replay {
    /// Asks for all batches from `first` on.
    pub(super) async fn ask(endpoint: &KvEndpoint, first: u64) -> Result<Self, Trouble> {
        let mut wire = link::connect(endpoint, Kind::Dealer).await?;
        wire.send(&[b"", &first.to_be_bytes()]).await?;
        Ok(Replay(wire))
    }

    /// The next batch; `None` after the last one.
    pub(super) async fn next(&mut self) -> Result<Option<(u64, Bytes)>, Trouble> {
        loop {
            let received =
                timeout(PATIENCE, self.0.recv()).await.map_err(|_| Trouble::Silent(PATIENCE))??;
            if let Received::Message(frames) = received {
                return match answer(&frames) {
                    Some(answer) => Ok(answer),
                    None => Err(Trouble::Layout),
                };
            }
        }
    }
}

/// Reads an answer: a batch, or (inner `None`) the end. `None`: neither.
fn answer(frames: &Message) -> Option<Option<(u64, Bytes)>> {
    let frames =
        if frames.first().is_some_and(|first| first.is_empty()) { &frames[1..] } else { &frames[..] };
    let (seq, payload) = match frames {
        [] => return Some(None),
        [only] if only.is_empty() => return Some(None),
        [.., seq, payload] => (seq, payload),
        [_] => return None,
    };
    let seq = i64::from_be_bytes((&**seq).try_into().ok()?);
    match u64::try_from(seq) {
        Ok(seq) if !payload.is_empty() => Some(Some((seq, payload.clone()))),
        _ => Some(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_layouts_and_both_ends() {
        let of = |frames: &[&[u8]]| answer(&frames.iter().map(|f| Bytes::copy_from_slice(f)).collect());
        let (seq, end) = (7u64.to_be_bytes(), (-1i64).to_be_bytes());
        let batch = Some(Some((7, Bytes::from_static(b"x"))));
        assert_eq!(of(&[b"", &seq, b"x"]), batch);
        assert_eq!(of(&[b"", b"kv@a", &seq, b"x"]), batch);
        assert_eq!(of(&[b"", b"", &seq, b"x"]), batch, "an empty topic");
        for last in
            [&[&b""[..], &end, b""][..], &[b"", b"", &end, b""], &[b"", &seq, b""], &[b""], &[b"", b""]]
        {
            assert_eq!(of(last), Some(None), "{last:?}");
        }
        assert_eq!(of(&[b"", b"short", b"x"]), None);
    }
}
