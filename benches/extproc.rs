//! What the endpoint picker costs: a gRPC client as Envoy would be, and the picker's threads' CPU from the system.
//!
//! `cargo bench --bench extproc [-- latency|stream|kept|long|crowd]` – one JSON object for each. The replicas are only named: no
//! request goes anywhere, so nothing but the picker (threads `homing-epp-…`) is counted.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a benchmark that fails has failed")]

use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    HttpBody, ProcessingRequest, ProcessingResponse, ProtocolConfiguration,
};
use homing::config::{Config, ReplicaSpec};
use homing::core::health::Probe;
use homing::extproc::{ExtProc, wire};
use homing::observe::{AccessLog, Metrics};
use homing::proxy::Phase;
use homing::router::{Member, Page, Router};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tonic::Streaming;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

/// As in the binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Client = ExternalProcessorClient<Channel>;

/// Envoy's connections: one for each of its threads.
const CONNECTIONS: usize = 2;

struct Stream {
    say: mpsc::Sender<ProcessingRequest>,
    hear: Streaming<ProcessingResponse>,
}

impl Stream {
    async fn open(client: &mut Client) -> Stream {
        let (say, said) = mpsc::channel(64);
        Stream { say, hear: client.process(ReceiverStream::new(said)).await.unwrap().into_inner() }
    }

    async fn say(&self, request: Request, answer_mode: Option<i32>) {
        let protocol_config = answer_mode.map(|response_body_mode| ProtocolConfiguration {
            request_body_mode: 4,
            response_body_mode,
            ..Default::default()
        });
        let message =
            ProcessingRequest { request: Some(request), protocol_config, ..ProcessingRequest::default() };
        self.say.send(message).await.unwrap();
    }

    async fn body(&self, body: &[u8], end_of_stream: bool, answer: bool) {
        let body = HttpBody { body: body.to_vec(), end_of_stream, ..HttpBody::default() };
        self.say(if answer { Request::ResponseBody(body) } else { Request::RequestBody(body) }, None).await;
    }

    async fn hear(&mut self) -> Response {
        self.hear.message().await.unwrap().unwrap().response.unwrap()
    }

    /// The whole way in, in pieces of 16 KB as Envoy reads them, and the empty end; returns the time from the end to the choice.
    async fn go(&mut self, body: &[u8], answer_mode: i32) -> Duration {
        let head = [
            (":method", "POST"),
            (":path", "/v1/chat/completions"),
            ("content-type", "application/json"),
            (":authority", "gateway"),
            ("user-agent", "bench"),
            ("x-request-id", "00000000-0000-4000-8000-000000000000"),
        ];
        self.say(Request::RequestHeaders(wire::headers(&head, false)), Some(answer_mode)).await;
        for piece in body.chunks(16 << 10) {
            self.body(piece, false, false).await;
        }
        let begun = Instant::now();
        self.body(b"", true, false).await;
        let Response::RequestHeaders(_) = self.hear().await else { panic!("no choice") };
        let took = begun.elapsed();
        let mut left = body.len();
        while left > 0 {
            let Response::RequestBody(b) = self.hear().await else { panic!("no body") };
            left -= size(b.response);
        }
        took
    }

    async fn answer_head(&mut self, kind: &str) {
        let head = [(":status", "200"), ("content-type", kind), ("server", "uvicorn")];
        self.say(Request::ResponseHeaders(wire::headers(&head, false)), None).await;
        let Response::ResponseHeaders(_) = self.hear().await else { panic!("no headers") };
    }

    async fn answer(&mut self, piece: &[u8], end: bool) {
        self.body(piece, end, true).await;
        let Response::ResponseBody(_) = self.hear().await else { panic!("no body") };
    }
}

fn size(common: Option<envoy_types::pb::envoy::service::ext_proc::v3::CommonResponse>) -> usize {
    use envoy_types::pb::envoy::service::ext_proc::v3::body_mutation::Mutation;
    match common.unwrap().body_mutation.unwrap().mutation {
        Some(Mutation::StreamedResponse(s)) => s.body.len(),
        other => panic!("{other:?}"),
    }
}

