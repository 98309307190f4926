//! Connections from clients (and the first bytes of those from other nodes, which come to the same port).

use super::line::{InLine, Line};
use super::unsent::Unsent;
use super::{Host, OsClock, peer};
use crate::peer::{GREETING_HEAD_SIZE, Greeting};
use crate::{Config, ConnectionId, Event};
use bytes::{Buf, BytesMut};
use hedgerow_env::Clock;
use hedgerow_tls::{Stream, is_nothing_yet};
use hedgerow_types::Instant;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::timeout;

/// Bytes that are made room for before each read.
const READ_SIZE: usize = 16 << 10;
/// Reply bytes that a connection may leave unread before nothing more is read from it.
const UNSENT_MAX: usize = 16 << 20;
/// What one connection may take of a turn of the node, or be answered with, where others wait, bytes.
const SHARE: usize = 64 << 10;
/// Bytes of replies that one connection is given at a time: a client that reads as fast as they come would have the thread for
/// itself.
const SENT_AT_ONCE_MAX: usize = 1 << 20;
/// Times that an encrypted connection is read before others have their turn.
const SECURE_READS_AT_ONCE_MAX: u32 = 4;
/// Reply bytes that a connection may leave unread before its reads that wait in the node are refused.
const UNREAD_MAX: usize = 64 << 20;
/// Room that a connection keeps for what comes next. What was larger was for one large frame.
pub(super) const KEPT_MAX: usize = 64 << 10;
/// Frames of which more has to come are spared up to this size as long as there are larger ones.
const SMALL_FRAME: usize = 1 << 20;
/// Frames of which fewer bytes come per second are slow.
const SLOW_FRAME_RATE: u128 = 64 << 10;
/// How often it is looked for clients that take nothing of what waits for them.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Time in which something has to come on a connection, while there is room. Clients connect before they have a request, and
/// again when they have one.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Time from the first byte of a node's greeting to its last.
const GREETING_MAX: Duration = Duration::from_secs(10);

/// The open connections.
pub(crate) struct Clients {
    open: RefCell<BTreeMap<ConnectionId, Rc<Connection>>>,
    /// What the replies that wait on all connections take, bytes, and how much may.
    unsent: Cell<usize>,
    unsent_max: usize,
    /// Bytes that have come of frames that are not whole yet, and how many may.
    unfinished: Cell<usize>,
    unfinished_max: usize,
    unread_for: Duration,
    /// Whether some may wait inside of encrypted connections.
    has_tls: bool,
    looked_at: Cell<Instant>,
    /// All connections that others opened, those of nodes and those that have not said what they are included.
    pub(crate) connections: Cell<u64>,
    /// Those that have not said yet what they are, the oldest first, and what tells them to make room.
    silent: RefCell<BTreeMap<ConnectionId, Rc<Notify>>>,
    /// Who waits until the node takes requests.
    line: Line,
}

/// One connection: what waits to be written, and the means to wake its task.
struct Connection {
    stream: Stream,
    unsent: RefCell<Unsent>,
    /// When the client last took something, or first had something to take.
    taken_at: Cell<Instant>,
    /// What has come of a frame that is not whole yet.
    unfinished: Cell<Unfinished>,
    is_closing: Cell<bool>,
    /// Nothing more is written or read.
    is_cut: Cell<bool>,
    in_line: InLine,
    /// Wakes the connection's task.
    waker: RefCell<Option<Waker>>,
}

/// The beginning of a frame.
#[derive(Clone, Copy)]
struct Unfinished {
    bytes: usize,
    /// When it was first found not to be whole, and when more of it came last.
    begun: Instant,
    came: Instant,
}

impl Unfinished {
    /// Bytes that have come per second: none if nothing has come for a second, and any number if it began within one.
    fn rate(&self, now: Instant) -> u128 {
        let age = now.since(self.begun).as_millis();
        if now.since(self.came) >= LOOK_INTERVAL {
            0
        } else if age < LOOK_INTERVAL.as_millis() {
            u128::MAX
        } else {
            self.bytes as u128 * 1_000 / age
        }
    }
}

