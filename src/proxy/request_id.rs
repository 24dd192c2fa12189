//! The identity of a request.

use super::headers::REQUEST_ID;
use crate::observe::{request_id, valid_request_id};
use http::{HeaderMap, HeaderValue};

/// The client's own id if it is sane (visible ASCII, not too long), else a new one.
pub(super) fn of(headers: &HeaderMap) -> HeaderValue {
    match headers.get(REQUEST_ID) {
        Some(id) if valid_request_id(id.as_bytes()) => id.clone(),
        // An id is visible ASCII: the other case doesn't occur.
        _ => HeaderValue::try_from(request_id()).unwrap_or_else(|_| HeaderValue::from_static("0")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sane_id_is_kept_and_others_are_replaced() {
        let id = |v: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_str(v).unwrap());
            of(&headers)
        };
        assert_eq!(id("req-1"), "req-1");
        for odd in ["", "with space", &"x".repeat(129), "é"] {
            assert_ne!(id(odd), odd);
            assert!(valid_request_id(id(odd).as_bytes()));
        }
        assert_ne!(of(&HeaderMap::new()), of(&HeaderMap::new()));
    }
}
