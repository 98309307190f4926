//! One connection as its users see it: requests go into a shared buffer, replies come back by sequence id.
//!
//! Users encode into the outgoing buffer and wait for their slot to be filled; the connection's driver (see
//! [`crate::driver`]) writes and reads. Requests that were encoded between two turns of the driver leave in one system
//! call. A user whose request is alone on the connection writes it itself, since there is nothing to gather and a turn of
//! the driver can be saved.

use bytes::{Buf as _, BytesMut};
use hedgerow_wire::Body;
use hedgerow_wire::call::{self, ReplyFrame};
use rustc_hash::FxHashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::time::Instant;

/// Most requests that may wait for a reply on one connection, forgotten ones not counted.
pub(crate) const IN_FLIGHT_MAX: usize = 65_536;

/// Why a request has no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Connecting failed: the request was never sent.
    NotConnected(String),
    /// The connection ended after the request may have been sent.
    Broken(String),
    /// No reply before the attempt's deadline.
    Late,
    /// The peer sent bytes that are not the protocol.
    Malformed(String),
    /// Too many requests wait on this connection: this one was not sent.
    Full,
}

/// The state that users and driver share.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    outgoing: BytesMut,
    /// The writing half of the socket, while the driver has nothing to write: bytes of two writers must not mix.
    writer: Option<OwnedWriteHalf>,
    slots: FxHashMap<i32, Slot>,
    last_id: i32,
    earliest_deadline: Option<Instant>,
    driver: Option<Waker>,
    /// Whether the driver has been woken for what is in `outgoing`.
    is_driver_woken: bool,
    end: Option<Lost>,
    is_released: bool,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a reply is moved once; a box per request would cost an allocation")]
enum Slot {
    Waiting { waker: Option<Waker>, deadline: Instant },
    Filled(Result<ReplyFrame, Lost>),
}

/// What the driver finds when it looks for work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// When the first unanswered request becomes late, as far as known.
    pub(crate) earliest_deadline: Option<Instant>,
    /// Nobody will use the connection again.
    pub(crate) is_released: bool,
}

impl Shared {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                outgoing: BytesMut::new(),
                writer: None,
                slots: FxHashMap::default(),
                last_id: 0,
                earliest_deadline: None,
                driver: None,
                is_driver_woken: false,
                end: None,
                is_released: false,
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Encodes a request; the future gives its reply. Fails only if the connection has ended or is full.
    pub(crate) fn submit(self: &Arc<Self>, request: &Outgoing<'_>) -> Result<Waiting, Lost> {
        let mut state = self.lock();
        if let Some(end) = &state.end {
            return Err(end.clone());
        }
        if state.slots.len() >= IN_FLIGHT_MAX {
            return Err(Lost::Full);
        }
        let is_alone = state.slots.is_empty() && state.outgoing.is_empty();
        let id = state.next_id();
        call::encode_request(&mut state.outgoing, request.header, id, request.body);
        state.slots.insert(id, Slot::Waiting { waker: None, deadline: request.deadline });
        let is_first_to_expire = state.earliest_deadline.is_none_or(|earliest| request.deadline < earliest);
        if is_first_to_expire {
            state.earliest_deadline = Some(request.deadline);
        }
        let is_sent = is_alone && state.write();
        let driver = if is_sent && !is_first_to_expire { None } else { state.wake_driver() };
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
        Ok(Waiting { shared: self.clone(), id, is_over: false })
    }

