//! The threads that commit the rounds of the logs of one device.
//!
//! All of them do the same: take the log whose turn it is, write or sync its round, and put it back (`turns.rs`). So what waits for several
//! logs is written before any is synced, their syncs are at the device together, and whoever writes to a log that nothing is done with
//! waits for one thread alone.

use crate::log::{Failed, Log, Stalled};
use crate::rounds::{Begun, Submission};
use crate::turns::{After, Held, Turn, Turns};
use hedgerow_env::Clock;
use hedgerow_env::os::{OsClock, spawn_thread};
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Most threads of a committer. It has no more than logs.
const THREADS_MAX: usize = 16;

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

/// The committer takes nothing for this log: it was stopped, or the log has failed, or it has no such log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log takes nothing more")]
pub struct Stopped;

/// Logs on threads of their own, best all those of one device: a log that fails, or waits for a segment, holds up no other one. Dropping it
/// stops it.
#[derive(Debug)]
pub struct Committer {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What a committer tells, and of which log.
pub type OnRound = Box<dyn Fn(usize, Round) + Send + Sync>;

#[derive(Debug)]
struct Shared {
    turns: Mutex<Turns>,
    changed: Condvar,
}

/// What a thread of a committer has. What it tells goes with the last one.
struct Worker {
    shared: Arc<Shared>,
    on_round: Arc<OnRound>,
}

impl Committer {
    /// Starts the threads, one for each log, at most 16. The logs are called by the numbers that they are given here. It calls `on_round`
    /// after each round of a log; what takes long there delays the next round of that log.
    pub fn start(logs: BTreeMap<usize, Log>, on_round: OnRound) -> io::Result<Self> {
        let count = logs.len().min(THREADS_MAX);
        let (turns, changed) = (Mutex::new(Turns::new(logs)), Condvar::new());
        let committer = Self { shared: Arc::new(Shared { turns, changed }), threads: Mutex::default() };
        let on_round = Arc::new(on_round);
        for _ in 0..count {
            let worker = Worker { shared: Arc::clone(&committer.shared), on_round: Arc::clone(&on_round) };
            // Those that are started end with `committer`, if this fails.
            let thread = spawn_thread("wal", move || worker.run())?;
            committer.threads().push(thread);
        }
        Ok(committer)
    }

    /// Puts a submission into the next round of log `number`. Does not wait. The caller bounds how much is on its way, by its tickets.
    pub fn submit(&self, number: usize, submission: Submission) -> Result<(), Stopped> {
        let mut turns = self.shared.turns();
        turns.submit(number, submission)?;
        let wants_thread = turns.wants_thread();
        // Whoever wakes wants the lock.
        drop(turns);
        if wants_thread {
            self.shared.changed.notify_one();
        }
        Ok(())
    }

    /// Takes nothing more, commits what waits and ends the threads. Again: nothing happens. Not from `on_round`.
    pub fn stop(&self) {
        self.shared.turns().close();
        self.shared.changed.notify_all();
        let mut threads = self.threads();
        for thread in threads.drain(..) {
            // A panic there has been told already.
            drop(thread.join());
        }
        let logs = self.shared.turns().take_all();
        logs.into_iter().for_each(|mut rounds| rounds.close());
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker {
    fn run(&self) {
        let mut written = None;
        while let Some(held) = self.next(written) {
            let number = held.number;
            // Whoever waits for a log whose round panics would wait for ever.
            let end = match catch_unwind(AssertUnwindSafe(|| self.take_turn(held))) {
                Ok(Ok((held, after))) => {
                    written = (after == After::Written).then_some(number);
                    if self.shared.turns().put_back(held, after, OsClock.now()) {
                        self.shared.changed.notify_one();
                    }
                    continue;
                }
                Ok(Err(reason)) => Round::Failed { reason },
                Err(_) => self.shared.turns().panicked(number),
            };
            self.shared.turns().fail(number);
            (self.on_round)(number, end);
        }
    }

    /// Waits for a log that something is to be done with; `written` is what this thread has just written to. `None`: there will be none.
    fn next(&self, written: Option<usize>) -> Option<Box<Held>> {
        let mut turns = self.shared.turns();
        loop {
            let now = OsClock.now();
            if let Some(held) = turns.take(now, written) {
                if turns.wants_thread() {
                    self.shared.changed.notify_one();
                }
                return Some(held);
            }
            if turns.is_closed() {
                return None;
            }
            turns.sleep();
            turns = match turns.next_due() {
                Some(due) => {
                    let wait = self.shared.changed.wait_timeout(turns, due.since(now));
                    wait.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.shared.changed.wait(turns).unwrap_or_else(PoisonError::into_inner),
            };
            turns.is_awake();
        }
    }

    fn take_turn(&self, mut held: Box<Held>) -> Result<(Box<Held>, After), Failed> {
        let after = match held.turn {
            Turn::Write => self.write(&mut held)?,
            Turn::Sync => self.sync(&mut held)?,
        };
        Ok((held, after))
    }

    fn write(&self, held: &mut Held) -> Result<After, Failed> {
        let begun = held.rounds.begin()?;
        self.tell(held.number, held.told.begun(&begun));
        match begun {
            Begun::Written => Ok(After::Written),
            Begun::Stalled(_) => Ok(After::Stalled),
            Begun::Nothing => {
                if held.has_more || held.rounds.log().left().is_some() {
                    self.tend(held)?;
                }
                held.rounds.mark(OsClock.now());
                Ok(After::Done)
            }
        }
    }

    fn sync(&self, held: &mut Held) -> Result<After, Failed> {
        let tickets = held.rounds.finish()?;
        self.tell(held.number, Some(Round::Done { tickets, synced: held.rounds.log().synced() }));
        self.tend(held)?;
        held.rounds.mark(OsClock.now());
        Ok(After::Done)
    }

    fn tend(&self, held: &mut Held) -> Result<(), Failed> {
        let may_collect = held.rounds.has_garbage() && self.shared.turns().may_collect(held.number);
        held.has_more = if may_collect { held.rounds.collect()? } else { held.rounds.has_garbage() };
        held.rounds.prepare();
        // Also while there is always something to write: that is when room ends.
        self.tell(held.number, held.told.tended(held.rounds.log()));
        Ok(())
    }

    fn tell(&self, number: usize, round: Option<Round>) {
        if let Some(round) = round {
            (self.on_round)(number, round);
        }
    }
}
