//! Connections between nodes: each node dials every other one and sends on that connection; what it receives comes on
//! those that the others dialled. The one answer that there is on a connection is that its dialler is not listened to.

use super::address::resolve;
use super::client::{read, read_at_most};
use super::connections::KEPT_MAX;
use super::{Host, OsClock};
use crate::Node;
use crate::config::PEER_BACKLOG_MAX;
use crate::greeting::{Answer, Caller};
use crate::peer::{Frame, Greeting, Malformed, Refused, put, take};
use crate::sparse::missing;
use bytes::{Buf, BytesMut};
use hedgerow_env::Clock;
use hedgerow_tls::{NodeTls, Stream, is_disbelief};
use hedgerow_types::NodeId;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::timeout;

/// Time between two attempts to reach a node, rising to the second.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// A connection that has ended sooner than this has ended at once, and after so many in a row the log asks why.
const AT_ONCE: Duration = Duration::from_secs(1);
const ENDED_AT_ONCE_TOLD: u32 = 10;
/// Time that connecting may take.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// Time that a refused process has to read why.
const FAREWELL_MAX: Duration = Duration::from_secs(1);
/// Bytes of an answer that are looked at.
const ANSWER_SIZE_MAX: usize = 256;

/// What waits to be sent to the other nodes.
pub(crate) struct Peers {
    links: BTreeMap<(NodeId, Lane), Rc<Link>>,
    /// Connections that other nodes have made, and the number of the next one.
    accepted: RefCell<BTreeMap<u64, (NodeId, Rc<Stream>)>>,
    next: Cell<u64>,
    /// How often certificates had been read anew when those of connections were looked at last.
    reloads: Cell<u64>,
}

/// Two connections lead to each node, so that nothing waits behind what is large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// Everything but checkpoints.
    Main,
    /// Checkpoints.
    Bulk,
}

#[derive(Default)]
struct Link {
    state: RefCell<LinkState>,
    /// The address that was dialled last.
    dialled: RefCell<String>,
    /// Where the node says it is now, until that was tried.
    moved: RefCell<Option<String>>,
    /// How often in a row it was connected and ended at once.
    ended_at_once: Cell<u32>,
    /// What the log said last of why one of the two ends does not believe the other.
    unbelieved: RefCell<String>,
    wake: Notify,
}

#[derive(Default)]
struct LinkState {
    unsent: BytesMut,
    /// The connection, once there is one. What is sent before is lost, as it would be on a broken one.
    stream: Option<Rc<Stream>>,
}

impl Link {
    /// A node that wants TLS ends each connection without it, and says nothing there.
    fn note_ended(&self, peer: NodeId, after: Duration) {
        let count = if after < AT_ONCE { self.ended_at_once.get() + 1 } else { 0 };
        self.ended_at_once.set(count);
        if count == ENDED_AT_ONCE_TOLD {
            tracing::warn!(
                node = peer.0,
                "a node ends every connection at once: does it want TLS ([tls] in the configuration)?"
            );
        }
    }

    /// Where one of the two ends does not believe the other, the log says so, once.
    fn note_failed(&self, peer: NodeId, address: &str, error: &io::Error) {
        let text = error.to_string();
        if is_disbelief(error) && *self.unbelieved.borrow() != text {
            tracing::warn!(node = peer.0, address, error = text, "TLS with a node fails");
            *self.unbelieved.borrow_mut() = text;
        }
    }
}

impl Peers {
    pub(crate) fn new(node: &Node) -> Self {
        let others = node.config.peers.keys().filter(|peer| **peer != node.id());
        let link = || Rc::new(Link::default());
        let both = |peer: &NodeId| [((*peer, Lane::Main), link()), ((*peer, Lane::Bulk), link())];
        let links = others.flat_map(both).collect();
        Self { links, accepted: RefCell::default(), next: Cell::new(0), reloads: Cell::new(0) }
    }

    /// Ends connections with certificates that were revoked since they were made. Their tasks find them closed.
    pub(crate) fn close_revoked(&self, tls: &NodeTls) {
        if !tls.may_have_revoked(&self.reloads) {
            return;
        }
        let made = self.links.iter().filter_map(|((node, _), link)| Some((*node, link.state.borrow().stream.clone()?)));
        let accepted = self.accepted.borrow();
        for (node, stream) in made.chain(accepted.values().cloned()).filter(|(_, stream)| tls.is_revoked(stream)) {
            let certificate = tls.shown_by(&stream);
            tracing::warn!(
                node = node.0,
                certificate,
                "a connection with a node is closed: its certificate has been revoked"
            );
            // One that is closed already is what is wanted.
            let _ = socket2::SockRef::from(stream.tcp()).shutdown(std::net::Shutdown::Both);
        }
    }

    /// `node` says that it is at another address than before: a connection with where it was may lead to what is dead without
    /// having closed it.
    pub(crate) fn note_moved(&self, node: NodeId, address: &str) {
        for (_, link) in self.links.iter().filter(|((to, _), _)| *to == node) {
            if *link.dialled.borrow() != address {
                *link.moved.borrow_mut() = Some(address.to_owned());
                *link.state.borrow_mut() = LinkState::default();
                link.wake.notify_one();
            }
        }
    }

