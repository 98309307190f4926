//! Who may connect to this node, and how: the first bytes of a connection say whether it is encrypted, and where TLS is set, certificates
//! say who is at its other end. What is costly about agreeing on a connection runs on threads of its own.

use super::OsClock;
use super::address::connect;
use crate::requests::login::Bound;
use crate::requests::users::Who;
use hedgerow_env::Clock;
use hedgerow_env::os::{random_bytes, spawn_thread};
use hedgerow_tls::{Handshake, Mode, NodeTls, Stream};
use hedgerow_types::{Instant, NodeId};
use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

/// The first byte of a connection with TLS. Neither a node's greeting nor a client's frame begins with it.
const HANDSHAKE: u8 = 0x16;
/// Threads that compute for handshakes. Each does a few thousand a second.
const THREADS: usize = 2;
/// Handshakes that wait for the threads: of those who dial this node, and of those whom it dials.
const ACCEPTED_MAX: usize = 32;
const DIALLED_MAX: usize = 8;
/// Time from the first byte of a handshake to its last.
const AGREEING_MAX: Duration = Duration::from_secs(10);
/// Refusals of one turn that the audit log is told of.
const REFUSED_MAX: usize = 1_024;
/// How often it is told who was refused, and that connections are open that will be.
const TOLD_EVERY: Duration = Duration::from_secs(10);
const UNENCRYPTED_TOLD_EVERY: Duration = Duration::from_secs(30);

/// What decides who may connect.
pub(crate) struct Security(Option<Enabled>);

struct Enabled {
    tls: Arc<NodeTls>,
    /// `None` only while it is dropped.
    work: Option<Sender<Work>>,
    /// Places before the threads, for those who dial this node and for those whom it dials. Who has none waits with its task, and ends with it.
    accepted: Arc<Semaphore>,
    dialled: Arc<Semaphore>,
    threads: Vec<JoinHandle<()>>,
    told: Told,
    unencrypted: Unencrypted,
}

/// A step of a handshake, and where it goes back to.
struct Work {
    handshake: Box<Handshake>,
    done: oneshot::Sender<io::Result<Box<Handshake>>>,
    /// Held until it is computed, or thrown away.
    _place: OwnedSemaphorePermit,
}

/// What the log says of connections: few lines of each kind, however many there are.
#[derive(Default)]
struct Told {
    not_agreed: Lines,
    no_node: Lines,
    no_client: Lines,
    /// The same for the audit log, if one is kept.
    refused: Option<RefCell<Vec<(IpAddr, String)>>>,
}

#[derive(Default)]
struct Lines {
    since_last: Cell<u64>,
    at: Cell<Option<Instant>>,
}

/// Connections without TLS that are open, where they are accepted.
#[derive(Default)]
struct Unencrypted {
    count: Rc<Cell<u64>>,
    last_from: Cell<Option<IpAddr>>,
    told_at: Cell<Option<Instant>>,
}

/// Who may stay connected. Counts as open without TLS, if it is, until it is dropped.
pub(crate) struct Admitted(Option<Rc<Cell<u64>>>);

impl Drop for Admitted {
    fn drop(&mut self) {
        if let Some(count) = &self.0 {
            count.set(count.get() - 1);
        }
    }
}

impl Security {
    /// Starts the threads, where TLS is set.
    pub(crate) fn start(tls: Option<Arc<NodeTls>>, has_audit: bool) -> io::Result<Self> {
        let Some(tls) = tls else { return Ok(Self(None)) };
        let (work, inbox) = channel();
        let inbox = Arc::new(Mutex::new(inbox));
        let thread = |_| {
            let inbox = Arc::clone(&inbox);
            spawn_thread("handshake", move || compute_all(&inbox))
        };
        let threads = (0..THREADS).map(thread).collect::<io::Result<_>>()?;
        Ok(Self(Some(Enabled {
            tls,
            work: Some(work),
            accepted: places(ACCEPTED_MAX),
            dialled: places(DIALLED_MAX),
            threads,
            told: Told { refused: has_audit.then(RefCell::default), ..Told::default() },
            unencrypted: Unencrypted::default(),
        })))
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
        let agreed = timeout(AGREEING_MAX, enabled.agree(enabled.tls.accept(tcp)?, &enabled.accepted)).await?;
        agreed.inspect_err(|error| {
            let what = "an encrypted connection could not be agreed on";
            enabled.told.tell(&enabled.told.not_agreed, from, what, Some(error));
        })
    }

    /// Connects to node `peer` at `address`, which has to show that it is that node, where TLS is set.
    pub(crate) async fn dial(&self, peer: NodeId, address: SocketAddr) -> io::Result<Stream> {
        let tcp = connect(address).await?;
        let Some(enabled) = &self.0 else { return Ok(Stream::plain(tcp)) };
        match (enabled.agree(enabled.tls.dial(tcp, peer.0)?, &enabled.dialled).await, enabled.tls.mode()) {
            (Err(error), Mode::Permissive) => {
                tracing::debug!(node = peer.0, %address, %error, "a node is spoken with without TLS");
                Ok(Stream::plain(connect(address).await?))
            }
            (agreed, Mode::Permissive | Mode::Required) => agreed,
        }
    }

    /// Whether a greeting on this connection is read at all.
    pub(crate) fn may_greet(&self, stream: &Stream, from: IpAddr) -> bool {
        let Some(enabled) = &self.0 else { return true };
        let may_greet = enabled.tls.mode() == Mode::Permissive || !stream.certificates().is_empty();
        if !may_greet {
            let what = "a connection that speaks as a node's, without a certificate, is refused";
            enabled.told.tell(&enabled.told.no_node, from, what, None);
        }
        may_greet
    }

