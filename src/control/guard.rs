//! Who may use the admin port.
//!
//! With a token: who shows it. Without one the port is on loopback; then pages in a browser on the same machine must
//! be kept out. They can send requests there, under a name of their own that resolves to loopback, or from another
//! origin; both can be seen in the headers that browsers set.

use super::Context;
use super::reply::Refused;
use crate::openai::{Kind, Problem};
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use std::net::IpAddr;

/// Lets through what may pass.
pub(super) async fn check(
    State(c): State<Context>,
    request: Request,
    next: Next,
) -> Result<Response, Refused> {
    let headers = request.headers();
    let token = c.config.load().admin_token.clone();
    match token {
        Some(token) => {
            let shown = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok()).and_then(bearer);
            if !shown.is_some_and(|t| token.matches(t)) {
                return Err(Problem::unauthorized().into());
            }
        }
        None if !is_local(headers) => {
            let why =
                "Without a token the admin port answers only to names of this machine, and not to web pages.";
            return Err(Problem::new(Kind::Unauthorized, why).into());
        }
        None => {}
    }
    Ok(next.run(request).await)
}

/// The token of `Bearer <token>`; the scheme is written in any case.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

fn is_local(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).map(|v| v.to_str().unwrap_or_default());
    let host = text(header::HOST).is_none_or(is_loopback);
    let origin = text(header::ORIGIN)
        .is_none_or(|o| o.split_once("://").is_some_and(|(_, authority)| is_loopback(authority)));
    host && origin
}

/// Is that host, which may have a port, a name of this machine?
fn is_loopback(authority: &str) -> bool {
    let Ok(authority) = authority.parse::<Authority>() else { return false };
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine() {
        for name in ["localhost", "LocalHost:9091", "127.0.0.1:9091", "[::1]:9091", "127.8.8.8"] {
            assert!(is_loopback(name), "{name}");
        }
        for name in ["", "evil.example:9091", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1"]
        {
            assert!(!is_loopback(name), "{name}");
        }
    }

    #[test]
    fn web_pages_are_kept_out() {
        let with = |pairs: &[(header::HeaderName, &'static str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in pairs {
                map.insert(name, value.parse().unwrap());
            }
            is_local(&map)
        };
        assert!(with(&[(header::HOST, "127.0.0.1:9091")]));
        assert!(with(&[(header::HOST, "localhost:1"), (header::ORIGIN, "http://localhost:1")]));
        assert!(!with(&[(header::HOST, "localhost:1"), (header::ORIGIN, "https://evil.example")]));
        assert!(!with(&[(header::HOST, "localhost:1"), (header::ORIGIN, "null")]));
        assert!(!with(&[(header::HOST, "rebound.example:9091")]));
    }

    #[test]
    fn bearer_tokens() {
        assert_eq!(bearer("Bearer abc"), Some("abc"));
        assert_eq!(bearer("bearer abc"), Some("abc"));
        assert_eq!(bearer("Basic abc"), None);
        assert_eq!(bearer("abc"), None);
    }
}
