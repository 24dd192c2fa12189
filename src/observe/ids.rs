//! Request ids.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Longest id taken from a client.
pub const MAX_REQUEST_ID: usize = 128;

static COUNTER: AtomicU64 = AtomicU64::new(0);
/// Random for each process: two routers, or two lives of one, don't give the same ids. The standard library's hasher
/// keys come from the system's randomness.
static SEED: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));

/// A fresh id: 16 hexadecimal digits for the process, a dash, and a count.
pub fn request_id() -> String {
    format!("{:016x}-{:x}", *SEED, COUNTER.fetch_add(1, Relaxed))
}

/// Can a client's `x-request-id` be kept? Visible ASCII only, at most [`MAX_REQUEST_ID`] bytes: it goes into logs and headers.
pub fn valid_request_id(id: &[u8]) -> bool {
    (1..=MAX_REQUEST_ID).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_are_unique_and_valid() {
        let ids: HashSet<String> = (0..10_000).map(|_| request_id()).collect();
        assert_eq!(ids.len(), 10_000);
        assert!(ids.iter().all(|id| valid_request_id(id.as_bytes())));
    }

    #[test]
    fn ids_of_clients_are_checked() {
        assert!(valid_request_id(b"req-{1}~"));
        assert!(valid_request_id(&[b'a'; 128]));
        for bad in [&b""[..], &[b'a'; 129], b"a b", b"a\n", b"\x7f", "ä".as_bytes()] {
            assert!(!valid_request_id(bad), "{bad:?}");
        }
    }
}
