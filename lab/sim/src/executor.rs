//! What the clients run on: their tasks, one after the other, in virtual time.
//!
//! A task is polled when it was woken, tasks in the order in which they were. Nothing of it depends on anything but the run's
//! seed, so that a run can be replayed.

use crate::clock::{MICROSECOND, UNIX_MICROS_AT_START};
use crate::history::Time;
use hedgerow_client::simulation::{self, Pipe, Task};
use hedgerow_types::random::Random;
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::time::Instant;

/// A connection that a client wants.
#[derive(Debug)]
pub struct Dial {
    /// Who.
    pub client: usize,
    /// To whom.
    pub address: SocketAddr,
    /// The client's end.
    pub pipe: Arc<Pipe>,
}

/// The tasks of all clients of a run.
#[derive(Clone, Debug)]
pub struct Executor(Rc<Inner>);

struct Inner {
    /// The clients' clock at the beginning of the run. Only differences from it count.
    origin: Instant,
    now: Cell<Time>,
    tasks: RefCell<Vec<Slot>>,
    free: RefCell<Vec<usize>>,
    woken: Arc<Mutex<VecDeque<usize>>>,
    timers: RefCell<BinaryHeap<Reverse<Due>>>,
    timers_set: Cell<u64>,
    dials: RefCell<Vec<Dial>>,
    random: RefCell<Random>,
    /// Whose task is polled.
    client: Cell<usize>,
    /// By client: its wall clock minus the true one, microseconds.
    clock_offsets: RefCell<Vec<i64>>,
    /// Microseconds that no steady clock has noticed.
    passed: Cell<i64>,
}

struct Slot {
    client: usize,
    /// `None` = it is being polled, or over.
    task: Option<Task>,
    waker: Arc<TaskWaker>,
}

struct TaskWaker {
    slot: usize,
    is_woken: AtomicBool,
    woken: Arc<Mutex<VecDeque<usize>>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::Relaxed) {
            self.woken.lock().unwrap_or_else(PoisonError::into_inner).push_back(self.slot);
        }
    }
}

struct Due {
    at: Time,
    /// At one moment, first come, first served.
    order: u64,
    waker: Waker,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor").field("now", &self.now).finish_non_exhaustive()
    }
}

impl Executor {
    /// Without tasks.
    #[allow(clippy::disallowed_methods, reason = "an arbitrary zero: only differences from it are ever used")]
    pub fn new(random: Random) -> Self {
        Self(Rc::new(Inner {
            origin: Instant::now(),
            now: Cell::new(0),
            tasks: RefCell::default(),
            free: RefCell::default(),
            woken: Arc::default(),
            timers: RefCell::default(),
            timers_set: Cell::new(0),
            dials: RefCell::default(),
            random: RefCell::new(random),
            client: Cell::new(0),
            clock_offsets: RefCell::default(),
            passed: Cell::default(),
        }))
    }

    /// Starts a task of `client`. It is polled by the next [`Executor::run`].
    pub fn spawn(&self, client: usize, task: Task) {
        self.0.client.set(client);
        simulation::World::spawn(&*self.0, task);
    }

    /// Ends all tasks of `client`, wherever they are.
    pub fn end(&self, client: usize) {
        let mut ended = Vec::new();
        for (index, slot) in self.0.tasks.borrow_mut().iter_mut().enumerate() {
            if slot.client == client
                && let Some(task) = slot.task.take()
            {
                ended.push(task);
                self.0.free.borrow_mut().push(index);
            }
        }
        // What they do when they are dropped they do in their world.
        let _entered = simulation::enter(self.0.clone());
        drop(ended);
    }

    /// Puts the wall clocks of all clients ahead.
    pub fn pass_time(&self, micros: i64) {
        self.0.passed.set(self.0.passed.get() + micros);
    }

