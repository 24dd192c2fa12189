//! What the system says of this process, read at each scrape. Nothing where there is no `/proc`.

use std::fmt::Write;
use std::fs;

/// The kernel counts CPU time in hundredths of a second towards user space, on all architectures.
const TICKS_PER_SECOND: f64 = 100.0;

/// Seconds of CPU, user and system, from the text of `/proc/self/stat`.
fn cpu_seconds(stat: &str) -> Option<f64> {
    // The program's name may hold spaces and brackets: count from the last `)`. utime and stime are fields 14 and 15.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((user + system) / TICKS_PER_SECOND)
}

/// Resident bytes from the text of `/proc/self/status`.
fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// Appends the process metrics in Prometheus' text format, under the names its own client libraries use.
pub(super) fn print(out: &mut String, started_unix: f64) {
    let mut one = |name: &str, kind: &str, help: &str, value: Option<f64>| {
        if let Some(v) = value {
            // Writing to a String can't fail.
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {v}");
        }
    };
    let read = |path: &str| fs::read_to_string(path).ok();
    let cpu = read("/proc/self/stat").and_then(|s| cpu_seconds(&s));
    one("process_cpu_seconds_total", "counter", "User and system CPU time.", cpu);
    let rss = read("/proc/self/status").and_then(|s| resident_bytes(&s));
    one("process_resident_memory_bytes", "gauge", "Memory in RAM.", rss.map(|b| b as f64));
    // Less the descriptor that lists them.
    let fds = fs::read_dir("/proc/self/fd").ok().map(|dir| dir.count().saturating_sub(1) as f64);
    one("process_open_fds", "gauge", "Open file descriptors.", fds);
    one(
        "process_start_time_seconds",
        "gauge",
        "When the process began, in Unix seconds.",
        Some(started_unix),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_with_a_nasty_program_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 4 0 100 0 0";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!(cpu_seconds("7 (a) S 1"), None);
        assert_eq!(cpu_seconds(""), None);
    }

    #[test]
    fn resident_memory() {
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t   2048 kB\n"), Some(2 << 20));
        assert_eq!(resident_bytes("Name:\tx\n"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_is_seen() {
        let mut out = String::new();
        print(&mut out, 1.5);
        for name in ["process_cpu_seconds_total ", "process_resident_memory_bytes ", "process_open_fds "] {
            let line = out.lines().find(|l| l.starts_with(name)).unwrap();
            assert!(line[name.len()..].parse::<f64>().unwrap() >= 0.0, "{line}");
        }
        assert!(out.contains("process_start_time_seconds 1.5\n"));
    }
}
