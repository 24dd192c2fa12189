//! How many clients the process has file descriptors for.
//!
//! Without this cap a crowd of clients takes the last descriptor, and then nothing works: no connection to a replica,
//! no probe of the orchestrator, no scrape. Clients beyond the cap wait in the system's queue instead.

use std::fs;

/// Kept for all that isn't a client or its replica: listeners, logs, probes, scrapes, pooled connections.
const OWN: u64 = 64;

/// Most client connections, at most `wished`. Each may need one to a replica.
pub(super) fn clients(wished: usize) -> usize {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let fit = soft_limit(&limits).map_or(usize::MAX, fit);
    if fit < wished {
        tracing::warn!(
            wished,
            connections = fit,
            "the limit of open files (ulimit -n, LimitNOFILE) allows fewer connections than limits.connections"
        );
    }
    wished.min(fit)
}

fn fit(files: u64) -> usize {
    // Of very few files half are for clients nevertheless.
    let own = OWN.min(files / 2);
    usize::try_from((files - own) / 2).unwrap_or(usize::MAX).max(1)
}

/// The soft limit of open files from the text of `/proc/self/limits`; `None` if there is none.
fn soft_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|l| l.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_descriptors_for_everything_else() {
        let limits =
            "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024    4096    files\n";
        assert_eq!(soft_limit(limits), Some(1024));
        assert_eq!(soft_limit("Max open files   unlimited  unlimited  files\n"), None);
        assert_eq!(soft_limit(""), None);
        assert_eq!((fit(1024), fit(64), fit(0)), (480, 16, 1));
    }
}
