//! Addresses as gateways write them.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// An address to match: a host, and its port if one is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The host.
    pub ip: IpAddr,
    /// The port; `None`: all of that host.
    pub port: Option<u16>,
}

impl Wanted {
    /// Reads `ip`, `ip:port`, `[ipv6]` or `[ipv6]:port`. IPv6 without brackets is an address without a port: where it
    /// would end is anybody's guess.
    pub fn parse(text: &str) -> Option<Wanted> {
        let text = text.trim();
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Some(Wanted { ip: address.ip().to_canonical(), port: Some(address.port()) });
        }
        let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
        let ip = match bare {
            Some(inner) => IpAddr::V6(inner.parse::<Ipv6Addr>().ok()?),
            None => text.parse().ok()?,
        };
        Some(Wanted { ip: ip.to_canonical(), port: None })
    }

    /// Reads a comma-separated list. What can't be read matches nothing.
    pub fn list(text: &str) -> impl Iterator<Item = Wanted> + '_ {
        text.split(',').filter_map(Wanted::parse)
    }
}

/// Who served, as Envoy says it: one address with a port.
pub(super) fn served(text: &str) -> Option<SocketAddr> {
    let wanted = Wanted::parse(text)?;
    Some(SocketAddr::new(wanted.ip, wanted.port?))
}

/// The list of destinations: `ip:port[,ip:port…]`, IPv6 in brackets.
pub(super) fn join<'a>(addresses: impl IntoIterator<Item = &'a SocketAddr>) -> String {
    use std::fmt::Write;
    let mut out = String::new();
    for a in addresses {
        let comma = if out.is_empty() { "" } else { "," };
        // Writing to a string doesn't fail.
        let _ = write!(out, "{comma}{a}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(ip: &str, port: Option<u16>) -> Option<Wanted> {
        Some(Wanted { ip: ip.parse().unwrap(), port })
    }

    #[test]
    fn ports_and_ipv6_are_told_apart() {
        assert_eq!(Wanted::parse(" 10.0.0.1:8000 "), wanted("10.0.0.1", Some(8000)));
        assert_eq!(Wanted::parse("10.0.0.1"), wanted("10.0.0.1", None));
        assert_eq!(Wanted::parse("[fd00::1]:8000"), wanted("fd00::1", Some(8000)));
        assert_eq!(Wanted::parse("[fd00::1]"), wanted("fd00::1", None));
        assert_eq!(Wanted::parse("fd00::1"), wanted("fd00::1", None));
        assert_eq!(Wanted::parse("::ffff:10.0.0.1"), wanted("10.0.0.1", None));
        for odd in ["", "vllm:8000", "10.0.0.1:", "10.0.0.1:99999", "[10.0.0.1]:80", "[fd00::1", "10.0.0"] {
            assert_eq!(Wanted::parse(odd), None, "{odd}");
        }
    }

    #[test]
    fn lists_are_read_and_written() {
        let list: Vec<_> = Wanted::list("10.0.0.1:1, nonsense,[fd00::1]:2,").collect();
        assert_eq!(list.len(), 2);
        let addresses: Vec<SocketAddr> = vec!["10.0.0.1:1".parse().unwrap(), "[fd00::1]:2".parse().unwrap()];
        assert_eq!(join(&addresses), "10.0.0.1:1,[fd00::1]:2");
        assert_eq!(served("[fd00::1]:2"), Some(addresses[1]));
        assert_eq!(served("10.0.0.1"), None);
    }
}
