//! The encrypted side of a connection: what has come and is not decrypted yet, what is decrypted and not taken yet, and what is encrypted and not sent
//! yet. Each of the three is bounded.

use crate::disbelief::Disbelief;
use bytes::{Buf as _, BytesMut};
use rustls::Connection;
use rustls::pki_types::CertificateDer;
use std::io::{self, BufRead as _, Write as _};
use tokio::net::TcpStream;

/// Bytes that are read from a socket at a time: a few records.
const READ_SIZE: usize = 64 << 10;
/// The same while who is at the other end is not known: thousands of them may wait to be looked at.
const HANDSHAKE_READ_SIZE: usize = 2 << 10;
/// Bytes that are encrypted before the socket has taken those before: what a connection keeps whose other end does not read.
const WRITE_SIZE: usize = 64 << 10;

/// What RFC 9266 derives the binding with.
const BINDING_LABEL: &[u8] = b"EXPORTER-Channel-Binding";

/// One end of an encrypted connection, without its socket.
#[derive(Debug)]
pub(crate) struct Secure {
    connection: Connection,
    /// What has come and was not looked at.
    incoming: BytesMut,
    /// Decrypted bytes that `connection` holds.
    plain: usize,
    is_at_end: bool,
}

/// A socket that is written without waiting.
struct Socket<'a>(&'a TcpStream);

impl io::Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Secure {
    pub(crate) fn new(mut connection: Connection) -> Self {
        // Records add a little to what they hold.
        connection.set_buffer_limit(Some(2 * WRITE_SIZE));
        Self { connection, incoming: BytesMut::new(), plain: 0, is_at_end: false }
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    pub(crate) fn certificates(&self) -> Vec<CertificateDer<'static>> {
        self.connection.peer_certificates().unwrap_or_default().to_vec()
    }

    pub(crate) fn binding(&self) -> Option<[u8; 32]> {
        self.connection.export_keying_material([0; 32], BINDING_LABEL, Some(b"")).ok()
    }

    /// Whether something is encrypted that the socket has not taken.
    pub(crate) fn has_unsent(&self) -> bool {
        self.connection.wants_write()
    }

    /// Whether there is something to be read without asking the socket.
    pub(crate) fn has_received(&self) -> bool {
        self.plain > 0 || !self.incoming.is_empty() || self.is_at_end
    }

    /// Sends what is encrypted. An error that it would block means that the socket took none of it.
    pub(crate) fn flush(&mut self, tcp: &TcpStream) -> io::Result<()> {
        let mut has_sent = false;
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Socket(tcp)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => has_sent = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && has_sent => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads from the socket what is there; 0 bytes are its end.
    pub(crate) fn receive(&mut self, tcp: &TcpStream) -> io::Result<usize> {
        if self.incoming.is_empty() {
            let is_handshaking = self.connection.is_handshaking();
            self.incoming.reserve(if is_handshaking { HANDSHAKE_READ_SIZE } else { READ_SIZE });
        }
        let room = self.incoming.capacity() - self.incoming.len();
        let received = super::try_read(tcp, &mut self.incoming, room);
        if self.incoming.is_empty() {
            // Most connections are idle most of the time.
            self.incoming = BytesMut::new();
        }
        received
    }

    /// Has a part of what has come decrypted.
    pub(crate) fn process(&mut self) -> io::Result<()> {
        while !self.incoming.is_empty() && self.plain == 0 {
            let count = self.connection.read_tls(&mut &self.incoming[..])?;
            if count == 0 {
                // The other end has said that nothing more will come.
                (self.is_at_end, self.incoming) = (true, BytesMut::new());
            }
            self.incoming.advance(count);
            let state = self.connection.process_new_packets();
            let state = state.map_err(|error| Disbelief(error).into_io())?;
            self.plain = state.plaintext_bytes_to_read();
            self.is_at_end |= state.peer_has_closed();
        }
        if self.incoming.is_empty() {
            self.incoming = BytesMut::new();
        }
        Ok(())
    }

    /// Puts at most `room` bytes to `buffer`, without waiting; 0 are the end of the stream. The socket is read once: what one end can send
    /// without end, such as records with nothing in them, has the other one's thread for so long only.
    pub(crate) fn read(&mut self, tcp: &TcpStream, buffer: &mut BytesMut, room: usize) -> io::Result<usize> {
        let (mut count, mut has_received) = (0, false);
        loop {
            while self.plain > 0 && count < room {
                let mut reader = self.connection.reader();
                let part = reader.fill_buf()?;
                let size = part.len().min(room - count);
                buffer.extend_from_slice(&part[..size]);
                reader.consume(size);
                self.plain -= size;
                count += size;
            }
            if count == room || (self.is_at_end && self.incoming.is_empty()) {
                return Ok(count);
            }
            if self.incoming.is_empty() {
                if count > 0 {
                    return Ok(count);
                }
                if has_received {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                has_received = true;
                self.is_at_end = self.receive(tcp)? == 0;
            }
            let processed = self.process();
            // An alert, or the answer to a change of keys. What the socket does not take leaves with the next bytes.
            match self.flush(tcp) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Ok(()) | Err(_) => processed?,
            }
        }
    }

    /// Encrypts what the socket takes now, and some 64 KiB more at most. Returns how many of `bytes` that was.
    pub(crate) fn write(&mut self, tcp: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        let mut count = 0;
        loop {
            match self.flush(tcp) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && count > 0 => return Ok(count),
                flushed => flushed?,
            }
            if count == bytes.len() || self.has_unsent() {
                return Ok(count);
            }
            let part = &bytes[count..bytes.len().min(count + WRITE_SIZE)];
            count += self.connection.writer().write(part)?;
        }
    }

