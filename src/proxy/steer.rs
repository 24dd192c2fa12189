//! What a request's headers say of its priority and its tenant.
//!
//! Who may set them decides who goes first, so they count only where the configuration trusts whoever sends them. Tenants
//! are told apart without them by their keys: that is no privilege, since a key only ever shares with other keys.

use super::headers::{PRIORITY, TENANT};
use crate::router::Ask;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Enters priority and tenant into `ask`. `seed` keys the hashes, so that nobody can aim at another's account.
pub(super) fn steer(headers: &HeaderMap, trusted: bool, seed: u64, ask: &mut Ask) {
    let named = headers.get(TENANT).filter(|_| trusted).or_else(|| headers.get(AUTHORIZATION));
    ask.tenant = named.map_or(0, |v| xxh3_64_with_seed(v.as_bytes(), seed));
    if trusted {
        ask.priority = headers.get(PRIORITY).and_then(|v| v.to_str().ok()).map_or(0, priority);
    }
}

/// A number from -100 to 100; what is beyond is cut, what isn't a number is 0.
fn priority(text: &str) -> i8 {
    let number: i64 = text.trim().parse().unwrap_or(0);
    i8::try_from(number.clamp(-100, 100)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steered(pairs: &[(&'static str, &'static str)], trusted: bool) -> (i8, u64) {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, value.parse().unwrap());
        }
        let mut ask = Ask::default();
        steer(&headers, trusted, 7, &mut ask);
        (ask.priority, ask.tenant)
    }

    #[test]
    fn only_trusted_headers_steer() {
        let all = [("x-homing-priority", "9"), ("x-homing-tenant", "a"), ("authorization", "Bearer k")];
        let by_key = steered(&[("authorization", "Bearer k")], true);
        assert_eq!(steered(&all, false), by_key);
        let (priority, tenant) = steered(&all, true);
        assert_eq!(priority, 9);
        assert!(tenant != by_key.1 && tenant == steered(&[("x-homing-tenant", "a")], true).1);
        assert_eq!(steered(&[], true), (0, 0));
    }

    #[test]
    fn priorities_are_cut_to_their_range() {
        let of = |text| steered(&[("x-homing-priority", text)], true).0;
        assert_eq!((of("100000"), of("-500"), of(" 3 "), of("high"), of("")), (100, -100, 3, 0, 0));
    }
}
