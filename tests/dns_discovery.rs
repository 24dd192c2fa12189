//! DNS discovery against a name server of our own: times to live, failures, empty answers, services.

#![expect(clippy::unwrap_used, reason = "tests")]

mod watch_double;

use homing::config::{Config, Dns, DnsName, Seconds};
use homing::discovery::Discovery;
use homing::observe::{Loud, Metrics};
use homing::router::Router;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;
use watch_double::until;

const A: u16 = 1;
const AAAA: u16 = 28;
const SRV: u16 = 33;

/// One record: its time to live and its data.
type Record = (u32, Vec<u8>);

/// What the server does with questions.
#[derive(Default)]
struct Script {
    records: BTreeMap<(String, u16), Vec<Record>>,
    /// Names that exist, with or without records.
    names: Vec<String>,
    /// Answer all with this code (2: failure, 3: no such name).
    code: Option<u8>,
    silent: bool,
    asked: usize,
}

struct Server {
    addr: SocketAddr,
    script: Arc<Mutex<Script>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    async fn start() -> Self {
        let socket = UdpSocket::bind(("127.0.0.1", 0)).await.unwrap();
        let addr = socket.local_addr().unwrap();
        let script = Arc::new(Mutex::new(Script::default()));
        let shared = script.clone();
        let task = tokio::spawn(async move {
            let mut buffer = [0; 1500];
            loop {
                let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
                let answer = shared.lock().answer(&buffer[..length]);
                if let Some(answer) = answer {
                    socket.send_to(&answer, from).await.unwrap();
                }
            }
        });
        Server { addr, script, task }
    }

    fn addresses(&self, name: &str, ttl: u32, list: &[&str]) {
        let mut s = self.script.lock();
        for kind in [A, AAAA] {
            let of_kind =
                list.iter().map(|ip| ip.parse::<IpAddr>().unwrap()).filter(|ip| ip.is_ipv4() == (kind == A));
            let data = of_kind.map(|ip| match ip {
                IpAddr::V4(ip) => (ttl, ip.octets().to_vec()),
                IpAddr::V6(ip) => (ttl, ip.octets().to_vec()),
            });
            s.records.insert((name.to_owned(), kind), data.collect());
        }
        s.names.push(name.to_owned());
    }

    fn service(&self, name: &str, targets: &[(&str, u16)]) {
        let data = targets.iter().map(|(target, port)| {
            let mut data = [0u16, 1, *port].iter().flat_map(|n| n.to_be_bytes()).collect::<Vec<u8>>();
            data.extend(encoded(target));
            (0, data)
        });
        let mut s = self.script.lock();
        s.records.insert((name.to_owned(), SRV), data.collect());
        s.names.push(name.to_owned());
    }

    fn fails(&self, code: Option<u8>) {
        self.script.lock().code = code;
    }

    fn silent(&self, silent: bool) {
        self.script.lock().silent = silent;
    }

    fn asked(&self) -> usize {
        self.script.lock().asked
    }

    /// Waits until that many further questions came.
    async fn until_asked(&self, more: usize) {
        let before = self.asked();
        until("it was asked", || self.asked() >= before + more).await;
    }
}

fn encoded(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for label in name.split('.').filter(|l| !l.is_empty()) {
        out.push(u8::try_from(label.len()).unwrap());
        out.extend(label.as_bytes());
    }
    out.push(0);
    out
}