    /// Says that nothing more will be sent.
    pub(crate) fn close(&mut self, tcp: &TcpStream) {
        self.connection.send_close_notify();
        // It is closed next, whether it takes this or not.
        let _ = self.flush(tcp);
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test writes an operator's files and talks to the network by itself")]
mod tests {
    use super::*;
    use crate::{Authority, ClientTls, ClientTlsFiles, ClusterName, Mode, NodeTls, NodeTlsFiles, Stream};
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::SystemTime;
    use tokio::net::TcpListener;

    async fn connected() -> (Stream, Stream) {
        let folder = tempfile::tempdir().unwrap();
        let (cluster, now) = (ClusterName::new("test").unwrap(), SystemTime::now());
        let (authority, issued) = Authority::create(&cluster, 1, now).unwrap();
        let own = authority.node(1, &[], 1, now).unwrap();
        let texts = [("ca", &issued.certificate), ("node", &own.certificate), ("key", &own.key)];
        let [ca, certificate, key] = texts.map(|(name, text)| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            path
        });
        let files = ClientTlsFiles { cluster: cluster.clone(), ca: ca.clone(), identity: None, revoked: None };
        let client = ClientTls::load(&files).unwrap();
        let files = NodeTlsFiles { cluster, node: 1, ca, certificate, key, revoked: None };
        let node = NodeTls::load(files, Mode::Required, false).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let (client, node) = tokio::join!(client.connect(tcp), node.accept(accepted).unwrap().finish());
        (client.unwrap(), node.unwrap())
    }

    #[tokio::test]
    async fn records_with_nothing_in_them_are_read_a_few_at_a_time() {
        let (client, node) = connected().await;
        for _ in 0..20 {
            let mut secure = client.lock().unwrap();
            secure.connection.refresh_traffic_keys().unwrap();
            secure.flush(client.tcp()).unwrap();
        }
        node.readable().await.unwrap();
        let mut buffer = BytesMut::new();
        let error = node.try_read(&mut buffer, 100).unwrap_err();
        assert_eq!((error.kind(), buffer.len()), (io::ErrorKind::Interrupted, 0));
        client.write_all(b"something").await.unwrap();
        assert_eq!(node.read(&mut buffer).await.unwrap(), 9);
    }

    #[tokio::test]
    async fn who_is_idle_keeps_no_buffer() {
        let (client, node) = connected().await;
        client.write_all(b"something").await.unwrap();
        assert_eq!(node.read(&mut BytesMut::new()).await.unwrap(), 9);
        assert_eq!(node.try_read(&mut BytesMut::new(), 100).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(node.lock().unwrap().incoming.capacity(), 0);
    }
}
