//! Connections from clients (and the first bytes of those from other nodes, which come to the same port).

use super::{Host, OsClock, peer};
use crate::ConnectionId;
use bytes::{Buf, BytesMut};
use hedgerow_env::Clock;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Notify;

/// Bytes that are made room for before each read.
const READ_SIZE: usize = 16 << 10;
/// Reply bytes that a connection may leave unread before nothing more is read from it.
const UNSENT_MAX: usize = 16 << 20;
/// Reply bytes of all connections together above which nothing more is read from any.
const UNSENT_TOTAL_MAX: usize = 512 << 20;

/// The open connections.
#[derive(Default)]
pub(crate) struct Clients {
    open: RefCell<BTreeMap<ConnectionId, Rc<Connection>>>,
    unsent: Cell<usize>,
}

/// One connection: what waits to be written, and the means to wake its task.
struct Connection {
    stream: OwnedWriteHalf,
    unsent: RefCell<BytesMut>,
    is_closing: Cell<bool>,
    wake: Notify,
}

impl Clients {
    pub(crate) fn is_overloaded(&self) -> bool {
        self.unsent.get() > UNSENT_TOTAL_MAX
    }

    /// Writes as much as the socket takes now and leaves the rest to the connection's task.
    pub(crate) fn send(&self, id: ConnectionId, mut bytes: BytesMut) {
        let Some(connection) = self.open.borrow().get(&id).cloned() else { return };
        let mut unsent = connection.unsent.borrow_mut();
        while unsent.is_empty() && !bytes.is_empty() {
            match connection.stream.try_write(&bytes) {
                Ok(count) => bytes.advance(count),
                Err(_) => break,
            }
        }
        if !bytes.is_empty() {
            self.unsent.set(self.unsent.get() + bytes.len());
            unsent.extend_from_slice(&bytes);
            connection.wake.notify_one();
        }
    }

    /// Closes a connection once what waits for it is written.
    pub(crate) fn close(&self, id: ConnectionId) {
        if let Some(connection) = self.open.borrow().get(&id) {
            connection.is_closing.set(true);
            connection.wake.notify_one();
        }
    }
}

/// Serves a connection until either end closes it.
pub(crate) async fn serve(host: Rc<Host>, stream: TcpStream, id: ConnectionId) {
    let mut buffer = BytesMut::with_capacity(READ_SIZE);
    match first_bytes(&stream, &mut buffer).await {
        Ok(true) => return peer::receive(host, stream, buffer).await,
        Ok(false) => {}
        Err(_) => return,
    }
    let (incoming, outgoing) = stream.into_split();
    let connection = Rc::new(Connection {
        stream: outgoing,
        unsent: RefCell::new(BytesMut::new()),
        is_closing: Cell::new(false),
        wake: Notify::new(),
    });
    host.clients.open.borrow_mut().insert(id, Rc::clone(&connection));
    // Whatever ends a connection concerns its own client only.
    if let Err(error) = converse(&host, incoming, &connection, id, buffer).await {
        tracing::debug!(connection = id.0, %error, "a client's connection ended");
    }
    host.clients.open.borrow_mut().remove(&id);
    let left = connection.unsent.borrow().len();
    host.clients.unsent.set(host.clients.unsent.get().saturating_sub(left));
    host.node.borrow_mut().handle_client_closed(id);
}

/// Reads until it can be told whether the other end is a node.
async fn first_bytes(stream: &TcpStream, buffer: &mut BytesMut) -> io::Result<bool> {
    loop {
        let magic = &crate::peer::MAGIC;
        let seen = buffer.len().min(magic.len());
        if seen == magic.len() || buffer[..seen] != magic[..seen] {
            return Ok(seen == magic.len() && buffer[..seen] == magic[..]);
        }
        stream.readable().await?;
        read(stream, buffer)?;
    }
}

/// Reads what is there; an error at the end of the stream.
pub(super) fn read(stream: &TcpStream, buffer: &mut BytesMut) -> io::Result<()> {
    buffer.reserve(READ_SIZE);
    match stream.try_read_buf(buffer) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}

async fn converse(
    host: &Host,
    mut incoming: OwnedReadHalf,
    connection: &Connection,
    id: ConnectionId,
    mut buffer: BytesMut,
) -> io::Result<()> {
    take_frames(host, id, &mut buffer);
    loop {
        let unsent = connection.unsent.borrow().len();
        if unsent == 0 && connection.is_closing.get() {
            return Ok(());
        }
        let may_read = unsent < UNSENT_MAX && host.is_clients_turn() && !connection.is_closing.get();
        buffer.reserve(READ_SIZE);
        tokio::select! {
            // Unlike `try_read`, this knows that a read which leaves room has emptied the socket, and spares the next one.
            count = incoming.read_buf(&mut buffer), if may_read => {
                if count? == 0 {
                    return Ok(());
                }
                take_frames(host, id, &mut buffer);
            }
            ready = connection.stream.writable(), if unsent > 0 => {
                ready?;
                write(host, connection)?;
            }
            () = connection.wake.notified() => {}
            // Others have to be written first.
            () = tokio::time::sleep(super::TICK), if !may_read && unsent == 0 => {}
        }
    }
}

/// Hands every whole frame to the node. The clock is read after the bytes were, as reads need it.
fn take_frames(host: &Host, id: ConnectionId, buffer: &mut BytesMut) {
    let now = OsClock.read();
    let mut node = host.node.borrow_mut();
    let mut has_any = false;
    loop {
        match hedgerow_wire::frame_size(buffer) {
            Ok(Some(size)) if buffer.len() >= size => {
                node.handle_client(id, buffer.split_to(size).freeze(), now);
                has_any = true;
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
    if has_any {
        host.wake.notify_one();
    }
}

fn write(host: &Host, connection: &Connection) -> io::Result<()> {
    let mut unsent = connection.unsent.borrow_mut();
    match connection.stream.try_write(&unsent) {
        Ok(count) => {
            unsent.advance(count);
            host.clients.unsent.set(host.clients.unsent.get().saturating_sub(count));
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}
