//! What becomes of a request when its replica fails, for each way to fail and each kind of request: the table in
//! docs/promises.md, cell by cell.

use crate::client::{Got, call, chat, get, post};
use crate::double::{Act, Double, chunk, json, last, sse_head, token};
use crate::rig::Rig;
use homing::config::{Config, Seconds};
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tokio::net::TcpStream;

/// What is asked for: the columns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Chat,
    ChatStream,
    Completion,
    CompletionStream,
    Passthrough,
}

const KINDS: [(Kind, &str); 5] = [
    (Kind::Chat, "chat"),
    (Kind::ChatStream, "chat, streamed"),
    (Kind::Completion, "completion"),
    (Kind::CompletionStream, "completion, streamed"),
    (Kind::Passthrough, "other paths"),
];

impl Kind {
    fn streams(self) -> bool {
        matches!(self, Kind::ChatStream | Kind::CompletionStream)
    }

    async fn ask(self, addr: SocketAddr, n: usize) -> Got {
        match self {
            Kind::Chat | Kind::ChatStream => {
                call(addr, post("/v1/chat/completions", chat(&format!("{n}"), self.streams()))).await
            }
            Kind::Completion | Kind::CompletionStream => {
                let body = format!("{{\"model\":\"m\",\"prompt\":\"{n}\",\"stream\":{}}}", self.streams());
                call(addr, post("/v1/completions", body)).await
            }
            Kind::Passthrough => get(addr, "/v1/files/1/content").await,
        }
    }

    /// Content type of its answers.
    fn content(self) -> &'static str {
        match self {
            Kind::Passthrough => "application/octet-stream",
            _ if self.streams() => "text/event-stream",
            _ => "application/json",
        }
    }

    /// A good answer's body.
    fn body(self) -> String {
        match self {
            Kind::Passthrough => "well".repeat(10),
            _ if self.streams() => {
                "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"well\"}}]}\n\ndata: [DONE]\n\n"
                    .into()
            }
            _ => "{\"id\":\"well\",\"choices\":[]}".into(),
        }
    }

    fn head(self, more: &str) -> String {
        format!("HTTP/1.1 200 OK\r\ncontent-type: {}\r\n{more}\r\n", self.content())
    }

    /// A good answer with more headers, delimited by its length.
    fn whole(self, more: &str) -> Vec<Act> {
        let body = self.body();
        vec![Act::Send(
            format!("{}{body}", self.head(&format!("{more}content-length: {}\r\n", body.len()))).into(),
        )]
    }

    /// The beginning of an answer.
    fn begun(self) -> Vec<Act> {
        match self {
            Kind::Passthrough => vec![Act::Send(
                format!("{}4\r\nhalf\r\n", self.head("transfer-encoding: chunked\r\n")).into(),
            )],
            _ if self.streams() => vec![sse_head(), token("half")],
            _ => vec![Act::Send(
                format!("{}6\r\n{{\"id\":\r\n", self.head("transfer-encoding: chunked\r\n")).into(),
            )],
        }
    }
}

/// How a replica fails: the rows. `None` in place of a script: it isn't even a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Refused,
    BlackHole,
    ResetInHeaders,
    ResetMidStream,
    TruncatedChunk,
    WrongLength,
    ErrorBody,
    HangBeforeHeaders,
    HangMidStream,
    HalfClose,
    EarlyHints,
    Trailers,
    Gzip,
    Brotli,
    Zstd,
    Http10,
    LargeHeaders,
}

const FAULTS: [(Fault, &str); 17] = [
    (Fault::Refused, "refuses to connect"),
    (Fault::BlackHole, "doesn't answer the connect"),
    (Fault::ResetInHeaders, "resets inside its headers"),
    (Fault::ResetMidStream, "resets in the middle"),
    (Fault::TruncatedChunk, "closes inside a chunk"),
    (Fault::WrongLength, "sends less than its content-length"),
    (Fault::ErrorBody, "says 200, with an error inside"),
    (Fault::HangBeforeHeaders, "hangs before its headers (`first_byte` set)"),
    (Fault::HangMidStream, "hangs in the middle"),
    (Fault::HalfClose, "ends its answer by closing its side"),
    (Fault::EarlyHints, "sends 1xx first"),
    (Fault::Trailers, "sends trailers"),
    (Fault::Gzip, "compresses: gzip"),
    (Fault::Brotli, "compresses: br"),
    (Fault::Zstd, "compresses: zstd"),
    (Fault::Http10, "speaks HTTP/1.0"),
    (Fault::LargeHeaders, "sends headers of 100 KB"),
];

