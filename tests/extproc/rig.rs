//! A router, its endpoint picker, and an Envoy of few words.

use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::envoy::service::ext_proc::v3::body_mutation::Mutation;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    CommonResponse, HttpBody, HttpTrailers, ImmediateResponse, ProcessingRequest, ProcessingResponse,
    ProtocolConfiguration,
};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{ListValue, Struct, Value};
use homing::config::{Config, ReplicaSpec, Seconds};
use homing::core::ReplicaId;
use homing::core::health::Probe;
use homing::extproc::{ExtProc, wire};
use homing::observe::{AccessLog, Metrics};
use homing::proxy::Phase;
use homing::router::{Member, Router};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

pub(crate) const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;

/// What runs.
pub(crate) struct Rig {
    pub(crate) addr: SocketAddr,
    pub(crate) health: SocketAddr,
    pub(crate) router: Arc<Router>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) ids: Vec<ReplicaId>,
    pub(crate) phase: watch::Sender<Phase>,
    pub(crate) ended: JoinHandle<()>,
}

impl Rig {
    /// A picker before replicas at 10.0.0.1:8000, 10.0.0.2:8000 and so on, which are only ever named.
    pub(crate) async fn start(n: usize) -> Rig {
        Rig::with(n, |_| {}).await
    }

    pub(crate) async fn with(n: usize, tweak: impl FnOnce(&mut Config)) -> Rig {
        let url = |i: usize| format!("http://10.0.0.{}:8000", i + 1);
        Rig::of((0..n).map(|i| ReplicaSpec::new(url(i))).collect(), tweak)
    }

    pub(crate) fn of(replicas: Vec<ReplicaSpec>, tweak: impl FnOnce(&mut Config)) -> Rig {
        let mut config = Config { workers: Some(2), ..Config::default() };
        config.health.slow_start = Seconds::from_secs(0);
        config.extproc.listen = Some("127.0.0.1:0".parse().unwrap());
        config.extproc.health = Some("127.0.0.1:0".parse().unwrap());
        config.extproc.plaintext = true;
        tweak(&mut config);
        let router = Router::new(&config, 7);
        let mut ids = Vec::new();
        for mut spec in replicas {
            spec.models.get_or_insert_with(|| vec!["m".into(), "m-v2".into()]);
            let id = router.join(Member::new(spec).unwrap()).unwrap();
            for _ in 0..config.health.recover_after.max(1) {
                router.probe(id, Probe::Ok);
            }
            ids.push(id);
        }
        let metrics = Arc::new(Metrics::new());
        let picker =
            ExtProc::bind(&config, router.clone(), metrics.clone(), AccessLog::off()).unwrap().unwrap();
        let (addr, health) = (picker.local_addr().unwrap(), picker.health_addr().unwrap());
        let (phase, watching) = watch::channel(Phase::Running);
        let ended = tokio::spawn(async move { picker.run(watching).await.unwrap() });
        Rig { addr, health, router, metrics, ids, phase, ended }
    }

    pub(crate) async fn client(&self) -> ExternalProcessorClient<Channel> {
        ExternalProcessorClient::connect(format!("http://{}", self.addr)).await.unwrap()
    }

    /// A stream on a connection of its own.
    pub(crate) async fn stream(&self) -> Envoy {
        Envoy::on(&mut self.client().await).await
    }

    pub(crate) async fn quiet(&self) {
        eventually("nothing in flight", || self.router.load() == (0, 0)).await;
    }

    pub(crate) fn in_flight(&self, n: usize) -> u32 {
        let id = self.ids[n];
        self.router.replicas().into_iter().find(|r| r.replica == id).unwrap().in_flight
    }

    pub(crate) fn metric(&self, series: &str) -> f64 {
        let page = self.metrics.render();
        let line = page.lines().find(|l| l.starts_with(series));
        line.and_then(|l| l.rsplit(' ').next()).map_or(0.0, |v| v.parse().unwrap())
    }
}

