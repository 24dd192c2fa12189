//! What the router knows, kept in a file: written at intervals and at the end, read at the start.
//!
//! Written beside its place and renamed, so that there is always a whole one. One that can't be used is refused loudly,
//! and the router starts cold; it is never in the way of starting.

use crate::config::Config;
use crate::observe::{Loud, Metrics, now_unix};
use crate::router::{Router, Snapshot};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes one.
///
/// # Errors
/// Those of the system; the one that was there before is still there then.
pub(super) fn write(router: &Router, path: &Path) -> io::Result<u64> {
    let bytes = router.snapshot(now_unix() as u64);
    let mut beside = path.as_os_str().to_owned();
    // Two processes may write during a hand-over.
    beside.push(format!(".{}", std::process::id()));
    let beside = Path::new(&beside);
    let written = (|| {
        // It holds the seed of the hashes: not for others to read.
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(beside)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(beside, path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(beside);
    }
    written.map(|()| bytes.len() as u64)
}

/// [`write`], counted and told.
pub(super) fn write_loudly(router: &Router, path: &Path, metrics: &Metrics) {
    match write(router, path) {
        Ok(bytes) => {
            metrics.snapshot("written");
            tracing::debug!(bytes, "snapshot written");
        }
        Err(error) => {
            metrics.snapshot("failed");
            tracing::error!(path = %path.display(), %error, "the snapshot can't be written");
        }
    }
}

/// Reads the one of the configuration, if there is one. Why one that is there can't be used comes as an error.
///
/// # Errors
/// It can't be read, is corrupt, too old, or was made with another seed or block size. The message says which.
pub(super) fn read(config: &Config) -> Result<Option<Snapshot>, String> {
    let Some(path) = &config.snapshot.path else { return Ok(None) };
    let named = |why: String| format!("the snapshot {} is not used: {why}", path.display());
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(named(e.to_string())),
    };
    let most = Snapshot::most_bytes(config.index.max_blocks);
    let mut bytes = Vec::new();
    (&mut file).take(most + 1).read_to_end(&mut bytes).map_err(|e| named(e.to_string()))?;
    if bytes.len() as u64 > most {
        return Err(named(format!(
            "it is larger than {most} bytes, which is what `index.max_blocks` allows"
        )));
    }
    let snapshot = Snapshot::decode(&bytes).map_err(|e| named(e.to_string()))?;
    let age = (now_unix() as u64).saturating_sub(snapshot.written());
    if age > config.snapshot.max_age.get().as_secs() {
        return Err(named(format!("it is {age} s old, more than `snapshot.max_age`")));
    }
    fits(&snapshot, config).map_err(named)?;
    Ok(Some(snapshot))
}

/// Was it made with the seed and the block size of this configuration?
fn fits(snapshot: &Snapshot, config: &Config) -> Result<(), String> {
    if config.index.seed.is_some_and(|seed| seed != snapshot.seed()) {
        return Err("it was made with another `index.seed`".to_owned());
    }
    if config.index.block_bytes != snapshot.block_bytes() {
        return Err("it was made with another `index.block_bytes`".to_owned());
    }
    Ok(())
}

/// Gives it to the router.
pub(super) fn believe(router: &Router, snapshot: Snapshot, metrics: &Metrics, loud: &Loud) {
    match router.remember(snapshot) {
        Ok(()) => metrics.snapshot("restored"),
        Err(why) => {
            metrics.snapshot("refused");
            loud.flag("snapshot_refused", "").raise(|| format!("the snapshot is not used: {why}"));
        }
    }
}
