//! The replica file: read as a whole each time, believed when it stands still, refused when it is wrong.

use crate::config::{ReplicaSpec, parse_replicas};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Most bytes of it: a thousand replicas with a dozen headers each are less than half of this.
const MAX_BYTES: u64 = 4 << 20;

/// Looks after which a file that didn't change is read again nevertheless: the key files that it names may have been
/// replaced.
const REREAD: u32 = 30;

/// A file with a list of replicas.
#[derive(Debug)]
pub(super) struct ReplicaFile {
    path: PathBuf,
    /// What it said at the last look.
    seen: Option<String>,
    /// What was last taken in or refused.
    judged: Option<String>,
    /// Looks since then.
    age: u32,
}

/// What a look at it found.
#[derive(Debug, PartialEq)]
pub(super) enum Look {
    /// Nothing new.
    Same,
    /// This list holds from now on.
    List(Vec<ReplicaSpec>),
    /// It can't be used, for this reason; what it said before holds.
    Refused(String),
}

impl ReplicaFile {
    pub(super) fn new(path: PathBuf) -> Self {
        ReplicaFile { path, seen: None, judged: None, age: 0 }
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Looks at it. `first` takes it as it stands: there is no list yet that could be spoilt by half a file.
    pub(super) fn look(&mut self, first: bool) -> Look {
        let text = match self.read() {
            Ok(text) => text,
            Err(e) => {
                // When it is back it is read anew, also if it says the same.
                (self.seen, self.judged) = (None, None);
                return Look::Refused(format!("{}: {e}", self.path.display()));
            }
        };
        self.age += 1;
        // Half a list is a list, too. A writer that doesn't replace the file as a whole is waited for: only what two
        // looks in a row have seen is read.
        let still = first || self.seen.as_ref() == Some(&text);
        let known = self.judged.as_ref() == Some(&text) && self.age < REREAD;
        self.seen = Some(text);
        if !still || known {
            return Look::Same;
        }
        self.judged.clone_from(&self.seen);
        self.age = 0;
        self.judge()
    }

    fn judge(&self) -> Look {
        let text = self.judged.as_deref().unwrap_or_default();
        if text.trim().is_empty() {
            let path = self.path.display();
            return Look::Refused(format!("{path}: is empty; write [] for a fleet without replicas"));
        }
        match parse_replicas(text, &|name| std::env::var(name).ok()) {
            Ok(list) => Look::List(list),
            Err(e) => Look::Refused(format!("{}: {e}", self.path.display())),
        }
    }

    fn read(&self) -> io::Result<String> {
        let mut text = String::new();
        File::open(&self.path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "is larger than 4 MiB"));
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A directory that goes away.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("homing-file-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir).unwrap();
            Dir(dir)
        }

        fn path(&self) -> PathBuf {
            self.0.join("replicas.yaml")
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn urls(look: Look) -> Vec<String> {
        match look {
            Look::List(list) => list.into_iter().map(|r| r.url).collect(),
            other => panic!("{other:?}"),
        }
    }

    fn refused(look: Look) -> String {
        match look {
            Look::Refused(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_change_counts_when_it_stands_still() {
        let dir = Dir::new("still");
        let mut file = ReplicaFile::new(dir.path());
        assert!(refused(file.look(true)).contains("replicas.yaml"));
        fs::write(dir.path(), "- url: http://a:1\n").unwrap();
        assert_eq!(file.look(false), Look::Same);
        assert_eq!(urls(file.look(false)), ["http://a:1"]);
        assert_eq!(file.look(false), Look::Same);
        // Written in two pieces, the first of which is a list as well.
        fs::write(dir.path(), "- url: http://b:1\n").unwrap();
        assert_eq!(file.look(false), Look::Same);
        fs::write(dir.path(), "- url: http://b:1\n- url: http://a:1\n").unwrap();
        assert_eq!(file.look(false), Look::Same);
        assert_eq!(urls(file.look(false)), ["http://b:1", "http://a:1"]);
    }

    #[test]
    fn wrong_ones_are_refused_with_the_reason_once() {
        let dir = Dir::new("wrong");
        let mut file = ReplicaFile::new(dir.path());
        fs::write(dir.path(), "[{\"url\": \"http://a:1\"}]").unwrap();
        assert_eq!(urls(file.look(true)), ["http://a:1"]);
        for (text, why) in [
            ("- url: http://a:1\n  api_kee: x\n", "api_key"),
            ("- url: [\n", ""),
            ("- name: a\n", "url"),
            ("- url: https://a\n", "http://"),
            ("", "is empty"),
        ] {
            fs::write(dir.path(), text).unwrap();
            assert_eq!(file.look(false), Look::Same, "{text}");
            let told = refused(file.look(false));
            assert!(told.contains(why), "{told}");
            assert_eq!(file.look(false), Look::Same, "{text}");
        }
        fs::write(dir.path(), "[]").unwrap();
        file.look(false);
        assert!(urls(file.look(false)).is_empty());
    }

    #[test]
    fn one_that_was_away_is_read_again() {
        let dir = Dir::new("away");
        let mut file = ReplicaFile::new(dir.path());
        fs::write(dir.path(), "- url: http://a:1\n").unwrap();
        assert_eq!(urls(file.look(true)), ["http://a:1"]);
        fs::remove_file(dir.path()).unwrap();
        for _ in 0..600 {
            refused(file.look(false));
        }
        fs::write(dir.path(), "- url: http://a:1\n").unwrap();
        assert_eq!(file.look(false), Look::Same);
        assert_eq!(urls(file.look(false)), ["http://a:1"]);
    }

    #[test]
    #[cfg(unix)]
    fn links_that_are_swapped_as_kubernetes_does_it() {
        let dir = Dir::new("links");
        let put = |version: &str, text: &str| {
            fs::create_dir(dir.0.join(version)).unwrap();
            fs::write(dir.0.join(version).join("replicas.yaml"), text).unwrap();
            std::os::unix::fs::symlink(version, dir.0.join("..next")).unwrap();
            fs::rename(dir.0.join("..next"), dir.0.join("..data")).unwrap();
        };
        put("..1", "- url: http://a:1\n");
        std::os::unix::fs::symlink(Path::new("..data/replicas.yaml"), dir.path()).unwrap();
        let mut file = ReplicaFile::new(dir.path());
        assert_eq!(urls(file.look(true)), ["http://a:1"]);
        put("..2", "- url: http://b:1\n");
        assert_eq!(file.look(false), Look::Same);
        assert_eq!(urls(file.look(false)), ["http://b:1"]);
    }

    #[test]
    fn key_files_that_were_replaced_are_seen() {
        let dir = Dir::new("keys");
        let key = dir.0.join("key");
        fs::write(&key, "one").unwrap();
        fs::write(dir.path(), format!("- url: http://a:1\n  api_key_file: {}\n", key.display())).unwrap();
        let mut file = ReplicaFile::new(dir.path());
        file.look(true);
        fs::write(&key, "two").unwrap();
        let list = (0..=REREAD).find_map(|_| match file.look(false) {
            Look::List(list) => Some(list),
            _ => None,
        });
        assert_eq!(list.unwrap()[0].api_key.as_ref().unwrap().expose(), "two");
    }
}
