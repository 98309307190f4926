//! Wake-ups at moments that are finer than the runtime's timer of one millisecond: many requests, one task.
//!
//! Nearly every request is over before its moment comes, so that setting and clearing have to be cheap and ringing need
//! not: what is cleared stays queued until its moment, or until such entries are most of the queue. Moments are rounded
//! up where they have to be rounded, never down: a short delay must not become none (pitfall H12).
//!
//! A moment that is noticed late says that the process was held up: by other work on its threads, or by a machine that had no
//! core for it. That time is added up, for those who judge others by it.

use crate::hedging::LateAlarms;
use crate::lock::lock;
use crate::runtime::{Sleep, fine_timer, now, sleep_until, spawn};
use hedgerow_env::timer::AsyncTimer;
use hedgerow_env::{Clock as _, os::OsClock};
use hedgerow_hedge::LATE_MIN;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::Instant;

/// Queues whose moments only rise: requests with the same delay make one such queue.
const RUNS: usize = 4;
/// Entries that are kept without a look at how many of them are still meant.
const QUEUED_KEPT: usize = 4_096;

/// The alarm clock of one client.
#[derive(Debug)]
pub(crate) struct Alarm {
    shared: Arc<Shared>,
}

/// One request's use of the alarm clock. Dropped, it does not ring.
#[derive(Debug)]
pub(crate) struct Bell<'a> {
    alarm: &'a Alarm,
    set: Option<Due>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    lateness: Arc<Lateness>,
}

/// How late it rang; times in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Lateness {
    count: AtomicU64,
    sum: AtomicU64,
    most: AtomicU64,
    put_off: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    slots: Vec<Slot>,
    free: Vec<u32>,
    runs: [VecDeque<Due>; RUNS],
    /// What fits into no run.
    rest: BinaryHeap<Reverse<Due>>,
    /// What the task waits for.
    armed: Option<Instant>,
    is_task_running: bool,
    task: Option<Waker>,
    is_released: bool,
}

#[derive(Debug, Default)]
struct Slot {
    /// Differs from that of an entry which is no longer meant.
    generation: u32,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: Instant,
    slot: u32,
    generation: u32,
}

impl Alarm {
    pub(crate) fn new() -> Self {
        Self { shared: Arc::default() }
    }

    pub(crate) fn bell(&self) -> Bell<'_> {
        Bell { alarm: self, set: None }
    }

    /// For how long the process was held up so far, as far as it was noticed by moments that passed meanwhile.
    pub(crate) fn held_up(&self) -> Duration {
        self.shared.lateness.held_up()
    }

    /// As [`Alarm::held_up`], with a moment that is over at `now` and was not noticed yet: whoever runs before the alarm's task does.
    pub(crate) fn held_up_until(&self, now: Instant) -> Duration {
        let state = lock(&self.shared.state);
        let late = state.armed.map(|at| now.saturating_duration_since(at)).filter(|late| *late >= LATE_MIN);
        self.held_up() + late.unwrap_or_default()
    }

    pub(crate) fn lateness(&self) -> Arc<Lateness> {
        self.shared.lateness.clone()
    }

    /// An attempt that was due is put off, since the client was held up.
    pub(crate) fn note_put_off(&self) {
        self.shared.lateness.put_off.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn late_alarms(&self) -> LateAlarms {
        let Lateness { count, most, put_off, .. } = &*self.shared.lateness;
        LateAlarms {
            count: count.load(Ordering::Relaxed),
            total: self.held_up(),
            longest: Duration::from_nanos(most.load(Ordering::Relaxed)),
            put_off: put_off.load(Ordering::Relaxed),
        }
    }
}

impl Lateness {
    pub(crate) fn held_up(&self) -> Duration {
        Duration::from_nanos(self.sum.load(Ordering::Relaxed))
    }

    /// The moment that was waited for is noticed so much later.
    fn note(&self, late: Duration) {
        if late < LATE_MIN {
            return;
        }
        let nanos = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(nanos, Ordering::Relaxed);
        self.most.fetch_max(nanos, Ordering::Relaxed);
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        state.is_released = true;
        let task = state.task.take();
        drop(state);
        task.into_iter().for_each(Waker::wake);
    }
}

