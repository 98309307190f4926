//! What the client runs on: tasks, clocks, chance and connections. That is Tokio and the operating system. With the feature
//! `simulation` it is what the thread has entered ([`crate::simulation`]), if it has entered anything.

#[cfg(feature = "simulation")]
use crate::world::{self, Pipe};
use bytes::BytesMut;
use hedgerow_env::timer::AsyncTimer;
use hedgerow_env::{Clock, os, os::OsClock};
use hedgerow_tls::{ClientTls, Stream};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How long what was sent on a connection may be without the peer's system having acknowledged it. Longer than most breaks of a
/// network: another connection is made much sooner.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(10);

/// Starts a background task on the caller's runtime: the driver of a connection, the refresh of a table's map.
#[allow(clippy::disallowed_methods, reason = "the one place where this crate spawns")]
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    #[cfg(feature = "simulation")]
    if let Some(world) = world::entered() {
        return world.spawn(Box::pin(task));
    }
    drop(tokio::spawn(task));
}

/// The runtime's clock, which a test can pause.
#[allow(clippy::disallowed_methods, reason = "the one place where this crate reads steady time")]
pub(crate) fn now() -> Instant {
    #[cfg(feature = "simulation")]
    if let Some(world) = world::entered() {
        return world.now();
    }
    Instant::now()
}

/// Microseconds since 1970, by the wall clock.
pub(crate) fn unix_micros() -> u64 {
    #[cfg(feature = "simulation")]
    if let Some(world) = world::entered() {
        return world.unix_micros();
    }
    OsClock.unix_micros()
}

/// A number that nobody can foresee.
pub(crate) fn random_u64() -> u64 {
    #[cfg(feature = "simulation")]
    if let Some(world) = world::entered() {
        return world.random_u64();
    }
    os::random_u64()
}

/// Bytes that nobody can foresee.
pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    os::random_bytes()
}

/// Computes something on a thread of its own; `None` if there is none.
pub(crate) async fn compute<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, wait) = oneshot::channel();
    // Nobody may wait any more.
    let thread = os::spawn_thread("password", move || drop(done.send(work())));
    thread.ok()?;
    wait.await.ok()
}

/// The kernel's timer, for moments that are finer than the runtime's own; `None` if there is none.
pub(crate) fn fine_timer() -> Option<AsyncTimer> {
    #[cfg(feature = "simulation")]
    if world::entered().is_some() {
        return None;
    }
    AsyncTimer::new().ok()
}

/// Waits for a moment, which may be set anew.
#[derive(Debug)]
pub(crate) struct Sleep {
    at: Instant,
    timer: Timer,
}

#[derive(Debug)]
enum Timer {
    Tokio(Pin<Box<tokio::time::Sleep>>),
    #[cfg(feature = "simulation")]
    Simulated(world::Timer),
}

/// Waits for `delay`.
pub(crate) fn sleep(delay: Duration) -> Sleep {
    sleep_until(now() + delay)
}

/// Waits until `at`.
pub(crate) fn sleep_until(at: Instant) -> Sleep {
    #[cfg(feature = "simulation")]
    if world::entered().is_some() {
        return Sleep { at, timer: Timer::Simulated(world::Timer::default()) };
    }
    Sleep { at, timer: Timer::Tokio(Box::pin(tokio::time::sleep_until(at))) }
}

impl Sleep {
    /// What it waits for.
    pub(crate) fn deadline(&self) -> Instant {
        self.at
    }

    /// Waits until `at` instead.
    pub(crate) fn reset(&mut self, at: Instant) {
        self.at = at;
        match &mut self.timer {
            Timer::Tokio(sleep) => sleep.as_mut().reset(at),
            #[cfg(feature = "simulation")]
            Timer::Simulated(_) => {}
        }
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.timer {
            Timer::Tokio(sleep) => sleep.as_mut().poll(context),
            #[cfg(feature = "simulation")]
            Timer::Simulated(timer) => timer.poll(self.at, context),
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Self::poll(&mut self, context)
    }
}

/// The time was over first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elapsed;

/// Runs `task` for at most `limit`.
pub(crate) async fn timeout<T>(limit: Duration, task: impl Future<Output = T>) -> Result<T, Elapsed> {
    timeout_at(now() + limit, task).await
}

/// Runs `task` until `deadline` at the latest.
pub(crate) async fn timeout_at<T>(deadline: Instant, task: impl Future<Output = T>) -> Result<T, Elapsed> {
    let (mut task, mut end) = (pin!(task), sleep_until(deadline));
    poll_fn(|context| match task.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(Ok(result)),
        Poll::Pending => end.poll(context).map(|()| Err(Elapsed)),
    })
    .await
}

