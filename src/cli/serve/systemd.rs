//! Telling the service manager how far we are (`Type=notify`): lines to the socket that `NOTIFY_SOCKET` names.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends `state`, like `READY=1`. Does nothing where nobody listens.
pub(super) fn notify(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&socket, state) {
        tracing::warn!(%error, "the service manager can't be told: {state}");
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let to = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &to).map(drop)
}

/// This process is the service from now on, and serves.
pub(super) fn ready() {
    notify(&format!("READY=1\nMAINPID={}\nSTATUS=Serving", std::process::id()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_names() {
        let name = format!("homing-notify-{}", std::process::id());
        let abstract_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(OsStr::new(&format!("@{name}")), "READY=1").unwrap();
        let mut got = [0; 64];
        let n = abstract_name.recv(&mut got).unwrap();
        assert_eq!(&got[..n], b"READY=1");
        let path = std::env::temp_dir().join(&name);
        let file = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "STOPPING=1").unwrap();
        let n = file.recv(&mut got).unwrap();
        assert_eq!(&got[..n], b"STOPPING=1");
        std::fs::remove_file(&path).unwrap();
        assert!(send(path.as_os_str(), "x").is_err());
    }
}
