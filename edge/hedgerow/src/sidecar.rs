//! `hedgerow sidecar`: clients of Pegasus on this machine, which speak no TLS, reach a cluster that wants it.
//!
//! ```text
//! client ──> 127.0.0.1:34601 ──> whichever node answers        the "meta server" of clients
//!        ──> 127.0.0.1:34602 ──> node 1                        named in the partition maps that clients get
//!        ──> 127.0.0.1:34603 ──> node 2
//!    in the clear, no further     TLS, with the certificate or the password of
//!    than this machine            who runs the sidecar
//! ```
//!
//! Each connection of a client has one to a node of its own, and ends with it; nothing is shared but the ports and the limits.

mod connection;
mod ports;

use crate::access::Access;
use crate::cluster::NodesArguments;
use crate::exit::Exit;
use crate::log::announce;
use crate::password::CredentialArguments;
use crate::runtime;
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use connection::Upstream;
use hedgerow_env::os::raise_file_limit;
use hedgerow_tls::Stream;
use hedgerow_wire::Address;
use ports::{Port, Ports};
use std::net::{SocketAddr, SocketAddrV4};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc};

/// Connections of clients at the same time. Each takes 400 KiB at most, beside a partition map that is being read.
const CONNECTIONS_MAX: usize = 1024;
/// Time between two attempts to accept after one failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Arguments of `sidecar`.
#[derive(Args, Debug)]
pub(crate) struct SidecarArguments {
    /// Where clients find the cluster: their meta server. Each port after it stands for one node; port 0 takes free ones.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:34601")]
    listen: SocketAddrV4,
    /// Listen where other machines reach it, too: whoever does acts as you, and what they say is not encrypted.
    #[arg(long)]
    insecure_listen: bool,
    #[command(flatten)]
    nodes: NodesArguments,
    #[command(flatten)]
    credentials: CredentialArguments,
}

/// What all connections share.
struct Sidecar {
    /// Addresses of nodes, as they were given.
    cluster: Vec<String>,
    access: Mutex<Access>,
    ports: Mutex<Ports>,
    room: Arc<Semaphore>,
}

/// Serves clients until it is told to stop.
pub(crate) fn run(arguments: &SidecarArguments) -> Result<Exit> {
    let access = read_access(arguments)?;
    check_listen(arguments)?;
    if let Err(error) = raise_file_limit() {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
    runtime::block_on(serve(arguments, access))
}

fn read_access(arguments: &SidecarArguments) -> Result<Access> {
    let access = arguments.nodes.access(&arguments.credentials.read_anew())?;
    ensure!(
        access.tls.is_some(),
        "without --tls-ca there is nothing to do: clients of Pegasus reach a cluster without TLS themselves"
    );
    Ok(access)
}

/// Whoever reaches a sidecar acts as who runs it.
fn check_listen(arguments: &SidecarArguments) -> Result<()> {
    let listen = arguments.listen;
    ensure!(
        !listen.ip().is_unspecified(),
        "--listen {listen}: clients are told this address, so that it must be one of this machine's"
    );
    if listen.ip().is_loopback() {
        return Ok(());
    }
    ensure!(
        arguments.insecure_listen,
        "--listen {listen}: other machines reach it, and would act as you, unencrypted; 127.0.0.1 is reached from this machine \
         alone, and --insecure-listen says that you know"
    );
    tracing::warn!(%listen, "everybody who reaches this address acts as who runs this sidecar, and nothing is encrypted up to here");
    Ok(())
}

async fn serve(arguments: &SidecarArguments, access: Access) -> Result<Exit> {
    let (mut interrupted, mut terminated) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut hung_up = signal(SignalKind::hangup())?;
    let cluster: Vec<String> = arguments.nodes.cluster.iter().map(|name| name.trim().to_owned()).collect();
    let (meta, listen) =
        ports::listen(arguments.listen).with_context(|| format!("listening at {}", arguments.listen))?;
    let (opened, mut newly_opened) = mpsc::unbounded_channel();
    let mut ports = Ports::new(listen, arguments.listen.port() == 0, opened);
    for node in addresses_of(&cluster).await? {
        ensure!(node != listen, "{node} is the sidecar itself: --cluster names the nodes");
        ports.near(Address::new(node));
    }
    let (access, ports, room) = (Mutex::new(access), Mutex::new(ports), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
    let sidecar = Arc::new(Sidecar { cluster, access, ports, room });
    runtime::spawn(accept(Arc::clone(&sidecar), meta, Upstream::any()));
    announce(&format!("ready: {listen} is the meta server of {}", sidecar.cluster.join(",")));
    loop {
        tokio::select! {
            Some(Port { listener, near, far }) = newly_opened.recv() => {
                announce(&format!("{near} stands for {far}"));
                runtime::spawn(accept(Arc::clone(&sidecar), listener, Upstream::node(far)));
            }
            Some(()) = hung_up.recv() => sidecar.reload(arguments),
            _ = interrupted.recv() => break,
            _ = terminated.recv() => break,
        }
    }
    tracing::info!("stopping");
    Ok(Exit::Done)
}

/// What the names of nodes stand for, as far as the protocol has room for it.
async fn addresses_of(cluster: &[String]) -> Result<Vec<SocketAddrV4>> {
    let mut found = Vec::new();
    for name in cluster {
        let looked_up = tokio::net::lookup_host(name).await;
        found.extend(looked_up.with_context(|| format!("looking up {name}"))?);
    }
    let of_version_4 = |address| match address {
        SocketAddr::V4(address) => Some(address),
        SocketAddr::V6(_) => None,
    };
    Ok(found.into_iter().filter_map(of_version_4).collect())
}

/// Takes the connections that come to one port.
async fn accept(sidecar: Arc<Sidecar>, listener: TcpListener, upstream: Upstream) {
    let upstream = Arc::new(upstream);
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                let Ok(place) = Arc::clone(&sidecar.room).try_acquire_owned() else {
                    tracing::warn!(limit = CONNECTIONS_MAX, "a client's connection was closed: there are too many");
                    continue;
                };
                let (sidecar, upstream) = (Arc::clone(&sidecar), Arc::clone(&upstream));
                runtime::spawn(async move {
                    sidecar.connect(client, &upstream).await;
                    drop(place);
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: others may be closed meanwhile.
                tracing::warn!(%error, "a client's connection could not be accepted");
                runtime::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl Sidecar {
    /// Serves a client's connection until one of its ends is closed, or breaks.
    async fn connect(&self, client: TcpStream, upstream: &Upstream) {
        let access = lock(&self.access).clone();
        let dialled = upstream.dial(&self.cluster, &access).await;
        let (address, node) = match dialled {
            Ok(dialled) => dialled,
            Err(error) => {
                return tracing::error!(
                    error = format!("{error:#}"),
                    "a client's connection was closed: no node was reached"
                );
            }
        };
        let client = Stream::plain(client);
        if let Err(error) = connection::carry(&client, &node, |far| lock(&self.ports).near(far)).await {
            tracing::error!(node = address, %error, "a client's connection was closed");
        }
    }

    /// Reads certificates and the password anew, for connections that are made from now on.
    fn reload(&self, arguments: &SidecarArguments) {
        match read_access(arguments) {
            Ok(access) => {
                *lock(&self.access) = access;
                tracing::info!(
                    "certificates and the password were read anew, for connections that are made from now on"
                );
            }
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "certificates and the password stay as they were")
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