    /// Makes the wall clock of `client` wrong by so many microseconds.
    pub fn set_clock_offset(&self, client: usize, micros: i64) {
        let mut offsets = self.0.clock_offsets.borrow_mut();
        if offsets.len() <= client {
            offsets.resize(client + 1, 0);
        }
        offsets[client] = micros;
    }

    /// Wakes who waits for `now` or an earlier moment, and polls whoever was woken until all wait. Returns for which moment.
    pub fn run(&self, now: Time) -> Option<Time> {
        let inner = &self.0;
        inner.now.set(now);
        let _entered = simulation::enter(inner.clone());
        while let Some(due) = inner.pop_timer(now) {
            due.wake();
        }
        while let Some(slot) = inner.pop_woken() {
            inner.poll(slot);
        }
        inner.timers.borrow().peek().map(|Reverse(due)| due.at)
    }

    /// The connections that were asked for since the last call.
    pub fn take_dials(&self) -> Vec<Dial> {
        self.0.dials.take()
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        // What tasks do when they are dropped they do in their world.
        if Rc::strong_count(&self.0) == 1 {
            let _entered = simulation::enter(self.0.clone());
            let tasks = self.0.tasks.take();
            drop(tasks);
        }
    }
}

impl Inner {
    fn pop_timer(&self, now: Time) -> Option<Waker> {
        let mut timers = self.timers.borrow_mut();
        if timers.peek().is_none_or(|Reverse(due)| due.at > now) {
            return None;
        }
        timers.pop().map(|Reverse(due)| due.waker)
    }

    fn pop_woken(&self) -> Option<usize> {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn poll(&self, slot: usize) {
        let (task, waker, client) = {
            let slot = &mut self.tasks.borrow_mut()[slot];
            (slot.task.take(), slot.waker.clone(), slot.client)
        };
        waker.is_woken.store(false, Ordering::Relaxed);
        let Some(mut task) = task else { return };
        self.client.set(client);
        match task.as_mut().poll(&mut Context::from_waker(&Waker::from(waker))) {
            Poll::Pending => self.tasks.borrow_mut()[slot].task = Some(task),
            Poll::Ready(()) => {
                drop(task);
                self.free.borrow_mut().push(slot);
            }
        }
    }

    fn at(&self, moment: Instant) -> Time {
        u64::try_from(moment.saturating_duration_since(self.origin).as_nanos()).unwrap_or(Time::MAX)
    }
}

impl simulation::World for Inner {
    fn now(&self) -> Instant {
        self.origin + Duration::from_nanos(self.now.get())
    }

    fn unix_micros(&self) -> u64 {
        let offset = self.clock_offsets.borrow().get(self.client.get()).copied().unwrap_or(0);
        (UNIX_MICROS_AT_START + self.now.get() / MICROSECOND).saturating_add_signed(offset + self.passed.get())
    }

    fn random_u64(&self) -> u64 {
        self.random.borrow_mut().next_u64()
    }

    fn spawn(&self, task: Task) {
        let client = self.client.get();
        let mut tasks = self.tasks.borrow_mut();
        let slot = self.free.borrow_mut().pop().unwrap_or(tasks.len());
        // A waker of the task that was here before wakes nobody.
        let waker = Arc::new(TaskWaker { slot, is_woken: AtomicBool::new(false), woken: self.woken.clone() });
        let new = Slot { client, task: Some(task), waker: waker.clone() };
        if slot == tasks.len() {
            tasks.push(new);
        } else {
            tasks[slot] = new;
        }
        waker.wake();
    }

    fn wake_at(&self, at: Instant, waker: Waker) {
        let order = self.timers_set.get();
        self.timers_set.set(order + 1);
        self.timers.borrow_mut().push(Reverse(Due { at: self.at(at), order, waker }));
    }

    fn connect(&self, address: SocketAddr) -> Arc<Pipe> {
        let pipe = Pipe::new();
        self.dials.borrow_mut().push(Dial { client: self.client.get(), address, pipe: pipe.clone() });
        pipe
    }
}