impl Script {
    /// RFC 1035, as much of it as a resolver needs.
    fn answer(&mut self, question: &[u8]) -> Option<Vec<u8>> {
        self.asked += 1;
        if self.silent {
            return None;
        }
        let mut at = 12;
        let mut labels = Vec::new();
        while question[at] > 0 {
            let end = at + 1 + usize::from(question[at]);
            labels.push(String::from_utf8(question[at + 1..end].to_vec()).unwrap());
            at = end;
        }
        let end = at + 5;
        let kind = u16::from_be_bytes([question[at + 1], question[at + 2]]);
        let name = labels.join(".").to_lowercase();
        let known = self.names.contains(&name);
        let code = self.code.unwrap_or(if known { 0 } else { 3 });
        let none = Vec::new();
        let records = if code == 0 { self.records.get(&(name, kind)).unwrap_or(&none) } else { &none };
        let mut out = question[..2].to_vec();
        // An answer, authoritative, recursion available.
        out.extend([0x85, 0x80 | code, 0, 1]);
        out.extend(u16::try_from(records.len()).unwrap().to_be_bytes());
        out.extend([0; 4]);
        out.extend(&question[12..end]);
        for (ttl, data) in records {
            // The name is that of the question.
            out.extend([0xc0, 12]);
            out.extend(kind.to_be_bytes());
            out.extend([0, 1]);
            out.extend(ttl.to_be_bytes());
            out.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
            out.extend(data);
        }
        Some(out)
    }
}

struct Scene {
    router: Arc<Router>,
    loud: Loud,
    _discovery: Discovery,
}

impl Scene {
    fn new(server: &Server, names: &[(&str, Option<u16>)], edit: impl FnOnce(&mut Dns)) -> Self {
        let names =
            names.iter().map(|(name, port)| DnsName { name: (*name).to_owned(), port: *port }).collect();
        let mut dns = Dns {
            names,
            servers: vec![server.addr],
            min_ttl: Seconds::from_millis(5),
            max_ttl: Seconds::from_millis(20),
            grace: Seconds::from_millis(20),
            timeout: Seconds::from_millis(500),
        };
        edit(&mut dns);
        let config = Config { dns, ..Config::default() };
        assert!(!config.validate().has_errors(), "{}", config.validate());
        let router = Router::new(&config, 1);
        let loud = Loud::new(Arc::new(Metrics::new()));
        let discovery = Discovery::start(&config, router.clone(), &loud, Duration::from_millis(10)).unwrap();
        Scene { router, loud, _discovery: discovery }
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.router.replicas().into_iter().map(|v| v.name).collect();
        names.sort();
        names
    }

    async fn until_names(&self, names: &[&str]) {
        until(&format!("the fleet is {names:?}"), || self.names() == names).await;
    }

    fn trouble(&self) -> Option<String> {
        self.loud.degradations().into_iter().find(|d| d.what == "dns").map(|d| d.detail)
    }
}

#[tokio::test]
async fn addresses_of_both_families_join_and_leave() {
    let server = Server::start().await;
    server.addresses("vllm.ns.svc", 0, &["10.0.0.1", "10.0.0.2", "fd00::1"]);
    let scene = Scene::new(&server, &[("vllm.ns.svc", Some(8000))], |_| {});
    scene.until_names(&["10.0.0.1:8000", "10.0.0.2:8000", "[fd00::1]:8000"]).await;
    server.addresses("vllm.ns.svc", 0, &["10.0.0.2", "10.0.0.3"]);
    scene.until_names(&["10.0.0.2:8000", "10.0.0.3:8000"]).await;
    assert_eq!(scene.trouble(), None);
}

#[tokio::test]
async fn failures_change_nothing_and_are_told() {
    let server = Server::start().await;
    server.addresses("vllm", 0, &["10.0.0.1"]);
    let scene = Scene::new(&server, &[("vllm", Some(80))], |d| {
        d.timeout = Seconds::from_millis(30);
        d.grace = Seconds::default();
    });
    scene.until_names(&["10.0.0.1:80"]).await;
    // No such name, the server's failure, no answer at all: for longer than any grace.
    for break_it in
        [|s: &Server| s.fails(Some(3)), |s: &Server| s.fails(Some(2)), |s: &Server| s.silent(true)]
    {
        break_it(&server);
        until("it is told", || scene.trouble().is_some()).await;
        server.until_asked(6).await;
        assert_eq!(scene.names(), ["10.0.0.1:80"], "{:?}", scene.trouble());
        server.fails(None);
        server.silent(false);
        until("it is over", || scene.trouble().is_none()).await;
    }
    server.addresses("vllm", 0, &["10.0.0.9"]);
    scene.until_names(&["10.0.0.9:80"]).await;
}