    /// Writes what the socket takes now; the rest waits for the link's task.
    pub(crate) fn send(&self, to: NodeId, lane: Lane, mut bytes: BytesMut) {
        let Some(link) = self.links.get(&(to, lane)) else { return };
        let mut state = link.state.borrow_mut();
        let Some(stream) = state.stream.clone() else { return };
        while state.unsent.is_empty() && !bytes.is_empty() {
            match stream.try_write(&bytes) {
                Ok(count) => bytes.advance(count),
                Err(_) => break,
            }
        }
        state.unsent.extend_from_slice(&bytes);
        if !state.unsent.is_empty() || stream.has_unsent() {
            link.wake.notify_one();
        }
        if state.unsent.len() > PEER_BACKLOG_MAX {
            tracing::warn!(node = to.0, "a node does not take its messages; the connection is given up");
            *state = LinkState::default();
            link.wake.notify_one();
        }
    }
}

/// Starts a task for each of the other nodes.
pub(crate) fn start(host: &Rc<Host>) {
    for ((peer, _), link) in &host.peers.links {
        host.spawn("a link's task", keep_connected(Rc::clone(host), *peer, Rc::clone(link)));
    }
}

async fn keep_connected(host: Rc<Host>, peer: NodeId, link: Rc<Link>) {
    let mut pause = RECONNECT.0;
    // Where another node was met.
    let mut wrong: BTreeSet<String> = BTreeSet::new();
    loop {
        let moved = link.moved.take();
        if let Some((stream, address)) = dial(&host, peer, &link, moved, &mut wrong).await {
            pause = RECONNECT.0;
            if link.moved.borrow().as_ref().is_some_and(|moved| *moved != address) {
                continue;
            }
            let mut answer = BytesMut::new();
            *link.dialled.borrow_mut() = address;
            let connected_at = OsClock.now();
            let error = transmit(&host, peer, &link, stream, &mut answer).await;
            error.as_ref().err().into_iter().for_each(|error| link.note_failed(peer, &link.dialled.borrow(), error));
            if !host.security.has_tls() {
                link.note_ended(peer, OsClock.now().since(connected_at));
            }
            *link.state.borrow_mut() = LinkState::default();
            if let Ok(Some(Frame::Refused(refused))) = take(&mut answer) {
                let mut node = host.node.borrow_mut();
                let is_configured = node.config.peers.get(&peer) == Some(&*link.dialled.borrow());
                let answer = node.handle_greeting_answer(peer, refused, is_configured);
                drop(node);
                if answer == Answer::Elsewhere {
                    wrong.insert(link.dialled.borrow().clone());
                    continue;
                }
                pause = RECONNECT.1;
                host.wake.notify_one();
            }
            tracing::debug!(node = peer.0, ?error, "a connection to a node ended");
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RECONNECT.1);
    }
}

/// Tries every address that the node may be at, first the one that it has `moved` to, and none where another node was met until all
/// others have been tried. Names are looked up each time: what they stand for may have changed. Returns where it was reached, too.
async fn dial(
    host: &Host,
    peer: NodeId,
    link: &Link,
    moved: Option<String>,
    wrong: &mut BTreeSet<String>,
) -> Option<(Stream, String)> {
    let mut addresses = host.node.borrow().view.addresses_of(peer);
    addresses.sort_by_key(|address| moved.as_ref() != Some(address));
    addresses.retain(|address| !wrong.contains(address));
    for address in addresses {
        let found = match resolve(&address).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(node = peer.0, address, %error, "a node's name could not be looked up");
                continue;
            }
        };
        for socket in found {
            match timeout(CONNECT_MAX, host.security.dial(peer, socket)).await {
                Ok(Ok(stream)) => {
                    host.node.borrow_mut().note_address(peer, socket);
                    return Some((stream, address));
                }
                Ok(Err(error)) => link.note_failed(peer, &address, &error),
                Err(_) => {}
            }
        }
    }
    wrong.clear();
    None
}

