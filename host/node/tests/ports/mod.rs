//! Addresses for nodes that nobody else gets, also before a node listens there and while it is down.

use socket2::{Domain, Socket, Type};
use std::net::SocketAddr;

/// An address that stays this process' own until it ends. It is bound, and nobody listens there: a node may, for both sockets allow
/// the reuse of addresses, and nobody else finds the port free.
pub(crate) fn reserved_address() -> String {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    // Only now: until here the port must be nobody's.
    socket.set_reuse_address(true).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap().to_string();
    std::mem::forget(socket);
    address
}
