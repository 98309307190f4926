//! Ports that nobody else gets, also while their node is down.

use anyhow::{Context, Result};
use socket2::{Domain, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr};

/// A TCP port of the loopback interface that belongs to whoever holds this.
///
/// The port is bound and nobody listens on it, so that connections to it are refused until its node listens. Linux lets a second
/// socket bind a port, and listen there, if both sockets allow the reuse of addresses and the first one does not listen. A
/// node's does, for the sake of its restarts. Nobody else is in the way: a search for a free port, or the source port of an outgoing
/// connection, never takes one that is bound, and binding it by its number without that permission fails.
pub struct Port {
    /// Its number.
    pub number: u16,
    _reservation: Socket,
}

/// Reserves a port that is free now. An error: there is none.
pub fn reserve_port() -> Result<Port> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).context("making a socket")?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).context("looking for a free port")?;
    // Only now: until here the port must be nobody's.
    socket.set_reuse_address(true).context("sharing a port with its node")?;
    let address = socket.local_addr().context("asking for the port")?;
    let number = address.as_socket().context("a port has an address")?.port();
    Ok(Port { number, _reservation: socket })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_reserved_port_is_its_nodes_again_and_again_and_nobody_elses() {
        let port = reserve_port().expect("a port");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.number));
        for _ in 0..3 {
            assert!(TcpStream::connect(address).is_err(), "nobody listens");
            let other = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
            assert!(other.bind(&address.into()).is_err(), "it was taken");
            // As a node does: the standard library allows the reuse of addresses.
            let node = TcpListener::bind(address).expect("its node listens");
            let client = TcpStream::connect(address).expect("connects");
            // The node's end is closed first, which keeps the address for a while.
            drop(node.accept().expect("accepts"));
            drop((node, client));
        }
    }
}
