//! Certificates: made at the start, or read from files and read again when they change.

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What connections are greeted with, now.
#[derive(Clone)]
pub(super) struct Certificates {
    now: Arc<ArcSwap<ServerConfig>>,
    files: Option<Files>,
}

#[derive(Clone)]
struct Files {
    cert: PathBuf,
    key: PathBuf,
    /// What was read last.
    seen: (Vec<u8>, Vec<u8>),
}

impl Certificates {
    /// A certificate of our own making: Envoy needs one to speak TLS, and doesn't check it unless it is told to.
    ///
    /// # Errors
    /// The system has no randomness to give.
    pub(super) fn self_signed() -> io::Result<Self> {
        let names = vec!["homing".to_owned(), "localhost".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).map_err(io::Error::other)?;
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(io::Error::other)?;
        let config = config(vec![made.cert.der().clone()], key)?;
        Ok(Certificates { now: Arc::new(ArcSwap::from_pointee(config)), files: None })
    }

    /// Those in two PEM files.
    ///
    /// # Errors
    /// They can't be read, or don't fit together. The message names them.
    pub(super) fn files(cert: &Path, key: &Path) -> io::Result<Self> {
        let seen = read(cert, key)?;
        let config = parse(&seen, cert, key)?;
        let files = Files { cert: cert.to_owned(), key: key.to_owned(), seen };
        Ok(Certificates { now: Arc::new(ArcSwap::from_pointee(config)), files: Some(files) })
    }

    /// What to greet the next connection with.
    pub(super) fn get(&self) -> Arc<ServerConfig> {
        self.now.load_full()
    }

    /// Reads the files again; true if they have changed. A change that can't be used leaves what there was.
    ///
    /// # Errors
    /// As [`Certificates::files`].
    pub(super) fn reread(&mut self) -> io::Result<bool> {
        let Some(files) = &mut self.files else { return Ok(false) };
        let fresh = read(&files.cert, &files.key)?;
        if fresh == files.seen {
            return Ok(false);
        }
        let config = parse(&fresh, &files.cert, &files.key)?;
        // Only then: a pair of which one half is still the old one is tried again.
        files.seen = fresh;
        self.now.store(Arc::new(config));
        Ok(true)
    }
}

fn read(cert: &Path, key: &Path) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let file = |path: &Path| {
        std::fs::read(path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
    };
    Ok((file(cert)?, file(key)?))
}

fn parse(pem: &(Vec<u8>, Vec<u8>), cert: &Path, key: &Path) -> io::Result<ServerConfig> {
    let bad = |path: &Path, e: &dyn std::fmt::Display| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{}: {e}", path.display()))
    };
    let chain: Vec<_> =
        CertificateDer::pem_slice_iter(&pem.0).collect::<Result<_, _>>().map_err(|e| bad(cert, &e))?;
    if chain.is_empty() {
        return Err(bad(cert, &"no certificate in it"));
    }
    let private = PrivateKeyDer::from_pem_slice(&pem.1).map_err(|e| bad(key, &e))?;
    config(chain, private).map_err(|e| bad(cert, &e))
}

fn config(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> io::Result<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(io::Error::other)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path) -> rcgen::CertifiedKey<rcgen::KeyPair> {
        let made = rcgen::generate_simple_self_signed(vec!["a".to_owned()]).unwrap();
        std::fs::write(dir.join("cert"), made.cert.pem()).unwrap();
        std::fs::write(dir.join("key"), made.signing_key.serialize_pem()).unwrap();
        made
    }

    #[test]
    fn files_are_read_again_and_a_bad_pair_changes_nothing() {
        let dir = std::env::temp_dir().join(format!("homing-tls-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        write(&dir);
        let mut c = Certificates::files(&dir.join("cert"), &dir.join("key")).unwrap();
        let first = c.get();
        assert!(!c.reread().unwrap());
        std::fs::write(dir.join("key"), "nonsense").unwrap();
        assert!(c.reread().unwrap_err().to_string().contains("key"));
        assert!(Arc::ptr_eq(&first, &c.get()));
        write(&dir);
        assert!(c.reread().unwrap());
        assert!(!Arc::ptr_eq(&first, &c.get()));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn one_is_made() {
        let mut c = Certificates::self_signed().unwrap();
        assert_eq!(c.get().alpn_protocols, [b"h2".to_vec()]);
        assert!(!c.reread().unwrap());
        let none = Certificates::files(Path::new("/no/such"), Path::new("/no/such"));
        assert!(none.err().unwrap().to_string().contains("/no/such"));
    }
}
