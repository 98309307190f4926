//! The one task behind a connection: connects, writes what was encoded, hands out replies, and ends what is late.

use crate::connection::{Shared, Work};
use crate::credentials::Credentials;
use crate::lost::{CLOSED, Lost};
use crate::runtime::{Reader, Sleep, Writer, connect, now, sleep_until, timeout};
use bytes::BytesMut;
use hedgerow_tls::{ClientTls, is_disbelief_of_this_end};
use hedgerow_wire::call;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Instant;

/// Size of the buffer that replies are read into.
const READ_SIZE: usize = 32 << 10;
/// Least free space offered to a read.
const READ_SIZE_MIN: usize = 4 << 10;
/// Capacity above which an emptied write buffer is given back.
const WRITE_BUFFER_KEPT_MAX: usize = 256 << 10;
/// Least time between two searches for late requests, so that many different deadlines cost few searches.
const EXPIRY_INTERVAL: Duration = Duration::from_millis(2);

/// How a connection begins: what it is encrypted with, and who logs in on it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Opening {
    pub(crate) tls: Option<ClientTls>,
    pub(crate) credentials: Option<Credentials>,
}

impl Opening {
    async fn open(&self, address: SocketAddr) -> Result<(Reader, Writer), Lost> {
        let failed = |error: io::Error| Lost::before_asking(&error, format!("connecting to {address}: {error}"));
        let (mut reader, mut writer) = connect(address, self.tls.as_ref()).await.map_err(failed)?;
        if let Some(credentials) = &self.credentials {
            credentials.log_in((&mut reader, &mut writer), address).await?;
        }
        Ok((reader, writer))
    }
}

/// Connects to `address` and serves `shared` until the connection ends or is released. Tells whether the peer ever
/// answered: if not, connecting again at once would be a waste.
pub(crate) async fn run(shared: &Shared, address: SocketAddr, connect_timeout: Duration, opening: &Opening) -> bool {
    let mut expiry = Expiry { timer: sleep_until(now() + Duration::from_secs(3600)), armed: None };
    let connecting = while_expiring(shared, &mut expiry, timeout(connect_timeout, opening.open(address)));
    let Some(connected) = connecting.await else {
        shared.end(Lost::NotConnected(CLOSED.to_owned()));
        return false;
    };
    let (end, has_replied) = match connected {
        Err(_) => (Lost::NotConnected(format!("connecting to {address} took longer than {connect_timeout:?}")), false),
        Ok(Err(lost)) => (lost, false),
        Ok(Ok((reader, writer))) => match serve(shared, reader, writer, address, expiry).await {
            (Lost::Broken(text), false) if opening.tls.is_none() => {
                (Lost::Broken(format!("{text}; it answered nothing before: does it want TLS?")), false)
            }
            (Lost::Foreign(text), false) if opening.tls.is_none() => {
                (Lost::Foreign(format!("{text}; or does it want TLS?")), false)
            }
            ended => ended,
        },
    };
    tracing::debug!(%address, ?end, "connection ended");
    shared.end(end);
    has_replied
}

/// Waits for `connecting` while requests that are late end; `None` if the connection is released meanwhile.
async fn while_expiring<T>(shared: &Shared, expiry: &mut Expiry, connecting: impl Future<Output = T>) -> Option<T> {
    let mut connecting = pin!(connecting);
    poll_fn(|context| {
        let work = shared.attend(context);
        if work.is_released {
            return Poll::Ready(None);
        }
        if let Poll::Ready(connected) = connecting.as_mut().poll(context) {
            return Poll::Ready(Some(connected));
        }
        if expiry.poll(shared, work.earliest_deadline, context) {
            shared.drop_abandoned();
        }
        Poll::Pending
    })
    .await
}

async fn serve(shared: &Shared, reader: Reader, writer: Writer, address: SocketAddr, expiry: Expiry) -> (Lost, bool) {
    let mut driver = Driver {
        shared,
        reader,
        writer: Some(writer),
        sending: BytesMut::new(),
        sent: 0,
        received: BytesMut::with_capacity(READ_SIZE),
        expiry,
        has_replied: false,
    };
    let end = match poll_fn(|context| driver.poll(context)).await {
        Ok(()) => Lost::Broken(CLOSED.to_owned()),
        Err(End::Io(error)) => {
            Lost::after_asking(&error, format!("connection to {address}: {error}"), driver.has_replied)
        }
        Err(End::Malformed(what)) if driver.has_replied => {
            Lost::Malformed(format!("malformed reply from {address}: {what}"))
        }
        Err(End::Malformed(what)) => Lost::Foreign(format!("what listens at {address} is no Hedgerow node: {what}")),
    };
    (end, driver.has_replied)
}

