//! The thread that commits a log's rounds.

use crate::log::{Failed, Log, Stalled};
use crate::rounds::{Begun, MARK_INTERVAL, Rounds, Submission};
use hedgerow_env::Clock;
use hedgerow_env::os::{OsClock, spawn_thread};
use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a round that has stalled waits before it is tried again.
const STALL_PAUSE: Duration = Duration::from_millis(100);
/// Time without a submission after which the log is tended all the same while the disk refuses it more.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// What became of a round.
#[derive(Clone, Debug)]
pub enum Round {
    /// The submissions with these tickets are durable, in this order.
    Done {
        /// The tickets.
        tickets: Vec<u64>,
        /// [`Log::synced`] after it.
        synced: u64,
    },
    /// The round that has begun waits until a segment can be made; nothing more is done before. Said once for each wait,
    /// which ends with the next `Done`.
    Stalled {
        /// Why.
        reason: Stalled,
    },
    /// The disk refuses the log more room, or does no longer. Said when it changes, so after each round while it does.
    Room {
        /// As [`Log::left`].
        left: Option<u64>,
    },
    /// The log has failed. Nothing that was not called done will ever be, and this is said once.
    Failed {
        /// Why.
        reason: Failed,
    },
}

/// The committer takes nothing: it was stopped, or its log has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log takes nothing more")]
pub struct Stopped;

/// A log on a thread of its own. Dropping it stops it.
#[derive(Debug)]
pub struct Committer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Submission>,
    is_closed: bool,
}

impl Committer {
    /// Starts the thread. It calls `on_round` after each round; what takes long there delays the next one.
    pub fn start(log: Log, on_round: Box<dyn Fn(Round) + Send>) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = spawn_thread("wal", move || theirs.run(Rounds::new(log), &*on_round))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Puts a submission into the next round. Does not wait. The caller bounds how much is on its way, by its tickets.
    pub fn submit(&self, submission: Submission) -> Result<(), Stopped> {
        let mut queue = self.shared.queue();
        if queue.is_closed {
            return Err(Stopped);
        }
        queue.waiting.push_back(submission);
        drop(queue);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Takes nothing more, commits what waits and ends the thread. Again: nothing happens. Not from `on_round`.
    pub fn stop(&self) {
        self.shared.queue().is_closed = true;
        self.shared.changed.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic there has been reported by the thread itself.
            drop(thread.join());
        }
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut rounds: Rounds, on_round: &dyn Fn(Round)) {
        let _guard = PanicGuard { shared: self, dir: rounds.log().dir().to_path_buf(), on_round };
        if let Err(reason) = self.commit(&mut rounds, on_round) {
            self.fail(reason, on_round);
        }
    }

    fn fail(&self, reason: Failed, on_round: &dyn Fn(Round)) {
        let mut queue = self.queue();
        queue.is_closed = true;
        queue.waiting.clear();
        drop(queue);
        on_round(Round::Failed { reason });
    }

    fn commit(&self, rounds: &mut Rounds, on_round: &dyn Fn(Round)) -> Result<(), Failed> {
        let mut left = None;
        let mut tell_left = |rounds: &Rounds| {
            if std::mem::replace(&mut left, rounds.log().left()) != rounds.log().left() {
                on_round(Round::Room { left: rounds.log().left() });
            }
        };
        while self.take_waiting(rounds) {
            while self.write(rounds, on_round)? {
                let tickets = rounds.finish()?;
                on_round(Round::Done { tickets, synced: rounds.log().synced() });
                rounds.tend()?;
                // Also while there is always something to write: that is when room ends.
                tell_left(rounds);
                rounds.mark(OsClock.now());
                self.take_more(rounds);
            }
            rounds.mark(OsClock.now());
            if rounds.log().left().is_some() {
                rounds.tend()?;
                tell_left(rounds);
            }
        }
        rounds.close();
        Ok(())
    }

    /// Writes a round, however long it has to wait for a segment. False: nothing waits, or the log is closed.
    fn write(&self, rounds: &mut Rounds, on_round: &dyn Fn(Round)) -> Result<bool, Failed> {
        let mut has_told = false;
        loop {
            match rounds.begin()? {
                Begun::Nothing => return Ok(false),
                Begun::Written => return Ok(true),
                Begun::Stalled(reason) if !has_told => {
                    has_told = true;
                    on_round(Round::Stalled { reason });
                }
                Begun::Stalled(_) => {}
            }
            let queue = self.queue();
            let wait = self.changed.wait_timeout_while(queue, STALL_PAUSE, |queue| !queue.is_closed);
            if wait.unwrap_or_else(PoisonError::into_inner).0.is_closed {
                return Ok(false);
            }
        }
    }

    /// Waits for submissions and takes them all; not for long if the disk refuses the log room, or it has something to note.
    /// False: none will come.
    fn take_waiting(&self, rounds: &mut Rounds) -> bool {
        let pause = match rounds.log().left() {
            Some(_) => Some(REFUSED_PAUSE),
            None => (!rounds.log().is_marked()).then_some(MARK_INTERVAL),
        };
        let mut queue = self.queue();
        while queue.waiting.is_empty() && !queue.is_closed {
            if let Some(pause) = pause {
                let wait = self.changed.wait_timeout(queue, pause);
                queue = wait.unwrap_or_else(PoisonError::into_inner).0;
                break;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        let waiting = std::mem::take(&mut queue.waiting);
        let may_come = !waiting.is_empty() || !queue.is_closed;
        drop(queue);
        waiting.into_iter().for_each(|submission| rounds.submit(submission));
        may_come
    }

    fn take_more(&self, rounds: &mut Rounds) {
        let waiting = std::mem::take(&mut self.queue().waiting);
        waiting.into_iter().for_each(|submission| rounds.submit(submission));
    }
}

/// Fails the log whose thread panics: whoever waits for a round would wait for ever.
struct PanicGuard<'a> {
    shared: &'a Shared,
    dir: PathBuf,
    on_round: &'a dyn Fn(Round),
}

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let source = Arc::new(io::Error::other("its thread panicked, which is a defect of this program"));
            let reason = Failed { dir: std::mem::take(&mut self.dir), operation: "go on", source };
            self.shared.fail(reason, self.on_round);
        }
    }
}