    /// Driver: remembers whom to wake and exchanges an empty `sending` for what has been encoded since. The driver has
    /// `writer` exactly as long as it has something to send.
    pub(crate) fn exchange(
        &self,
        context: &Context<'_>,
        sending: &mut BytesMut,
        writer: &mut Option<OwnedWriteHalf>,
    ) -> Work {
        let mut state = self.lock();
        if !state.driver.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            state.driver = Some(context.waker().clone());
        }
        if sending.is_empty() {
            std::mem::swap(sending, &mut state.outgoing);
        }
        let (from, to) = if sending.is_empty() { (writer, &mut state.writer) } else { (&mut state.writer, writer) };
        if let Some(half) = from.take() {
            *to = Some(half);
        }
        state.is_driver_woken = false;
        Work { earliest_deadline: state.earliest_deadline, is_released: state.is_released }
    }

    /// Driver: a reply has arrived. One that nobody waits for any more is dropped.
    pub(crate) fn fill(&self, reply: ReplyFrame) {
        let waker = self.lock().fill(reply);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Driver: fails what is late at `now` and tells when the next request becomes late.
    pub(crate) fn expire(&self, now: Instant) -> Option<Instant> {
        let mut wakers = Vec::new();
        let mut state = self.lock();
        let mut earliest: Option<Instant> = None;
        for slot in state.slots.values_mut() {
            let Slot::Waiting { waker, deadline } = slot else { continue };
            if *deadline <= now {
                wakers.extend(waker.take());
                *slot = Slot::Filled(Err(Lost::Late));
            } else {
                earliest = Some(earliest.map_or(*deadline, |earliest| earliest.min(*deadline)));
            }
        }
        state.earliest_deadline = earliest;
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        earliest
    }

    /// Driver: the connection has ended; every unanswered and every later request fails with `reason`.
    pub(crate) fn end(&self, reason: Lost) {
        let mut wakers = Vec::new();
        let mut state = self.lock();
        for slot in state.slots.values_mut() {
            if let Slot::Waiting { waker, .. } = slot {
                wakers.extend(waker.take());
                *slot = Slot::Filled(Err(reason.clone()));
            }
        }
        state.end = Some(reason);
        state.outgoing = BytesMut::new();
        state.writer = None;
        state.driver = None;
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Tells the driver that nobody will use the connection again.
    pub(crate) fn release(&self) {
        let mut state = self.lock();
        state.is_released = true;
        let driver = state.driver.take();
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
    }
}

impl State {
    /// Writes all of `outgoing` if the socket takes it now; what it does not take is left for the driver.
    fn write(&mut self) -> bool {
        let Some(writer) = &self.writer else { return false };
        match writer.try_write(&self.outgoing) {
            Ok(count) if count == self.outgoing.len() => self.outgoing.clear(),
            Ok(count) => self.outgoing.advance(count),
            // The driver meets the same error and ends the connection.
            Err(_) => {}
        }
        self.outgoing.is_empty()
    }

    /// Whom to wake so that the driver takes a turn; nobody if that has been done since its last.
    fn wake_driver(&mut self) -> Option<Waker> {
        if std::mem::replace(&mut self.is_driver_woken, true) { None } else { self.driver.take() }
    }

    /// A positive id that no unanswered request has. Ids come round after two thousand million requests.
    fn next_id(&mut self) -> i32 {
        loop {
            self.last_id = if self.last_id == i32::MAX { 1 } else { self.last_id + 1 };
            if !self.slots.contains_key(&self.last_id) {
                return self.last_id;
            }
        }
    }

    fn fill(&mut self, reply: ReplyFrame) -> Option<Waker> {
        let slot = self.slots.get_mut(&reply.sequence_id)?;
        let Slot::Waiting { waker, .. } = slot else { return None };
        let waker = waker.take();
        *slot = Slot::Filled(Ok(reply));
        waker
    }
}

/// A request on its way into the buffer.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) header: &'a hedgerow_wire::Header,
    pub(crate) body: &'a Body,
    pub(crate) deadline: Instant,
}

/// Waits for one reply. Dropping it forgets the request; a reply that still comes is thrown away.
#[derive(Debug)]
pub(crate) struct Waiting {
    shared: Arc<Shared>,
    id: i32,
    is_over: bool,
}

impl Future for Waiting {
    type Output = Result<ReplyFrame, Lost>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.shared.lock();
        let result = match state.slots.get_mut(&self.id) {
            Some(Slot::Waiting { waker, .. }) => {
                if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                    *waker = Some(context.waker().clone());
                }
                return Poll::Pending;
            }
            Some(Slot::Filled(_)) => match state.slots.remove(&self.id) {
                Some(Slot::Filled(result)) => result,
                Some(Slot::Waiting { .. }) | None => Err(Lost::Late),
            },
            None => Err(Lost::Late),
        };
        drop(state);
        self.is_over = true;
        Poll::Ready(result)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.is_over {
            self.shared.lock().slots.remove(&self.id);
        }
    }
}