impl Connection {
    fn remember(&self, context: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

impl Clients {
    /// None yet.
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            open: RefCell::default(),
            unsent: Cell::new(0),
            unsent_max: config.unread_bytes_max,
            unfinished: Cell::new(0),
            unfinished_max: config.unfinished_bytes_max,
            unread_for: config.unread_for,
            has_tls: config.tls.is_some(),
            looked_at: Cell::new(OsClock.now()),
            connections: Cell::new(0),
            silent: RefCell::default(),
            line: Line::default(),
        }
    }

    /// For how long a connection may take nothing of what waits for it, or send nothing more of a frame.
    pub(super) const fn unread_for(&self) -> Duration {
        self.unread_for
    }

    /// How many clients' connections there are.
    pub(crate) fn count(&self) -> usize {
        self.open.borrow().len()
    }

    /// Closes the connection that has been silent longest. Returns whether there was one.
    pub(crate) fn close_silent(&self) -> bool {
        let oldest = self.silent.borrow_mut().pop_first();
        oldest.inspect(|(_, room)| room.notify_one()).is_some()
    }

    /// Closes connections until no more waits on all together than may: those first that have long had time for a mebibyte and more,
    /// and of these the ones for which most waits. Who does not read holds nobody else up, and who reads as fast as it comes stays.
    pub(crate) fn make_room(&self) {
        while self.unsent.get() > self.unsent_max {
            let now = OsClock.now();
            let open = self.open.borrow();
            let unread = |(id, connection): (&ConnectionId, &Rc<Connection>)| {
                let unsent = connection.unsent.borrow();
                let has_waited = unsent.since().is_some_and(|since| now.since(since) >= LOOK_INTERVAL);
                let is_slow = has_waited && unsent.held() >= SENT_AT_ONCE_MAX;
                (is_slow, unsent.held(), *id)
            };
            let Some((_, held, id)) = open.iter().map(unread).max().filter(|(_, held, _)| *held > 0) else { return };
            tracing::warn!(
                connection = id.0,
                unread_bytes = held,
                "a client is disconnected: replies fill the room that is left for them, and most are for it"
            );
            self.cut(&open[&id]);
        }
    }

    /// Closes the connections whose clients have long taken nothing, or sent nothing more of a frame.
    pub(crate) fn close_stuck(&self, now: Instant) {
        let has_none = self.unsent.get() + self.unfinished.get() == 0 && !self.has_tls;
        if has_none || now.since(self.looked_at.get()) < LOOK_INTERVAL {
            return;
        }
        self.looked_at.set(now);
        for (id, connection) in &*self.open.borrow() {
            let count = connection.unsent.borrow().len() + usize::from(connection.stream.has_unsent());
            let Unfinished { bytes, came, .. } = connection.unfinished.get();
            if count > 0 && now.since(connection.taken_at.get()) > self.unread_for {
                tracing::debug!(connection = id.0, unread_bytes = count, "a client is disconnected: it does not read");
                self.cut(connection);
            } else if bytes > 0
                && count < UNSENT_MAX
                && now.since(came.max(connection.taken_at.get())) > self.unread_for
            {
                tracing::debug!(connection = id.0, bytes, "a client is disconnected: it does not finish a frame");
                self.cut(connection);
            }
        }
    }

    /// Notes how much has come of a frame that is not whole yet, after perhaps others that are. Beyond what may be of all, slow ones go
    /// first, then large ones before small ones, then those that come most slowly, and of several the oldest: who sends a large frame
    /// is done with it soon.
    fn note_unfinished(&self, connection: &Connection, bytes: usize, is_after_others: bool) {
        let before = connection.unfinished.get();
        if before.bytes == bytes && !(is_after_others && bytes > 0) {
            return;
        }
        let now = OsClock.now();
        let begun = if before.bytes == 0 || is_after_others { now } else { before.begun };
        connection.unfinished.set(Unfinished { bytes, begun, came: now });
        self.unfinished.set(self.unfinished.get() - before.bytes + bytes);
        if self.unfinished.get() > self.unfinished_max {
            self.cut_unfinished(now);
        }
    }