fn picker(replicas: usize) -> (SocketAddr, Arc<Router>, watch::Sender<Phase>) {
    let mut config = Config { workers: Some(CONNECTIONS), ..Config::default() };
    config.extproc.listen = Some("127.0.0.1:0".parse().unwrap());
    config.extproc.health = None;
    config.extproc.plaintext = true;
    let router = Router::new(&config, 7);
    for n in 0..replicas {
        let spec = ReplicaSpec {
            models: Some(vec!["m".into()]),
            ..ReplicaSpec::new(format!("http://10.0.{}.{}:8000", n / 250, n % 250))
        };
        let id = router.join(Member::new(spec).unwrap()).unwrap();
        (0..2).for_each(|_| router.probe(id, Probe::Ok));
    }
    let picker =
        ExtProc::bind(&config, router.clone(), Arc::new(Metrics::new()), AccessLog::off()).unwrap().unwrap();
    let at = picker.local_addr().unwrap();
    let (phase, watching) = watch::channel(Phase::Running);
    tokio::spawn(async move { picker.run(watching).await.unwrap() });
    (at, router, phase)
}

async fn clients(at: SocketAddr) -> Vec<Client> {
    let mut all = Vec::new();
    for _ in 0..CONNECTIONS {
        all.push(ExternalProcessorClient::connect(format!("http://{at}")).await.unwrap());
    }
    all
}

/// Ticks of CPU of each of the picker's threads. By thread: those of the measurement before may be about to end.
fn cpu() -> HashMap<String, u64> {
    let mut ticks = HashMap::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let (Some(open), Some(close)) = (stat.find('('), stat.rfind(')')) else { continue };
        if stat[open + 1..close].starts_with("homing-epp") {
            let fields = stat[close + 2..].split(' ').skip(11).take(2);
            let sum = fields.flat_map(str::parse::<u64>).sum();
            ticks.insert(task.file_name().to_string_lossy().into_owned(), sum);
        }
    }
    ticks
}

/// Seconds of CPU since `before`.
fn since(before: &HashMap<String, u64>) -> f64 {
    let more = |(id, now): (&String, &u64)| now - before.get(id).copied().unwrap_or(0);
    cpu().iter().map(more).sum::<u64>() as f64 / 100.0
}

fn rss_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// A prompt of about so many tokens of four bytes.
fn prompt(tokens: usize, seed: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed as u64);
    let words = ["cache ", "router ", "prefix ", "token ", "replica ", "block ", "queue ", "worker "];
    let text: String = (0..tokens * 4 / 7).map(|_| words[rng.usize(..8)]).collect();
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{seed} {text}"}}]}}"#).into_bytes()
}

const ANSWER: &[u8] = br#"{"id":"chatcmpl-1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"a hundred tokens of text, more or less, as a chat model would say them to whoever asked it something of no great importance at all, and then some more of it until the count is about right, which takes a while longer than one would think when writing it by hand"}}],"usage":{"prompt_tokens":200,"completion_tokens":100,"total_tokens":300}}"#;

/// Open loop: `rate` requests a second for `seconds`, each by `one`.
async fn pace<F, T>(rate: f64, seconds: f64, mut one: impl FnMut(usize) -> F) -> Vec<T>
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let begun = tokio::time::Instant::now();
    let mut all = Vec::new();
    for n in 0..(rate * seconds) as usize {
        tokio::time::sleep_until(begun + Duration::from_secs_f64(n as f64 / rate)).await;
        all.push(tokio::spawn(one(n)));
    }
    let mut out = Vec::new();
    for task in all {
        out.push(task.await.unwrap());
    }
    out
}

fn share(times: &mut [Duration], p: f64) -> f64 {
    times.sort_unstable();
    times[((times.len() - 1) as f64 * p) as usize].as_secs_f64() * 1e3
}

/// 500 requests a second of 200 tokens, answers of 100 as a whole; `kept`: Envoy keeps the answers' bodies.
async fn latency(kept: bool) {
    let (at, router, _phase) = picker(if kept { 32 } else { 8 });
    // Pages that say that nothing is left to do: what is kept goes by them.
    let pages = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let idle = Page { running: Some(0), waiting: Some(0), ..Page::default() };
            router.replicas().iter().for_each(|r| router.page(r.replica, idle));
        }
    });
    let clients = clients(at).await;
    let run = |seconds: f64| {
        let clients = clients.clone();
        async move {
            pace(500.0, seconds, move |n| {
                let mut client = clients[n % CONNECTIONS].clone();
                async move {
                    let mut s = Stream::open(&mut client).await;
                    let took = s.go(&prompt(200, n % 1000), if kept { 0 } else { 4 }).await;
                    s.answer_head("application/json").await;
                    if !kept {
                        s.answer(ANSWER, false).await;
                        s.answer(b"", true).await;
                    }
                    took
                }
            })
            .await
        }
    };
    run(1.0).await;
    let before = cpu();
    let mut times = run(10.0).await;
    let used = since(&before) / times.len() as f64 * 1e6;
    let (p50, p95, p99) = (share(&mut times, 0.5), share(&mut times, 0.95), share(&mut times, 0.99));
    pages.abort();
    let name = if kept { "kept" } else { "latency" };
    println!(
        r#"{{"bench":"{name}","requests":{},"p50_ms":{p50:.3},"p95_ms":{p95:.3},"p99_ms":{p99:.3},"cpu_us":{used:.1}}}"#,
        times.len()
    );
}