/// Resolves when `what` is so. How long that takes doesn't matter, only that it comes true.
pub(crate) async fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !so() {
        assert!(Instant::now() < end, "waited for: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// One stream, from Envoy's side.
pub(crate) struct Envoy {
    say: Option<mpsc::Sender<ProcessingRequest>>,
    hear: Streaming<ProcessingResponse>,
    first: bool,
    pub(crate) modes: Option<(i32, i32)>,
}

/// Where a request was sent.
#[derive(Debug)]
pub(crate) struct Picked {
    pub(crate) destination: String,
    pub(crate) common: CommonResponse,
}

impl Picked {
    pub(crate) fn set(&self, name: &str) -> Option<String> {
        let set = &self.common.header_mutation.as_ref()?.set_headers;
        let header = set.iter().filter_map(|o| o.header.as_ref()).find(|h| h.key == name)?;
        Some(String::from_utf8(header.raw_value.clone()).unwrap())
    }
}

impl Envoy {
    pub(crate) async fn on(client: &mut ExternalProcessorClient<Channel>) -> Envoy {
        let (say, said) = mpsc::channel(64);
        let hear = client.process(ReceiverStream::new(said)).await.unwrap().into_inner();
        Envoy { say: Some(say), hear, first: true, modes: Some((4, 4)) }
    }

    pub(crate) async fn say(&mut self, context: Option<Metadata>, request: Request) {
        let modes = self.modes.filter(|_| std::mem::replace(&mut self.first, false));
        let message = ProcessingRequest {
            metadata_context: context,
            protocol_config: modes.map(|(request_body_mode, response_body_mode)| ProtocolConfiguration {
                request_body_mode,
                response_body_mode,
                ..ProtocolConfiguration::default()
            }),
            request: Some(request),
            ..ProcessingRequest::default()
        };
        // A stream that the picker has ended takes nothing more.
        let _ = self.say.as_ref().unwrap().send(message).await;
    }

    pub(crate) async fn head(&mut self, context: Option<Metadata>, pairs: &[(&str, &str)], end: bool) {
        self.say(context, Request::RequestHeaders(wire::headers(pairs, end))).await;
    }

    pub(crate) async fn post(&mut self, context: Option<Metadata>, more: &[(&str, &str)], body: &str) {
        let mut pairs = vec![
            (":method", "POST"),
            (":path", "/v1/chat/completions"),
            ("content-type", "application/json"),
        ];
        pairs.extend_from_slice(more);
        self.head(context, &pairs, false).await;
        self.body(body.as_bytes(), true).await;
    }

    pub(crate) async fn body(&mut self, body: &[u8], end_of_stream: bool) {
        let body = HttpBody { body: body.to_vec(), end_of_stream, ..HttpBody::default() };
        self.say(None, Request::RequestBody(body)).await;
    }

    pub(crate) async fn answer_head(&mut self, context: Option<Metadata>, pairs: &[(&str, &str)]) {
        self.say(context, Request::ResponseHeaders(wire::headers(pairs, false))).await;
    }

    pub(crate) async fn answer_body(&mut self, body: &str, end_of_stream: bool) {
        let body = HttpBody { body: body.into(), end_of_stream, ..HttpBody::default() };
        self.say(None, Request::ResponseBody(body)).await;
    }

    pub(crate) async fn answer_trailers(&mut self) {
        self.say(None, Request::ResponseTrailers(HttpTrailers::default())).await;
    }

    pub(crate) async fn hear(&mut self) -> Option<ProcessingResponse> {
        self.hear.message().await.unwrap()
    }

    pub(crate) async fn fails(&mut self) -> Status {
        loop {
            match self.hear.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("ended well"),
                Err(status) => return status,
            }
        }
    }

    /// The headers with the choice, the same in header and metadata.
    pub(crate) async fn picked(&mut self) -> Picked {
        let out = self.hear().await.expect("a choice");
        let Some(Response::RequestHeaders(h)) = out.response else { panic!("{out:?}") };
        let common = h.response.unwrap();
        assert!(common.clear_route_cache);
        let Some(Kind::StructValue(lb)) = &out.dynamic_metadata.unwrap().fields["envoy.lb"].kind else {
            panic!("metadata")
        };
        let Some(Kind::StringValue(told)) = &lb.fields["x-gateway-destination-endpoint"].kind else {
            panic!("text")
        };
        let picked = Picked { destination: told.clone(), common };
        assert_eq!(picked.set("x-gateway-destination-endpoint").as_ref(), Some(told));
        picked
    }

    /// The request's body up to its end.
    pub(crate) async fn passed_on(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let out = self.hear().await.expect("a body");
            let Some(Response::RequestBody(b)) = out.response else { panic!("{out:?}") };
            if streamed(b.response, &mut all) {
                return all;
            }
        }
    }

    /// The answer's headers.
    pub(crate) async fn answered(&mut self) -> CommonResponse {
        let out = self.hear().await.expect("headers");
        let Some(Response::ResponseHeaders(h)) = out.response else { panic!("{out:?}") };
        h.response.unwrap()
    }

    /// The answer's body as far as `bytes` go, or to its end.
    pub(crate) async fn passed_back(&mut self, bytes: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < bytes {
            let out = self.hear().await.expect("a body");
            let Some(Response::ResponseBody(b)) = out.response else { panic!("{out:?}") };
            if streamed(b.response, &mut all) {
                break;
            }
        }
        all
    }

    pub(crate) async fn refused(&mut self) -> ImmediateResponse {
        let out = self.hear().await.expect("an answer");
        let Some(Response::ImmediateResponse(no)) = out.response else { panic!("{out:?}") };
        assert!(self.hear().await.is_none(), "nothing follows");
        no
    }

    /// A whole chat request and where it went.
    pub(crate) async fn chat(&mut self, body: &str) -> Picked {
        self.post(None, &[], body).await;
        let picked = self.picked().await;
        assert_eq!(self.passed_on().await, body.as_bytes());
        picked
    }

    /// A whole answer of no interest.
    pub(crate) async fn finish(&mut self) {
        self.answer_head(None, &[(":status", "200"), ("content-type", "application/json")]).await;
        self.answered().await;
        self.answer_body("{}", true).await;
        assert_eq!(self.passed_back(usize::MAX).await, b"{}");
    }

    /// Envoy has nothing more to say; the picker ends the stream.
    pub(crate) async fn close(mut self) {
        self.say = None;
        while let Ok(Some(_)) = self.hear.message().await {}
    }
}