/// Connects to `address`, with TLS if that is given.
pub(crate) async fn connect(address: SocketAddr, tls: Option<&ClientTls>) -> io::Result<(Reader, Writer)> {
    #[cfg(feature = "simulation")]
    if world::entered().is_some() {
        let pipe = world::connect(address).await?;
        return Ok((Reader::Simulated(pipe.clone()), Writer::Simulated(pipe)));
    }
    let tcp = TcpStream::connect(address).await?;
    set_options(&tcp)?;
    let stream = match tls {
        Some(tls) => tls.connect(tcp).await?,
        None => Stream::plain(tcp),
    };
    Ok(halves(Arc::new(stream)))
}

/// The halves of a real connection.
pub(crate) fn halves(stream: Arc<Stream>) -> (Reader, Writer) {
    (Reader::Real(Arc::clone(&stream)), Writer::Real(stream))
}

fn set_options(tcp: &TcpStream) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    socket2::SockRef::from(tcp).set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))
}

/// The reading half of a connection.
#[derive(Debug)]
pub(crate) enum Reader {
    Real(Arc<Stream>),
    #[cfg(feature = "simulation")]
    Simulated(Arc<Pipe>),
}

/// The writing half.
#[derive(Debug)]
pub(crate) enum Writer {
    Real(Arc<Stream>),
    #[cfg(feature = "simulation")]
    Simulated(Arc<Pipe>),
}

impl Reader {
    /// Adds what has come to `buffer`; 0 bytes = the peer has closed.
    pub(crate) fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut BytesMut) -> Poll<io::Result<usize>> {
        match self {
            Self::Real(stream) => loop {
                ready!(stream.poll_read_ready(context))?;
                match stream.try_read(buffer, buffer.capacity() - buffer.len()) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    result => return Poll::Ready(result),
                }
            },
            #[cfg(feature = "simulation")]
            Self::Simulated(pipe) => pipe.poll_read(context, buffer),
        }
    }

    /// Sends what was written and has not left yet: TLS keeps some where the socket is full. Ready only with an error.
    pub(crate) fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Error> {
        match self {
            Self::Real(stream) => {
                while stream.has_unsent() {
                    let flushed = ready!(stream.poll_write_ready(context)).and_then(|()| stream.try_write(&[]));
                    match flushed {
                        Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Poll::Ready(error),
                        Ok(_) | Err(_) => {}
                    }
                }
                Poll::Pending
            }
            #[cfg(feature = "simulation")]
            Self::Simulated(_) => Poll::Pending,
        }
    }
}

impl Writer {
    /// What binds a login to the connection, if that is encrypted.
    pub(crate) fn binding(&self) -> Option<[u8; 32]> {
        match self {
            Self::Real(stream) => stream.binding(),
            #[cfg(feature = "simulation")]
            Self::Simulated(_) => None,
        }
    }

    /// Writes what the connection takes now.
    pub(crate) fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Real(stream) => loop {
                ready!(stream.poll_write_ready(context))?;
                match stream.try_write(bytes) {
                    // Only what had waited in it was sent.
                    Ok(0) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    result => return Poll::Ready(result),
                }
            },
            #[cfg(feature = "simulation")]
            Self::Simulated(pipe) => Poll::Ready(pipe.write(bytes)),
        }
    }

    /// The same for who does not wait for more room. Says also whether all that was written has left.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<(usize, bool)> {
        match self {
            Self::Real(stream) => stream.try_write(bytes).map(|count| (count, !stream.has_unsent())),
            #[cfg(feature = "simulation")]
            Self::Simulated(pipe) => pipe.write(bytes).map(|count| (count, true)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel ends a connection whose peer is gone without a word, also where only this client sends.
    #[tokio::test]
    async fn a_connection_is_not_unacknowledged_for_long() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let tcp = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("a connection");
        set_options(&tcp).expect("the system knows them");
        let timeout = socket2::SockRef::from(&tcp).tcp_user_timeout().expect("it can be asked");
        assert_eq!((timeout, tcp.nodelay().ok()), (Some(UNACKNOWLEDGED_MAX), Some(true)));
    }
}