impl Fault {
    fn acts(self, kind: Kind) -> Vec<Act> {
        let then = |mut acts: Vec<Act>, more: Vec<Act>| {
            acts.extend(more);
            acts
        };
        let pause = Act::Pause(Duration::from_millis(20));
        match self {
            Fault::Refused | Fault::BlackHole => Vec::new(),
            Fault::ResetInHeaders => {
                vec![Act::Send(b"HTTP/1.1 200 OK\r\ncontent-ty".to_vec()), pause, Act::Reset]
            }
            Fault::ResetMidStream => then(kind.begun(), vec![pause, Act::Reset]),
            Fault::TruncatedChunk => {
                then(kind.begun(), vec![Act::Send(b"ffff\r\nabc".to_vec()), pause, Act::Close])
            }
            Fault::WrongLength => {
                let head = kind.head("content-length: 100000\r\n");
                vec![Act::Send(format!("{head}{}", kind.body()).into()), pause, Act::Close]
            }
            Fault::ErrorBody if kind.streams() => {
                vec![
                    sse_head(),
                    chunk("data: {\"error\":{\"message\":\"inside\"}}\n\ndata: [DONE]\n\n"),
                    last(),
                ]
            }
            Fault::ErrorBody => vec![json(200, "{\"error\":{\"message\":\"inside\"}}")],
            Fault::HangBeforeHeaders => vec![Act::UntilGone],
            Fault::HangMidStream => then(kind.begun(), vec![Act::UntilGone]),
            Fault::HalfClose => {
                vec![
                    Act::Send(format!("{}{}", kind.head("connection: close\r\n"), kind.body()).into()),
                    Act::HalfClose,
                ]
            }
            Fault::EarlyHints => {
                let hints = "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n";
                then(vec![Act::Send(hints.into()), pause], kind.whole(""))
            }
            Fault::Trailers => {
                let body = kind.body();
                let head = kind.head("transfer-encoding: chunked\r\ntrailer: x-end\r\n");
                vec![Act::Send(format!("{head}{:x}\r\n{body}\r\n0\r\nx-end: 1\r\n\r\n", body.len()).into())]
            }
            Fault::Gzip => kind.whole("content-encoding: gzip\r\n"),
            Fault::Brotli => kind.whole("content-encoding: br\r\n"),
            Fault::Zstd => kind.whole("content-encoding: zstd\r\n"),
            Fault::Http10 => {
                let head = kind.head("").replace("HTTP/1.1", "HTTP/1.0");
                vec![Act::Send(format!("{head}{}", kind.body()).into()), Act::Close]
            }
            Fault::LargeHeaders => kind.whole(&format!("x-large: {}\r\n", "x".repeat(100_000))),
        }
    }

    /// What a client gets to see of it if it passes.
    fn words(self, kind: Kind) -> String {
        match self {
            Fault::ErrorBody if kind.streams() => {
                "data: {\"error\":{\"message\":\"inside\"}}\n\ndata: [DONE]\n\n".into()
            }
            Fault::ErrorBody => "{\"error\":{\"message\":\"inside\"}}".into(),
            _ => kind.body(),
        }
    }
}

/// A replica that fails, and what keeps it so.
struct Failing {
    addr: SocketAddr,
    double: Option<Double>,
    _plugs: Vec<TcpStream>,
    _socket: Option<socket2::Socket>,
}

impl Failing {
    async fn start(fault: Fault, kind: Kind) -> Failing {
        if fault == Fault::Refused {
            let addr = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            return Failing { addr, double: None, _plugs: Vec::new(), _socket: None };
        }
        if fault == Fault::BlackHole {
            // A socket that listens with a full backlog: connecting hangs.
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
            socket.listen(0).unwrap();
            let addr = socket.local_addr().unwrap().as_socket().unwrap();
            let mut plugs = Vec::new();
            for _ in 0..4 {
                let connect = TcpStream::connect(addr);
                if let Ok(plug) = tokio::time::timeout(Duration::from_millis(60), connect).await {
                    plugs.push(plug.unwrap());
                }
            }
            return Failing { addr, double: None, _plugs: plugs, _socket: Some(socket) };
        }
        let double = Double::always(fault.acts(kind)).await;
        Failing { addr: double.addr, double: Some(double), _plugs: Vec::new(), _socket: None }
    }

