//! Envoy's messages, read and written.

use super::*;
use envoy_types::pb::envoy::service::ext_proc::v3::HttpBody;
use envoy_types::pb::google::protobuf::ListValue;

fn string(s: &str) -> Value {
    Value { kind: Some(Kind::StringValue(s.into())) }
}

fn context(namespace: &str, key: &str, value: Value) -> Option<Metadata> {
    let inner = Struct { fields: [(key.to_owned(), value)].into() };
    Some(Metadata { filter_metadata: [(namespace.to_owned(), inner)].into(), ..Metadata::default() })
}

fn request(context: Option<Metadata>) -> ProcessingRequest {
    ProcessingRequest {
        metadata_context: context,
        request: Some(Request::RequestHeaders(headers(&[(":path", "/")], true))),
        ..ProcessingRequest::default()
    }
}

fn subset_of(value: Value) -> Option<Vec<Wanted>> {
    read(request(context(names::SUBSET_HINT, names::SUBSET, value))).unwrap().1.subset
}

#[test]
fn a_subset_is_a_list_or_a_string_and_never_fails_open() {
    let wanted = |s| Wanted::parse(s).unwrap();
    let list = |v: Vec<Value>| Value { kind: Some(Kind::ListValue(ListValue { values: v })) };
    let both = vec![wanted("10.0.0.1:80"), wanted("[fd00::1]:81")];
    assert_eq!(subset_of(list(vec![string("10.0.0.1:80"), string("[fd00::1]:81")])), Some(both.clone()));
    assert_eq!(subset_of(string("10.0.0.1:80, [fd00::1]:81")), Some(both));
    for closed in [list(vec![]), string(""), string("nonsense"), Value { kind: Some(Kind::NumberValue(1.0)) }]
    {
        assert_eq!(subset_of(closed), Some(vec![]));
    }
    assert_eq!(subset_of(Value::default()), Some(vec![]));
    assert_eq!(read(request(None)).unwrap().1.subset, None);
    assert_eq!(
        read(request(context(names::LB, names::SUBSET, string("10.0.0.1:80")))).unwrap().1.subset,
        None
    );
}

#[test]
fn raw_values_win_and_keys_are_lower_case() {
    let pair = |key: &str, value: &str, raw: &[u8]| HeaderValue {
        key: key.into(),
        value: value.into(),
        raw_value: raw.into(),
    };
    let headers = vec![pair("X-A", "old", b"new"), pair("x-b", "only", b"")];
    let h = HttpHeaders { headers: Some(HeaderMap { headers }), ..HttpHeaders::default() };
    let message = ProcessingRequest { request: Some(Request::RequestHeaders(h)), ..Default::default() };
    let Some((In::RequestHead(head, false), _)) = read(message) else { panic!("a head") };
    assert_eq!((head.get("x-a"), head.get("x-b")), (Some(&b"new"[..]), Some(&b"only"[..])));
}

#[test]
fn who_served_comes_from_metadata_or_else_from_the_attribute() {
    let answer = |context, attribute: Option<&str>| {
        let fields = attribute.map(|a| (names::UPSTREAM.to_owned(), string(a)));
        let attributes = Struct { fields: fields.into_iter().collect() };
        let message = ProcessingRequest {
            metadata_context: context,
            attributes: [(names::ATTRIBUTES.to_owned(), attributes)].into(),
            request: Some(Request::ResponseHeaders(headers(&[(":status", "200")], false))),
            ..ProcessingRequest::default()
        };
        read(message).unwrap().1.served.map(|a| a.to_string())
    };
    let told = context(names::LB, names::SERVED, string("10.0.0.1:80"));
    assert_eq!(answer(told, Some("10.0.0.2:80")).as_deref(), Some("10.0.0.1:80"));
    assert_eq!(answer(None, Some("[fd00::1]:80")).as_deref(), Some("[fd00::1]:80"));
    assert_eq!(answer(None, None), None);
}

#[test]
fn the_destination_is_the_same_in_header_and_metadata() {
    let destination = "10.0.0.1:80,[fd00::1]:81".to_owned();
    let out = write(Out::RequestHead {
        set: vec![("content-length", "5".into())],
        remove: vec!["accept-encoding"],
        destination: destination.clone(),
    });
    let Some(Response::RequestHeaders(h)) = out.response else { panic!("headers") };
    let common = h.response.unwrap();
    assert!(common.clear_route_cache);
    let mutation = common.header_mutation.unwrap();
    assert_eq!(mutation.remove_headers, ["accept-encoding"]);
    for option in &mutation.set_headers {
        assert_eq!(option.append_action, HeaderAppendAction::OverwriteIfExistsOrAdd as i32);
        assert!(option.header.as_ref().unwrap().value.is_empty(), "only one of the two may be set");
    }
    let set = |name: &str| {
        let found = mutation.set_headers.iter().filter_map(|o| o.header.as_ref()).find(|h| h.key == name);
        found.map(|h| String::from_utf8(h.raw_value.clone()).unwrap())
    };
    assert_eq!(
        (set(names::DESTINATION), set("content-length")),
        (Some(destination.clone()), Some("5".into()))
    );
    let metadata = out.dynamic_metadata.unwrap();
    let Some(Kind::StructValue(inner)) = &metadata.fields[names::LB].kind else { panic!("a struct") };
    assert_eq!(inner.fields[names::DESTINATION], string(&destination));
}

#[test]
fn bodies_modes_and_empty_messages() {
    let body = HttpBody { body: b"x".to_vec(), end_of_stream: true, ..HttpBody::default() };
    let config = ProtocolConfiguration { request_body_mode: 4, response_body_mode: 0, ..Default::default() };
    let message = ProcessingRequest {
        protocol_config: Some(config),
        request: Some(Request::ResponseBody(body)),
        ..ProcessingRequest::default()
    };
    let (input, notes) = read(message).unwrap();
    assert_eq!(input, In::ResponseBody(Bytes::from_static(b"x"), true));
    assert_eq!(notes.modes, Some((Mode::Duplex, Mode::Withheld)));
    assert!(read(ProcessingRequest::default()).is_none());
    let Some(Response::ResponseBody(out)) = write(Out::ResponseBody(Bytes::from_static(b"y"), true)).response
    else {
        panic!("a body")
    };
    let Some(body_mutation::Mutation::StreamedResponse(streamed)) =
        out.response.unwrap().body_mutation.unwrap().mutation
    else {
        panic!("a streamed body")
    };
    assert_eq!((streamed.body.as_slice(), streamed.end_of_stream), (&b"y"[..], true));
}