/// Greets, then writes what could not be written at once, until the connection breaks. What comes back is left in `answer`.
async fn transmit(host: &Host, peer: NodeId, link: &Link, stream: Stream, answer: &mut BytesMut) -> io::Result<()> {
    let stream = Rc::new(stream);
    let hello = host.node.borrow().greeting(peer).encode();
    let mut state = LinkState { unsent: BytesMut::from(&hello[..]), stream: Some(Rc::clone(&stream)) };
    std::mem::swap(&mut *link.state.borrow_mut(), &mut state);
    // Perhaps while it was agreed on: from here on it is looked at whenever others are.
    if host.security.tls().is_some_and(|tls| tls.is_revoked(&stream)) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the node's certificate has been revoked"));
    }
    loop {
        let has_unsent = {
            let state = link.state.borrow();
            if state.stream.as_ref().is_none_or(|current| !Rc::ptr_eq(current, &stream)) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            !state.unsent.is_empty() || stream.has_unsent()
        };
        tokio::select! {
            ready = stream.writable(), if has_unsent => {
                ready?;
                let written = stream.try_write(&link.state.borrow().unsent);
                match written {
                    Ok(count) => link.state.borrow_mut().unsent.advance(count),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
                // A socket that takes all at once does not make this task wait.
                yield_now().await;
            }
            // The other end sends nothing on this connection but why it ends it.
            ready = stream.readable() => {
                ready?;
                read(&stream, answer)?;
                yield_now().await;
                if answer.len() > ANSWER_SIZE_MAX {
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
            () = link.wake.notified() => {}
        }
    }
}

/// Takes what another node sends, first its greeting, which is in `buffer`, until the connection ends or something malformed comes.
pub(crate) async fn receive(host: Rc<Host>, stream: Stream, mut buffer: BytesMut) {
    if let Err(error) = receive_frames(&host, &Rc::new(stream), &mut buffer).await {
        tracing::debug!(%error, "a connection from a node ended");
    }
}

async fn receive_frames(host: &Host, stream: &Rc<Stream>, buffer: &mut BytesMut) -> io::Result<()> {
    let hello = buffer.split_to(Greeting::size(buffer).min(buffer.len()));
    let address = stream.tcp().peer_addr()?.ip();
    if !host.security.may_greet(stream, address) {
        return Ok(());
    }
    let greeting = Greeting::decode(&hello).map_err(|error| {
        host.node.borrow_mut().handle_unread_greeting(&hello, address);
        io::Error::other(error)
    })?;
    let Some(_admitted) = host.security.admit_node(stream, NodeId(greeting.node), address) else { return Ok(()) };
    if stream.is_secure() {
        host.node.borrow_mut().front.audit().note_login(&crate::Who::Node, address, OsClock.now());
    }
    let met = host.node.borrow_mut().handle_greeting(&greeting, address);
    let caller = match met {
        Ok(caller) => caller,
        Err(refused) => return farewell(stream, buffer, refused).await,
    };
    let number = host.peers.next.replace(host.peers.next.get() + 1);
    host.peers.accepted.borrow_mut().insert(number, (NodeId(greeting.node), Rc::clone(stream)));
    let ended = take_all_frames(host, stream, &caller, buffer).await;
    host.peers.accepted.borrow_mut().remove(&number);
    host.node.borrow_mut().handle_hangup(&caller);
    let error = ended.as_ref().err().and_then(io::Error::get_ref);
    if let Some(malformed) = error.and_then(|error| error.downcast_ref::<Malformed>()) {
        host.node.borrow_mut().note_malformed(NodeId(greeting.node), address, malformed);
    }
    match ended? {
        Some(refused) => farewell(stream, buffer, refused).await,
        None => Ok(()),
    }
}

/// Ends without an error when the process at the other end is not listened to any more.
async fn take_all_frames(
    host: &Host,
    stream: &Stream,
    caller: &Caller,
    buffer: &mut BytesMut,
) -> io::Result<Option<Refused>> {
    let mut taken = 0;
    loop {
        if let Err(refused) = take_frames(host, caller, buffer)? {
            return Ok(Some(refused));
        }
        // Who sends without a pause does not make this task wait, and has the thread for so much at a time. Not after each read: the
        // node would be driven for each, and write its log for each.
        if taken >= KEPT_MAX {
            taken = 0;
            yield_now().await;
        }
        if buffer.is_empty() {
            if buffer.capacity() > KEPT_MAX {
                *buffer = BytesMut::new();
            }
            stream.readable().await?;
        } else {
            timeout(host.clients.unread_for(), stream.readable()).await??;
        }
        // What the frame that has begun still needs, however much room there is: small frames may be many.
        let most = missing(buffer).max(KEPT_MAX);
        let count = read_at_most(stream, buffer, most)?;
        taken += count;
        if count == 0 {
            yield_now().await;
        }
    }
}

/// Says why the other end is not listened to, and waits until it has closed the connection: what is closed with something
/// unread is reset, and the answer lost.
async fn farewell(stream: &Stream, buffer: &mut BytesMut, refused: Refused) -> io::Result<()> {
    buffer.clear();
    put(buffer, &Frame::Refused(refused));
    // An answer is smaller than any socket's buffer.
    stream.try_write(buffer)?;
    stream.say_end();
    socket2::SockRef::from(stream.tcp()).shutdown(std::net::Shutdown::Write)?;
    let drain = async {
        loop {
            stream.readable().await?;
            buffer.clear();
            read(stream, buffer)?;
            yield_now().await;
        }
    };
    timeout(FAREWELL_MAX, drain).await.unwrap_or(Ok(()))
}

/// Hands every whole frame to the node.
fn take_frames(host: &Host, caller: &Caller, buffer: &mut BytesMut) -> io::Result<Result<(), Refused>> {
    let taken = host.node.borrow_mut().handle_frames(caller, buffer, OsClock.read());
    if !matches!(taken, Ok(Ok(false) | Err(_))) {
        host.wake.notify_one();
    }
    taken.map(|taken| taken.map(drop)).map_err(io::Error::other)
}
