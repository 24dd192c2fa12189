//! A listening socket that can be moved to another address, and handed to another process, while it is in use.
//!
//! Who accepts connections holds a [`Watcher`] and asks it what to listen on; who steers holds the [`Door`]. The socket
//! itself is shared, so that it is closed by the last of them, and a process that is started with a copy of its
//! descriptor goes on accepting from the very same queue: nobody in it is refused.
//!
//! - `activation`: sockets that came with the start of the process

mod activation;

pub use activation::{Inherited, NAMES};

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use tokio::sync::watch;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// What there is to accept from.
#[derive(Clone, Debug)]
enum Leaf {
    /// Bound, and nobody accepts yet.
    Shut(Arc<TcpListener>),
    /// Accepting.
    Open(Arc<TcpListener>),
    /// Another process accepts from now on.
    HandedOver,
}

/// The steering end.
#[derive(Clone, Debug)]
pub struct Door {
    leaf: watch::Sender<Leaf>,
}

/// The accepting end.
#[derive(Clone, Debug)]
pub struct Watcher {
    leaf: watch::Receiver<Leaf>,
}

/// Listens at `at`.
///
/// # Errors
/// The address is in use, or not ours.
pub fn bind(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(at), socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&at.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

impl Door {
    /// A door that is open from the start, or shut until [`Door::open`].
    ///
    /// # Errors
    /// The socket can't be made non-blocking.
    pub fn new(listener: TcpListener, open: bool) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let listener = Arc::new(listener);
        let leaf = if open { Leaf::Open(listener) } else { Leaf::Shut(listener) };
        Ok(Door { leaf: watch::Sender::new(leaf) })
    }

    /// Lets in who comes. Does nothing once it was handed over.
    pub fn open(&self) {
        self.leaf.send_if_modified(|leaf| match leaf {
            Leaf::Shut(listener) => {
                *leaf = Leaf::Open(listener.clone());
                true
            }
            Leaf::Open(_) | Leaf::HandedOver => false,
        });
    }

    /// Listens elsewhere from now on. Who waits at the old address is let in first.
    ///
    /// # Errors
    /// The socket can't be made non-blocking.
    pub fn move_to(&self, listener: TcpListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        self.leaf.send_replace(Leaf::Open(Arc::new(listener)));
        Ok(())
    }

    /// Another process has the socket too, and lets in who comes from now on.
    pub fn hand_over(&self) {
        self.leaf.send_replace(Leaf::HandedOver);
    }

    /// The socket, to be given to another process; `None` once it was.
    pub fn listener(&self) -> Option<Arc<TcpListener>> {
        match &*self.leaf.borrow() {
            Leaf::Shut(listener) | Leaf::Open(listener) => Some(listener.clone()),
            Leaf::HandedOver => None,
        }
    }

    /// Where it is.
    ///
    /// # Errors
    /// Those of the system; or it was handed over.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener().ok_or(io::ErrorKind::NotConnected)?.local_addr()
    }

    /// An end for who accepts.
    pub fn watch(&self) -> Watcher {
        Watcher { leaf: self.leaf.subscribe() }
    }
}

impl Watcher {
    /// What to accept from now; `None`: nothing.
    pub fn current(&mut self) -> Option<Arc<TcpListener>> {
        match &*self.leaf.borrow_and_update() {
            Leaf::Open(listener) => Some(listener.clone()),
            Leaf::Shut(_) | Leaf::HandedOver => None,
        }
    }

    /// Was it handed over? What waits in its queue is then another process's.
    pub fn handed_over(&self) -> bool {
        matches!(&*self.leaf.borrow(), Leaf::HandedOver)
    }

    /// Waits until [`Watcher::current`] has news; for ever if there will be none.
    pub async fn changed(&mut self) {
        if self.leaf.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// The listener for the reactor of this thread. Dropping it leaves the socket itself open.
///
/// # Errors
/// Out of descriptors, or not within a runtime.
pub fn reacting(listener: &TcpListener) -> io::Result<tokio::net::TcpListener> {
    tokio::net::TcpListener::from_std(listener.try_clone()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local() -> TcpListener {
        bind(([127, 0, 0, 1], 0).into()).unwrap()
    }

    #[test]
    fn a_door_is_shut_open_moved_and_handed_over() {
        let door = Door::new(local(), false).unwrap();
        let mut watcher = door.watch();
        assert!(watcher.current().is_none());
        let first = door.local_addr().unwrap();
        door.open();
        assert_eq!(watcher.current().unwrap().local_addr().unwrap(), first);
        door.move_to(local()).unwrap();
        assert_ne!(watcher.current().unwrap().local_addr().unwrap(), first);
        assert!(!watcher.handed_over());
        door.hand_over();
        assert!(watcher.current().is_none() && watcher.handed_over());
        door.open();
        assert!(watcher.current().is_none(), "what is given away can't be opened again");
        assert!(door.local_addr().is_err());
    }

    #[test]
    fn the_old_socket_is_closed_when_nobody_holds_it() {
        let door = Door::new(local(), true).unwrap();
        let at = door.local_addr().unwrap();
        door.move_to(local()).unwrap();
        assert!(bind(at).is_ok(), "the address is free again");
    }
}