enum End {
    Io(io::Error),
    Malformed(String),
}

struct Driver<'a> {
    shared: &'a Shared,
    reader: Reader,
    /// The writing half, while there is something in `sending`.
    writer: Option<Writer>,
    /// Encoded requests that are being written.
    sending: BytesMut,
    /// How many of their bytes the socket has taken.
    sent: usize,
    /// Bytes read that do not make a whole reply yet.
    received: BytesMut,
    expiry: Expiry,
    has_replied: bool,
}

impl Driver<'_> {
    /// Does all that can be done now. Ready(Ok) = released.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), End>> {
        let mut work = self.shared.exchange(context, &mut self.sending, &mut self.writer);
        if let Poll::Ready(error) = self.poll_write(context, &mut work) {
            return Poll::Ready(Err(self.read_last(context, error)));
        }
        if let Poll::Ready(error) = self.reader.poll_flush(context) {
            return Poll::Ready(Err(self.read_last(context, error)));
        }
        if work.is_released {
            return Poll::Ready(Ok(()));
        }
        if let Poll::Ready(end) = self.poll_read(context) {
            return Poll::Ready(Err(end));
        }
        self.expiry.poll(self.shared, work.earliest_deadline, context);
        Poll::Pending
    }

    /// Nothing can be written any more, for `error`. Whoever answered and closed has answered all the same, or has said why it does not.
    fn read_last(&mut self, context: &mut Context<'_>, error: io::Error) -> End {
        match self.poll_read(context) {
            Poll::Ready(End::Io(told)) if is_disbelief_of_this_end(&told) => End::Io(told),
            _ => End::Io(error),
        }
    }

    /// Writes until nothing is left or the socket is full; ready only with an error.
    fn poll_write(&mut self, context: &mut Context<'_>, work: &mut Work) -> Poll<io::Error> {
        while let Some(writer) = self.writer.as_mut().filter(|_| !self.sending.is_empty()) {
            match ready!(writer.poll_write(context, &self.sending[self.sent..])) {
                Ok(0) => return Poll::Ready(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) => return Poll::Ready(error),
            }
            if self.sent == self.sending.len() {
                self.sent = 0;
                self.sending.clear();
                if self.sending.capacity() > WRITE_BUFFER_KEPT_MAX {
                    self.sending = BytesMut::new();
                }
                *work = self.shared.exchange(context, &mut self.sending, &mut self.writer);
            }
        }
        Poll::Pending
    }

    /// Reads and hands out replies until the socket is empty; ready only with the reason to end.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<End> {
        loop {
            // Replies that were handed out may still hold the buffer, and then more space means a new one.
            if self.received.capacity() - self.received.len() < READ_SIZE_MIN {
                self.received.reserve(READ_SIZE);
            }
            match ready!(self.reader.poll_read(context, &mut self.received)) {
                Ok(0) => return Poll::Ready(End::Io(io::ErrorKind::UnexpectedEof.into())),
                Ok(_) => self.shared.note_heard(),
                Err(error) => return Poll::Ready(End::Io(error)),
            }
            if let Err(what) = self.hand_out() {
                return Poll::Ready(End::Malformed(what));
            }
        }
    }

    fn hand_out(&mut self) -> Result<(), String> {
        while let Some(size) = call::reply_frame_size(&self.received).map_err(|error| error.to_string())? {
            if size > self.received.len() {
                self.received.reserve(size - self.received.len());
                break;
            }
            let frame = self.received.split_to(size).freeze();
            let reply = call::decode_reply(frame).map_err(|error| error.to_string())?;
            self.has_replied = true;
            self.shared.fill(reply);
        }
        Ok(())
    }
}

/// The timer that finds late requests.
struct Expiry {
    timer: Sleep,
    armed: Option<Instant>,
}

impl Expiry {
    /// Returns whether it was looked for late requests.
    fn poll(&mut self, shared: &Shared, earliest: Option<Instant>, context: &mut Context<'_>) -> bool {
        let Some(earliest) = earliest else { return false };
        let mut has_looked = false;
        if self.armed.is_none_or(|armed| earliest < armed) {
            self.timer.reset(earliest);
            self.armed = Some(earliest);
        }
        while self.armed.is_some() && self.timer.poll(context).is_ready() {
            let now = now();
            has_looked = true;
            self.armed = shared.expire(now).map(|next| next.max(now + EXPIRY_INTERVAL));
            if let Some(next) = self.armed {
                self.timer.reset(next);
            }
        }
        has_looked
    }
}
