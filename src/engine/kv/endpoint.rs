//! `tcp://host:port`, as engines write it.

use std::fmt;
use std::str::FromStr;

/// Where events come from, or where an engine brings them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KvEndpoint {
    /// Name or address, without brackets. Of an engine that binds, `*` stands for any.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl KvEndpoint {
    /// The endpoint of data-parallel rank `rank`, whose ports are `stride` apart; `None` if there is no such port.
    pub fn of_rank(&self, rank: u32, stride: u16) -> Option<KvEndpoint> {
        let port = u32::from(self.port).checked_add(rank.checked_mul(stride.into())?)?;
        Some(KvEndpoint { host: self.host.clone(), port: u16::try_from(port).ok()? })
    }
}

impl FromStr for KvEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} isn't an endpoint: write tcp://host:port");
        let rest = text.strip_prefix("tcp://").ok_or_else(bad)?;
        let (host, port) = rest.rsplit_once(':').ok_or_else(bad)?;
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        let port = port.parse().map_err(|_| bad())?;
        if host.is_empty() { Err(bad()) } else { Ok(KvEndpoint { host: host.to_owned(), port }) }
    }
}

impl fmt::Display for KvEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KvEndpoint { host, port } = self;
        if host.contains(':') { write!(f, "tcp://[{host}]:{port}") } else { write!(f, "tcp://{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_and_written() {
        for text in ["tcp://10.0.0.1:5557", "tcp://[::1]:5557", "tcp://*:5557", "tcp://vllm-0.pods:1"] {
            assert_eq!(text.parse::<KvEndpoint>().map(|e| e.to_string()), Ok(text.to_owned()));
        }
        for text in ["10.0.0.1:5557", "tcp://x", "tcp://:5", "tcp://x:70000", "ipc:///tmp/x"] {
            assert!(text.parse::<KvEndpoint>().unwrap_err().contains("tcp://host:port"));
        }
    }

    #[test]
    fn ranks_have_ports_of_their_own() {
        let base: KvEndpoint = "tcp://a:65000".parse().unwrap();
        assert_eq!(base.of_rank(3, 1).map(|e| e.port), Some(65003));
        assert_eq!(base.of_rank(0, 1).as_ref(), Some(&base));
        assert_eq!(base.of_rank(600, 1), None);
        assert_eq!(base.of_rank(u32::MAX, u16::MAX), None);
    }
}
