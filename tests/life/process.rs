//! `homing serve` as a process, on sockets that it is given, with its log read along; and a simulated replica.

use crate::load::Client;
use command_fds::{CommandFdExt, FdMapping};
use homing::sim::http::{Mock, MockConfig};
use parking_lot::Mutex;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Waits for `condition`; how long it takes doesn't matter, only that it comes true.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// A simulated replica on a thread of its own; ends with the test's process.
pub(crate) fn replica() -> SocketAddr {
    let (told, at) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mock =
                Mock::start(MockConfig { models: vec!["m".into()], ..MockConfig::default() }).await.unwrap();
            told.send(mock.addr()).unwrap();
            std::future::pending::<()>().await;
        });
    });
    at.recv().unwrap()
}

/// A directory that goes away.
pub(crate) struct Dir(PathBuf);

impl Dir {
    pub(crate) fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("homing-life-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A router, and whoever took over from it.
pub(crate) struct Router {
    child: Child,
    log: Arc<Mutex<Vec<Value>>>,
    pub(crate) data: SocketAddr,
    pub(crate) metrics: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) config: PathBuf,
    /// Number of the process that serves now.
    pub(crate) pid: u32,
}

/// A configuration: that replica, an impatient watch, a short drain, and `more`.
pub(crate) fn config(replica: SocketAddr, more: &str) -> String {
    format!(
        "replicas: [{{url: 'http://{replica}'}}]\nworkers: 2\nlog: {{level: info, format: json, access: 'off'}}\n\
         health: {{interval: 100ms}}\npoll: {{interval: 250ms}}\ndrain: {{delay: 1s, grace: 30s}}\n{more}\n"
    )
}

impl Router {
    /// Starts one with this configuration, on sockets that this process has bound, and waits until it is ready.
    pub(crate) fn start(dir: &Dir, text: &str) -> Self {
        let path = dir.path("homing.yaml");
        fs::write(&path, text).unwrap();
        let names = ["data", "metrics", "admin"];
        let sockets: Vec<TcpListener> =
            names.iter().map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let at: Vec<SocketAddr> = sockets.iter().map(|s| s.local_addr().unwrap()).collect();
        let mut command = Command::new(env!("CARGO_BIN_EXE_homing"));
        command.args(["serve", "--config"]).arg(&path).stderr(Stdio::piped()).stdin(Stdio::null());
        command.env("LISTEN_FDS", "3").env("LISTEN_FDNAMES", names.join(":")).env_remove("LISTEN_PID");
        let map = |(n, s)| FdMapping { parent_fd: OwnedFd::from(s), child_fd: 3 + n };
        command.fd_mappings((0..).zip(sockets).map(map).collect()).unwrap();
        let mut child = command.spawn().unwrap();
        let (log, lines) = (Arc::new(Mutex::new(Vec::new())), BufReader::new(child.stderr.take().unwrap()));
        let out = log.clone();
        // Successors write to the same pipe.
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                out.lock().push(serde_json::from_str(&line).unwrap_or(Value::String(line)));
            }
        });
        let pid = child.id();
        let router = Router { child, log, data: at[0], metrics: at[1], admin: at[2], config: path, pid };
        until("the router is ready", || {
            matches!(Client::new(router.metrics).ask("GET", "/readyz", ""), Ok((200, _)))
        });
        router
    }

    pub(crate) fn signal(&self, name: &str) {
        let done = Command::new("kill").arg(format!("-{name}")).arg(self.pid.to_string()).status().unwrap();
        assert!(done.success());
    }

    /// Log lines with that message.
    pub(crate) fn lines(&self, message: &str) -> Vec<Value> {
        let found = |l: &&Value| l["message"].as_str().is_some_and(|m| m.contains(message));
        self.log.lock().iter().filter(found).cloned().collect()
    }

    /// Lets a successor take over, and waits until it says so.
    pub(crate) fn hand_over(&mut self) {
        let told = || self.lines("the successor serves");
        let before = told().len();
        self.signal("USR2");
        until("a successor serves", || told().len() > before);
        self.pid = u32::try_from(told()[before]["pid"].as_u64().unwrap()).unwrap();
    }

    /// What the admin port answers.
    pub(crate) fn admin(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let (status, text) = Client::new(self.admin).ask(method, path, body).unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// Blocks of that prompt that the replica is believed to hold.
    pub(crate) fn matched(&self, prompt: &str) -> u64 {
        let (status, told) = self.admin("POST", "/explain", &crate::load::chat(prompt, 4));
        assert_eq!(status, 200, "{told}");
        told["candidates"][0]["matched_blocks"].as_u64().unwrap()
    }

    /// The value of a metric, given with its labels.
    pub(crate) fn metric(&self, series: &str) -> f64 {
        let (_, page) = Client::new(self.metrics).ask("GET", "/metrics", "").unwrap();
        let value = |l: &str| l.strip_prefix(series)?.trim().parse().ok();
        page.lines().find_map(value).unwrap_or(0.0)
    }

    /// Ends the process that was started first, which must not have been handed over.
    pub(crate) fn stop(mut self) -> ExitStatus {
        self.signal("INT");
        self.child.wait().unwrap()
    }

    /// Waits for the process that was started first.
    pub(crate) fn first_ended(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        if self.child.id() == self.pid {
            let _ = self.child.kill();
            let _ = self.child.wait();
        } else {
            let _ = Command::new("kill").arg("-KILL").arg(self.pid.to_string()).status();
        }
    }
}
