//! Clients that keep their connections and stream answers, and note everything that goes wrong.

use parking_lot::Mutex;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// One client, on one connection as long as the server keeps it.
pub(crate) struct Client {
    to: SocketAddr,
    socket: Option<BufReader<TcpStream>>,
}

impl Client {
    pub(crate) fn new(to: SocketAddr) -> Self {
        Client { to, socket: None }
    }

    /// Sends a request and reads the whole answer: status and body. The error says what was refused or cut.
    pub(crate) fn ask(&mut self, method: &str, path: &str, body: &str) -> Result<(u16, String), String> {
        let mut socket = match self.socket.take() {
            Some(socket) => socket,
            None => {
                let socket = TcpStream::connect(self.to).map_err(|e| format!("refused: {e}"))?;
                socket.set_read_timeout(Some(Duration::from_secs(60))).map_err(|e| e.to_string())?;
                BufReader::new(socket)
            }
        };
        let length = body.len();
        let request =
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}");
        socket.get_mut().write_all(request.as_bytes()).map_err(|e| format!("cut while sending: {e}"))?;
        let cut = |what: &str, e: std::io::Error| format!("cut in the {what}: {e}");
        let mut line = String::new();
        if socket.read_line(&mut line).map_err(|e| cut("status", e))? == 0 {
            return Err("cut before the answer".into());
        }
        let status = line.split(' ').nth(1).and_then(|s| s.parse().ok()).ok_or("no status")?;
        let (mut length, mut chunked, mut close) = (0, false, false);
        loop {
            line.clear();
            socket.read_line(&mut line).map_err(|e| cut("head", e))?;
            let header = line.trim().to_ascii_lowercase();
            match header.split_once(": ") {
                Some(("content-length", n)) => length = n.parse().map_err(|_| "a bad length")?,
                Some(("transfer-encoding", "chunked")) => chunked = true,
                Some(("connection", "close")) => close = true,
                _ if header.is_empty() => break,
                _ => {}
            }
        }
        let mut whole = Vec::new();
        loop {
            if chunked {
                line.clear();
                socket.read_line(&mut line).map_err(|e| cut("body", e))?;
                length = usize::from_str_radix(line.trim(), 16)
                    .map_err(|_| format!("cut in the body: {line:?}"))?;
            }
            let start = whole.len();
            whole.resize(start + length, 0);
            socket.read_exact(&mut whole[start..]).map_err(|e| cut("body", e))?;
            if chunked {
                socket.read_exact(&mut [0; 2]).map_err(|e| cut("body", e))?;
            }
            if !chunked || length == 0 {
                break;
            }
        }
        if !close {
            self.socket = Some(socket);
        }
        Ok((status, String::from_utf8_lossy(&whole).into_owned()))
    }

    /// A streamed chat of that prompt and length; an error if it isn't whole.
    pub(crate) fn chat(&mut self, prompt: &str, tokens: u32) -> Result<(), String> {
        let (status, answer) = self.ask("POST", "/v1/chat/completions", &chat(prompt, tokens))?;
        if status != 200 {
            return Err(format!("{status}: {answer}"));
        }
        if !answer.contains("data: [DONE]") || answer.contains("\"error\"") {
            return Err(format!("a broken stream: {answer}"));
        }
        Ok(())
    }
}

/// The body of a streamed chat.
pub(crate) fn chat(prompt: &str, tokens: u32) -> String {
    format!(
        "{{\"model\":\"m\",\"stream\":true,\"max_tokens\":{tokens},\"ignore_eos\":true,\
         \"messages\":[{{\"role\":\"user\",\"content\":\"{prompt}\"}}]}}"
    )
}

/// Many clients at once.
pub(crate) struct Crowd {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    faults: Arc<Mutex<Vec<String>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Crowd {
    /// `clients` that chat without a pause: every other one in long streams, every fourth on a new connection each time.
    pub(crate) fn new(to: SocketAddr, clients: usize) -> Self {
        let (stop, answers, faults) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
            Arc::new(Mutex::new(Vec::<String>::new())),
        );
        let threads = (0..clients)
            .map(|n| {
                let (stop, answers, faults) = (stop.clone(), answers.clone(), faults.clone());
                std::thread::spawn(move || {
                    let mut client = Client::new(to);
                    let mut turn = 0;
                    while !stop.load(Relaxed) {
                        turn += 1;
                        let tokens = if n % 2 == 0 { 60 } else { 4 };
                        match client.chat(&format!("client {n} says {turn}"), tokens) {
                            Ok(()) => drop(answers.fetch_add(1, Relaxed)),
                            Err(why) => {
                                faults.lock().push(format!("client {n}, turn {turn}: {why}"));
                                client = Client::new(to);
                            }
                        }
                        if n % 4 == 3 {
                            client = Client::new(to);
                        }
                    }
                })
            })
            .collect();
        Crowd { stop, answers, faults, threads }
    }

    /// Waits for `more` answers beyond those that came so far.
    pub(crate) fn wait(&self, more: u64) {
        let from = self.answers.load(Relaxed);
        crate::process::until("answers come", || self.answers.load(Relaxed) >= from + more);
    }

    /// Ends it: how many answers came, and everything that went wrong.
    pub(crate) fn end(self) -> (u64, Vec<String>) {
        self.stop.store(true, Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        let faults = std::mem::take(&mut *self.faults.lock());
        (self.answers.load(Relaxed), faults)
    }
}
