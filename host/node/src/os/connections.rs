//! The clients' connections of one thread: what they may keep in memory, what waits to be sent on each, and how they are read and written.

use super::OsClock;
use super::line::{InLine, Line};
use super::unsent::Unsent;
use crate::shared_bound::SharedBound;
use crate::{Config, ConnectionId};
use bytes::{Buf as _, Bytes, BytesMut};
use hedgerow_env::{Clock as _, Now};
use hedgerow_tls::{NodeTls, Stream};
use hedgerow_types::Instant;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::task::yield_now;

/// Bytes that are made room for before each read.
pub(super) const READ_SIZE: usize = 16 << 10;
/// Reply bytes that a connection may leave unread before nothing more is read from it.
const UNSENT_MAX: usize = 16 << 20;
/// What one connection may take of a turn of the node, or be answered with, where others wait, bytes.
pub(super) const SHARE: usize = 64 << 10;
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
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Who takes what clients ask for: the node, or the way to it.
pub(super) trait Taker {
    /// The connections of this thread.
    fn connections(&self) -> &Connections;

    /// Whether anything is taken at all, before others have got what waits for them.
    fn is_open(&self) -> bool;

    /// Whether a frame is taken before [`Taker::turn`] has ended.
    fn takes(&self) -> bool;

    /// Bytes that what was handed over has taken since the last turn.
    fn taken(&self) -> usize;

    /// Takes a whole frame.
    fn take(&self, id: ConnectionId, frame: Bytes, now: Now);

    /// What has come on a connection is no frame: to be closed once what was handed over before is answered.
    fn refuse(&self, id: ConnectionId);

    /// What has come on a connection is handed over, which began at `begun`.
    fn end(&self, begun: Now);

    /// Waits until more may be taken, or others have had their turn.
    async fn turn(&self);
}

/// What the connections of all threads keep in memory together, bytes.
#[derive(Clone, Default)]
pub(super) struct Buffers {
    unsent: Arc<AtomicUsize>,
    unfinished: Arc<AtomicUsize>,
}

/// The open connections of a thread.
pub(crate) struct Connections {
    open: RefCell<BTreeMap<ConnectionId, Rc<Connection>>>,
    /// What the replies that wait take, bytes.
    unsent: SharedBound,
    /// Bytes that have come of frames that are not whole yet.
    unfinished: SharedBound,
    unread_for: Duration,
    /// What those are encrypted by that are; some may wait inside of them.
    tls: Option<Arc<NodeTls>>,
    /// How often it had been read anew when certificates were looked at last.
    reloads: Cell<u64>,
    looked_at: Cell<Instant>,
    /// Who waits until the node takes requests.
    line: Line,
}

/// One connection: what waits to be written, and the means to wake its task.
pub(super) struct Connection {
    stream: Stream,
    unsent: RefCell<Unsent>,
    /// When the client last took something, or first had something to take.
    taken_at: Cell<Instant>,
    /// What has come of a frame that is not whole yet.
    unfinished: Cell<Unfinished>,
    is_closing: Cell<bool>,
    /// What came was no frame: nothing more is read.
    is_refused: Cell<bool>,
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
    fn new(stream: Stream) -> Self {
        let now = OsClock.now();
        Self {
            stream,
            unsent: RefCell::default(),
            taken_at: Cell::new(now),
            unfinished: Cell::new(Unfinished { bytes: 0, begun: now, came: now }),
            is_closing: Cell::new(false),
            is_refused: Cell::new(false),
            is_cut: Cell::new(false),
            in_line: InLine::default(),
            waker: RefCell::new(None),
        }
    }

    fn remember(&self, context: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
    }

