//! One connection as its users see it: requests go into a shared buffer, replies come back by sequence id.
//!
//! Users encode into the outgoing buffer and wait for their slot to be filled; the connection's driver (see
//! [`crate::driver`]) writes and reads. Requests that were encoded between two turns of the driver leave in one system
//! call. A user whose request is alone on the connection writes it itself, since there is nothing to gather and a turn of
//! the driver can be saved.

use crate::alarm::Lateness;
use crate::lock::lock;
use crate::lost::Lost;
use crate::recording::{NodeMetrics, Outcome, Started};
use crate::runtime::{Writer, now};
use bytes::{Buf as _, BytesMut};
use hedgerow_hedge::{Silence, Time};
use hedgerow_types::limit::FRAME_SIZE_MAX;
use hedgerow_wire::call::{self, ReplyFrame};
use hedgerow_wire::message::Cancel;
use hedgerow_wire::{Body, Class, Header};
use rustc_hash::FxHashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::Instant;

/// Most requests that may wait for a reply on one connection, forgotten ones not counted.
pub(crate) const IN_FLIGHT_MAX: usize = 65_536;
/// Bytes that may wait for a peer which does not read. Requests that were given up leave theirs behind, so that their
/// number alone bounds nothing.
pub(crate) const OUTGOING_SIZE_MAX: usize = 64 << 20;
/// How often the driver of a retired connection looks whether anybody still waits for something on it.
const RETIRED_LOOK: Duration = Duration::from_millis(100);

/// The state that users and driver share.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    clock: Clock,
    /// After so long without a word, while somebody waits, it counts as silent.
    silence_max: Duration,
    is_silent: AtomicBool,
    /// The peer's.
    metrics: Arc<NodeMetrics>,
}

#[derive(Debug)]
struct State {
    outgoing: BytesMut,
    /// The writing half of the socket, while the driver has nothing to write: bytes of two writers must not mix.
    writer: Option<Writer>,
    slots: FxHashMap<i32, Slot>,
    last_id: i32,
    earliest_deadline: Option<Instant>,
    silence: Silence,
    driver: Option<Waker>,
    /// Whether the driver has been woken for what is in `outgoing`.
    is_driver_woken: bool,
    end: Option<Lost>,
    is_released: bool,
    /// Released as soon as nobody waits for anything.
    is_retired: bool,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a reply is moved once; a box per request would cost an allocation")]
enum Slot {
    Waiting { waker: Option<Waker>, deadline: Instant, give_up_at: Instant },
    Filled(Result<ReplyFrame, Lost>),
}

/// The times by which a client judges who is silent.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    /// The zero of [`Time`].
    pub(crate) origin: Instant,
    /// For how long the client was held up itself.
    pub(crate) lateness: Arc<Lateness>,
}

