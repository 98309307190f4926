//! One connection of a client, and the one to a node that it has to itself.
//!
//! What is read on one side is written on the other one before more is read, so that who does not read is not read from either, and
//! keeps no memory but these buffers.

use crate::access::Access;
use crate::runtime;
use anyhow::{Context as _, Result, anyhow};
use bytes::BytesMut;
use hedgerow_tls::{Stream, is_disbelief};
use hedgerow_wire::{Address, Relay};
use std::io;
use std::net::SocketAddrV4;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;

/// Bytes that a buffer keeps for the next reply.
const KEPT_MAX: usize = 256 << 10;
/// How long it may take to reach a node and to agree on TLS with it.
const DIAL_MAX: Duration = Duration::from_secs(2);
/// How long a client may take nothing of what there is for it.
const UNREAD_MAX: Duration = Duration::from_secs(60);
/// After which silence the machine at either end is asked whether it is there, and how often.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How long a node may take to answer what a client had asked for before it ended.
const ENDING_MAX: Duration = Duration::from_secs(10);

/// What a port stands for.
pub(super) enum Upstream {
    /// Any node of the cluster: first the one that was reached last, by its place among those that were given.
    Any(AtomicUsize),
    /// One node.
    Node(SocketAddrV4),
}

impl Upstream {
    pub(super) const fn any() -> Self {
        Self::Any(AtomicUsize::new(0))
    }

    pub(super) const fn node(address: SocketAddrV4) -> Self {
        Self::Node(address)
    }

    /// Connects to it, and says to whom. An error says why each node that was tried was not reached.
    pub(super) async fn dial(&self, cluster: &[String], access: &Access) -> Result<(String, Arc<Stream>)> {
        let last = match self {
            Self::Node(address) => {
                let address = address.to_string();
                let stream = dial(&address, access).await?;
                return Ok((address, stream));
            }
            Self::Any(last) => last,
        };
        let mut reasons = Vec::new();
        let first = last.load(Ordering::Relaxed);
        for place in (0..cluster.len()).map(|offset| (first + offset) % cluster.len()) {
            match dial(&cluster[place], access).await {
                Ok(stream) => {
                    last.store(place, Ordering::Relaxed);
                    return Ok((cluster[place].clone(), stream));
                }
                Err(error) => reasons.push(format!("{error:#}")),
            }
        }
        Err(anyhow!("{}", reasons.join("; ")))
    }
}

async fn dial(address: &str, access: &Access) -> Result<Arc<Stream>> {
    let dialling = async {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        watch(&tcp)?;
        let stream = Arc::new(match &access.tls {
            Some(tls) => tls.connect(tcp).await?,
            None => Stream::plain(tcp),
        });
        if let Some(credentials) = &access.credentials {
            credentials.log_in_on(&stream).await.map_err(io::Error::other)?;
        }
        Ok(stream)
    };
    let dialled: Option<io::Result<_>> = runtime::timeout(DIAL_MAX, dialling).await;
    dialled.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into())).with_context(|| format!("connecting to {address}"))
}

/// A machine that lost power closes nothing: the connection ends when it is not there any more, or takes nothing for [`UNREAD_MAX`].
fn watch(tcp: &TcpStream) -> io::Result<()> {
    let options = socket2::SockRef::from(tcp);
    options.set_tcp_user_timeout(Some(UNREAD_MAX))?;
    options.set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(SILENCE_MAX).with_interval(SILENCE_MAX))
}

/// Hands on what both ends say, until one of them has ended. `near` gives the address that stands for a node's.
///
/// # Errors
/// What the node did wrong, or why it does not believe this end. Ends and breaks of connections are none.
pub(super) async fn carry(client: &Stream, node: &Stream, near: impl FnMut(Address) -> Address) -> io::Result<()> {
    let told = |error: io::Error| if is_disbelief(&error) || is_wrong(&error) { Err(error) } else { Ok(()) };
    // Fail only on a socket that is no longer connected, which is found out next.
    let _ = client.tcp().set_nodelay(true);
    let _ = watch(client.tcp());
    tokio::select! {
        replied = replies(node, client, near) => replied.or_else(told),
        () = requests(client, node) => Ok(()),
    }
}

/// From the node to the client, until the node has ended; or the client, of whom nobody is told.
async fn replies(node: &Stream, client: &Stream, mut near: impl FnMut(Address) -> Address) -> io::Result<()> {
    let (mut buffer, mut relay) = (BytesMut::new(), Relay::default());
    while node.read(&mut buffer).await? > 0 {
        while let Some(bytes) = relay.next(&mut buffer, &mut near).map_err(wrong)? {
            if !matches!(runtime::timeout(UNREAD_MAX, client.write_all(&bytes)).await, Some(Ok(()))) {
                return Ok(());
            }
        }
        // What a partition map took is not kept for ever.
        if buffer.is_empty() && buffer.capacity() > KEPT_MAX {
            buffer = BytesMut::new();
        }
    }
    Ok(())
}

/// From the client to the node, which judges what is no request, or too large. Ends if the client's connection breaks. Where a client
/// says no more, the node is told, and ends the connection, or has it ended after [`ENDING_MAX`]; why a node takes no more is told by reading from it.
async fn requests(client: &Stream, node: &Stream) {
    let mut buffer = BytesMut::new();
    loop {
        match client.read(&mut buffer).await {
            Err(_) => return,
            Ok(0) => break,
            Ok(_) if node.write_all(&buffer).await.is_err() => break,
            Ok(_) => buffer.clear(),
        }
    }
    node.say_end();
    runtime::sleep(ENDING_MAX).await;
}

fn wrong(error: hedgerow_wire::Broken) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn is_wrong(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<hedgerow_wire::Broken>())
}
