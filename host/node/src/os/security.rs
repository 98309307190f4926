//! Who may connect to this node, and how: the first bytes of a connection say whether it is encrypted, and where TLS is set, certificates
//! say who is at its other end. What is costly about agreeing on a connection runs on threads of its own.

use super::OsClock;
use super::address::connect;
use hedgerow_env::Clock;
use hedgerow_env::os::spawn_thread;
use hedgerow_tls::{Handshake, Mode, NodeTls, Stream};
use hedgerow_types::{Instant, NodeId};
use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The first byte of a connection with TLS. Neither a node's greeting nor a client's frame begins with it.
const HANDSHAKE: u8 = 0x16;
/// Threads that compute for handshakes. Each does a few thousand a second.
const THREADS: usize = 2;
/// Time from the first byte of a handshake to its last.
const AGREEING_MAX: Duration = Duration::from_secs(10);
/// How often it is told who was refused.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// What decides who may connect.
pub(crate) struct Security(Option<Enabled>);

struct Enabled {
    tls: Arc<NodeTls>,
    /// `None` only while it is dropped.
    work: Option<Sender<Work>>,
    threads: Vec<JoinHandle<()>>,
    told: Told,
}

/// A step of a handshake, and where it goes back to.
struct Work {
    handshake: Box<Handshake>,
    done: oneshot::Sender<io::Result<Box<Handshake>>>,
}

/// What was said in the log of those who were refused: few lines, however many they are.
#[derive(Default)]
struct Told {
    count: Cell<u64>,
    at: Cell<Option<Instant>>,
}

impl Security {
    /// Starts the threads, where TLS is set.
    pub(crate) fn start(tls: Option<Arc<NodeTls>>) -> io::Result<Self> {
        let Some(tls) = tls else { return Ok(Self(None)) };
        let (work, inbox) = channel();
        let inbox = Arc::new(Mutex::new(inbox));
        let thread = |_| {
            let inbox = Arc::clone(&inbox);
            spawn_thread("handshake", move || compute_all(&inbox))
        };
        let threads = (0..THREADS).map(thread).collect::<io::Result<_>>()?;
        Ok(Self(Some(Enabled { tls, work: Some(work), threads, told: Told::default() })))
    }

    /// Waits for the first byte of a connection that somebody made, `silence_max` at most, and if that begins one with TLS, agrees on it.
    pub(crate) async fn open(&self, tcp: TcpStream, silence_max: Duration) -> io::Result<Stream> {
        let Some(enabled) = &self.0 else { return Ok(Stream::plain(tcp)) };
        let mut first = [0];
        timeout(silence_max, tcp.peek(&mut first)).await??;
        if first[0] != HANDSHAKE {
            return Ok(Stream::plain(tcp));
        }
        let from = tcp.peer_addr()?.ip();
        let agreed = timeout(AGREEING_MAX, enabled.agree(enabled.tls.accept(tcp)?)).await?;
        agreed
            .inspect_err(|error| enabled.told.tell(from, "an encrypted connection could not be agreed on", Some(error)))
    }

    /// Connects to node `peer` at `address`, which has to show that it is that node, where TLS is set.
    pub(crate) async fn dial(&self, peer: NodeId, address: SocketAddr) -> io::Result<Stream> {
        let tcp = connect(address).await?;
        let Some(enabled) = &self.0 else { return Ok(Stream::plain(tcp)) };
        match (enabled.agree(enabled.tls.dial(tcp, peer.0)?).await, enabled.tls.mode()) {
            (Err(error), Mode::Permissive) => {
                tracing::debug!(node = peer.0, %address, %error, "a node is spoken with without TLS");
                Ok(Stream::plain(connect(address).await?))
            }
            (agreed, Mode::Permissive | Mode::Required) => agreed,
        }
    }

    /// Whether who is at the other end may speak as node `peer`.
    pub(crate) fn may_be_node(&self, stream: &Stream, peer: NodeId, from: IpAddr) -> bool {
        let Some(enabled) = &self.0 else { return true };
        let may_be = match enabled.tls.mode() {
            Mode::Permissive if !stream.is_secure() => return enabled.note_plain(from),
            Mode::Permissive | Mode::Required => enabled.tls.is_node(stream, peer.0),
        };
        if !may_be {
            let shown = if stream.is_secure() { "without that node's certificate" } else { "without TLS" };
            enabled.told.tell(
                from,
                &format!("a connection that says it is node {}'s, {shown}, is refused", peer.0),
                None,
            );
        }
        may_be
    }

    /// Whether who is at the other end may speak as a client.
    pub(crate) fn may_be_client(&self, stream: &Stream, from: IpAddr) -> bool {
        let Some(enabled) = &self.0 else { return true };
        match enabled.tls.mode() {
            _ if stream.is_secure() => true,
            Mode::Permissive => enabled.note_plain(from),
            Mode::Required => {
                enabled.told.tell(from, "a client's connection without TLS is refused", None);
                false
            }
        }
    }
}

impl Enabled {
    fn note_plain(&self, from: IpAddr) -> bool {
        self.told.tell(from, "a connection without TLS is accepted, as tls.mode = \"permissive\" says", None);
        true
    }

    /// Agrees on a connection. Signatures are made and checked on the threads.
    async fn agree(&self, handshake: Handshake) -> io::Result<Stream> {
        let mut handshake = Box::new(handshake);
        while !handshake.is_over() {
            handshake.receive().await?;
            let (done, wait) = oneshot::channel();
            let work = Work { handshake, done };
            if let Some(threads) = &self.work {
                // They live as long as this does.
                drop(threads.send(work));
            }
            handshake = wait.await.map_err(io::Error::other)??;
        }
        // What is left to send of it.
        handshake.receive().await?;
        Ok(handshake.into_stream())
    }
}

impl Drop for Enabled {
    fn drop(&mut self) {
        drop(self.work.take());
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl Told {
    fn tell(&self, from: IpAddr, what: &str, error: Option<&io::Error>) {
        self.count.set(self.count.get() + 1);
        let now = OsClock.now();
        if self.at.get().is_some_and(|at| now.since(at) < TOLD_EVERY) {
            return;
        }
        self.at.set(Some(now));
        let error = error.map(tracing::field::display);
        tracing::warn!(%from, error, connections = self.count.replace(0), "{what}");
    }
}

fn compute_all(inbox: &Mutex<Receiver<Work>>) {
    loop {
        let next = inbox.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Work { mut handshake, done }) = next else { return };
        let computed = handshake.compute();
        // Nobody waits for it any more where it took too long.
        drop(done.send(computed.map(|()| handshake)));
    }
}
