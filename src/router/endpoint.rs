//! Where a replica is, for those who connect to it.

use super::cached::Cached;
use super::kv::KvSignals;
use crate::config::ReplicaSpec;
use crate::core::ReplicaId;
use crate::core::capacity::Learned;
use http::uri::Authority;
use http::{HeaderName, HeaderValue, Uri};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// A replica as discovery knows it, checked: what [`Endpoint`] is made of.
#[derive(Clone, Debug)]
pub struct Member {
    /// The specification that it came from, defaults filled in.
    pub spec: ReplicaSpec,
    /// Which incarnation of this address it is: another number is another server, of which nothing that was learned of the
    /// one before holds. 0 where the source of replicas can't tell.
    pub incarnation: u64,
    authority: Authority,
    base_path: Arc<str>,
    authorization: Option<HeaderValue>,
    extra: Vec<(HeaderName, HeaderValue)>,
}

/// A replica's address and what goes with each request to it.
#[derive(Debug)]
pub struct Endpoint {
    /// Which life of which slot.
    pub id: ReplicaId,
    /// Name in metrics and logs.
    pub name: Arc<str>,
    /// Host to connect to, without brackets.
    pub host: Arc<str>,
    /// Port to connect to.
    pub port: u16,
    /// The same as a number, if the host is one: what a gateway can be sent to.
    pub address: Option<SocketAddr>,
    /// The `Host` header.
    pub authority: HeaderValue,
    /// Path before `/v1`, without a trailing slash; may be empty.
    pub base_path: Arc<str>,
    /// Replaces the client's `Authorization`.
    pub authorization: Option<HeaderValue>,
    /// Added to each request.
    pub extra_headers: Vec<(HeaderName, HeaderValue)>,
    /// Between those who follow its events and its requests.
    pub(super) kv: KvSignals,
    /// What was predicted of its cache, and what was found.
    pub(super) cached: Cached,
    /// How much its cache holds, while nobody says.
    pub(super) capacity: Mutex<Learned>,
    /// Does somebody say?
    pub(super) told: AtomicBool,
    gone: AtomicBool,
    /// Predictions of a long cached prefix in a row of which the engine found nothing.
    misses: AtomicU8,
}

impl Member {
    /// Checks a specification. The message of an error names the part that is wrong, never a secret.
    pub fn new(spec: ReplicaSpec) -> Result<Self, String> {
        let uri: Uri = spec.url.parse().map_err(|e| format!("replica url {:?}: {e}", spec.url))?;
        if uri.scheme_str() != Some("http") {
            return Err(format!("replica url {:?}: only http:// is supported", spec.url));
        }
        let authority =
            uri.authority().cloned().ok_or_else(|| format!("replica url {:?}: no host", spec.url))?;
        let authorization = match &spec.api_key {
            Some(key) => {
                let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose())).map_err(|_| {
                    format!("replica {}: its API key isn't a valid header value", spec.label())
                })?;
                value.set_sensitive(true);
                Some(value)
            }
            None => None,
        };
        let mut extra = Vec::new();
        for (name, value) in &spec.headers {
            let header = HeaderName::try_from(name.as_str())
                .map_err(|_| format!("replica {}: {name:?} isn't a header name", spec.label()))?;
            let value = HeaderValue::from_str(value.expose())
                .map_err(|_| format!("replica {}: value of header {name} is invalid", spec.label()))?;
            extra.push((header, value));
        }
        let base_path = uri.path().trim_end_matches('/').into();
        Ok(Member { spec, incarnation: 0, authority, base_path, authorization, extra })
    }

    /// The same for all routers and all restarts: a hash of address and base path.
    pub fn key(&self) -> u64 {
        let text = format!("{}{}", self.authority, self.base_path);
        xxhash_rust::xxh3::xxh3_64(text.as_bytes())
    }

    /// What tells it from others, also in another process: name and address.
    pub fn identity(&self) -> String {
        format!("{} {}{}", self.spec.label(), self.authority, self.base_path)
    }

    /// The endpoint of this member in the life `id`.
    pub(crate) fn endpoint(&self, id: ReplicaId) -> Result<Endpoint, String> {
        let host = self.authority.host().trim_start_matches('[').trim_end_matches(']');
        let authority = HeaderValue::from_str(self.authority.as_str())
            .map_err(|_| format!("replica url {:?}: its host isn't a valid header value", self.spec.url))?;
        let port = self.authority.port_u16().unwrap_or(80);
        Ok(Endpoint {
            id,
            name: self.spec.label().into(),
            address: host.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip.to_canonical(), port)),
            host: host.into(),
            port,
            authority,
            base_path: self.base_path.clone(),
            authorization: self.authorization.clone(),
            extra_headers: self.extra.clone(),
            kv: KvSignals::default(),
            cached: Cached::default(),
            capacity: Mutex::default(),
            told: AtomicBool::new(self.spec.kv_tokens.is_some()),
            gone: AtomicBool::new(false),
            misses: AtomicU8::new(0),
        })
    }
}

