//! Which port of this machine stands for which node: opened when the node is first named, and kept.

use hedgerow_wire::Address;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddrV4;
use std::ops::RangeInclusive;
use tokio::net::TcpListener;
use tokio::sync::mpsc::UnboundedSender;

/// Addresses of nodes that get a port. A cluster has far fewer; those of nodes that moved keep theirs.
const NODES_MAX: usize = 256;

/// A port that was opened, and what it stands for.
pub(super) struct Port {
    pub(super) listener: TcpListener,
    pub(super) near: SocketAddrV4,
    pub(super) far: SocketAddrV4,
}

/// The ports of nodes.
pub(super) struct Ports {
    /// Where clients find the cluster.
    meta: SocketAddrV4,
    /// Those that are not taken, as far as known; `None`: any free ones.
    following: Option<RangeInclusive<u16>>,
    near: BTreeMap<SocketAddrV4, SocketAddrV4>,
    /// At most [`NODES_MAX`] are ever sent.
    opened: UnboundedSender<Port>,
}

impl Ports {
    /// Ports of the address of `meta`: those after its own, or any free ones. Each one that is opened goes to `opened`.
    pub(super) fn new(meta: SocketAddrV4, are_any: bool, opened: UnboundedSender<Port>) -> Self {
        let following = (!are_any).then(|| RangeInclusive::new(meta.port().saturating_add(1), u16::MAX));
        Self { meta, following, near: BTreeMap::new(), opened }
    }

    /// The address that stands for the node at `far`; none if there is none, and none can be had.
    pub(super) fn near(&mut self, far: Address) -> Address {
        let Some(far) = far.socket() else { return Address::NONE };
        if let Some(near) = self.near.get(&far) {
            return Address::new(*near);
        }
        // One that stands for itself would connect with itself without end.
        if far == self.meta || self.near.values().any(|near| *near == far) {
            return Address::NONE;
        }
        match self.open() {
            Ok((listener, near)) => {
                self.near.insert(far, near);
                // The receiver goes only when the process ends.
                let _ = self.opened.send(Port { listener, near, far });
                Address::new(near)
            }
            Err(error) => {
                tracing::error!(%far, %error, "clients cannot reach a node: no port could be opened for it");
                Address::NONE
            }
        }
    }

    fn open(&mut self) -> io::Result<(TcpListener, SocketAddrV4)> {
        if self.near.len() >= NODES_MAX {
            return Err(io::Error::other(format!("there are {NODES_MAX} already, as many as are allowed")));
        }
        let ip = *self.meta.ip();
        let Some(following) = &mut self.following else { return listen(SocketAddrV4::new(ip, 0)) };
        while let Some(port) = following.clone().next() {
            match listen(SocketAddrV4::new(ip, port)) {
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => return Err(error),
                listening => {
                    following.next();
                    if listening.is_ok() {
                        return listening;
                    }
                }
            }
        }
        Err(io::Error::other("all ports after that of --listen are taken"))
    }
}

/// Listens, and says where.
pub(super) fn listen(address: SocketAddrV4) -> io::Result<(TcpListener, SocketAddrV4)> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    Ok((TcpListener::from_std(listener)?, SocketAddrV4::new(*address.ip(), port)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tokio::sync::mpsc::unbounded_channel;

    fn far(number: u16) -> Address {
        Address::new(SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), number))
    }

    #[tokio::test]
    async fn a_node_keeps_its_port_and_there_is_a_bound() {
        let (opened, mut newly_opened) = unbounded_channel();
        let mut ports = Ports::new(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0), true, opened);
        let first = ports.near(far(1));
        assert_ne!(ports.near(far(2)), first);
        assert_eq!(ports.near(far(1)), first);
        assert_eq!(ports.near(Address::NONE), Address::NONE);
        let port = newly_opened.recv().await.unwrap();
        assert_eq!((Some(port.near), Some(port.far)), (first.socket(), far(1).socket()));
        (3..=256).for_each(|number| assert_ne!(ports.near(far(number)), Address::NONE));
        assert_eq!(ports.near(far(257)), Address::NONE);
        assert_eq!(ports.near(far(1)), first);
    }

    #[tokio::test]
    async fn ports_follow_that_of_the_meta_server_and_taken_ones_are_left_out() {
        let (_meta, at) = listen(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        let taken = at.port().checked_add(1).map(|port| listen(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)));
        let mut ports = Ports::new(at, false, unbounded_channel().0);
        let near = ports.near(far(1)).socket().unwrap();
        assert!(taken.is_some() && near.port() > at.port() + 1, "{near}");
    }
}
