//! A connection that is being agreed on.
//!
//! ```text
//! receive (waits) -> compute (signatures: a fraction of a millisecond) -> receive -> ... until compute says that it is over
//! ```
//!
//! Who has one thread for many connections runs `compute` elsewhere.

use crate::stream::Stream;
use crate::stream::secure::Secure;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection};
use std::io;
use std::sync::Arc;
use tokio::net::TcpStream;

/// A connection that is being agreed on.
#[derive(Debug)]
pub struct Handshake {
    tcp: TcpStream,
    secure: Secure,
}

impl Handshake {
    pub(crate) fn new(tcp: TcpStream, connection: Connection) -> Self {
        Self { tcp, secure: Secure::new(connection) }
    }

    pub(crate) fn dial(tcp: TcpStream, config: &Arc<ClientConfig>, name: ServerName<'static>) -> io::Result<Self> {
        let connection = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        Ok(Self::new(tcp, connection.into()))
    }

    /// Sends what there is to send, and waits until something has come.
    pub async fn receive(&mut self) -> io::Result<()> {
        loop {
            while self.secure.has_unsent() {
                match self.secure.flush(&self.tcp) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.tcp.writable().await?,
                    flushed => flushed?,
                }
            }
            if self.is_over() {
                return Ok(());
            }
            self.tcp.readable().await?;
            match self.secure.receive(&self.tcp) {
                Ok(0) => {
                    let text = "the other end has closed the connection instead of agreeing on TLS: does it speak TLS?";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => return received.map(drop),
            }
        }
    }

    /// Takes what has come. An error says why there will be no connection; the other end is told.
    pub fn compute(&mut self) -> io::Result<()> {
        let computed = self.secure.process();
        if computed.is_err() {
            // It is closed next, whether it takes this or not.
            let _ = self.secure.flush(&self.tcp);
        }
        computed
    }

    /// Whether nothing more is to be received or computed. What is unsent leaves with the first bytes of the stream, or with
    /// [`Handshake::receive`].
    pub fn is_over(&self) -> bool {
        !self.secure.is_handshaking()
    }

    /// The connection, once this is over.
    pub fn into_stream(self) -> Stream {
        Stream::secure(self.tcp, self.secure)
    }

    /// Does all of it, in this task.
    pub async fn finish(mut self) -> io::Result<Stream> {
        while !self.is_over() {
            self.receive().await?;
            self.compute()?;
        }
        self.receive().await?;
        Ok(self.into_stream())
    }
}