impl Endpoint {
    /// Should this request ask the engine to announce what it finds cached? Asked once a request: a sample says yes,
    /// and only while something is missing.
    pub fn wants_report(&self) -> bool {
        self.kv.report()
    }

    /// Has it left the fleet? Its idle connections can be closed.
    pub fn gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Counts whether a long prefix that should have been cached was missed as a whole; true the third time in a row.
    pub(super) fn cache_seems_lost(&self, missed: bool) -> bool {
        if !missed {
            self.misses.store(0, Ordering::Relaxed);
            return false;
        }
        let lost = self.misses.fetch_add(1, Ordering::Relaxed) + 1 >= LOST_AFTER;
        if lost {
            self.misses.store(0, Ordering::Relaxed);
        }
        lost
    }

    pub(super) fn leaves(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }
}

/// Whole misses in a row after which a cache is believed to be lost.
const LOST_AFTER: u8 = 3;

/// Endpoints by slot. Replaced as a whole when the membership changes, so that a pick only loads a pointer.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots {
    all: Vec<Option<Arc<Endpoint>>>,
    by_ip: HashMap<IpAddr, SmallVec<[(u16, ReplicaId); 1]>>,
    /// Those with a number for an address, sorted, if there are others as well.
    numbered: Option<Arc<[ReplicaId]>>,
}

impl Slots {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn get(&self, id: ReplicaId) -> Option<Arc<Endpoint>> {
        self.all.get(usize::from(id.slot))?.as_ref().filter(|e| e.id == id).cloned()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Endpoint>> {
        self.all.iter().flatten()
    }

    /// Ports and replicas of a host.
    pub(super) fn at(&self, ip: IpAddr) -> impl Iterator<Item = (u16, ReplicaId)> + '_ {
        self.by_ip.get(&ip.to_canonical()).into_iter().flatten().copied()
    }

    pub(super) fn numbered(&self) -> Option<Arc<[ReplicaId]>> {
        self.numbered.clone()
    }

    pub(super) fn put(&mut self, endpoint: Arc<Endpoint>) {
        let slot = usize::from(endpoint.id.slot);
        if self.all.len() <= slot {
            self.all.resize(slot + 1, None);
        }
        self.all[slot] = Some(endpoint);
        self.sort();
    }

    pub(super) fn remove(&mut self, id: ReplicaId) -> Option<Arc<Endpoint>> {
        let gone = self.all.get_mut(usize::from(id.slot))?.take_if(|e| e.id == id);
        self.sort();
        gone
    }

    fn sort(&mut self) {
        let mut by_ip: HashMap<_, SmallVec<_>> = HashMap::new();
        let mut numbered = Vec::new();
        for e in self.all.iter().flatten() {
            if let Some(address) = e.address {
                by_ip.entry(address.ip()).or_default().push((address.port(), e.id));
                numbered.push(e.id);
            }
        }
        numbered.sort_unstable();
        self.numbered = (numbered.len() < self.iter().count()).then(|| numbered.into());
        self.by_ip = by_ip;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(url: &str) -> Result<Member, String> {
        Member::new(ReplicaSpec::new(url))
    }

    #[test]
    fn urls_with_base_paths_ports_and_ipv6() {
        let e = |url| member(url).unwrap().endpoint(ReplicaId { slot: 0, life: 1 }).unwrap();
        let a = e("http://10.0.0.1:8000/models/a/");
        assert_eq!((&*a.host, a.port, &*a.base_path), ("10.0.0.1", 8000, "/models/a"));
        assert_eq!(a.authority, "10.0.0.1:8000");
        let b = e("http://[::1]:9");
        assert_eq!((&*b.host, b.port, &*b.base_path), ("::1", 9, ""));
        assert_eq!(e("http://vllm").port, 80);
        assert!(member("https://x").unwrap_err().contains("http://"));
        assert!(member("10.0.0.1:8000").is_err());
    }

    #[test]
    fn keys_are_the_same_everywhere_and_differ() {
        assert_eq!(member("http://a:1/").unwrap().key(), member("http://a:1").unwrap().key());
        assert_ne!(member("http://a:1").unwrap().key(), member("http://a:2").unwrap().key());
    }
}
