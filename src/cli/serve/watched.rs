//! Files that tell of a new configuration: the file itself, and those of the secrets that it names.
//!
//! They are read as a whole at each look, since times of modification lie on network file systems and behind the symbolic
//! links that Kubernetes swaps; they are a few kilobytes. A change counts when two looks in a row have seen the same: an
//! editor may be in the middle of writing.

use crate::config::Config;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

/// Most bytes of a file that are looked at.
const MAX_BYTES: u64 = 16 << 20;

/// What the files said when they were last taken in, and at the last look.
pub(super) struct Watched {
    path: PathBuf,
    judged: Option<u64>,
    seen: Option<u64>,
}

impl Watched {
    /// What they say now counts as known.
    pub(super) fn new(path: PathBuf, config: &Config) -> Self {
        let now = fingerprint(&path, config);
        Watched { path, judged: now, seen: now }
    }

    /// Looks. True: there is something new, and it stands still. A file that can't be read is not news: it is being
    /// replaced, or whoever took it away will be told at the next reload.
    pub(super) fn look(&mut self, config: &Config) -> bool {
        let now = fingerprint(&self.path, config);
        let still = now == self.seen;
        self.seen = now;
        if now.is_none() || !still || now == self.judged {
            return false;
        }
        self.judged = now;
        true
    }
}

/// A hash over the configuration file and the files of secrets; `None` if the first can't be read.
fn fingerprint(path: &Path, config: &Config) -> Option<u64> {
    let mut hash = Xxh3::new();
    hash.update(&read(path)?);
    let replicas = config.replicas.iter().filter_map(|r| r.api_key_file.as_ref());
    let others = [&config.admin_token_file, &config.replica_defaults.api_key_file];
    for file in others.into_iter().flatten().chain(replicas) {
        hash.update(&read(file).unwrap_or_default());
        hash.update(&[0xFF]);
    }
    Some(hash.digest())
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn dir(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("homing-watched-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn a_change_counts_once_and_when_it_stands_still() {
        let dir = dir("still");
        let (path, key) = (dir.join("c.yaml"), dir.join("key"));
        fs::write(&path, "a: 1").unwrap();
        fs::write(&key, "one").unwrap();
        let config = Config { admin_token_file: Some(key.clone()), ..Config::default() };
        let mut w = Watched::new(path.clone(), &config);
        assert!(!w.look(&config) && !w.look(&config));
        fs::write(&path, "a: 2").unwrap();
        assert!(!w.look(&config), "not yet");
        assert!(w.look(&config) && !w.look(&config), "once");
        fs::write(&key, "two").unwrap();
        assert!(!w.look(&config) && w.look(&config), "a secret counts too");
        fs::remove_file(&path).unwrap();
        assert!(!w.look(&config) && !w.look(&config));
        fs::write(&path, "a: 2").unwrap();
        assert!(!w.look(&config) && !w.look(&config), "back as it was");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn links_that_are_swapped_as_kubernetes_does_it() {
        let dir = dir("links");
        let put = |version: &str, text: &str| {
            fs::create_dir(dir.join(version)).unwrap();
            fs::write(dir.join(version).join("c.yaml"), text).unwrap();
            std::os::unix::fs::symlink(version, dir.join("..next")).unwrap();
            fs::rename(dir.join("..next"), dir.join("..data")).unwrap();
        };
        put("..1", "a: 1");
        std::os::unix::fs::symlink("..data/c.yaml", dir.join("c.yaml")).unwrap();
        let config = Config::default();
        let mut w = Watched::new(dir.join("c.yaml"), &config);
        put("..2", "a: 2");
        assert!(!w.look(&config) && w.look(&config));
        fs::remove_dir_all(dir).unwrap();
    }
}