    /// Whether who is at the other end may speak as node `peer`.
    pub(crate) fn admit_node(&self, stream: &Stream, peer: NodeId, from: IpAddr) -> Option<Admitted> {
        let Some(enabled) = &self.0 else { return Some(Admitted(None)) };
        if !stream.is_secure() && enabled.tls.mode() == Mode::Permissive {
            return Some(enabled.unencrypted.admit(from));
        }
        if enabled.tls.is_node(stream, peer.0) {
            return Some(Admitted(None));
        }
        let what =
            format!("a connection that says it is node {}'s, without that node's certificate, is refused", peer.0);
        enabled.told.tell(&enabled.told.no_node, from, &what, None);
        None
    }

    /// Who is at the other end of a client's connection.
    pub(crate) fn who(&self, stream: &Stream) -> Who {
        let Some(enabled) = self.0.as_ref().filter(|_| stream.is_secure()) else { return Who::Anybody };
        match enabled.tls.client_name(stream) {
            Some(name) => Who::User(name.into()),
            None if enabled.tls.is_any_node(stream) => Who::Node,
            None => Who::Anybody,
        }
    }

    /// What a login on this connection is bound by: on one with TLS whose client has shown no certificate.
    pub(crate) fn bound(&self, stream: &Stream, who: &Who) -> Option<Bound> {
        let binding = stream.binding().filter(|_| self.0.is_some() && *who == Who::Anybody)?;
        Some(Bound { binding, nonce: random_bytes() })
    }

    /// Whether who is at the other end may speak as a client.
    pub(crate) fn admit_client(&self, stream: &Stream, from: IpAddr) -> Option<Admitted> {
        let Some(enabled) = &self.0 else { return Some(Admitted(None)) };
        match enabled.tls.mode() {
            _ if stream.is_secure() && enabled.tls.is_client(stream) => Some(Admitted(None)),
            _ if stream.is_secure() => {
                let what = "a client's connection with another cluster's certificate is refused";
                enabled.told.tell(&enabled.told.no_client, from, what, None);
                None
            }
            Mode::Permissive => Some(enabled.unencrypted.admit(from)),
            Mode::Required => {
                let what = "a client's connection without TLS is refused";
                enabled.told.tell(&enabled.told.no_client, from, what, None);
                None
            }
        }
    }

    /// The log says, now and then, that connections without TLS are open: before `required` there must be none.
    pub(crate) fn tell_unencrypted(&self, now: Instant) {
        let Some(Enabled { unencrypted, .. }) = &self.0 else { return };
        let is_time = unencrypted.told_at.get().is_none_or(|at| now.since(at) >= UNENCRYPTED_TOLD_EVERY);
        if is_time && unencrypted.count.get() > 0 {
            unencrypted.told_at.set(Some(now));
            let last_from = unencrypted.last_from.get().map(tracing::field::display);
            tracing::warn!(open = unencrypted.count.get(), last_from, "connections without TLS are open");
        }
    }

    /// Who was refused since the last time, and why, for the audit log.
    pub(crate) fn take_refused(&self) -> Vec<(IpAddr, String)> {
        let refused = self.0.as_ref().and_then(|enabled| enabled.told.refused.as_ref());
        refused.map(RefCell::take).unwrap_or_default()
    }

    /// What connections are encrypted by, if they are.
    pub(crate) fn tls(&self) -> Option<&NodeTls> {
        self.0.as_ref().map(|enabled| &*enabled.tls)
    }

    /// Whether connections may be encrypted at all.
    pub(crate) const fn has_tls(&self) -> bool {
        self.0.is_some()
    }
}

impl Unencrypted {
    fn admit(&self, from: IpAddr) -> Admitted {
        self.count.set(self.count.get() + 1);
        self.last_from.set(Some(from));
        Admitted(Some(Rc::clone(&self.count)))
    }
}

impl Enabled {
    /// Agrees on a connection. Signatures are made and checked on the threads.
    async fn agree(&self, handshake: Handshake, places: &Arc<Semaphore>) -> io::Result<Stream> {
        let mut handshake = Box::new(handshake);
        while !handshake.is_over() {
            handshake.receive().await?;
            let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
            let (done, wait) = oneshot::channel();
            let work = Work { handshake, done, _place: place };
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
    fn tell(&self, lines: &Lines, from: IpAddr, what: &str, error: Option<&io::Error>) {
        lines.tell(from, what, error);
        if let Some(refused) = &self.refused
            && refused.borrow().len() < REFUSED_MAX
        {
            let error = error.map_or(String::new(), |error| format!(": {error}"));
            refused.borrow_mut().push((from, format!("{what}{error}")));
        }
    }
}

impl Lines {
    fn tell(&self, from: IpAddr, what: &str, error: Option<&io::Error>) {
        self.since_last.set(self.since_last.get() + 1);
        let now = OsClock.now();
        if self.at.get().is_some_and(|at| now.since(at) < TOLD_EVERY) {
            return;
        }
        self.at.set(Some(now));
        let error = error.map(tracing::field::display);
        tracing::warn!(%from, error, since_last_line = self.since_last.replace(0), "{what}");
    }
}

fn places(count: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(count))
}

fn compute_all(inbox: &Mutex<Receiver<Work>>) {
    loop {
        let next = inbox.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Work { mut handshake, done, _place }) = next else { return };
        if done.is_closed() {
            continue;
        }
        let computed = handshake.compute();
        // Nobody waits for it any more where it took too long.
        drop(done.send(computed.map(|()| handshake)));
    }
}