impl Clock {
    fn time(&self, now: Instant) -> Time {
        Time(now.saturating_duration_since(self.origin).as_nanos() as u64)
    }
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
    /// One that is silent when the peer has said nothing for `silence_max`.
    pub(crate) fn new(clock: Clock, silence_max: Duration, metrics: Arc<NodeMetrics>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                outgoing: BytesMut::new(),
                writer: None,
                slots: FxHashMap::default(),
                last_id: 0,
                earliest_deadline: None,
                silence: Silence::default(),
                driver: None,
                is_driver_woken: false,
                end: None,
                is_released: false,
                is_retired: false,
            }),
            clock,
            silence_max,
            is_silent: AtomicBool::new(false),
            metrics,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Encodes a request; the future gives its reply. Fails only if the connection has ended or is full, or no node would take it; it is not
    /// sent then.
    pub(crate) fn submit(self: &Arc<Self>, request: &Outgoing<'_>) -> Result<Waiting, Lost> {
        let mut state = self.lock();
        if let Some(end) = &state.end {
            return Err(end.for_later());
        }
        if state.slots.len() >= IN_FLIGHT_MAX || state.outgoing.len() > OUTGOING_SIZE_MAX {
            return Err(Lost::Full);
        }
        let is_alone = state.slots.is_empty() && state.outgoing.is_empty();
        let id = state.next_id();
        let before = state.outgoing.len();
        call::encode_request(&mut state.outgoing, request.header, id, request.body);
        let size = state.outgoing.len() - before;
        if size > FRAME_SIZE_MAX {
            // What it took of memory goes with it.
            state.outgoing = BytesMut::from(&state.outgoing[..before]);
            return Err(Lost::TooLarge(size));
        }
        let Outgoing { now, deadline, give_up_at, .. } = *request;
        let (sent_at, held_up) = (self.clock.time(now), self.clock.lateness.held_up());
        if request.header.extension.as_ref().is_some_and(|extension| extension.cause.is_some()) {
            state.silence.handle_extra_sent(sent_at, held_up);
        } else {
            state.silence.handle_sent(sent_at, held_up);
        }
        self.look_for_silence(&state, now);
        state.slots.insert(id, Slot::Waiting { waker: None, deadline, give_up_at });
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
        let started = self.metrics.note_sent(request.header.extension.as_ref(), now);
        let is_read = matches!(request.body.method().class(), Class::Read | Class::Scan);
        Ok(Waiting { shared: self.clone(), id, started, is_read, is_over: false })
    }

    /// Driver: remembers whom to wake and exchanges an empty `sending` for what has been encoded since. The driver has
    /// `writer` exactly as long as it has something to send.
    pub(crate) fn exchange(&self, context: &Context<'_>, sending: &mut BytesMut, writer: &mut Option<Writer>) -> Work {
        let mut state = self.lock();
        state.attend(context);
        if sending.is_empty() {
            std::mem::swap(sending, &mut state.outgoing);
        }
        let (from, to) = if sending.is_empty() { (writer, &mut state.writer) } else { (&mut state.writer, writer) };
        if let Some(half) = from.take() {
            *to = Some(half);
        }
        let is_drained = state.is_retired && state.slots.is_empty() && sending.is_empty();
        Work { earliest_deadline: state.earliest_deadline, is_released: state.is_released || is_drained }
    }

    /// Driver, while it connects: remembers whom to wake.
    pub(crate) fn attend(&self, context: &Context<'_>) -> Work {
        let mut state = self.lock();
        state.attend(context);
        Work { earliest_deadline: state.earliest_deadline, is_released: state.is_released }
    }

    /// Driver, while it connects: nobody waits for anything that was encoded, so that it need not run later.
    pub(crate) fn drop_abandoned(&self) {
        let mut state = self.lock();
        if !state.slots.values().any(|slot| matches!(slot, Slot::Waiting { .. })) {
            state.outgoing.clear();
        }
    }

    /// Driver: something has come from the peer.
    pub(crate) fn note_heard(&self) {
        let mut state = self.lock();
        state.silence.handle_heard(self.clock.time(now()));
        self.is_silent.store(false, Ordering::Relaxed);
    }

    /// Whether requests have waited for long, and the peer, which was heard before, has said nothing meanwhile. Another connection to
    /// it is worth a try: a path that has lost this one may take that one.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::Relaxed)
    }

    /// What has come from the peer, and for how long it was waited for.
    pub(crate) fn silence(&self) -> Silence {
        self.lock().silence
    }

    fn look_for_silence(&self, state: &State, now: Instant) {
        let since = state.silence.waits_since().filter(|_| state.silence.has_been_heard());
        if since.is_some_and(|since| self.clock.time(now).since(since) >= self.silence_max) {
            self.is_silent.store(true, Ordering::Relaxed);
        }
    }

    /// Nobody will submit anything any more. The connection ends when nobody waits for anything on it.
    pub(crate) fn retire(&self, now: Instant) {
        let mut state = self.lock();
        (state.is_retired, state.earliest_deadline) = (true, Some(now));
        let driver = state.driver.take();
        drop(state);
        driver.into_iter().for_each(Waker::wake);
    }

    /// Driver: a reply has arrived. One that nobody waits for any more is dropped.
    pub(crate) fn fill(&self, reply: ReplyFrame) {
        let waker = self.lock().fill(reply);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Driver: fails what is late at `now`, or wakes whom it concerns if it need not be given up yet; tells when the next
    /// request becomes late.
    pub(crate) fn expire(&self, now: Instant) -> Option<Instant> {
        let mut wakers = Vec::new();
        let mut state = self.lock();
        self.look_for_silence(&state, now);
        let mut earliest = state.is_retired.then(|| now + RETIRED_LOOK);
        for slot in state.slots.values_mut() {
            let Slot::Waiting { waker, deadline, give_up_at } = slot else { continue };
            if *deadline <= now {
                wakers.extend(waker.take());
                *deadline = *give_up_at;
            }
            if *deadline <= now {
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

    /// The connection has ended; every unanswered and every later request fails with `reason`.
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

    /// Why it has ended, once it has.
    pub(crate) fn ended_by(&self) -> Option<Lost> {
        self.lock().end.clone()
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
    /// The driver takes its turn.
    fn attend(&mut self, context: &Context<'_>) {
        if !self.driver.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            self.driver = Some(context.waker().clone());
        }
        self.is_driver_woken = false;
    }

    /// Writes all of `outgoing` if the socket takes it now; what it does not take is left for the driver.
    fn write(&mut self) -> bool {
        let Some(writer) = &self.writer else { return false };
        // The driver meets the same error and ends the connection.
        let Ok((count, has_left)) = writer.try_write(&self.outgoing) else { return false };
        if count == self.outgoing.len() {
            self.outgoing.clear();
        } else {
            self.outgoing.advance(count);
        }
        has_left && self.outgoing.is_empty()
    }

    /// Whom to wake so that the driver takes a turn; nobody if that has been done since its last.
    fn wake_driver(&mut self) -> Option<Waker> {
        if std::mem::replace(&mut self.is_driver_woken, true) { None } else { self.driver.take() }
    }

    /// Forgets a request. If nobody waits any more, nothing is expected from the peer.
    fn forget(&mut self, id: i32, clock: &Clock) -> Option<Slot> {
        let slot = self.slots.remove(&id);
        if self.slots.is_empty() {
            self.silence.handle_idle(clock.time(now()));
        }
        slot
    }

    /// Encodes a cancel, unless it could not leave anyway. Returns whether it did.
    fn push_cancel(&mut self, cancel: Cancel) -> bool {
        if self.end.is_some() || self.outgoing.len() > OUTGOING_SIZE_MAX {
            return false;
        }
        // An id of its own: nobody waits for an answer, should a server that does not know the call send one.
        let id = self.next_id();
        call::encode_request(&mut self.outgoing, &Header::default(), id, &Body::HedgerowCancel(cancel));
        true
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
    pub(crate) now: Instant,
    /// When whoever waits is woken although no reply has come.
    pub(crate) deadline: Instant,
    /// When it is lost; not before `deadline`.
    pub(crate) give_up_at: Instant,
}

/// Waits for one reply. Dropping it forgets the request, and tells the server so if it is a read; a reply that still comes is thrown away.
#[derive(Debug)]
pub(crate) struct Waiting {
    shared: Arc<Shared>,
    id: i32,
    started: Started,
    is_read: bool,
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
        self.end(Outcome::of(&result));
        Poll::Ready(result)
    }
}

impl Waiting {
    /// Whether anything has come from the peer since `sent_at`, when this request was sent.
    pub(crate) fn has_heard_since(&self, sent_at: Instant) -> bool {
        let sent_at = self.shared.clock.time(sent_at);
        self.shared.silence().waits_since().is_none_or(|since| since > sent_at)
    }

    fn end(&mut self, outcome: Outcome) {
        self.is_over = true;
        self.shared.metrics.note_end(self.started, outcome);
    }

    /// Forgets the request and tells the server so. If its end has come meanwhile, that is given instead.
    pub(crate) fn cancel(mut self, cancel: &Cancel) -> Option<Result<ReplyFrame, Lost>> {
        let ended = self.withdraw(cancel);
        self.end(ended.as_ref().map_or(Outcome::Cancelled, Outcome::of));
        ended
    }

    fn withdraw(&self, cancel: &Cancel) -> Option<Result<ReplyFrame, Lost>> {
        let mut state = self.shared.lock();
        match state.forget(self.id, &self.shared.clock) {
            Some(Slot::Filled(result)) => return Some(result),
            Some(Slot::Waiting { .. }) => {}
            None => return None,
        }
        let is_alone = state.outgoing.is_empty();
        if !state.push_cancel(cancel.clone()) {
            return None;
        }
        let driver = if is_alone && state.write() { None } else { state.wake_driver() };
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
        None
    }

    /// Forgets the request; nobody wants to know of its end. The driver tells the server, of all that are dropped together in one
    /// turn. What a write does at its server goes on whoever waits for it, so that there is nothing to tell.
    fn abandon(&self) {
        let mut state = self.shared.lock();
        let waited = state.forget(self.id, &self.shared.clock);
        if !self.is_read || !matches!(waited, Some(Slot::Waiting { .. })) {
            return;
        }
        let cancel = Cancel { sequence_id: Some(self.id), ..Cancel::default() };
        let driver = if state.push_cancel(cancel) { state.wake_driver() } else { None };
        drop(state);
        driver.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.is_over {
            self.abandon();
            self.end(Outcome::Cancelled);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "a test")]

    use super::*;
    use crate::driver;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    fn shared() -> Arc<Shared> {
        let metrics = NodeMetrics::of(std::net::SocketAddr::from(([127, 0, 0, 1], 1)));
        let clock = Clock { origin: now(), lateness: Arc::default() };
        Shared::new(clock, Duration::from_secs(60), Arc::new(metrics))
    }

    /// Pitfall H18: a million requests that are given up, on one connection. Nothing is left of them, and the connection
    /// stays.
    #[tokio::test]
    async fn h18_orphans() {
        const COUNT: usize = 1_000_000;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let (mut buffer, mut count) = (BytesMut::new(), 0);
            while count < 2 * COUNT {
                assert!(stream.read_buf(&mut buffer).await.expect("bytes") > 0, "the connection ended");
                count += take_frames(&mut buffer);
            }
        });
        let shared = shared();
        let driver = shared.clone();
        tokio::spawn(async move {
            driver::run(&driver, address, Duration::from_secs(5), &driver::Opening::default()).await
        });
        let header = Header::default();
        let body = Body::Get(bytes::Bytes::from_static(b"\0\0"));
        let deadline = now() + Duration::from_secs(600);
        let mut size_max = 0;
        for index in 0..COUNT {
            let request = Outgoing { header: &header, body: &body, now: now(), deadline, give_up_at: deadline };
            let waiting = shared.submit(&request).expect("there is room");
            let cancel = Cancel { client_id: 1, request_id: index as u64, ..Cancel::default() };
            assert!(waiting.cancel(&cancel).is_none());
            if index % 256 == 0 {
                size_max = size_max.max(shared.lock().outgoing.capacity());
                // The server counts frames, and is slower than who only writes them.
                while shared.lock().outgoing.len() > 1 << 20 {
                    tokio::task::yield_now().await;
                }
                tokio::task::yield_now().await;
            }
        }
        server.await.expect("all arrived on one connection");
        let state = shared.lock();
        assert!(state.slots.is_empty() && state.slots.capacity() < 64, "{} slots", state.slots.capacity());
        assert!(size_max < 16 << 20, "{size_max} bytes");
    }

    /// Reads that are dropped together are taken back together: whoever drops them writes nothing, and the driver all of it at once.
    #[tokio::test]
    async fn what_is_dropped_together_leaves_together() {
        const COUNT: usize = 100;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (shared, address) = (shared(), listener.local_addr().expect("an address"));
        let driver = shared.clone();
        tokio::spawn(async move {
            driver::run(&driver, address, Duration::from_secs(5), &driver::Opening::default()).await
        });
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let deadline = now() + Duration::from_secs(600);
        let (header, body) = (Header::default(), Body::Get(bytes::Bytes::from_static(b"\0\0")));
        let submit =
            || shared.submit(&Outgoing { header: &header, body: &body, now: now(), deadline, give_up_at: deadline });
        let waiting: Vec<Waiting> = (0..COUNT).map(|_| submit().expect("there is room")).collect();
        let mut buffer = BytesMut::new();
        let mut count = 0;
        while count < COUNT {
            assert!(stream.read_buf(&mut buffer).await.expect("bytes") > 0, "the connection ended");
            count += take_frames(&mut buffer);
        }
        drop(waiting);
        let mut left = shared.lock().outgoing.clone();
        assert_eq!((take_frames(&mut left), left.len()), (COUNT, 0));
        while count < 2 * COUNT {
            assert!(stream.read_buf(&mut buffer).await.expect("bytes") > 0, "the connection ended");
            count += take_frames(&mut buffer);
        }
        assert!(shared.lock().slots.is_empty());
    }

    /// Removes whole frames from the front, and says how many.
    fn take_frames(buffer: &mut BytesMut) -> usize {
        let mut count = 0;
        while let Some(size) = hedgerow_wire::frame_size(buffer).expect("a frame").filter(|size| *size <= buffer.len())
        {
            buffer.advance(size);
            count += 1;
        }
        count
    }

    /// Pitfall H15: a reply before its request is given up is handed out, one after it is dropped, and an id that is waited
    /// for is not given again when ids come round. That a request is given up twice cannot be written.
    #[tokio::test]
    async fn h15_cancel_races() {
        let shared = shared();
        let body = Body::Get(bytes::Bytes::from_static(b"\0\0"));
        let deadline = now() + Duration::from_secs(60);
        let header = Header::default();
        let submit =
            || shared.submit(&Outgoing { header: &header, body: &body, now: now(), deadline, give_up_at: deadline });
        let reply = |id| ReplyFrame {
            sequence_id: id,
            method: None,
            reply: hedgerow_wire::Reply::Update(Default::default()),
            extension: None,
        };
        let [first, second] = [submit().expect("there is room"), submit().expect("there is room")];
        assert_eq!((first.id, second.id), (1, 2));
        shared.lock().last_id = i32::MAX;
        let third = submit().expect("there is room");
        assert_eq!(third.id, 3, "the first two are taken");
        shared.fill(reply(3));
        assert!(matches!(third.cancel(&Cancel::default()), Some(Ok(_))));
        assert!(first.cancel(&Cancel::default()).is_none());
        shared.fill(reply(1));
        assert_eq!(shared.lock().slots.len(), 1, "the reply to what was given up is not kept");
        assert!(second.cancel(&Cancel::default()).is_none());
        shared.end(Lost::Full);
        assert!(shared.lock().slots.is_empty());
    }

    /// A peer that does not read costs a bounded amount of memory, however often requests to it are given up.
    #[tokio::test]
    async fn h18_a_peer_that_does_not_read() {
        let shared = shared();
        let body = Body::Get(bytes::Bytes::from(vec![0; 1 << 20]));
        let deadline = now() + Duration::from_secs(60);
        let header = Header::default();
        let submit =
            || shared.submit(&Outgoing { header: &header, body: &body, now: now(), deadline, give_up_at: deadline });
        let sent = (0..200).take_while(|_| submit().map(|waiting| waiting.cancel(&Cancel::default())).is_ok()).count();
        assert!((60..=65).contains(&sent), "{sent}");
        assert!(shared.lock().slots.is_empty());
        // The same for those that nobody takes back, but drops.
        shared.lock().outgoing.clear();
        let sent = (0..200).take_while(|_| submit().map(drop).is_ok()).count();
        assert!((60..=65).contains(&sent), "{sent}");
        assert!(shared.lock().slots.is_empty());
    }
}
