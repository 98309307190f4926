//! A user's name and password, and the login with them on a new connection, before anything is asked on it.

use crate::error::{Error, Result};
use crate::lock::lock;
use crate::lost::{Lost, lost_error};
use crate::password_file;
use crate::runtime::{Reader, Writer, compute, halves, now, random_bytes};
use bytes::BytesMut;
use hedgerow_scram::{Login, MECHANISM, Nonce, Password, Salted};
use hedgerow_tls::Stream;
use hedgerow_wire::call;
use hedgerow_wire::message::{Negotiation, NegotiationReply, NegotiationStatus};
use hedgerow_wire::{Body, Header, Reply};
use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// Room for an answer.
const READ_SIZE: usize = 1 << 10;
/// The most that an answer may have, bytes.
const ANSWER_SIZE_MAX: usize = 16 << 10;

/// A user and its password, for [`crate::ClientOptions::credentials`]. The password is never printed, and overwritten when the last copy is
/// dropped; it does not leave this process. Only encrypted connections are logged in on.
#[derive(Clone)]
pub struct Credentials {
    user: String,
    password: Arc<Password>,
    /// What was hashed last, and with what: once for all connections.
    hashed: Arc<Mutex<Option<Hashed>>>,
    /// The password was refused.
    refused: Arc<Mutex<Option<Refusal>>>,
}

/// A password that was refused is not tried again for a while, unless there is another one by then, which has another salt: nodes count failures by
/// address, and others may be there with the right one.
struct Refusal {
    why: String,
    salt: Vec<u8>,
    until: Instant,
    pause: Duration,
}

/// How long a refused password rests at first, and at most.
const REFUSED_PAUSE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

struct Hashed {
    salt: Vec<u8>,
    iterations: u32,
    salted: Salted,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({:?})", self.user)
    }
}

impl Credentials {
    /// Fails with [`crate::ErrorKind::Invalid`] if `password` cannot be one: it is empty, longer than 1,024 bytes, or has characters that
    /// RFC 4013 does not allow.
    pub fn new(user: impl Into<String>, password: &str) -> Result<Self> {
        let password = Password::new(password).map_err(|error| Error::invalid(error.to_string()))?;
        Ok(Self { user: user.into(), password: Arc::new(password), hashed: Arc::default(), refused: Arc::default() })
    }

    /// The same, with the password in a file: its first line, of at most 4,096 bytes. Fails with [`crate::ErrorKind::Invalid`] too if it cannot be read, or if
    /// others than its owner may read it.
    pub fn from_file(user: impl Into<String>, path: &Path) -> Result<Self> {
        let password = password_file::read(path).map_err(|error| Error::invalid(error.to_string()))?;
        Self::new(user, &password)
    }

    /// Logs in on a connection that the program has made itself, with [`crate::ClientTls::connect`], before anything is asked on it. Fails with
    /// [`crate::ErrorKind::NotAllowed`] if the node does not let the user in, and with [`crate::ErrorKind::Unreachable`] if the connection breaks.
    pub async fn log_in_on(&self, stream: &Arc<Stream>) -> Result<()> {
        let unreachable = |error: std::io::Error| lost_error(&Lost::before_asking(&error, error.to_string()));
        let address = stream.tcp().peer_addr().map_err(unreachable)?;
        let (mut reader, mut writer) = halves(Arc::clone(stream));
        self.log_in((&mut reader, &mut writer), address).await.map_err(|lost| lost_error(&lost))
    }

    /// The user.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Hashes the password, on a thread of its own: it takes some milliseconds.
    async fn salted(&self, salt: Vec<u8>, iterations: u32) -> Option<Salted> {
        let (password, hashed) = (Arc::clone(&self.password), Arc::clone(&self.hashed));
        compute(move || {
            // Others wait for the first, since they want the same.
            let mut hashed = lock(&hashed);
            if let Some(known) = hashed.as_ref().filter(|it| it.salt == salt && it.iterations == iterations) {
                return known.salted.clone();
            }
            let salted = password.salted(&salt, iterations);
            *hashed = Some(Hashed { salt, iterations, salted: salted.clone() });
            salted
        })
        .await
    }

    /// Logs in on a connection to `address` on which nothing was asked yet.
    pub(crate) async fn log_in(&self, halves: (&mut Reader, &mut Writer), address: SocketAddr) -> Result<(), Lost> {
        let (reader, writer) = halves;
        let refused = |why: String| Lost::LoginRefused(refusal_text(address, &self.user, &why));
        let binding = writer.binding();
        if binding.is_none() {
            return Err(refused("the connection has no TLS, and passwords are proven on none without".to_owned()));
        }
        let mut talk = Talk { reader, writer, received: BytesMut::new(), last_id: 0, user: &self.user, address };
        talk.step(NegotiationStatus::Select, MECHANISM.as_bytes(), NegotiationStatus::Selected).await?;
        let (login, message) = Login::begin(&self.user, &Nonce::new(random_bytes()), binding);
        let challenge =
            talk.step(NegotiationStatus::Initiate, message.as_bytes(), NegotiationStatus::Challenge).await?;
        let hashing = login.handle_challenge(&challenge).map_err(|error| refused(error.to_string()))?;
        let (salt, iterations) = hashing.with();
        if let Some(why) = self.why_rests(&salt) {
            return Err(Lost::LoginRefused(why));
        }
        let tried = salt.clone();
        let ended = || Lost::NotConnected(format!("logging in at {address}: the thread for it has ended"));
        let salted = self.salted(salt, iterations).await.ok_or_else(ended)?;
        let (proven, message) = hashing.prove(&salted);
        let response = NegotiationStatus::ChallengeResponse;
        let accepted = talk.step(response, message.as_bytes(), NegotiationStatus::Success).await;
        self.note_outcome(tried, &accepted);
        let accepted = accepted?;
        proven.handle_accepted(&accepted).map_err(|error| refused(error.to_string()))
    }
}