fn streamed(common: Option<CommonResponse>, all: &mut Vec<u8>) -> bool {
    let Some(Mutation::StreamedResponse(s)) = common.unwrap().body_mutation.unwrap().mutation else {
        panic!("not streamed")
    };
    assert!(s.body.len() <= 62_000);
    all.extend(s.body);
    s.end_of_stream
}

pub(crate) fn header(no: &ImmediateResponse, name: &str) -> Option<String> {
    let set = &no.headers.as_ref()?.set_headers;
    let header = set.iter().filter_map(|o| o.header.as_ref()).find(|h| h.key == name)?;
    Some(String::from_utf8(header.raw_value.clone()).unwrap())
}

fn context(namespace: &str, key: &str, kind: Kind) -> Option<Metadata> {
    let inner = Struct { fields: [(key.to_owned(), Value { kind: Some(kind) })].into() };
    Some(Metadata { filter_metadata: [(namespace.to_owned(), inner)].into(), ..Metadata::default() })
}

/// A subset as a list.
pub(crate) fn subset(of: &[&str]) -> Option<Metadata> {
    let text = |s: &&str| Value { kind: Some(Kind::StringValue((*s).into())) };
    let list = ListValue { values: of.iter().map(text).collect() };
    context("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", Kind::ListValue(list))
}

/// A subset as a string.
pub(crate) fn subset_text(of: &str) -> Option<Metadata> {
    context("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", Kind::StringValue(of.into()))
}

/// Who served.
pub(crate) fn served(by: &str) -> Option<Metadata> {
    context("envoy.lb", "x-gateway-destination-endpoint-served", Kind::StringValue(by.into()))
}