/// 200 streams of 200 chunks, 20 ms apart.
async fn stream() {
    let (at, _router, _phase) = picker(8);
    let clients = clients(at).await;
    let chunk = b"data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
    const STREAMS: usize = 200;
    const CHUNKS: usize = 200;
    let mut open = Vec::new();
    for n in 0..STREAMS {
        let mut s = Stream::open(&mut clients[n % CONNECTIONS].clone()).await;
        s.go(&prompt(200, n), 4).await;
        s.answer_head("text/event-stream").await;
        open.push(s);
    }
    let before = cpu();
    let mut all = Vec::new();
    for (n, mut s) in open.into_iter().enumerate() {
        all.push(tokio::spawn(async move {
            tokio::time::sleep(Duration::from_micros(n as u64 * 100)).await;
            let mut tick = tokio::time::interval(Duration::from_millis(20));
            for _ in 0..CHUNKS {
                tick.tick().await;
                s.answer(chunk, false).await;
            }
            s
        }));
    }
    let mut open = Vec::new();
    for task in all {
        open.push(task.await.unwrap());
    }
    let used = since(&before) / (STREAMS * CHUNKS) as f64 * 1e6;
    println!(r#"{{"bench":"stream","chunks":{},"cpu_us_a_chunk":{used:.2}}}"#, STREAMS * CHUNKS);
}

/// 100 requests a second of 100,000 tokens over 100 replicas, shared prefixes among them.
async fn long() {
    let (at, _router, _phase) = picker(100);
    let clients = clients(at).await;
    let prompts: Vec<Arc<Vec<u8>>> = (0..64).map(|n| Arc::new(prompt(100_000, n))).collect();
    let before = cpu();
    let begun = Instant::now();
    let mut times = pace(100.0, 10.0, move |n| {
        let (mut client, body) = (clients[n % CONNECTIONS].clone(), prompts[n % 64].clone());
        async move {
            let mut s = Stream::open(&mut client).await;
            let took = s.go(&body, 4).await;
            s.answer_head("application/json").await;
            s.answer(ANSWER, true).await;
            took
        }
    })
    .await;
    let cores = since(&before) / begun.elapsed().as_secs_f64();
    let (p50, p95) = (share(&mut times, 0.5), share(&mut times, 0.95));
    println!(
        r#"{{"bench":"long","requests":{},"cores":{cores:.3},"p50_ms":{p50:.3},"p95_ms":{p95:.3}}}"#,
        times.len()
    );
}

/// 50 streams a second that last: memory of the picker and this client together, and CPU at rest.
async fn crowd() {
    let (at, router, _phase) = picker(100);
    let clients = clients(at).await;
    let open = pace(50.0, 30.0, move |n| {
        let mut client = clients[n % CONNECTIONS].clone();
        async move {
            let mut s = Stream::open(&mut client).await;
            s.go(&prompt(10_000, n), 4).await;
            s.answer_head("text/event-stream").await;
            s
        }
    })
    .await;
    let (before, begun) = (cpu(), Instant::now());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let idle = since(&before) / begun.elapsed().as_secs_f64();
    println!(
        r#"{{"bench":"crowd","open":{},"booked":{},"rss_mib_with_client":{},"cores_at_rest":{idle:.4}}}"#,
        open.len(),
        router.load().0,
        rss_mib()
    );
}

fn main() {
    let named: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (name, what) in [("latency", 0), ("kept", 1), ("stream", 2), ("long", 3), ("crowd", 4)] {
        if named.is_empty() || named.iter().any(|n| n == name) {
            runtime.block_on(async {
                match what {
                    0 => latency(false).await,
                    1 => latency(true).await,
                    2 => stream().await,
                    3 => long().await,
                    _ => crowd().await,
                }
            });
        }
    }
}