    fn has_unsent(&self) -> bool {
        !self.unsent.borrow().is_empty() || self.stream.has_unsent()
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

impl Connections {
    /// None yet. They keep `buffers` together with those of the other `threads - 1`.
    pub(super) fn new(config: &Config, buffers: &Buffers, threads: usize) -> Self {
        Self {
            open: RefCell::default(),
            unsent: SharedBound::new(&buffers.unsent, config.unread_bytes_max, threads),
            unfinished: SharedBound::new(&buffers.unfinished, config.unfinished_bytes_max, threads),
            unread_for: config.unread_for,
            tls: config.tls.clone(),
            reloads: Cell::new(0),
            looked_at: Cell::new(OsClock.now()),
            line: Line::default(),
        }
    }

    /// For how long a connection may take nothing of what waits for it, or send nothing more of a frame.
    pub(super) const fn unread_for(&self) -> Duration {
        self.unread_for
    }

    /// Closes connections until no more waits on all together than may: those first that have long had time for a mebibyte and more,
    /// and of these the ones for which most waits. Who does not read holds nobody else up, and who reads as fast as it comes stays.
    pub(super) fn make_room(&self) {
        while self.unsent.is_beyond(100) {
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

    /// Closes the connections whose clients have long taken nothing, or sent nothing more of a frame, or whose certificates were revoked; and lets
    /// those that wait for their turn see whether their clients are gone.
    pub(super) fn close_stuck(&self, now: Instant) {
        let has_none = self.unsent.own() + self.unfinished.own() == 0 && self.tls.is_none() && self.line.is_empty();
        if has_none || now.since(self.looked_at.get()) < LOOK_INTERVAL {
            return;
        }
        self.looked_at.set(now);
        self.cut_revoked();
        if self.unfinished.is_beyond(100) {
            self.cut_unfinished(now);
        }
        for (id, connection) in &*self.open.borrow() {
            let count = connection.unsent.borrow().len() + usize::from(connection.stream.has_unsent());
            let Unfinished { bytes, came, .. } = connection.unfinished.get();
            if connection.in_line.is_waiting() {
                // It may wait for long, and looks whether its client is still there.
                connection.wake();
            }
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

    /// Ends connections with certificates that were revoked since they were made.
    fn cut_revoked(&self) {
        let Some(tls) = self.tls.as_ref().filter(|tls| tls.may_have_revoked(&self.reloads)) else { return };
        let open = self.open.borrow();
        let revoked: Vec<_> = open.values().filter(|it| tls.is_revoked(&it.stream)).collect();
        let mut owners: BTreeMap<String, usize> = BTreeMap::new();
        for connection in revoked {
            self.cut(connection);
            *owners.entry(tls.shown_by(&connection.stream)).or_default() += 1;
        }
        for (certificate, connections) in owners {
            tracing::warn!(certificate, connections, "a client is disconnected: its certificate has been revoked");
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
        self.unfinished.subtract(before.bytes);
        self.unfinished.add(bytes);
        if self.unfinished.is_beyond(100) {
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
            let percent = if is_slow(&one) { 88 } else { 100 };
            if !self.unfinished.is_beyond(percent) {
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
        self.unsent.subtract(left);
        let unfinished = connection.unfinished.get();
        self.unfinished.subtract(unfinished.bytes);
        connection.unfinished.set(Unfinished { bytes: 0, ..unfinished });
    }

    /// Writes as much as the socket takes now and leaves the rest to the connection's task. Returns whether as much is left there
    /// as may be.
    pub(super) fn send(&self, id: ConnectionId, mut bytes: BytesMut) -> bool {
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
            self.unsent.add(unsent.held() - held);
            connection.wake();
        }
        unsent.len() >= UNREAD_MAX
    }

    /// Closes a connection once what waits for it is written.
    pub(super) fn close(&self, id: ConnectionId) {
        if let Some(connection) = self.open.borrow().get(&id) {
            connection.is_closing.set(true);
            connection.wake();
        }
    }
}

/// Serves a connection until either end closes it. What has come on it so far is in `buffer`.
pub(super) async fn converse(taker: &impl Taker, stream: Stream, id: ConnectionId, mut buffer: BytesMut) {
    let connections = taker.connections();
    let connection = Rc::new(Connection::new(stream));
    connections.open.borrow_mut().insert(id, Rc::clone(&connection));
    // Perhaps while it was agreed on: from here on it is looked at whenever others are.
    connection.is_cut.set(connections.tls.as_ref().is_some_and(|tls| tls.is_revoked(&connection.stream)));
    // Whatever ends a connection concerns its own client only.
    if let Err(error) = read_and_write(taker, &connection, id, &mut buffer).await {
        tracing::debug!(connection = id.0, %error, "a client's connection ended");
    }
    connection.stream.say_end();
    connections.open.borrow_mut().remove(&id);
    connections.line.leave(id, &connection.in_line);
    connections.forget(&connection);
}

/// Reads and writes as the connection permits, until either end closes it.
async fn read_and_write(
    taker: &impl Taker,
    connection: &Connection,
    id: ConnectionId,
    buffer: &mut BytesMut,
) -> io::Result<()> {
    loop {
        let is_held_up = poll_fn(|context| poll_connection(context, taker, connection, id, buffer));
        match is_held_up.await? {
            Next::Closed => return Ok(()),
            // Others have to be written first.
            Next::Wait => tokio::time::sleep(super::TICK).await,
            Next::Turn => yield_now().await,
            Next::Full => wait_for_turn(taker, connection).await,
        }
    }
}

/// Why a connection's task stops polling its socket.
enum Next {
    Closed,
    Wait,
    /// Others have waited long enough.
    Turn,
    /// Nothing more is taken now, or others come first.
    Full,
}

/// Ends before the turn has come where the connection is to be written to, or cut.
async fn wait_for_turn(taker: &impl Taker, connection: &Connection) {
    let mut turn = pin!(taker.turn());
    let next = poll_fn(|context| {
        connection.remember(context);
        let is_cut = connection.is_cut.get();
        let has_unsent = connection.has_unsent();
        let is_over = connection.is_closing.get() && !has_unsent;
        let may_write = has_unsent && connection.stream.poll_write_ready(context).is_ready();
        if is_cut || is_over || may_write || is_closed_by_client(context, connection.stream.tcp()) {
            return Poll::Ready(());
        }
        turn.as_mut().poll(context)
    });
    next.await;
}

/// Does what the socket permits now. By hand: a `select!` over the same events costs a tenth of a small read.
fn poll_connection(
    context: &mut Context<'_>,
    taker: &impl Taker,
    connection: &Connection,
    id: ConnectionId,
    buffer: &mut BytesMut,
) -> Poll<io::Result<Next>> {
    connection.remember(context);
    let (mut sent, mut reads) = (0, 0);
    loop {
        if connection.is_cut.get() {
            let why = "its client did not read what was sent, did not finish a request, or has a certificate that was revoked";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
        }
        let unsent = connection.unsent.borrow().len();
        let has_unsent = connection.has_unsent();
        if !has_unsent && connection.is_closing.get() {
            return Poll::Ready(Ok(Next::Closed));
        }
        if has_unsent && connection.stream.poll_write_ready(context)?.is_ready() {
            sent += write(taker.connections(), connection)?;
            if sent >= SENT_AT_ONCE_MAX {
                return Poll::Ready(Ok(Next::Turn));
            }
            continue;
        }
        if connection.is_closing.get() || connection.is_refused.get() || unsent >= UNSENT_MAX {
            taker.connections().line.leave(id, &connection.in_line);
            return Poll::Pending;
        }
        if !taker.is_open() {
            taker.connections().line.leave(id, &connection.in_line);
            return if unsent == 0 { Poll::Ready(Ok(Next::Wait)) } else { Poll::Pending };
        }
        // What it asked for while it waited would be done for nobody.
        if connection.in_line.is_waiting() && is_closed_by_client(context, connection.stream.tcp()) {
            return Poll::Ready(Ok(Next::Closed));
        }
        if !taker.connections().line.may_go(id, &connection.in_line, taker.takes()) {
            return Poll::Ready(Ok(Next::Full));
        }
        if has_frame(buffer) {
            take_frames(taker, connection, id, buffer);
            continue;
        }
        buffer.reserve(READ_SIZE);
        match poll_read(context, &connection.stream, buffer)? {
            Poll::Ready(0) => return Poll::Ready(Ok(Next::Closed)),
            Poll::Ready(_) => take_frames(taker, connection, id, buffer),
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

/// Hands every whole frame over, unless enough is taken for this turn, or for this connection's share of it where others
/// wait. The clock is read after the bytes were, as reads need it.
fn take_frames(taker: &impl Taker, connection: &Connection, id: ConnectionId, buffer: &mut BytesMut) {
    let now = OsClock.read();
    let connections = taker.connections();
    let (mut has_any, mut has_large) = (false, false);
    let begun = taker.taken();
    while taker.takes() && (taker.taken() - begun < SHARE || connections.line.is_empty()) {
        match hedgerow_wire::frame_size(buffer) {
            Ok(Some(size)) if buffer.len() >= size => {
                has_large |= size > KEPT_MAX;
                taker.take(id, buffer.split_to(size).freeze(), now);
            }
            Ok(_) => break,
            Err(reason) => {
                tracing::debug!(connection = id.0, %reason, "a client's connection is closed");
                buffer.clear();
                connection.is_refused.set(true);
                taker.refuse(id);
                has_any = true;
                break;
            }
        }
        has_any = true;
    }
    if has_large {
        // Otherwise the room of the large one is taken again as soon as nobody else has it.
        *buffer = BytesMut::from(&buffer[..]);
    }
    let unfinished = if has_frame(buffer) { 0 } else { buffer.len() };
    connections.note_unfinished(connection, unfinished, has_any);
    if has_any {
        taker.end(now);
    }
}

/// Writes what waits, as far as the socket takes it at once. Returns how much that was.
fn write(connections: &Connections, connection: &Connection) -> io::Result<usize> {
    let mut unsent = connection.unsent.borrow_mut();
    match connection.stream.try_write(unsent.first(SENT_AT_ONCE_MAX)) {
        Ok(count) => {
            let held = unsent.held();
            unsent.advance(count);
            connection.taken_at.set(OsClock.now());
            connections.unsent.subtract(held - unsent.held());
            Ok(count)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        Err(error) => Err(error),
    }
}
