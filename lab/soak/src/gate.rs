//! Gates in front of the nodes: everything that anybody says to a node passes through its gate, which knows who says it, so
//! that any pair can be cut, in one direction or both.
//!
//! ```text
//! node 2 ──> gate 1 ──┐                  a node opens its connections with a greeting that names it;
//! client ──> gate 1 ──┴─> node 1         whoever begins with anything else is a client
//! ```
//!
//! A cut holds bytes back and keeps connections: what was on its way arrives when the cut is over, as on a network that drops
//! packets for a while. A break closes connections instead, and new ones as soon as it is known whose they are.
#![allow(clippy::disallowed_methods, reason = "the one place that starts the gates' tasks")]

use crate::plan::Party;
use anyhow::{Context as _, Result};
use hedgerow_env::os::spawn_thread;
use hedgerow_node::peer::{GREETING_HEAD_SIZE, Greeting, MAGIC};
use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::{LocalSet, spawn_local};

/// Bytes that one direction of one connection holds at most, beside what the kernel does.
const BUFFER_SIZE: usize = 64 << 10;
/// A greeting with all the logs that it can tell of.
const GREETING_SIZE_MAX: usize = 16 << 10;
/// Before it is looked again whether the rest of a greeting has come, or whether a connection can be accepted.
const PAUSE: Duration = Duration::from_millis(5);

/// Directed pairs.
type Pairs = BTreeSet<(Party, Party)>;

/// What passes and what does not.
#[derive(Clone, Debug, Default)]
struct Rules {
    held: Pairs,
    broken: Pairs,
}

/// Gates on a thread of their own, one in front of each node. Dropping them closes everything.
#[derive(Debug)]
pub(crate) struct Gates {
    addresses: Vec<SocketAddr>,
    rules: watch::Sender<Rules>,
    _stop: oneshot::Sender<()>,
}

impl Gates {
    /// Gates in front of nodes 1 to n, which listen at `nodes`.
    pub(crate) fn start(nodes: &[SocketAddr]) -> Result<Self> {
        let mut listeners = Vec::new();
        for _ in nodes {
            let listener = StdTcpListener::bind("127.0.0.1:0").context("opening a gate")?;
            listener.set_nonblocking(true).context("opening a gate")?;
            listeners.push(listener);
        }
        let addresses = listeners.iter().map(StdTcpListener::local_addr).collect::<io::Result<_>>()?;
        let (rules, watched) = watch::channel(Rules::default());
        let (stop, stopped) = oneshot::channel::<()>();
        let gates: Vec<_> = (1..).zip(listeners).zip(nodes.iter().copied()).collect();
        let body = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime needs a few descriptors");
            LocalSet::new().block_on(&runtime, async move {
                for ((number, listener), node) in gates {
                    let listener = TcpListener::from_std(listener).expect("it is a socket that does not block");
                    spawn_local(accept(listener, Gate { number, node, rules: watched.clone() }));
                }
                // Ends when the sender is dropped.
                let _ = stopped.await;
            });
        };
        spawn_thread("gates", body).context("starting the gates' thread")?;
        Ok(Self { addresses, rules, _stop: stop })
    }

    /// Where the nodes are reached, in the order of their numbers.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Holds back what the first of each pair says to the second, from now on, and nothing else.
    pub(crate) fn hold(&self, pairs: impl IntoIterator<Item = (Party, Party)>) {
        self.rules.send_replace(Rules { held: pairs.into_iter().collect(), broken: Pairs::new() });
    }

    /// Breaks the connections on which the first of each pair says something to the second, from now on, and nothing else.
    pub(crate) fn sever(&self, pairs: impl IntoIterator<Item = (Party, Party)>) {
        self.rules.send_replace(Rules { held: Pairs::new(), broken: pairs.into_iter().collect() });
    }

    /// Everything passes.
    pub(crate) fn open(&self) {
        self.rules.send_replace(Rules::default());
    }
}

#[derive(Clone)]
struct Gate {
    number: usize,
    node: SocketAddr,
    rules: watch::Receiver<Rules>,
}