impl Bell<'_> {
    /// Has the task of `context` woken at `at` or soon after, instead of when it was set to before.
    pub(crate) fn set(&mut self, at: Instant, context: &Context<'_>) {
        let shared = &self.alarm.shared;
        let mut state = lock(&shared.state);
        if let Some(due) = self.set {
            let slot = &mut state.slots[due.slot as usize];
            if due.at == at && slot.waker.is_some() {
                if !slot.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                    slot.waker = Some(context.waker().clone());
                }
                return;
            }
            state.clear(due);
        }
        let due = state.add(at, context.waker().clone());
        self.set = Some(due);
        if state.armed.is_some_and(|armed| armed <= at) {
            return;
        }
        state.armed = Some(at);
        let is_task_running = std::mem::replace(&mut state.is_task_running, true);
        let task = state.task.take();
        drop(state);
        task.into_iter().for_each(Waker::wake);
        if !is_task_running {
            spawn(run(Running(shared.clone())));
        }
    }
}

impl Drop for Bell<'_> {
    fn drop(&mut self) {
        if let Some(due) = self.set {
            lock(&self.alarm.shared.state).clear(due);
        }
    }
}

impl State {
    fn add(&mut self, at: Instant, waker: Waker) -> Due {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        self.slots[slot as usize].waker = Some(waker);
        let due = Due { at, slot, generation: self.slots[slot as usize].generation };
        self.sweep();
        // The run whose end is nearest: it stays one whose moments rise.
        let fits = |run: &&mut VecDeque<Due>| run.back().is_none_or(|last| last.at <= at);
        let run = self.runs.iter_mut().filter(fits).max_by_key(|run| run.back().map(|last| last.at));
        match run {
            Some(run) => run.push_back(due),
            None => self.rest.push(Reverse(due)),
        }
        due
    }

    fn clear(&mut self, due: Due) {
        let slot = &mut self.slots[due.slot as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.waker = None;
        self.free.push(due.slot);
    }

    /// Drops what was cleared once that is most of what is queued.
    fn sweep(&mut self) {
        let queued = self.rest.len() + self.runs.iter().map(VecDeque::len).sum::<usize>();
        let live = self.slots.len() - self.free.len();
        if queued < QUEUED_KEPT.max(live * 4) {
            return;
        }
        let slots = &self.slots;
        let is_live = |due: &Due| slots[due.slot as usize].generation == due.generation;
        self.runs.iter_mut().for_each(|run| run.retain(is_live));
        self.rest.retain(|Reverse(due)| is_live(due));
    }

    fn first(&self) -> Option<Due> {
        let runs = self.runs.iter().filter_map(|run| run.front().copied());
        runs.chain(self.rest.peek().map(|Reverse(due)| *due)).min()
    }

    fn remove_first(&mut self, due: Due) {
        match self.runs.iter_mut().find(|run| run.front() == Some(&due)) {
            Some(run) => drop(run.pop_front()),
            None => drop(self.rest.pop()),
        }
    }

    /// Takes out what is due at `now` and what was cleared, up to the first entry that is still to come. Returns the earliest moment
    /// that somebody waited for: where nobody does, the runtime may not even run, and nobody is held up.
    fn take_due(&mut self, now: Instant, wakers: &mut Vec<Waker>) -> Option<Instant> {
        self.armed = None;
        let mut earliest = None;
        while let Some(due) = self.first() {
            let slot = &mut self.slots[due.slot as usize];
            let is_live = slot.generation == due.generation;
            if is_live && due.at > now {
                self.armed = Some(due.at);
                break;
            }
            if is_live {
                wakers.extend(slot.waker.take());
                earliest = earliest.or(Some(due.at));
            }
            self.remove_first(due);
        }
        earliest
    }
}

/// The task of a clock. Where the runtime's clock is a test's, the kernel's timer rings at moments that mean nothing, and
/// the runtime's own timer at the right ones; so both are set, and who rings is asked for the time.
async fn run(running: Running) {
    let shared = &running.0;
    let timer = fine_timer();
    let mut sleep = sleep_until(now() + Duration::from_secs(3600));
    poll_fn(|context| poll(shared, timer.as_ref(), &mut sleep, context)).await;
}

/// Whatever ends the task, the next request starts another one, on its own runtime.
struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        (state.is_task_running, state.armed, state.task) = (false, None, None);
    }
}