impl Credentials {
    /// Why the password is not tried now on a node that has this salt, if it is not.
    fn why_rests(&self, salt: &[u8]) -> Option<String> {
        let refused = lock(&self.refused);
        refused.as_ref().filter(|it| it.salt == salt && now() < it.until).map(|it| it.why.clone())
    }

    fn note_outcome(&self, salt: Vec<u8>, outcome: &Result<Vec<u8>, Lost>) {
        let mut refused = lock(&self.refused);
        match outcome {
            Ok(_) => *refused = None,
            Err(Lost::LoginRefused(why)) => {
                let before = refused.as_ref().filter(|it| it.salt == salt);
                let pause = before.map_or(REFUSED_PAUSE.0, |it| (it.pause * 2).min(REFUSED_PAUSE.1));
                *refused = Some(Refusal { why: why.clone(), salt, until: now() + pause, pause });
            }
            Err(_) => {}
        }
    }
}

fn refusal_text(address: SocketAddr, user: &str, why: &str) -> String {
    format!("{address} refused the login of {user:?}: {why}")
}

/// A connection that is being logged in on.
struct Talk<'a> {
    reader: &'a mut Reader,
    writer: &'a mut Writer,
    received: BytesMut,
    last_id: i32,
    user: &'a str,
    address: SocketAddr,
}

impl Talk<'_> {
    /// Says one thing, and gives the data of the answer if that is the `wanted` one.
    async fn step(
        &mut self,
        status: NegotiationStatus,
        message: &[u8],
        wanted: NegotiationStatus,
    ) -> Result<Vec<u8>, Lost> {
        let NegotiationReply { status, msg } = self.ask(status, message).await?;
        match NegotiationStatus::from_code(status) {
            Some(status) if status == wanted => Ok(msg.to_vec()),
            Some(NegotiationStatus::AuthFailed) => Err(self.failed(&msg)),
            Some(NegotiationStatus::AuthDisabled) => Err(self.refused(
                "the node offers no login by password on this connection: it has none without TLS, nor where the client shows a certificate",
            )),
            Some(_) | None => Err(self.refused("the node's answer is none that a login can have")),
        }
    }

    /// What the node means by its refusal.
    fn failed(&self, message: &[u8]) -> Lost {
        match message {
            b"e=invalid-proof" => self.refused("the password is wrong, or there is no such user"),
            b"e=channel-bindings-dont-match" => {
                self.refused("the node is at the end of another encrypted connection: something between decrypts it")
            }
            b"e=too-many-failures" => {
                self.refused("too many logins from here have failed lately; one more may be tried in 10 seconds")
            }
            _ => self.refused(&format!(
                "the node refuses it: {:?}",
                String::from_utf8_lossy(&message[..message.len().min(64)])
            )),
        }
    }

    fn text(&self, why: &str) -> String {
        format!("logging in as {:?} at {}: {why}", self.user, self.address)
    }

    fn refused(&self, why: &str) -> Lost {
        Lost::LoginRefused(refusal_text(self.address, self.user, why))
    }

    async fn ask(&mut self, status: NegotiationStatus, message: &[u8]) -> Result<NegotiationReply, Lost> {
        let broken = |error: std::io::Error, talk: &Self| Lost::before_asking(&error, talk.text(&error.to_string()));
        self.last_id += 1;
        let body = Body::Negotiation(Negotiation { status: status.code(), msg: message.to_vec().into() });
        let mut frame = BytesMut::new();
        call::encode_request(&mut frame, &Header::default(), self.last_id, &body);
        let mut sent = 0;
        while sent < frame.len() {
            let count = poll_fn(|context| self.writer.poll_write(context, &frame[sent..])).await;
            sent += count.map_err(|error| broken(error, self))?;
        }
        loop {
            let malformed = |talk: &Self| talk.refused("what answers is no Hedgerow node");
            match call::reply_frame_size(&self.received) {
                Err(_) => return Err(malformed(self)),
                Ok(Some(size)) if size > ANSWER_SIZE_MAX => return Err(malformed(self)),
                Ok(Some(size)) if self.received.len() >= size => {
                    let reply = call::decode_reply(self.received.split_to(size).freeze());
                    let reply = reply.ok().filter(|it| it.sequence_id == self.last_id);
                    return match reply.ok_or_else(|| malformed(self))?.reply {
                        Reply::Negotiation(reply) => Ok(reply),
                        // It is starting, or has too much to do.
                        Reply::Failed(failure) => {
                            let why = failure.detail.as_ref().map(|detail| detail.message.to_string());
                            Err(Lost::NotConnected(self.text(&why.unwrap_or_else(|| "the node cannot now".to_owned()))))
                        }
                        _ => Err(malformed(self)),
                    };
                }
                Ok(_) => {}
            }
            self.received.reserve(READ_SIZE);
            let read = poll_fn(|context| {
                // What was written and has not left yet.
                if let std::task::Poll::Ready(error) = self.reader.poll_flush(context) {
                    return std::task::Poll::Ready(Err(error));
                }
                self.reader.poll_read(context, &mut self.received)
            });
            match read.await {
                Ok(0) => return Err(broken(std::io::ErrorKind::UnexpectedEof.into(), self)),
                Ok(_) => {}
                Err(error) => return Err(broken(error, self)),
            }
        }
    }
}