    /// Ends connections with unfinished frames until there is room again, and some to spare: all are looked at.
    fn cut_unfinished(&self, now: Instant) {
        let open = self.open.borrow();
        let unfinished = |(id, one): (&ConnectionId, &Rc<Connection>)| (one.unfinished.get(), *id);
        let mut begun: Vec<_> = open.iter().map(unfinished).filter(|(one, _)| one.bytes > 0).collect();
        let is_small = |one: &Unfinished| one.bytes < SMALL_FRAME;
        let is_slow = |one: &Unfinished| one.rate(now) < SLOW_FRAME_RATE;
        begun.sort_by_key(|(one, id)| (!is_slow(one), is_small(one), one.rate(now), one.begun, *id));
        for (one, id) in begun {
            // Some to spare, so that all are not looked at again with the next bytes, but not at the cost of those that come fast.
            let most = if is_slow(&one) { self.unfinished_max / 8 * 7 } else { self.unfinished_max };
            if self.unfinished.get() <= most {
                return;
            }
            tracing::warn!(
                connection = id.0,
                bytes = one.bytes,
                "a client is disconnected: unfinished requests fill the room that is left for them, and its comes most slowly"
            );
            self.cut(&open[&id]);
        }
    }

    /// Ends a connection, whose buffers are free then.
    fn cut(&self, connection: &Connection) {
        self.forget(connection);
        connection.is_cut.set(true);
        connection.wake();
    }

    /// What waits for it, and what has come of its frame, count no more.
    fn forget(&self, connection: &Connection) {
        let left = std::mem::take(&mut *connection.unsent.borrow_mut()).held();
        self.unsent.set(self.unsent.get().saturating_sub(left));
        let unfinished = connection.unfinished.get();
        self.unfinished.set(self.unfinished.get() - unfinished.bytes);
        connection.unfinished.set(Unfinished { bytes: 0, ..unfinished });
    }

    /// Writes as much as the socket takes now and leaves the rest to the connection's task. Returns whether as much is left there
    /// as may be.
    pub(crate) fn send(&self, id: ConnectionId, mut bytes: BytesMut) -> bool {
        let Some(connection) = self.open.borrow().get(&id).cloned() else { return false };
        if connection.is_cut.get() {
            return false;
        }
        let mut unsent = connection.unsent.borrow_mut();
        let (size, held) = (bytes.len(), unsent.held());
        let mut may_send = SENT_AT_ONCE_MAX.min(size);
        while unsent.is_empty() && may_send > 0 {
            match connection.stream.try_write(&bytes[..may_send]) {
                Ok(count) => {
                    bytes.advance(count);
                    may_send -= count;
                }
                Err(_) => break,
            }
        }
        if bytes.is_empty() {
            if connection.stream.has_unsent() {
                connection.taken_at.set(OsClock.now());
                connection.wake();
            }
        } else {
            let now = OsClock.now();
            if unsent.is_empty() {
                connection.taken_at.set(now);
            }
            unsent.push(bytes, size, now);
            self.unsent.set(self.unsent.get() + unsent.held() - held);
            connection.wake();
        }
        unsent.len() >= UNREAD_MAX
    }

    /// Closes a connection once what waits for it is written.
    pub(crate) fn close(&self, id: ConnectionId) {
        if let Some(connection) = self.open.borrow().get(&id) {
            connection.is_closing.set(true);
            connection.wake();
        }
    }
}