fn poll(shared: &Shared, timer: Option<&AsyncTimer>, sleep: &mut Sleep, context: &mut Context<'_>) -> Poll<()> {
    loop {
        let mut wakers = Vec::new();
        let now = now();
        let mut state = lock(&shared.state);
        let first = state.take_due(now, &mut wakers);
        // Noted before anybody is woken.
        first.into_iter().for_each(|at| shared.lateness.note(now.saturating_duration_since(at)));
        state.task = Some(context.waker().clone());
        let (armed, is_released) = (state.armed, state.is_released);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        if is_released {
            return Poll::Ready(());
        }
        let Some(at) = armed else { return Poll::Pending };
        // Read after `now`, so that the kernel's timer rings later rather than earlier.
        let is_rung = timer.is_some_and(|timer| {
            let is_set = timer.set(OsClock.now() + at.saturating_duration_since(now)).is_ok();
            is_set && timer.poll_rung(context).is_ready()
        });
        if sleep.deadline() != at {
            sleep.reset(at);
        }
        let is_rung = is_rung | sleep.poll(context).is_ready();
        if !is_rung {
            return Poll::Pending;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits for `at` by the clock.
    async fn wait(alarm: &Alarm, at: Instant) {
        let mut bell = alarm.bell();
        poll_fn(|context| {
            if at <= now() {
                return Poll::Ready(());
            }
            bell.set(at, context);
            Poll::Pending
        })
        .await;
    }

    /// Pitfall H12, with the real clock: it never rings early, however short the time is.
    #[tokio::test]
    async fn h12_moments_finer_than_a_millisecond() {
        let alarm = Alarm::new();
        for micros in [1, 300, 50, 900, 300] {
            let at = now() + Duration::from_micros(micros);
            let mut bell = alarm.bell();
            let mut polls = 0;
            poll_fn(|context| {
                polls += 1;
                // The first poll sets it, the second one is the ring.
                if polls == 2 {
                    return Poll::Ready(());
                }
                bell.set(at, context);
                Poll::Pending
            })
            .await;
            assert!(now() >= at, "{micros} us");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_rings_by_the_clock_of_a_test() {
        let alarm = Arc::new(Alarm::new());
        let start = now();
        let waits = [30, 10, 20, 10, 40_000].map(|ms| {
            let alarm = alarm.clone();
            let at = start + Duration::from_millis(ms);
            async move {
                wait(&alarm, at).await;
                assert_eq!(now(), at);
            }
        });
        let tasks = waits.map(|wait| {
            let (done, is_done) = tokio::sync::oneshot::channel();
            spawn(async move {
                wait.await;
                let _ = done.send(());
            });
            is_done
        });
        for task in tasks {
            task.await.expect("it rings");
        }
        assert_eq!(now() - start, Duration::from_secs(40));
    }

    /// Pitfall H26: a moment that is noticed late counts, one that passes in between does not count twice, and one that was
    /// cleared does not count.
    #[tokio::test(start_paused = true)]
    #[allow(clippy::disallowed_methods, reason = "a test")]
    async fn h26_how_late_it_rings_is_noted() {
        let alarm = Arc::new(Alarm::new());
        let start = now();
        let step = Duration::from_millis(1);
        let mut cleared = alarm.bell();
        poll_fn(|context| {
            cleared.set(start + step * 8, context);
            Poll::Ready(())
        })
        .await;
        drop(cleared);
        let waits = [10, 15, 60].map(|steps| {
            let alarm = alarm.clone();
            tokio::spawn(async move { wait(&alarm, start + step * steps).await })
        });
        tokio::task::yield_now().await;
        // The runtime stands still until 35 ms, and is on time after that.
        tokio::time::advance(step * 35).await;
        for wait in waits {
            wait.await.expect("it rings");
        }
        let lateness = alarm.late_alarms();
        assert_eq!((lateness.count, lateness.total, lateness.longest), (1, step * 25, step * 25));
    }

    #[tokio::test]
    async fn what_is_cleared_leaves_nothing_behind() {
        let alarm = Alarm::new();
        let start = now() + Duration::from_secs(3600);
        for index in 0..100_000_u64 {
            let mut bell = alarm.bell();
            let at = start - Duration::from_millis(index % 7);
            poll_fn(|context| {
                bell.set(at, context);
                bell.set(at, context);
                Poll::Ready(())
            })
            .await;
        }
        let state = lock(&alarm.shared.state);
        let queued = state.rest.len() + state.runs.iter().map(VecDeque::len).sum::<usize>();
        assert!(queued <= QUEUED_KEPT && state.slots.len() == 1, "{queued} {}", state.slots.len());
    }
}
