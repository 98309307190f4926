//! What the client lives in where that is not Tokio and the operating system, and its connections there.

use crate::lock::lock;
use bytes::{BufMut as _, BytesMut};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use tokio::time::Instant;

/// A task without a result.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a client lives in.
pub trait World {
    /// The present, by a steady clock.
    fn now(&self) -> Instant;
    /// The present, microseconds since 1970 by the client's wall clock.
    fn unix_micros(&self) -> u64;
    /// A number that no other call gives.
    fn random_u64(&self) -> u64;
    /// Runs `task` beside what runs already.
    fn spawn(&self, task: Task);
    /// Wakes `waker` once it is `at`.
    fn wake_at(&self, at: Instant, waker: Waker);
    /// Begins to connect to `address`; see [`Pipe`].
    fn connect(&self, address: SocketAddr) -> Arc<Pipe>;
}

thread_local! {
    static ENTERED: RefCell<Option<Rc<dyn World>>> = const { RefCell::new(None) };
}

/// The thread is in a world until this is dropped.
#[must_use]
#[derive(Debug)]
pub struct Entered(());

/// Enters `world`. Worlds do not nest: the one before is left.
pub fn enter(world: Rc<dyn World>) -> Entered {
    ENTERED.with_borrow_mut(|entered| *entered = Some(world));
    Entered(())
}

impl Drop for Entered {
    fn drop(&mut self) {
        ENTERED.with_borrow_mut(|entered| *entered = None);
    }
}

pub(crate) fn entered() -> Option<Rc<dyn World>> {
    ENTERED.with_borrow(Clone::clone)
}

/// Connects to `address`, for a task of the world's own. Fails outside of a world, too.
pub async fn connect(address: SocketAddr) -> io::Result<Arc<Pipe>> {
    let pipe = entered().ok_or(io::ErrorKind::NotConnected)?.connect(address);
    poll_fn(|context| pipe.poll_open(context)).await?;
    Ok(pipe)
}

/// Waits for a moment of the world.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    /// What the world has been told.
    set: Option<(Instant, Waker)>,
}

impl Timer {
    pub(crate) fn poll(&mut self, at: Instant, context: &Context<'_>) -> Poll<()> {
        // Who polls outside of a world is never woken.
        let Some(world) = entered() else { return Poll::Pending };
        if world.now() >= at {
            return Poll::Ready(());
        }
        if !self.set.as_ref().is_some_and(|(set, waker)| *set == at && waker.will_wake(context.waker())) {
            world.wake_at(at, context.waker().clone());
            self.set = Some((at, context.waker().clone()));
        }
        Poll::Pending
    }
}

/// A connection of a client, from both sides: the client reads and writes, the world opens it, takes what was written, and
/// delivers.
#[derive(Debug, Default)]
pub struct Pipe {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    is_open: bool,
    /// How it ended.
    end: Option<io::ErrorKind>,
    written: BytesMut,
    delivered: BytesMut,
    waker: Option<Waker>,
}

impl Pipe {
    /// One that is being opened.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The peer has accepted.
    pub fn open(&self) {
        self.change(|state| state.is_open = true);
    }

    /// It is over: was refused if it had not been opened. What was delivered before is still read.
    pub fn end(&self, kind: io::ErrorKind) {
        self.change(|state| state.end = state.end.or(Some(kind)));
    }

    /// Bytes arrive at the client.
    pub fn deliver(&self, bytes: &[u8]) {
        self.change(|state| state.delivered.put_slice(bytes));
    }

    /// Whether the client has written anything since it was taken.
    pub fn has_written(&self) -> bool {
        !self.lock().written.is_empty()
    }

    /// What the client has written since the last call.
    pub fn take_written(&self) -> BytesMut {
        std::mem::take(&mut self.lock().written)
    }

    /// The client adds what has come to `buffer`; 0 bytes = the peer has closed.
    pub async fn read(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        poll_fn(|context| self.poll_read(context, buffer)).await
    }

    /// The client writes.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.lock();
        if let Some(kind) = state.end {
            return Err(kind.into());
        }
        state.written.put_slice(bytes);
        Ok(bytes.len())
    }

    pub(crate) fn poll_open(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.lock();
        match (state.is_open, state.end) {
            (true, _) => Poll::Ready(Ok(())),
            (false, Some(kind)) => Poll::Ready(Err(kind.into())),
            (false, None) => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    pub(crate) fn poll_read(&self, context: &Context<'_>, buffer: &mut BytesMut) -> Poll<io::Result<usize>> {
        let mut state = self.lock();
        if !state.delivered.is_empty() {
            let count = state.delivered.len();
            buffer.put_slice(&state.delivered);
            state.delivered.clear();
            return Poll::Ready(Ok(count));
        }
        match state.end {
            Some(io::ErrorKind::UnexpectedEof) => Poll::Ready(Ok(0)),
            Some(kind) => Poll::Ready(Err(kind.into())),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}
