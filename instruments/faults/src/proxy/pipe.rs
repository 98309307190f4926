//! One direction of one connection through the proxy: a reader that says when bytes may leave, a writer that lets them.

use super::alarm::Alarm;
use bytes::BytesMut;
use hedgerow_env::Clock as _;
use hedgerow_env::fault::{Shape, Shaper};
use hedgerow_env::os::OsClock;
use hedgerow_types::Instant;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::Notify;

/// Bytes that are made room for before each read.
const READ_SIZE: usize = 64 << 10;
/// Bytes that may be on their way in one direction of one connection, beside those that delay and bandwidth keep there.
const QUEUE: u64 = 1 << 20;
/// The most bytes that may be on their way in one direction of one connection.
const QUEUE_MAX: u64 = 64 << 20;

/// One direction of the proxy, common to all its connections.
pub(super) struct Line {
    pub(super) shaper: RefCell<Shaper>,
    /// Nothing passes until then.
    stalled_until: Cell<Instant>,
    is_cut: Cell<bool>,
    changed: Notify,
}

impl Line {
    pub(super) fn new() -> Self {
        Self {
            shaper: RefCell::default(),
            stalled_until: Cell::new(Instant::ZERO),
            is_cut: Cell::new(false),
            changed: Notify::new(),
        }
    }

    pub(super) fn set(&self, shape: Shape) {
        self.shaper.borrow_mut().set(shape);
    }

    pub(super) fn cut(&self, is_cut: bool) {
        self.is_cut.set(is_cut);
        self.changed.notify_waiters();
    }

    pub(super) fn stall(&self, until: Instant) {
        self.stalled_until.set(self.stalled_until.get().max(until));
    }

    /// Waits until bytes that were to leave at `at` may.
    async fn open(&self, at: Instant, alarm: &Alarm) {
        let mut until = at;
        loop {
            if OsClock.now() < until {
                alarm.sleep_until(until).await;
            }
            until = self.stalled_until.get();
            if OsClock.now() < until {
                continue;
            }
            if !self.is_cut.get() {
                return;
            }
            self.changed.notified().await;
        }
    }

    /// Bytes of one connection that may be under way.
    fn room(&self) -> u64 {
        let shape = self.shaper.borrow().shape();
        match shape.bytes_per_second {
            Some(rate) => ((rate as f64 * shape.delay().as_secs_f64()) as u64).saturating_add(QUEUE).min(QUEUE_MAX),
            None => QUEUE_MAX,
        }
    }
}

/// What is on its way; `None` is the end of the stream.
#[derive(Default)]
struct Queue {
    items: VecDeque<(Instant, Option<BytesMut>)>,
    size: u64,
}

/// Carries everything from `from` to `to`, the end of the stream included.
pub(super) async fn carry(from: ReadHalf<'_>, to: WriteHalf<'_>, line: &Line, alarm: &Alarm) -> io::Result<()> {
    let pipe = Pipe { queue: RefCell::default(), has_more: Notify::new(), has_room: Notify::new(), line, alarm };
    tokio::try_join!(pipe.read(from), pipe.write(to)).map(drop)
}

struct Pipe<'a> {
    queue: RefCell<Queue>,
    has_more: Notify,
    has_room: Notify,
    line: &'a Line,
    alarm: &'a Alarm,
}

impl Pipe<'_> {
    async fn read(&self, mut from: ReadHalf<'_>) -> io::Result<()> {
        loop {
            while self.queue.borrow().size > self.line.room() {
                self.has_room.notified().await;
            }
            let mut bytes = BytesMut::with_capacity(READ_SIZE);
            let size = from.read_buf(&mut bytes).await?;
            let at = self.line.shaper.borrow_mut().leaves_at(OsClock.now(), size);
            let mut queue = self.queue.borrow_mut();
            queue.size += size as u64;
            queue.items.push_back((at, (size > 0).then_some(bytes)));
            self.has_more.notify_one();
            if size == 0 {
                return Ok(());
            }
        }
    }

    async fn write(&self, mut to: WriteHalf<'_>) -> io::Result<()> {
        loop {
            let first = self.queue.borrow_mut().items.pop_front();
            let Some((at, bytes)) = first else {
                self.has_more.notified().await;
                continue;
            };
            self.line.open(at, self.alarm).await;
            let Some(bytes) = bytes else { return to.shutdown().await };
            to.write_all(&bytes).await?;
            self.queue.borrow_mut().size -= bytes.len() as u64;
            self.has_room.notify_one();
        }
    }
}
