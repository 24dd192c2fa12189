//! Which headers pass, in each direction.
//!
//! Everything passes but: what belongs to one connection only (RFC 9110, section 7.6.1, and what `Connection` names),
//! what the replica needs in its own form (host, key, length), and what steers this router.

use crate::router::Endpoint;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use std::time::Duration;

/// Carries a request's identity; kept from the client if it is sane, else made here.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Tells a proxy in front (nginx) not to hold a stream back.
pub(super) const NO_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
/// A client that sends it with `1` is told which replica answered and why.
pub(super) const EXPLAIN: HeaderName = HeaderName::from_static("x-homing-explain");

/// How soon the request should go, where that is believed.
pub(super) const PRIORITY: HeaderName = HeaderName::from_static("x-homing-priority");
/// Whose request it is, where that is believed.
pub(super) const TENANT: HeaderName = HeaderName::from_static("x-homing-tenant");

/// Prefix of headers that steer this router; they end here.
const OURS: &str = "x-homing-";

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Belongs to one connection.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    [
        header::CONNECTION,
        header::TRANSFER_ENCODING,
        header::TE,
        header::TRAILER,
        header::UPGRADE,
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        KEEP_ALIVE,
        PROXY_CONNECTION,
        HTTP2_SETTINGS,
    ]
    .contains(name)
}

/// Is `name` listed in a `Connection` header?
fn named_by_connection(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.get_all(header::CONNECTION).iter().any(|value| {
        value
            .as_bytes()
            .split(|b| *b == b',')
            .any(|t| t.trim_ascii().eq_ignore_ascii_case(name.as_str().as_bytes()))
    })
}

/// Does `Connection` name anything beyond how long the connection lives?
fn connection_names_headers(headers: &HeaderMap) -> bool {
    headers.get_all(header::CONNECTION).iter().any(|value| {
        value.as_bytes().split(|b| *b == b',').any(|token| {
            let token = token.trim_ascii();
            !token.eq_ignore_ascii_case(b"keep-alive") && !token.eq_ignore_ascii_case(b"close")
        })
    })
}

/// The headers of a request as `endpoint` gets them. `plain` drops `Accept-Encoding`: the answer has to be read here.
/// The length is left to whoever sends the body.
pub(super) fn to_replica(
    client: &HeaderMap,
    endpoint: &Endpoint,
    request_id: &HeaderValue,
    plain: bool,
) -> HeaderMap {
    let mut out = HeaderMap::with_capacity(client.len() + endpoint.extra_headers.len() + 4);
    out.insert(header::HOST, endpoint.authority.clone());
    let named = connection_names_headers(client);
    for (name, value) in client {
        let drop = is_hop_by_hop(name)
            || *name == header::HOST
            || *name == header::CONTENT_LENGTH
            || *name == header::EXPECT
            || *name == REQUEST_ID
            || (plain && *name == header::ACCEPT_ENCODING)
            || (*name == header::AUTHORIZATION && endpoint.authorization.is_some())
            || name.as_str().starts_with(OURS)
            || (named && named_by_connection(client, name));
        if !drop {
            out.append(name.clone(), value.clone());
        }
    }
    if let Some(key) = &endpoint.authorization {
        out.insert(header::AUTHORIZATION, key.clone());
    }
    out.insert(REQUEST_ID, request_id.clone());
    for (name, value) in &endpoint.extra_headers {
        out.insert(name.clone(), value.clone());
    }
    out
}

/// Makes a replica's headers those of the answer to a client.
pub(super) fn to_client(headers: &mut HeaderMap, request_id: &HeaderValue) {
    if connection_names_headers(headers) {
        let named: Vec<HeaderName> =
            headers.keys().filter(|n| named_by_connection(headers, n)).cloned().collect();
        for name in named {
            headers.remove(name);
        }
    }
    for name in [header::CONNECTION, header::TRANSFER_ENCODING, header::TRAILER, header::UPGRADE, KEEP_ALIVE]
    {
        headers.remove(name);
    }
    headers.remove(PROXY_CONNECTION);
    headers.insert(REQUEST_ID, request_id.clone());
}

/// A replica may ask for more patience than clients should have.
pub(super) fn cap_retry_after(headers: &mut HeaderMap, max: Duration) {
    if retry_after(headers).is_some_and(|seconds| seconds > max.as_secs()) {
        headers.insert(header::RETRY_AFTER, max.as_secs().into());
    }
}

/// `Retry-After` in seconds. A date isn't read: no model server sends one.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()
}

/// Is the answer a stream of server-sent events?
pub(super) fn is_event_stream(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|v| {
        let v = v.as_bytes();
        v.len() >= 17 && v[..17].eq_ignore_ascii_case(b"text/event-stream")
    })
}

/// Can the body be read as it is, or is it compressed?
pub(super) fn is_plain(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_ENCODING).is_none_or(|v| v.as_bytes().eq_ignore_ascii_case(b"identity"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, ReplicaSpec, Secret};
    use crate::router::{Member, Router};
    use std::sync::Arc;

    fn endpoint(key: Option<&str>) -> Arc<Endpoint> {
        let spec = ReplicaSpec {
            api_key: key.map(Secret::new),
            headers: [("x-extra".to_owned(), Secret::new("e"))].into(),
            ..ReplicaSpec::new("http://10.0.0.1:8000")
        };
        let router = Router::new(&Config::default(), 1);
        router.join(Member::new(spec).unwrap()).unwrap();
        router.endpoints().remove(0)
    }

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn what_belongs_to_the_clients_connection_stays_here() {
        let client = map(&[
            ("host", "router"),
            ("connection", "keep-alive, X-Private"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("expect", "100-continue"),
            ("content-length", "3"),
            ("x-homing-priority", "9"),
            ("x-request-id", "theirs"),
            ("user-agent", "u"),
            ("x-custom", "one"),
            ("x-custom", "two"),
            ("traceparent", "t"),
            ("accept-encoding", "gzip"),
            ("authorization", "Bearer client"),
        ]);
        let out = to_replica(&client, &endpoint(None), &HeaderValue::from_static("id"), false);
        let expected = map(&[
            ("host", "10.0.0.1:8000"),
            ("user-agent", "u"),
            ("x-custom", "one"),
            ("x-custom", "two"),
            ("traceparent", "t"),
            ("accept-encoding", "gzip"),
            ("authorization", "Bearer client"),
            ("x-request-id", "id"),
            ("x-extra", "e"),
        ]);
        assert_eq!(out, expected);
    }

    #[test]
    fn the_replicas_key_replaces_the_clients() {
        let client = map(&[("authorization", "Bearer client"), ("accept-encoding", "gzip")]);
        let out = to_replica(&client, &endpoint(Some("ours")), &HeaderValue::from_static("id"), true);
        assert_eq!(out.get_all("authorization").iter().count(), 1);
        assert_eq!(out["authorization"], "Bearer ours");
        assert!(!out.contains_key("accept-encoding"), "the answer has to be readable");
    }

    #[test]
    fn what_belongs_to_the_replicas_connection_stays_here() {
        let mut answer = map(&[
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("content-type", "text/event-stream; charset=utf-8"),
            ("x-custom", "kept"),
        ]);
        assert!(is_event_stream(&answer) && is_plain(&answer));
        to_client(&mut answer, &HeaderValue::from_static("id"));
        let expected = map(&[
            ("content-type", "text/event-stream; charset=utf-8"),
            ("x-custom", "kept"),
            ("x-request-id", "id"),
        ]);
        assert_eq!(answer, expected);
    }
}
