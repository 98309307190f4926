//! Who connects to this node, until it is known who that is: connections of clients, and of other nodes, come to the same port.

use super::connections::{Connections, READ_SIZE, Taker, converse};
use super::{Host, OsClock, peer};
use crate::peer::{GREETING_HEAD_SIZE, Greeting};
use crate::{ConnectionId, Event};
use bytes::{Bytes, BytesMut};
use hedgerow_env::{Clock as _, Now};
use hedgerow_tls::{Stream, is_nothing_yet};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::timeout;

/// Time in which something has to come on a connection, while there is room. Clients connect before they have a request, and
/// again when they have one.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Time from the first byte of a node's greeting to its last.
const GREETING_MAX: Duration = Duration::from_secs(10);

/// The connections that others have opened.
#[derive(Default)]
pub(crate) struct Newcomers {
    /// All of them, those of nodes and those that have not said what they are included.
    connections: Cell<u64>,
    /// Those of clients.
    clients: Cell<u64>,
    /// Those that have not said yet what they are, the oldest first, and what tells them to make room.
    silent: RefCell<BTreeMap<ConnectionId, Rc<Notify>>>,
}

impl Newcomers {
    /// How many connections there are.
    pub(crate) const fn count(&self) -> u64 {
        self.connections.get()
    }

    /// How many of them are clients'.
    pub(crate) const fn clients(&self) -> u64 {
        self.clients.get()
    }

    /// Closes the connection that has been silent longest. Returns whether there was one.
    pub(crate) fn close_silent(&self) -> bool {
        let oldest = self.silent.borrow_mut().pop_first();
        oldest.inspect(|(_, room)| room.notify_one()).is_some()
    }
}

/// Serves a connection until either end closes it. It counts from now on, before its task first runs.
pub(crate) fn serve(host: Rc<Host>, tcp: TcpStream, id: ConnectionId) -> impl Future<Output = ()> {
    let room = Rc::new(Notify::new());
    let count = &host.newcomers.connections;
    count.set(count.get() + 1);
    host.newcomers.silent.borrow_mut().insert(id, Rc::clone(&room));
    async move {
        serve_any(&host, tcp, id, &room).await;
        let count = &host.newcomers.connections;
        count.set(count.get() - 1);
    }
}

async fn serve_any(host: &Rc<Host>, tcp: TcpStream, id: ConnectionId, room: &Notify) {
    let Ok(from) = tcp.peer_addr().map(|address| address.ip()) else { return };
    let opened = tokio::select! {
        biased;
        // Who has said something by now stays.
        opened = open(host, tcp) => opened,
        () = room.notified() => Err(io::ErrorKind::TimedOut.into()),
    };
    host.newcomers.silent.borrow_mut().remove(&id);
    let Ok(Opened { stream, buffer, is_node }) = opened else { return };
    if is_node {
        return peer::receive(Rc::clone(host), stream, buffer).await;
    }
    let Some(_admitted) = host.security.admit_client(&stream, from) else { return };
    if !host.has_room_for_client() {
        return tracing::debug!("a client's connection is closed: there are as many as the limit of open files allows");
    }
    let count = &host.newcomers.clients;
    count.set(count.get() + 1);
    host.faults.note_client(id, stream.tcp());
    if host.node.borrow().config.wants_to_know_clients() {
        let who = host.security.who(&stream);
        let bound = host.security.bound(&stream, &who);
        let opened = Event::ClientOpened(id, who, from, bound);
        host.node.borrow_mut().handle(opened, OsClock.read());
    }
    match &host.io_threads {
        None => converse(&**host, stream, id, buffer).await,
        Some(threads) => threads.converse(host, stream, id, buffer).await,
    }
    host.faults.forget_client(id);
    host.node.borrow_mut().handle(Event::ClientClosed(id), OsClock.read());
    count.set(count.get() - 1);
}

impl Taker for Host {
    fn connections(&self) -> &Connections {
        &self.clients
    }

    fn is_open(&self) -> bool {
        !self.faults.is_full()
    }

    fn takes(&self) -> bool {
        self.node.borrow().takes_requests()
    }

    fn taken(&self) -> usize {
        self.node.borrow().turn_bytes()
    }

    fn take(&self, id: ConnectionId, frame: Bytes, now: Now) {
        if let Some(frame) = self.faults.take_request(id, frame) {
            self.node.borrow_mut().handle(Event::Client(id, frame), now);
        }
    }

    fn refuse(&self, id: ConnectionId) {
        self.node.borrow_mut().outbox().closed.push(id);
    }

    fn end(&self, begun: Now) {
        self.note_busy(begun);
        self.wake.notify_one();
    }

    async fn turn(&self) {
        // The node is driven.
        yield_now().await;
    }
}

/// A connection of which it is known whose it may be.
struct Opened {
    stream: Stream,
    /// What has come.
    buffer: BytesMut,
    /// Whether it begins with a node's greeting, which is in `buffer` as a whole then.
    is_node: bool,
}

async fn open(host: &Host, tcp: TcpStream) -> io::Result<Opened> {
    let stream = host.security.open(tcp, SILENCE_MAX).await?;
    let mut buffer = BytesMut::with_capacity(READ_SIZE);
    let is_node = first_bytes(&stream, &mut buffer).await?;
    Ok(Opened { stream, buffer, is_node })
}

/// Reads until it can be told whether the other end is a node, and if it is, until it has said which.
async fn first_bytes(stream: &Stream, buffer: &mut BytesMut) -> io::Result<bool> {
    timeout(SILENCE_MAX, read_until(stream, buffer, 1)).await??;
    let magic = &crate::peer::MAGIC;
    let rest = async {
        for size in 1..=magic.len() {
            read_until(stream, buffer, size).await?;
            if buffer[..size] != magic[..size] {
                return Ok(false);
            }
        }
        read_until(stream, buffer, GREETING_HEAD_SIZE).await?;
        read_until(stream, buffer, Greeting::size(buffer)).await.map(|()| true)
    };
    timeout(GREETING_MAX, rest).await?
}

async fn read_until(stream: &Stream, buffer: &mut BytesMut, size: usize) -> io::Result<()> {
    while buffer.len() < size {
        stream.readable().await?;
        if read_at_most(stream, buffer, usize::MAX)? == 0 {
            yield_now().await;
        }
    }
    Ok(())
}

/// Reads what is there; an error at the end of the stream.
pub(super) fn read(stream: &Stream, buffer: &mut BytesMut) -> io::Result<()> {
    read_at_most(stream, buffer, usize::MAX).map(drop)
}

/// The same, of so many bytes. Returns how many there were.
pub(super) fn read_at_most(stream: &Stream, buffer: &mut BytesMut, most: usize) -> io::Result<usize> {
    buffer.reserve(READ_SIZE);
    let room = most.min(buffer.capacity() - buffer.len());
    match stream.try_read(buffer, room) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error) if is_nothing_yet(&error) => Ok(0),
        result => result,
    }
}