    fn asked(&self) -> usize {
        self.double.as_ref().map_or(0, |d| d.seen().len())
    }
}

fn limits(fault: Fault) -> impl FnOnce(&mut Config) {
    move |c: &mut Config| {
        c.workers = Some(1);
        c.timeouts.connect = Seconds::from_millis(100);
        c.timeouts.stream_idle = Seconds::from_millis(150);
        if fault == Fault::HangBeforeHeaders {
            c.timeouts.first_byte = Some(Seconds::from_millis(150));
        }
    }
}

/// Patience of a client, beyond every time-out of the router.
const PATIENCE: Duration = Duration::from_millis(800);

/// What a client sees, in the words of the table.
fn seen(fault: Fault, kind: Kind, got: Option<Got>) -> String {
    let Some(got) = got else { return "waits".into() };
    let text = got.text();
    if got.status != 200 {
        return got.status.to_string();
    }
    if !got.complete {
        return "cut off".into();
    }
    if text == fault.words(kind) {
        return "passes".into();
    }
    let ends_in_error =
        text.rsplit("\n\n").nth(1).is_some_and(|event| event.starts_with("data: {\"error\":"));
    assert!(ends_in_error && !text.contains("[DONE]") && text.contains("half"), "{fault:?}: {text}");
    "error event".into()
}

/// One cell: with nobody else to ask, and with somebody else.
async fn cell(fault: Fault, kind: Kind) -> String {
    let failing = Failing::start(fault, kind).await;
    let rig = Rig::with(&[failing.addr], limits(fault)).await;
    let alone = tokio::time::timeout(PATIENCE, kind.ask(rig.addr, 0)).await.ok();
    let mut cell = seen(fault, kind, alone);
    rig.quiet().await;

    let mut elsewhere = kind.whole("");
    if let Act::Send(bytes) = &mut elsewhere[0] {
        // The other one says who it is.
        *bytes = String::from_utf8(bytes.clone())
            .unwrap()
            .replacen("content-length", "x-other: 1\r\ncontent-length", 1)
            .into();
    }
    let other = Double::always(elsewhere).await;
    let failing = Failing::start(fault, kind).await;
    let rig = Rig::with(&[failing.addr, other.addr], limits(fault)).await;
    for n in 0.. {
        assert!(n < 60, "{fault:?}: the failing one is never asked");
        let before = failing.asked();
        let got = tokio::time::timeout(PATIENCE, kind.ask(rig.addr, n)).await.ok();
        let tried = failing.asked() > before || rig.metric("homing_retries_total") > 0.0;
        if !tried {
            continue;
        }
        let saved =
            got.as_ref().is_some_and(|g| g.status == 200 && g.complete && g.headers.contains_key("x-other"));
        if saved {
            let _ = write!(cell, ", else another replica");
        } else {
            assert_eq!(seen(fault, kind, got), cell, "{fault:?}");
        }
        break;
    }
    rig.quiet().await;
    cell
}

async fn table() -> String {
    let mut out = String::from("| the replica … |");
    KINDS.iter().for_each(|(_, name)| {
        let _ = write!(out, " {name} |");
    });
    out.push_str("\n|---|");
    out.push_str(&"---|".repeat(KINDS.len()));
    for (fault, what) in FAULTS {
        let _ = write!(out, "\n| {what} |");
        for (kind, _) in KINDS {
            let _ = write!(out, " {} |", cell(fault, kind).await.replace(", else another replica", "*"));
        }
    }
    out
}

#[tokio::test]
async fn every_cell_of_the_fault_matrix_is_as_documented() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/promises.md");
    let document = std::fs::read_to_string(path).unwrap_or_default();
    let lines = document.lines().skip_while(|l| !l.starts_with("| the replica … |"));
    let written: Vec<&str> = lines.take_while(|l| l.starts_with('|')).collect();
    let measured = table().await;
    assert!(written.join("\n") == measured, "docs/promises.md says otherwise. Measured:\n{measured}");
}
