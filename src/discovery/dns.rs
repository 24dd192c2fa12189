//! Replicas from DNS: each address of a name, or each target of a service's SRV records, is one.
//!
//! What a resolver can't find out (no answer, a server's failure, no such name) changes nothing: names vanish for seconds when a
//! name server restarts. What a good answer no longer lists goes after a grace; an answer that is good and empty is such an answer.

use super::board::Listing;
use super::trouble::Trouble;
use crate::config::{Dns, DnsName, ReplicaSpec};
use crate::observe::Loud;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{RData, RecordType};
use hickory_resolver::{Resolver, TokioResolver};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Most addresses of one name; the fleet can't hold more.
const MAX_ADDRESSES: usize = 1024;

/// An address, and the port to go with it.
type Target = (IpAddr, u16);

/// What a look at a name found.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    targets: Vec<Target>,
    /// Seconds for which it may be believed.
    ttl: Duration,
}

/// What is known of one name: each target, and since when good answers have not listed it.
#[derive(Clone, Debug, Default)]
struct Known(BTreeMap<Target, Option<Duration>>);

impl Known {
    /// Takes in a good answer that came at `now`.
    fn heard(&mut self, now: Duration, answer: &Answer) {
        for (target, missing) in &mut self.0 {
            if answer.targets.contains(target) {
                *missing = None;
            } else {
                missing.get_or_insert(now);
            }
        }
        for target in &answer.targets {
            if self.0.len() < MAX_ADDRESSES {
                self.0.entry(*target).or_insert(None);
            }
        }
    }

    /// Forgets those that good answers haven't listed for `grace`.
    fn forget(&mut self, now: Duration, grace: Duration) {
        self.0.retain(|_, missing| missing.is_none_or(|since| now < since.saturating_add(grace)));
    }

    /// The next time at which one is to be forgotten.
    fn deadline(&self, grace: Duration) -> Option<Duration> {
        self.0.values().flatten().map(|since| since.saturating_add(grace)).min()
    }

    fn listings(&self) -> Vec<Listing> {
        let url = |(ip, port): &Target| match ip {
            IpAddr::V4(ip) => format!("http://{ip}:{port}"),
            IpAddr::V6(ip) => format!("http://[{ip}]:{port}"),
        };
        self.0.keys().map(|target| Listing::new(ReplicaSpec::new(url(target)))).collect()
    }
}

/// What following one name tells.
enum News {
    /// These are its replicas; and whether the last look succeeded, or why not and how often in a row.
    Looked(Vec<Listing>, Result<(), (String, u32)>),
    /// These are its replicas now, because time went by.
    Fewer(Vec<Listing>),
}

/// Looks the names up until it is dropped, and posts what they say, each at its place in the list.
pub(super) async fn run(settings: &Dns, loud: &Loud, post: impl Fn(usize, Vec<Listing>)) {
    if settings.names.is_empty() {
        return;
    }
    let mut trouble = Trouble::new(loud, "dns");
    let (send, mut news) = channel(settings.names.len());
    let mut tasks = JoinSet::new();
    for (place, name) in settings.names.iter().enumerate() {
        tasks.spawn(follow(settings.clone(), place, name.clone(), send.clone()));
    }
    while let Some((place, told)) = news.recv().await {
        let name = settings.names.get(place).map_or("", |n| n.name.as_str());
        match told {
            News::Fewer(list) => post(place, list),
            News::Looked(list, outcome) => {
                match outcome {
                    Ok(()) => trouble.good(name),
                    Err((why, failures)) => trouble.bad(name, &why, failures),
                }
                post(place, list);
            }
        }
    }
}

/// Looks one name up, again and again. Ends when nobody listens.
async fn follow(settings: Dns, place: usize, name: DnsName, send: Sender<(usize, News)>) {
    let begun = Instant::now();
    let grace = settings.grace.get();
    let (low, high) = (settings.min_ttl.get(), settings.max_ttl.get());
    let mut known = Known::default();
    let mut failures = 0u32;
    let mut resolver = None;
    loop {
        let (pause, outcome) = match look(&mut resolver, &settings, &name).await {
            Ok(answer) => {
                failures = 0;
                known.heard(begun.elapsed(), &answer);
                (answer.ttl.clamp(low, high), Ok(()))
            }
            Err(why) => {
                failures = failures.saturating_add(1);
                (low, Err((why, failures)))
            }
        };
        known.forget(begun.elapsed(), grace);
        let mut told = News::Looked(known.listings(), outcome);
        let again = begun.elapsed().saturating_add(pause);
        loop {
            if send.send((place, told)).await.is_err() {
                return;
            }
            // Those that are to go don't wait for the next look.
            let next = known.deadline(grace).map_or(again, |at| at.min(again));
            sleep(next.saturating_sub(begun.elapsed())).await;
            if begun.elapsed() >= again {
                break;
            }
            known.forget(begun.elapsed(), grace);
            told = News::Fewer(known.listings());
        }
    }
}

/// Asks once.
async fn look(kept: &mut Option<TokioResolver>, settings: &Dns, name: &DnsName) -> Result<Answer, String> {
    let resolver = match kept {
        Some(resolver) => resolver,
        None => kept.insert(resolver(settings)?),
    };
    let Some(port) = name.port else { return services(resolver, &name.name).await };
    let (ips, ttl) = addresses(resolver, &name.name).await?;
    Ok(Answer { targets: ips.into_iter().map(|ip| (ip, port)).collect(), ttl })
}

