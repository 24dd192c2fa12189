//! What goes over Envoy's stream, in plain types.
//!
//! The state machine speaks these; `wire` turns them from and to Envoy's own messages.

use super::address::Wanted;
use bytes::Bytes;
use std::borrow::Cow;
use std::net::SocketAddr;

/// The headers of a request or of an answer. Keys are lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head(pub Vec<(String, Vec<u8>)>);

impl Head {
    /// The first value under that name.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_slice())
    }

    /// The same as text, without white space around it; `None` also if it is empty or isn't text.
    pub fn text(&self, name: &str) -> Option<&str> {
        let text = std::str::from_utf8(self.get(name)?).ok()?.trim();
        (!text.is_empty()).then_some(text)
    }

    /// The first of several names that has a value.
    pub fn first(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.text(name))
    }
}

/// What Envoy says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum In {
    /// The request's headers; `true`: there is no body.
    RequestHead(Head, bool),
    /// A piece of its body; `true`: the last one.
    RequestBody(Bytes, bool),
    /// Its trailers; they end the body.
    RequestTrailers,
    /// The answer's headers; `true`: there is no body.
    ResponseHead(Head, bool),
    /// A piece of its body; `true`: the last one.
    ResponseBody(Bytes, bool),
    /// Its trailers.
    ResponseTrailers,
}

/// What comes along with a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// The subset that must be chosen from, if one is set.
    pub subset: Option<Vec<Wanted>>,
    /// Who served the answer.
    pub served: Option<SocketAddr>,
    /// How Envoy was told to send bodies: request, answer. In the first message only; old versions don't say.
    pub modes: Option<(Mode, Mode)>,
}

/// How Envoy sends a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Not at all.
    Withheld,
    /// In pieces, and only what comes back goes on.
    Duplex,
    /// In a way that the endpoint picker protocol doesn't have.
    Other,
}

/// A header to set.
pub type Set = (&'static str, Cow<'static, str>);

/// What is said to Envoy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Out {
    /// The request's headers go on.
    RequestHead {
        /// Changes.
        set: Vec<Set>,
        /// Headers that go.
        remove: Vec<&'static str>,
        /// Where to: the choice and what to try next, as header and as metadata.
        destination: String,
    },
    /// A piece of its body; `true`: the last one.
    RequestBody(Bytes, bool),
    /// Its trailers go on.
    RequestTrailers,
    /// The answer's headers go on.
    ResponseHead {
        /// Changes.
        set: Vec<Set>,
        /// Headers that go.
        remove: Vec<&'static str>,
    },
    /// A piece of the answer; `true`: the last one.
    ResponseBody(Bytes, bool),
    /// Its trailers go on.
    ResponseTrailers,
    /// An answer of our own instead.
    Immediate(Box<Immediate>),
}

/// An answer of our own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Immediate {
    /// HTTP status.
    pub status: u16,
    /// Its headers.
    pub set: Vec<Set>,
    /// Its body.
    pub body: Vec<u8>,
    /// For Envoy's access log (`%RESPONSE_CODE_DETAILS%`).
    pub details: &'static str,
}