/// Serves a connection until either end closes it. It counts from now on, before its task first runs.
pub(crate) fn serve(host: Rc<Host>, tcp: TcpStream, id: ConnectionId) -> impl Future<Output = ()> {
    let room = Rc::new(Notify::new());
    let count = &host.clients.connections;
    count.set(count.get() + 1);
    host.clients.silent.borrow_mut().insert(id, Rc::clone(&room));
    async move {
        serve_any(&host, tcp, id, &room).await;
        let count = &host.clients.connections;
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
    host.clients.silent.borrow_mut().remove(&id);
    let Ok(Opened { stream, buffer, is_node }) = opened else { return };
    if is_node {
        return peer::receive(Rc::clone(host), stream, buffer).await;
    }
    let Some(_admitted) = host.security.admit_client(&stream, from) else { return };
    if !host.has_room_for_client() {
        return tracing::debug!("a client's connection is closed: there are as many as the limit of open files allows");
    }
    host.faults.note_client(id, stream.tcp());
    if host.node.borrow().config.wants_to_know_clients() {
        let who = host.security.who(&stream);
        let bound = host.security.bound(&stream, &who);
        let opened = Event::ClientOpened(id, who, from, bound);
        host.node.borrow_mut().handle(opened, OsClock.read());
    }
    let now = OsClock.now();
    let connection = Rc::new(Connection {
        stream,
        unsent: RefCell::default(),
        taken_at: Cell::new(now),
        unfinished: Cell::new(Unfinished { bytes: 0, begun: now, came: now }),
        is_closing: Cell::new(false),
        is_cut: Cell::new(false),
        in_line: InLine::default(),
        waker: RefCell::new(None),
    });
    host.clients.open.borrow_mut().insert(id, Rc::clone(&connection));
    // Whatever ends a connection concerns its own client only.
    if let Err(error) = converse(host, &connection, id, buffer).await {
        tracing::debug!(connection = id.0, %error, "a client's connection ended");
    }
    connection.stream.say_end();
    host.clients.open.borrow_mut().remove(&id);
    host.clients.line.leave(id, &connection.in_line);
    host.faults.forget_client(id);
    host.clients.forget(&connection);
    host.node.borrow_mut().handle(Event::ClientClosed(id), OsClock.read());
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

/// Reads and writes as the connection permits, until either end closes it.
async fn converse(host: &Host, connection: &Connection, id: ConnectionId, mut buffer: BytesMut) -> io::Result<()> {
    loop {
        let is_held_up = poll_fn(|context| poll_connection(context, host, connection, id, &mut buffer));
        match is_held_up.await? {
            Next::Closed => return Ok(()),
            // Others have to be written first.
            Next::Wait => tokio::time::sleep(super::TICK).await,
            Next::Turn => yield_now().await,
        }
    }
}

/// Why a connection's task stops polling its socket.
enum Next {
    Closed,
    Wait,
    /// The node has to be driven first, or others have waited long enough.
    Turn,
}

/// Does what the socket permits now. By hand: a `select!` over the same events costs a tenth of a small read.
fn poll_connection(
    context: &mut Context<'_>,
    host: &Host,
    connection: &Connection,
    id: ConnectionId,
    buffer: &mut BytesMut,
) -> Poll<io::Result<Next>> {
    connection.remember(context);
    let (mut sent, mut reads) = (0, 0);
    loop {
        if connection.is_cut.get() {
            let why = "its client did not read what was sent, or did not finish a request";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
        }
        let unsent = connection.unsent.borrow().len();
        let has_unsent = unsent > 0 || connection.stream.has_unsent();
        if !has_unsent && connection.is_closing.get() {
            return Poll::Ready(Ok(Next::Closed));
        }
        if has_unsent && connection.stream.poll_write_ready(context)?.is_ready() {
            sent += write(host, connection)?;
            if sent >= SENT_AT_ONCE_MAX {
                return Poll::Ready(Ok(Next::Turn));
            }
            continue;
        }
        if connection.is_closing.get() || unsent >= UNSENT_MAX {
            host.clients.line.leave(id, &connection.in_line);
            return Poll::Pending;
        }
        if !host.is_clients_turn() {
            host.clients.line.leave(id, &connection.in_line);
            return if unsent == 0 { Poll::Ready(Ok(Next::Wait)) } else { Poll::Pending };
        }
        // What it asked for while it waited would be done for nobody.
        if connection.in_line.is_waiting() && is_closed_by_client(context, connection.stream.tcp()) {
            return Poll::Ready(Ok(Next::Closed));
        }
        if !host.clients.line.may_go(id, &connection.in_line, host.node.borrow().takes_requests()) {
            return Poll::Ready(Ok(Next::Turn));
        }
        if has_frame(buffer) {
            take_frames(host, connection, id, buffer);
            continue;
        }
        buffer.reserve(READ_SIZE);
        match poll_read(context, &connection.stream, buffer)? {
            Poll::Ready(0) => return Poll::Ready(Ok(Next::Closed)),
            Poll::Ready(_) => take_frames(host, connection, id, buffer),
            Poll::Pending => return Poll::Pending,
        }
        // Small records cost much more than what is in them.
        reads += u32::from(connection.stream.is_secure());
        if reads >= SECURE_READS_AT_ONCE_MAX {
            return Poll::Ready(Ok(Next::Turn));
        }
    }
}

/// Reads into the buffer's free room; 0 bytes are the end of the stream. However much room a large frame has left, no more is read at
/// once than that frame needs, or [`READ_SIZE`]: what small requests ask for may be much.
fn poll_read(context: &mut Context<'_>, stream: &Stream, buffer: &mut BytesMut) -> Poll<io::Result<usize>> {
    let missing = hedgerow_wire::frame_size(buffer).ok().flatten().map_or(0, |size| size.saturating_sub(buffer.len()));
    let room = missing.max(READ_SIZE).min(buffer.capacity() - buffer.len());
    loop {
        ready!(stream.poll_read_ready(context))?;
        match stream.try_read(buffer, room) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                // Others first.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            result => return Poll::Ready(result),
        }
    }
}

/// Whether the client has closed its end, whatever is still unread of what it sent before.
fn is_closed_by_client(context: &mut Context<'_>, tcp: &TcpStream) -> bool {
    let ready = pin!(tcp.ready(Interest::READABLE)).poll(context);
    matches!(ready, Poll::Ready(Ok(ready)) if ready.is_read_closed())
}

/// Whether there is a whole frame, or what is none. The last turn may have ended before all that was read was taken.
fn has_frame(buffer: &BytesMut) -> bool {
    hedgerow_wire::frame_size(buffer).map_or(true, |size| size.is_some_and(|size| buffer.len() >= size))
}

/// Hands every whole frame to the node, unless it has answered enough for this turn, or for this connection's share of it where others
/// wait. The clock is read after the bytes were, as reads need it.
fn take_frames(host: &Host, connection: &Connection, id: ConnectionId, buffer: &mut BytesMut) {
    let now = OsClock.read();
    let mut node = host.node.borrow_mut();
    let (mut has_any, mut has_large) = (false, false);
    let begun = node.turn_bytes();
    while node.takes_requests() && (node.turn_bytes() - begun < SHARE || host.clients.line.is_empty()) {
        match hedgerow_wire::frame_size(buffer) {
            Ok(Some(size)) if buffer.len() >= size => {
                has_large |= size > KEPT_MAX;
                let frame = host.faults.take_request(id, buffer.split_to(size).freeze());
                has_any |= frame.map(|frame| node.handle(Event::Client(id, frame), now)).is_some();
            }
            Ok(_) => break,
            Err(reason) => {
                tracing::debug!(connection = id.0, %reason, "a client's connection is closed");
                buffer.clear();
                node.outbox().closed.push(id);
                has_any = true;
                break;
            }
        }
    }
    if has_large {
        // Otherwise the room of the large one is taken again as soon as nobody else has it.
        *buffer = BytesMut::from(&buffer[..]);
    }
    let unfinished = if has_frame(buffer) { 0 } else { buffer.len() };
    host.clients.note_unfinished(connection, unfinished, has_any);
    if has_any {
        host.busy.set(host.busy.get() + OsClock.now().since(now.instant));
        host.wake.notify_one();
    }
}

/// Writes what waits, as far as the socket takes it at once. Returns how much that was.
fn write(host: &Host, connection: &Connection) -> io::Result<usize> {
    let mut unsent = connection.unsent.borrow_mut();
    match connection.stream.try_write(unsent.first(SENT_AT_ONCE_MAX)) {
        Ok(count) => {
            let held = unsent.held();
            unsent.advance(count);
            connection.taken_at.set(OsClock.now());
            host.clients.unsent.set(host.clients.unsent.get() - (held - unsent.held()));
            Ok(count)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        Err(error) => Err(error),
    }
}
