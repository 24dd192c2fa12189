//! From and to Envoy's own messages.

use super::address::{Wanted, served};
use super::message::{Head, Immediate, In, Mode, Notes, Out, Set};
use super::names;
use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue, HeaderValueOption, Metadata};
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, HttpHeaders,
    ImmediateResponse, ProcessingRequest, ProcessingResponse, ProtocolConfiguration, StreamedBodyResponse,
    TrailersResponse, body_mutation,
};
use envoy_types::pb::envoy::r#type::v3::HttpStatus;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, Value};

/// What Envoy said; `None` for a message without content.
pub fn read(message: ProcessingRequest) -> Option<(In, Notes)> {
    let ProcessingRequest { metadata_context, attributes, protocol_config, request, .. } = message;
    let mut notes = Notes { modes: protocol_config.as_ref().map(modes), ..Notes::default() };
    let input = match request? {
        Request::RequestHeaders(h) => {
            notes.subset = metadata_context.as_ref().and_then(subset);
            let (head, end) = head(h);
            In::RequestHead(head, end)
        }
        Request::ResponseHeaders(h) => {
            let told = metadata_context.as_ref().and_then(who_served);
            notes.served = told.or_else(|| {
                let upstream = attributes.get(names::ATTRIBUTES)?.fields.get(names::UPSTREAM)?;
                served(text(upstream)?)
            });
            let (head, end) = head(h);
            In::ResponseHead(head, end)
        }
        Request::RequestBody(b) => In::RequestBody(b.body.into(), b.end_of_stream),
        Request::ResponseBody(b) => In::ResponseBody(b.body.into(), b.end_of_stream),
        Request::RequestTrailers(_) => In::RequestTrailers,
        Request::ResponseTrailers(_) => In::ResponseTrailers,
    };
    Some((input, notes))
}

fn head(h: HttpHeaders) -> (Head, bool) {
    let pairs = h.headers.map(|m| m.headers).unwrap_or_default();
    let pair = |v: HeaderValue| {
        let value = if v.raw_value.is_empty() { v.value.into_bytes() } else { v.raw_value };
        let mut key = v.key;
        key.make_ascii_lowercase();
        (key, value)
    };
    (Head(pairs.into_iter().map(pair).collect()), h.end_of_stream)
}

fn modes(p: &ProtocolConfiguration) -> (Mode, Mode) {
    let mode = |m: i32| match BodySendMode::try_from(m) {
        Ok(BodySendMode::None) => Mode::Withheld,
        Ok(BodySendMode::FullDuplexStreamed) => Mode::Duplex,
        _ => Mode::Other,
    };
    (mode(p.request_body_mode), mode(p.response_body_mode))
}

/// The subset, if there is one. A hint that can't be read is a subset of nothing: it must not open the door.
fn subset(m: &Metadata) -> Option<Vec<Wanted>> {
    let hint = m.filter_metadata.get(names::SUBSET_HINT)?.fields.get(names::SUBSET)?;
    Some(match hint.kind.as_ref() {
        Some(Kind::StringValue(list)) => Wanted::list(list).collect(),
        Some(Kind::ListValue(list)) => list.values.iter().filter_map(text).flat_map(Wanted::list).collect(),
        _ => Vec::new(),
    })
}

fn who_served(m: &Metadata) -> Option<std::net::SocketAddr> {
    served(text(m.filter_metadata.get(names::LB)?.fields.get(names::SERVED)?)?)
}

fn text(value: &Value) -> Option<&str> {
    match value.kind.as_ref()? {
        Kind::StringValue(s) => Some(s),
        _ => None,
    }
}

/// What is said to Envoy.
pub fn write(out: Out) -> ProcessingResponse {
    match out {
        Out::RequestHead { set, remove, destination } => {
            let mut mutation = mutation(set, remove);
            mutation.set_headers.push(option(names::DESTINATION.into(), destination.clone().into_bytes()));
            ProcessingResponse {
                response: Some(Response::RequestHeaders(HeadersResponse {
                    response: Some(CommonResponse {
                        header_mutation: Some(mutation),
                        // The route may have been chosen by what is changed here.
                        clear_route_cache: true,
                        ..CommonResponse::default()
                    }),
                })),
                dynamic_metadata: Some(metadata(destination)),
                ..ProcessingResponse::default()
            }
        }
        Out::ResponseHead { set, remove } => say(Response::ResponseHeaders(HeadersResponse {
            response: Some(CommonResponse {
                header_mutation: (!set.is_empty() || !remove.is_empty()).then(|| mutation(set, remove)),
                ..CommonResponse::default()
            }),
        })),
        Out::RequestBody(data, end) => say(Response::RequestBody(body(data, end))),
        Out::ResponseBody(data, end) => say(Response::ResponseBody(body(data, end))),
        Out::RequestTrailers => say(Response::RequestTrailers(TrailersResponse::default())),
        Out::ResponseTrailers => say(Response::ResponseTrailers(TrailersResponse::default())),
        Out::Immediate(answer) => say(Response::ImmediateResponse(immediate(*answer))),
    }
}

fn say(response: Response) -> ProcessingResponse {
    ProcessingResponse { response: Some(response), ..ProcessingResponse::default() }
}

fn body(data: Bytes, end_of_stream: bool) -> BodyResponse {
    let streamed = StreamedBodyResponse { body: data.into(), end_of_stream, ..Default::default() };
    let mutation = body_mutation::Mutation::StreamedResponse(streamed);
    BodyResponse {
        response: Some(CommonResponse {
            body_mutation: Some(BodyMutation { mutation: Some(mutation) }),
            ..CommonResponse::default()
        }),
    }
}

fn immediate(answer: Immediate) -> ImmediateResponse {
    ImmediateResponse {
        status: Some(HttpStatus { code: i32::from(answer.status) }),
        headers: Some(mutation(answer.set, Vec::new())),
        body: answer.body,
        details: answer.details.to_owned(),
        ..ImmediateResponse::default()
    }
}

fn mutation(set: Vec<Set>, remove: Vec<&'static str>) -> HeaderMutation {
    HeaderMutation {
        set_headers: set
            .into_iter()
            .map(|(name, value)| option(name.to_owned(), value.into_owned().into_bytes()))
            .collect(),
        remove_headers: remove.into_iter().map(str::to_owned).collect(),
    }
}

fn option(key: String, raw_value: Vec<u8>) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue { key, raw_value, ..HeaderValue::default() }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..HeaderValueOption::default()
    }
}

fn metadata(destination: String) -> Struct {
    let of = |key: &str, kind| Struct { fields: [(key.to_owned(), Value { kind: Some(kind) })].into() };
    of(names::LB, Kind::StructValue(of(names::DESTINATION, Kind::StringValue(destination))))
}

/// Headers as Envoy writes them, for tests.
pub fn headers(pairs: &[(&str, &str)], end_of_stream: bool) -> HttpHeaders {
    let value = |&(key, value): &(&str, &str)| HeaderValue {
        key: key.to_owned(),
        raw_value: value.as_bytes().to_vec(),
        ..HeaderValue::default()
    };
    HttpHeaders {
        headers: Some(HeaderMap { headers: pairs.iter().map(value).collect() }),
        end_of_stream,
        ..HttpHeaders::default()
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
