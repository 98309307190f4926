//! Addresses as people write them: `ip:port`, or `name:port` that is looked up whenever it is needed.

use hedgerow_env::os::spawn_thread;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;

/// Addresses of one name that are tried.
const FOUND_MAX: usize = 8;

/// What `address` stands for, IPv4 first, since Pegasus' clients know no other. Blocks while a name is looked up.
pub(super) fn look_up(address: &str) -> io::Result<Vec<SocketAddr>> {
    let mut found: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    found.truncate(FOUND_MAX);
    Ok(found)
}

/// As [`look_up`], on a thread of its own: a name server that does not answer holds up nobody else.
pub(super) async fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = address.parse() {
        return Ok(vec![address]);
    }
    let address = address.to_owned();
    let (found, wait) = oneshot::channel();
    // Nobody waits any more once the node has stopped.
    spawn_thread("resolve", move || drop(found.send(look_up(&address))))?;
    wait.await.map_err(io::Error::other)?
}

/// Time after which a connection to a machine that says nothing any more is given up.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Connects to `address` with the settings that all our connections have.
pub(super) async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_nodelay(true)?;
    let options = socket2::SockRef::from(&socket);
    // A machine that lost power closes nothing, and the system would send again for a quarter of an hour.
    options.set_tcp_user_timeout(Some(SILENCE_MAX))?;
    options.set_tcp_keepalive(&keepalive(SILENCE_MAX / 2, SILENCE_MAX / 5))?;
    let stream = socket.connect(address).await?;
    // Where the port lies in the range of outgoing ones and nobody listens, a socket can be connected to itself.
    if stream.local_addr()? == stream.peer_addr()? { Err(io::ErrorKind::ConnectionRefused.into()) } else { Ok(stream) }
}

/// Asks the other end after it has been silent for `idle`, then each `interval`.
pub(super) fn keepalive(idle: Duration, interval: Duration) -> socket2::TcpKeepalive {
    socket2::TcpKeepalive::new().with_time(idle).with_interval(interval)
}