fn resolver(settings: &Dns) -> Result<TokioResolver, String> {
    let provider = TokioRuntimeProvider::default();
    let mut builder = if settings.servers.is_empty() {
        Resolver::builder(provider).map_err(|e| format!("/etc/resolv.conf: {e}"))?
    } else {
        let server = |at: &std::net::SocketAddr| {
            let mut ways = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
            ways.iter_mut().for_each(|w| w.port = at.port());
            NameServerConfig::new(at.ip(), true, ways.into())
        };
        let servers = settings.servers.iter().map(server).collect();
        Resolver::builder_with_config(ResolverConfig::from_name_servers(servers), provider)
    };
    let options = builder.options_mut();
    options.timeout = settings.timeout.get();
    options.attempts = 1;
    // Times to live are counted here; a cache of its own would add to them.
    options.cache_size = 0;
    options.use_hosts_file = ResolveHosts::Never;
    builder.build().map_err(|e| format!("resolver: {e}"))
}

/// Addresses of both families. A family without records is no failure, as long as the name is there.
async fn addresses(resolver: &TokioResolver, name: &str) -> Result<(Vec<IpAddr>, Duration), String> {
    let (four, six) =
        tokio::join!(records(resolver, name, RecordType::A), records(resolver, name, RecordType::AAAA));
    let (four, six) = match (four, six) {
        (Ok(four), Ok(six)) => (four, six),
        // One family that fails must not remove the addresses of the other, nor stand for both.
        (Err(why), _) | (_, Err(why)) => return Err(why),
    };
    let mut ttl = Duration::MAX;
    let mut ips = Vec::new();
    for (data, lives) in four.into_iter().chain(six) {
        ips.extend(data.ip_addr());
        ttl = ttl.min(lives);
    }
    ips.sort_unstable();
    ips.dedup();
    ips.truncate(MAX_ADDRESSES);
    Ok((ips, if ttl == Duration::MAX { Duration::ZERO } else { ttl }))
}

/// Targets of a service, with the addresses that they have.
async fn services(resolver: &TokioResolver, name: &str) -> Result<Answer, String> {
    let mut answer = Answer { targets: Vec::new(), ttl: Duration::MAX };
    for (data, lives) in records(resolver, name, RecordType::SRV).await? {
        let RData::SRV(srv) = data else { continue };
        answer.ttl = answer.ttl.min(lives);
        // A target of `.` says that the service isn't there.
        if srv.target.is_root() || answer.targets.len() >= MAX_ADDRESSES {
            continue;
        }
        let (ips, ttl) = addresses(resolver, &srv.target.to_string()).await?;
        answer.ttl = answer.ttl.min(ttl);
        answer.targets.extend(ips.into_iter().map(|ip| (ip, srv.port)));
    }
    answer.targets.sort_unstable();
    answer.targets.dedup();
    if answer.ttl == Duration::MAX {
        answer.ttl = Duration::ZERO;
    }
    Ok(answer)
}

/// The records of one type. A name that exists without such records has none; a name that doesn't exist is a failure.
async fn records(
    resolver: &TokioResolver,
    name: &str,
    kind: RecordType,
) -> Result<Vec<(RData, Duration)>, String> {
    match resolver.lookup(name, kind).await {
        Ok(found) => {
            let lives = |ttl: u32| Duration::from_secs(u64::from(ttl));
            Ok(found.answers().iter().map(|r| (r.data.clone(), lives(r.ttl))).collect())
        }
        Err(NetError::Dns(DnsError::NoRecordsFound(none))) if none.response_code == ResponseCode::NoError => {
            Ok(Vec::new())
        }
        Err(e) => Err(format!("{name} ({kind}): {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn answer(last: &[u8]) -> Answer {
        Answer { targets: last.iter().map(|n| ([10, 0, 0, *n].into(), 80)).collect(), ttl: S }
    }

    fn urls(known: &Known) -> Vec<String> {
        known.listings().into_iter().map(|l| l.spec.url).collect()
    }

    #[test]
    fn what_is_no_longer_listed_goes_after_a_grace() {
        let mut k = Known::default();
        k.heard(S, &answer(&[1, 2]));
        k.heard(2 * S, &answer(&[2, 3]));
        k.forget(3 * S, 5 * S);
        assert_eq!(urls(&k).len(), 3);
        assert_eq!(k.deadline(5 * S), Some(7 * S));
        // Seen again: its time begins anew.
        k.heard(4 * S, &answer(&[1, 2, 3]));
        k.heard(6 * S, &answer(&[]));
        k.forget(10 * S, 5 * S);
        assert_eq!(urls(&k).len(), 3);
        k.forget(11 * S, 5 * S);
        assert!(urls(&k).is_empty() && k.deadline(S).is_none());
    }

    #[test]
    fn both_families_make_urls_and_the_table_is_bounded() {
        let mut k = Known::default();
        k.heard(S, &Answer { targets: vec![("fd00::1".parse().unwrap(), 9)], ttl: S });
        assert_eq!(urls(&k), ["http://[fd00::1]:9"]);
        let many = (0..2000u32).map(|n| (IpAddr::from(n.to_be_bytes()), 80)).collect();
        k.heard(S, &Answer { targets: many, ttl: S });
        assert_eq!(k.0.len(), MAX_ADDRESSES);
    }
}
