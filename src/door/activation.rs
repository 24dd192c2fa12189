//! Sockets that came with the start of the process: from systemd (socket activation) or from the router that this one
//! takes over from.
//!
//! The protocol is systemd's: descriptors from 3 on, `LISTEN_FDS` their number, `LISTEN_FDNAMES` their names, and
//! `LISTEN_PID` the process that they are meant for. With another process's number there they are left alone: they belong to
//! a parent, and came along by accident. A router that starts its successor can't know its number beforehand and leaves
//! that variable out.

use listenfd::ListenFd;
use std::net::TcpListener;

/// Names of the sockets, in the order in which unnamed ones are taken.
pub const NAMES: [&str; 5] = ["data", "metrics", "admin", "extproc", "extproc-health"];

/// Sockets that came with the start, by name.
#[derive(Debug, Default)]
pub struct Inherited {
    sockets: Vec<(String, TcpListener)>,
}

impl Inherited {
    /// Takes them out of the environment. Those that can't be used are told of.
    ///
    /// # Errors
    /// A descriptor isn't a listening TCP socket. The message says which.
    pub fn from_env() -> Result<Self, String> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut fds = ListenFd::from_env();
        let mut sockets = Vec::new();
        for (n, name) in named(&names, fds.len()).into_iter().enumerate() {
            match fds.take_tcp_listener(n) {
                Ok(Some(listener)) => sockets.push((name, listener)),
                Ok(None) => {}
                Err(e) => return Err(format!("LISTEN_FDS: the socket named `{name}`: {e}")),
            }
        }
        Ok(Inherited { sockets })
    }

    /// Takes the socket of that name.
    pub fn take(&mut self, name: &str) -> Option<TcpListener> {
        let at = self.sockets.iter().position(|(n, _)| n == name)?;
        Some(self.sockets.remove(at).1)
    }

    /// Names of those that nobody took.
    pub fn left(&self) -> Vec<&str> {
        self.sockets.iter().map(|(n, _)| n.as_str()).collect()
    }
}

/// The name of each of `count` sockets. systemd calls those without a name `unknown`, or after their unit.
fn named(list: &str, count: usize) -> Vec<String> {
    let given: Vec<&str> = list.split(':').collect();
    let known = given.iter().any(|name| NAMES.contains(name));
    (0..count)
        .map(|n| match (known, given.get(n), NAMES.get(n)) {
            (true, Some(name), _) => (*name).to_owned(),
            (false, _, Some(name)) => (*name).to_owned(),
            _ => format!("number {n}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_which_is_which_and_else_the_order_does() {
        assert_eq!(named("admin:data", 2), ["admin", "data"]);
        assert_eq!(named("", 2), ["data", "metrics"]);
        assert_eq!(named("homing.socket:homing.socket", 2), ["data", "metrics"]);
        assert_eq!(named("data", 2), ["data", "number 1"]);
        assert_eq!(named("", 4)[3], "number 3");
        assert!(named("data:admin", 0).is_empty());
    }

    #[test]
    fn each_is_taken_once() {
        let local = || TcpListener::bind("127.0.0.1:0").unwrap();
        let mut all = Inherited { sockets: vec![("data".into(), local()), ("x".into(), local())] };
        assert!(all.take("data").is_some() && all.take("data").is_none());
        assert_eq!(all.left(), ["x"]);
    }
}