#[tokio::test]
async fn an_empty_answer_removes_after_the_grace() {
    let server = Server::start().await;
    server.addresses("vllm", 0, &["10.0.0.1"]);
    let scene = Scene::new(&server, &[("vllm", Some(80))], |d| d.grace = Seconds::from_secs(3600));
    scene.until_names(&["10.0.0.1:80"]).await;
    server.addresses("vllm", 0, &[]);
    server.until_asked(8).await;
    assert_eq!((scene.names().len(), scene.trouble()), (1, None), "within the grace");
    let short = Scene::new(&server, &[("vllm", Some(80))], |_| {});
    server.addresses("vllm", 0, &["10.0.0.1"]);
    short.until_names(&["10.0.0.1:80"]).await;
    server.addresses("vllm", 0, &[]);
    short.until_names(&[]).await;
    assert_eq!(scene.names().len(), 1);
}

#[tokio::test]
async fn an_answer_is_believed_for_its_time_to_live_within_bounds() {
    let server = Server::start().await;
    server.addresses("vllm", 3600, &["10.0.0.1"]);
    // An hour, says the answer; an hour is also the ceiling here: nobody asks again.
    let believer = Scene::new(&server, &[("vllm", Some(80))], |d| d.max_ttl = Seconds::from_secs(3600));
    believer.until_names(&["10.0.0.1:80"]).await;
    let asked = server.asked();
    assert_eq!(asked, 2, "one question for each family");
    // The ceiling brings the next one on.
    let doubter = Scene::new(&server, &[("vllm", Some(80))], |_| {});
    doubter.until_names(&["10.0.0.1:80"]).await;
    server.addresses("vllm", 3600, &["10.0.0.2"]);
    doubter.until_names(&["10.0.0.2:80"]).await;
    assert_eq!(believer.names(), ["10.0.0.1:80"]);
    // The floor holds a time to live of nothing off.
    let zero = Server::start().await;
    zero.addresses("vllm", 0, &["10.0.0.1"]);
    let patient = Scene::new(&zero, &[("vllm", Some(80))], |d| {
        (d.min_ttl, d.max_ttl) = (Seconds::from_secs(3600), Seconds::from_secs(3600));
    });
    patient.until_names(&["10.0.0.1:80"]).await;
    server.until_asked(10).await;
    assert_eq!(zero.asked(), 2);
}

#[tokio::test]
async fn services_say_their_ports() {
    let server = Server::start().await;
    server.addresses("a.vllm.ns.svc", 0, &["10.0.0.1"]);
    server.addresses("b.vllm.ns.svc", 0, &["10.0.0.2", "fd00::2"]);
    let service = "_http._tcp.vllm.ns.svc";
    server.service(service, &[("a.vllm.ns.svc", 8000), ("b.vllm.ns.svc", 8001)]);
    let scene = Scene::new(&server, &[(service, None)], |_| {});
    scene.until_names(&["10.0.0.1:8000", "10.0.0.2:8001", "[fd00::2]:8001"]).await;
    server.service(service, &[("a.vllm.ns.svc", 9000), (".", 0)]);
    scene.until_names(&["10.0.0.1:9000"]).await;
}

#[tokio::test]
async fn a_name_that_is_not_there_does_not_hide_the_others() {
    let server = Server::start().await;
    server.addresses("one", 0, &["10.0.0.1"]);
    let scene = Scene::new(&server, &[("one", Some(80)), ("two", Some(80))], |_| {});
    scene.until_names(&["10.0.0.1:80"]).await;
    until("the one that isn't there is told", || scene.trouble().is_some_and(|t| t.starts_with("two: ")))
        .await;
    server.addresses("two", 0, &["10.0.0.2"]);
    scene.until_names(&["10.0.0.1:80", "10.0.0.2:80"]).await;
    until("no longer", || scene.trouble().is_none()).await;
}
