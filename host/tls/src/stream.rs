//! A connection, encrypted or not, that is read and written without waiting.
//!
//! What is written to an encrypted one may wait in it, up to some 64 KiB ([`Stream::has_unsent`]): it leaves when something is written, which may
//! be nothing, once the socket takes more ([`Stream::poll_write_ready`]). What has come on one may be decrypted and not taken yet: reading is asked of the
//! stream, never of its socket.

pub(crate) mod secure;

use bytes::{BufMut as _, BytesMut};
use rustls::pki_types::CertificateDer;
use secure::Secure;
use std::future::poll_fn;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Bytes that [`Stream::read`] makes room for.
const READ_SIZE: usize = 16 << 10;

/// A connection.
#[derive(Debug)]
pub struct Stream {
    tcp: TcpStream,
    secure: Option<Box<Mutex<Secure>>>,
}

impl Stream {
    /// One that is not encrypted.
    pub const fn plain(tcp: TcpStream) -> Self {
        Self { tcp, secure: None }
    }

    pub(crate) fn secure(tcp: TcpStream, secure: Secure) -> Self {
        Self { tcp, secure: Some(Box::new(Mutex::new(secure))) }
    }

    pub(crate) fn lock(&self) -> Option<MutexGuard<'_, Secure>> {
        self.secure.as_ref().map(|secure| secure.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The socket below, for its addresses and options.
    pub const fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Whether it is encrypted.
    pub const fn is_secure(&self) -> bool {
        self.secure.is_some()
    }

    /// What the other end has shown of itself, its own certificate first; none on a connection without TLS.
    pub fn certificates(&self) -> Vec<CertificateDer<'static>> {
        self.lock().map(|secure| secure.certificates()).unwrap_or_default()
    }

    /// What the two ends of an encrypted connection know and nobody else, nor on any other connection: `tls-exporter` of RFC 9266. None on a
    /// connection without TLS.
    pub fn binding(&self) -> Option<[u8; 32]> {
        self.lock()?.binding()
    }

    /// Puts at most `room` bytes to `buffer`; 0 are the end of the stream. [`io::ErrorKind::Interrupted`]: something came, and there was nothing
    /// in it. Who has other things to do does them before asking again.
    pub fn try_read(&self, buffer: &mut BytesMut, room: usize) -> io::Result<usize> {
        match self.lock() {
            None => try_read(&self.tcp, buffer, room),
            Some(mut secure) => secure.read(&self.tcp, buffer, room),
        }
    }

    /// Takes of `bytes` what can be sent now, and on an encrypted connection some more, and says how many that was: none, where a part of
    /// what waited was sent. With no bytes, sends what waits.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.lock() {
            None => self.tcp.try_write(bytes),
            Some(mut secure) => secure.write(&self.tcp, bytes),
        }
    }

    /// Whether something that was written waits for the socket.
    pub fn has_unsent(&self) -> bool {
        self.lock().is_some_and(|secure| secure.has_unsent())
    }

    /// Ready when something may be read.
    pub fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lock().is_some_and(|secure| secure.has_received()) {
            return Poll::Ready(Ok(()));
        }
        self.tcp.poll_read_ready(context)
    }

    /// Ready when something may be written.
    pub fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp.poll_write_ready(context)
    }

    /// Waits until something may be read. For one task at a time.
    pub async fn readable(&self) -> io::Result<()> {
        poll_fn(|context| self.poll_read_ready(context)).await
    }

    /// Waits until something may be written. For one task at a time.
    pub async fn writable(&self) -> io::Result<()> {
        poll_fn(|context| self.poll_write_ready(context)).await
    }

    /// Writes all of `bytes`, and waits until it has left.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() || self.has_unsent() {
            self.writable().await?;
            match self.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => bytes = &bytes[written?..],
            }
        }
        Ok(())
    }

    /// Waits for something and puts it to `buffer`; 0 bytes are the end of the stream.
    pub async fn read(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        loop {
            self.readable().await?;
            buffer.reserve(READ_SIZE);
            match self.try_read(buffer, READ_SIZE) {
                Err(error) if is_nothing_yet(&error) => tokio::task::yield_now().await,
                result => return result,
            }
        }
    }

    /// Takes it away from the runtime that has watched it. What has come on it and was not read stays.
    pub fn detach(self) -> io::Result<Detached> {
        Ok(Detached { tcp: self.tcp.into_std()?, secure: self.secure })
    }

    /// Says that nothing more will be sent. What the other end sends can still be read.
    pub fn say_end(&self) {
        if let Some(mut secure) = self.lock() {
            secure.close(&self.tcp);
        }
    }
}

/// A connection that no runtime watches, on its way to another thread's.
#[derive(Debug)]
pub struct Detached {
    tcp: std::net::TcpStream,
    secure: Option<Box<Mutex<Secure>>>,
}

impl Detached {
    /// Has the runtime of this thread watch it.
    pub fn attach(self) -> io::Result<Stream> {
        Ok(Stream { tcp: TcpStream::from_std(self.tcp)?, secure: self.secure })
    }
}

/// Whether a read has brought nothing, and a later one may.
pub fn is_nothing_yet(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Reads at most `room` bytes, without waiting; 0 are the end of the stream. A read that leaves room has emptied the socket, which
/// spares asking it again.
pub(crate) fn try_read(tcp: &TcpStream, buffer: &mut BytesMut, room: usize) -> io::Result<usize> {
    let count = tcp.try_read_buf(&mut buffer.limit(room))?;
    if count < room {
        // Forgets that the socket was readable until the system says so again.
        let _ = tcp.try_io(Interest::READABLE, || io::Result::<()>::Err(io::ErrorKind::WouldBlock.into()));
    }
    Ok(count)
}
