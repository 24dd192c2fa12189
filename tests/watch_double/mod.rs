//! A double of a model server for the tests of watch, discovery and control: answers what it is told to, remembers what
//! it was asked, and can be killed. And a client that says what came back.

#![allow(dead_code, reason = "each test binary uses its own part")]

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// A page of a real vLLM server.
pub(crate) const IDLE: &str = include_str!("../fixtures/vllm-0.32/metrics_idle.txt");

/// What it answers and what it was asked.
#[derive(Default)]
struct Script {
    answers: BTreeMap<String, (u16, String)>,
    hanging: bool,
    asked: Vec<String>,
    connections: usize,
}

/// The server.
pub(crate) struct Double {
    pub(crate) addr: SocketAddr,
    script: Arc<Mutex<Script>>,
    task: JoinHandle<()>,
}

/// A port that refuses connections until a server is put on it.
pub(crate) struct Reserved(socket2::Socket);

impl Reserved {
    pub(crate) fn new() -> Self {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        Reserved(socket)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.0.local_addr().unwrap().as_socket().unwrap())
    }

    pub(crate) fn open(self) -> Double {
        self.0.listen(128).unwrap();
        self.0.set_nonblocking(true).unwrap();
        Double::on(TcpListener::from_std(self.0.into()).unwrap())
    }
}

impl Double {
    /// One that is healthy, serves the model `base`, and prints a real page.
    pub(crate) fn start() -> Self {
        Reserved::new().open()
    }

    fn on(listener: TcpListener) -> Self {
        let script = Arc::new(Mutex::new(Script::default()));
        let addr = listener.local_addr().unwrap();
        let shared = script.clone();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                shared.lock().connections += 1;
                connections.spawn(serve(socket, shared.clone()));
            }
        });
        let double = Double { addr, script, task };
        double.answer("/health", 200, "");
        double.answer("/metrics", 200, IDLE);
        double.serves(&["base"]);
        double
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    pub(crate) fn answer(&self, path: &str, status: u16, body: &str) {
        self.script.lock().answers.insert(path.into(), (status, body.into()));
    }

    pub(crate) fn serves(&self, models: &[&str]) {
        let entries: Vec<String> =
            models.iter().map(|m| format!("{{\"id\":\"{m}\",\"max_model_len\":4096}}")).collect();
        self.answer("/v1/models", 200, &format!("{{\"data\":[{}]}}", entries.join(",")));
    }

    /// From now on nothing is answered.
    pub(crate) fn hang(&self, hanging: bool) {
        self.script.lock().hanging = hanging;
    }

    /// Heads of all requests so far.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.script.lock().asked.clone()
    }

    pub(crate) fn count(&self, path: &str) -> usize {
        let start = format!("GET {path} ");
        self.script.lock().asked.iter().filter(|h| h.starts_with(&start)).count()
    }

    pub(crate) fn connections(&self) -> usize {
        self.script.lock().connections
    }

    /// It is gone: connections are cut and new ones refused.
    pub(crate) fn kill(&self) {
        self.task.abort();
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn serve(mut socket: TcpStream, script: Arc<Mutex<Script>>) {
    while let Some(head) = read_head(&mut socket).await {
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let (hanging, answer) = {
            let mut script = script.lock();
            script.asked.push(head);
            (script.hanging, script.answers.get(&path).cloned())
        };
        if hanging {
            return std::future::pending().await;
        }
        let (status, body) = answer.unwrap_or((404, String::new()));
        let text = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        if socket.write_all(text.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn read_head(socket: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()
}

/// Waits for `condition`; how long it takes doesn't matter, only that it comes true.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

/// Sends a request and reads the answer: status, head, body.
pub(crate) async fn ask(addr: SocketAddr, request: &str, headers: &str, body: &str) -> (u16, String, String) {
    let mut socket = TcpStream::connect(addr).await.unwrap();
    let length = body.len();
    let text = format!(
        "{request} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    );
    socket.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase(), body.to_owned())
}
