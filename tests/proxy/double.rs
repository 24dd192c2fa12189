//! A replica that does as it is told, byte by byte.

use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// One step of an answer.
#[derive(Clone)]
pub(crate) enum Act {
    /// Sends bytes.
    Send(Vec<u8>),
    /// Waits.
    Pause(Duration),
    /// Waits until the gate lets one through.
    Gate(Arc<Semaphore>),
    /// Reads until the router closes the connection, and counts that.
    UntilGone,
    /// Closes the connection.
    Close,
    /// Resets it.
    Reset,
    /// Says that nothing more will be said, and reads until the router closes.
    HalfClose,
}

/// A request as it came in.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Seen {
    /// A header's value, by its lower-case name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let of = |line: &'_ str| line.split_once(':').filter(|(n, _)| n.eq_ignore_ascii_case(name)).is_some();
        self.head.lines().skip(1).find(|l| of(l)).and_then(|l| l.split_once(':')).map(|(_, v)| v.trim())
    }

    /// Method and target.
    pub(crate) fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }
}

type Script = dyn Fn(usize, &Seen) -> Vec<Act> + Send + Sync;

/// A replica.
pub(crate) struct Double {
    pub(crate) addr: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    gone: watch::Receiver<usize>,
    _tasks: JoinSet<()>,
}

impl Double {
    /// Starts one; `script` says what the n-th request (from 0) gets.
    pub(crate) async fn start(script: impl Fn(usize, &Seen) -> Vec<Act> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (went, gone) = watch::channel(0);
        let script: Arc<Script> = Arc::new(script);
        let mut tasks = JoinSet::new();
        let requests = seen.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, script.clone(), requests.clone(), went.clone()));
            }
        });
        Double { addr, seen, gone, _tasks: tasks }
    }

    /// One that always does the same.
    pub(crate) async fn always(acts: Vec<Act>) -> Self {
        Double::start(move |_, _| acts.clone()).await
    }

    /// What has come in so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }

    /// Resolves when the router has closed `n` connections that were waiting for that.
    pub(crate) async fn gone(&mut self, n: usize) {
        let waiting = self.gone.wait_for(|count| *count >= n);
        tokio::time::timeout(Duration::from_secs(1), waiting)
            .await
            .expect("the engine must see within a second that the client has left")
            .unwrap();
    }

    /// Connections that the router has closed while that was waited for.
    pub(crate) fn gone_now(&self) -> usize {
        *self.gone.borrow()
    }

    /// Resolves when `n` requests have come in.
    pub(crate) async fn asked(&self, n: usize) {
        super::rig::eventually("requests at the replica", || self.seen.lock().len() >= n).await;
    }
}

async fn serve(
    mut stream: TcpStream,
    script: Arc<Script>,
    seen: Arc<Mutex<Vec<Seen>>>,
    gone: watch::Sender<usize>,
) {
    stream.set_nodelay(true).unwrap();
    let mut buffer = Vec::new();
    while let Some(request) = read_request(&mut stream, &mut buffer).await {
        let n = {
            let mut seen = seen.lock();
            seen.push(request.clone());
            seen.len() - 1
        };
        for act in script(n, &request) {
            match act {
                Act::Send(bytes) => {
                    if stream.write_all(&bytes).await.is_err() {
                        gone.send_modify(|n| *n += 1);
                        return;
                    }
                }
                Act::Pause(time) => tokio::time::sleep(time).await,
                Act::Gate(gate) => gate.acquire().await.unwrap().forget(),
                Act::UntilGone => {
                    let mut rest = [0; 1024];
                    while !matches!(stream.read(&mut rest).await, Ok(0) | Err(_)) {}
                    gone.send_modify(|n| *n += 1);
                    return;
                }
                Act::HalfClose => {
                    stream.shutdown().await.ok();
                    let mut rest = [0; 1024];
                    while !matches!(stream.read(&mut rest).await, Ok(0) | Err(_)) {}
                    return;
                }
                Act::Close => return,
                Act::Reset => {
                    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
                    return;
                }
            }
        }
    }
}

/// The next request on a connection, or `None` at its end.
async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Seen> {
    let end = loop {
        if let Some(at) = memchr::memmem::find(buffer, b"\r\n\r\n") {
            break at + 4;
        }
        fill(stream, buffer).await?;
    };
    let head = String::from_utf8(buffer.drain(..end).collect()).unwrap();
    let mut seen = Seen { head, body: Vec::new() };
    if let Some(length) = seen.header("content-length") {
        let length: usize = length.parse().unwrap();
        while buffer.len() < length {
            fill(stream, buffer).await?;
        }
        seen.body = buffer.drain(..length).collect();
    } else if seen.header("transfer-encoding").is_some() {
        loop {
            let line = loop {
                if let Some(at) = memchr::memmem::find(buffer, b"\r\n") {
                    break buffer.drain(..at + 2).collect::<Vec<u8>>();
                }
                fill(stream, buffer).await?;
            };
            let size = usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim(), 16).unwrap();
            while buffer.len() < size + 2 {
                fill(stream, buffer).await?;
            }
            seen.body.extend(buffer.drain(..size));
            buffer.drain(..2);
            if size == 0 {
                break;
            }
        }
    }
    Some(seen)
}

async fn fill(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<()> {
    let n = stream.read_buf(buffer).await.ok()?;
    (n > 0).then_some(())
}

/// A whole JSON answer.
pub(crate) fn json(status: u16, body: &str) -> Act {
    json_with(status, "", body)
}

/// A whole JSON answer with more headers, each ending in CRLF.
pub(crate) fn json_with(status: u16, headers: &str, body: &str) -> Act {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n"
    );
    Act::Send([head.as_bytes(), body.as_bytes()].concat())
}

/// The head of a stream of events.
pub(crate) fn sse_head() -> Act {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    Act::Send(head.into())
}

/// A chunk.
pub(crate) fn chunk(data: &str) -> Act {
    Act::Send(format!("{:x}\r\n{data}\r\n", data.len()).into_bytes())
}

/// The last chunk.
pub(crate) fn last() -> Act {
    Act::Send(b"0\r\n\r\n".to_vec())
}

/// An event with one token of text.
pub(crate) fn token(text: &str) -> Act {
    chunk(&format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n"))
}

/// A complete chat answer that says who gave it.
pub(crate) fn answer(name: &str) -> Act {
    json(
        200,
        &format!(
            "{{\"id\":\"{name}\",\"choices\":[],\"usage\":{{\"prompt_tokens\":10,\"completion_tokens\":2,\"total_tokens\":12}}}}"
        ),
    )
}