async fn accept(listener: TcpListener, gate: Gate) {
    let gate = Rc::new(gate);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(spawn_local(serve(Rc::clone(&gate), stream))),
            // Out of descriptors, most likely: others may be closed meanwhile.
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn serve(gate: Rc<Gate>, mut dialler: TcpStream) {
    let Ok(from) = who_dials(&dialler).await else { return };
    let Ok(mut node) = TcpStream::connect(gate.node).await else { return reset(&dialler) };
    let to = Party::Node(gate.number);
    let is_broken = |rules: &Rules| rules.broken.contains(&(from, to)) || rules.broken.contains(&(to, from));
    let mut rules = gate.rules.clone();
    let result = tokio::select! {
        result = forward(&gate, (from, to), &mut dialler, &mut node) => result,
        _ = rules.wait_for(is_broken) => Err(io::ErrorKind::ConnectionAborted.into()),
    };
    if result.is_err() {
        reset(&dialler);
        reset(&node);
    }
}

/// Looks at the first bytes of a connection, without taking them.
async fn who_dials(stream: &TcpStream) -> io::Result<Party> {
    let mut bytes = vec![0; GREETING_SIZE_MAX];
    loop {
        let size = stream.peek(&mut bytes).await?;
        let (seen, magic) = (&bytes[..size], &MAGIC[..size.min(MAGIC.len())]);
        if size == 0 || !seen.starts_with(magic) {
            return Ok(Party::Clients);
        }
        if size >= GREETING_HEAD_SIZE && size >= Greeting::size(seen) {
            let greeting = Greeting::decode(&seen[..Greeting::size(seen)]).map_err(io::Error::other)?;
            return Ok(Party::Node(usize::from(greeting.node)));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn forward(
    gate: &Gate,
    (from, to): (Party, Party),
    dialler: &mut TcpStream,
    node: &mut TcpStream,
) -> io::Result<()> {
    dialler.set_nodelay(true)?;
    node.set_nodelay(true)?;
    let (from_dialler, to_dialler) = dialler.split();
    let (from_node, to_node) = node.split();
    tokio::try_join!(
        carry(from_dialler, to_node, gate.rules.clone(), (from, to)),
        carry(from_node, to_dialler, gate.rules.clone(), (to, from)),
    )
    .map(drop)
}

async fn carry(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut rules: watch::Receiver<Rules>,
    pair: (Party, Party),
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_SIZE];
    loop {
        let size = from.read(&mut buffer).await?;
        // The gates end before their rules do only with the whole process.
        let _ = rules.wait_for(|rules| !rules.held.contains(&pair)).await;
        if size == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..size]).await?;
    }
}

/// Makes the stream's closing a reset: a stream that broke must not look like one that ended.
fn reset(stream: &TcpStream) {
    // Fails only on a socket that is no longer connected, where there is nothing to be told.
    let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use hedgerow_node::peer::VERSION;
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream as Plain;

    /// A greeting of `node` that says nothing else.
    fn greeting(node: u16) -> Vec<u8> {
        let mut bytes = vec![0; GREETING_HEAD_SIZE];
        bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
        bytes[MAGIC.len()] = VERSION;
        bytes[MAGIC.len() + 1..MAGIC.len() + 3].copy_from_slice(&node.to_le_bytes());
        assert_eq!(Greeting::decode(&bytes).map(|greeting| greeting.node), Ok(node));
        bytes
    }

    /// A connection through a gate, as both ends have it.
    fn connected(gates: &Gates, listener: &StdTcpListener, hello: &[u8]) -> (Plain, Plain) {
        let mut near = Plain::connect(gates.addresses()[0]).unwrap();
        near.write_all(hello).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let mut heard = vec![0; hello.len()];
        far.read_exact(&mut heard).unwrap();
        assert_eq!(heard, hello);
        (near, far)
    }

    fn pass(from: &mut Plain, to: &mut Plain) {
        from.write_all(b"word").unwrap();
        let mut heard = [0; 4];
        to.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"word");
    }

    #[test]
    fn who_says_what_is_told_apart_and_cut_by_direction() {
        let listener = StdTcpListener::bind("127.0.0.1:0").unwrap();
        let gates = Gates::start(&[listener.local_addr().unwrap()]).unwrap();
        let mut peer = connected(&gates, &listener, &greeting(2));
        let mut client = connected(&gates, &listener, b"THFT and more");
        let mut other = connected(&gates, &listener, &greeting(3));
        gates.hold([(Party::Node(2), Party::Node(1)), (Party::Node(1), Party::Clients)]);
        pass(&mut other.0, &mut other.1);
        pass(&mut client.0, &mut client.1);
        pass(&mut peer.1, &mut peer.0);
        peer.0.write_all(b"held").unwrap();
        client.1.write_all(b"held").unwrap();
        // What is held does not arrive, and does as soon as the gate is open. The other connection shows that the gate has run.
        pass(&mut other.0, &mut other.1);
        for end in [&mut peer.1, &mut client.0] {
            end.set_nonblocking(true).unwrap();
            assert_eq!(end.read(&mut [0; 4]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            end.set_nonblocking(false).unwrap();
        }
        gates.open();
        for end in [&mut peer.1, &mut client.0] {
            let mut heard = [0; 4];
            end.read_exact(&mut heard).unwrap();
            assert_eq!(&heard, b"held");
        }
        gates.sever([(Party::Node(1), Party::Node(2))]);
        assert!(peer.0.read(&mut [0; 1]).is_err(), "it is reset");
        pass(&mut other.1, &mut other.0);
        pass(&mut client.0, &mut client.1);
    }
}
