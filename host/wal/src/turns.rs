//! The logs of a committer, and which of them is to be written or synced next. Without threads and clock.
//!
//! Whoever takes a log out has it alone until it is put back, so that its rounds follow each other whatever the others do.

use crate::commit::{Round, Stopped};
use crate::log::{Failed, Log};
use crate::rounds::{MARK_INTERVAL, Rounds, Submission};
use crate::told::Told;
use hedgerow_types::Instant;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Time after which a log is seen to again whose round waits for a segment, whose disk refuses it more, or that has something to collect.
const PAUSE: Duration = Duration::from_millis(100);

/// A log that is taken out, with what goes with it.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) number: usize,
    pub(crate) turn: Turn,
    pub(crate) rounds: Rounds,
    pub(crate) told: Told,
    /// Something is left to collect.
    pub(crate) has_more: bool,
}

/// What is to be done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// What waits is to be written, or what has stalled; if there is nothing, it is to be tended.
    Write,
    /// What is written is to be synced.
    Sync,
}

/// What it comes back as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Written,
    Stalled,
    Done,
}

/// Where a log is.
#[derive(Debug)]
enum State {
    /// Nothing is to be done with it before the time that it is due, if it has one.
    Rests(Box<Held>),
    /// Its round waits for a segment: the same, whatever is submitted.
    Stalled(Box<Held>),
    /// It is on one of the lists.
    Waits(Box<Held>),
    /// Somebody has it.
    Taken,
    Failed,
}

#[derive(Debug)]
struct Place {
    dir: PathBuf,
    waiting: VecDeque<Submission>,
    state: State,
    due: Option<Instant>,
}

/// The logs of a committer by the numbers that its owner has given them.
#[derive(Debug)]
pub(crate) struct Turns {
    places: BTreeMap<usize, Place>,
    to_write: VecDeque<usize>,
    to_sync: VecDeque<usize>,
    due: BTreeSet<(Instant, usize)>,
    /// The one that collects.
    collects: Option<usize>,
    is_closed: bool,
}

impl Turns {
    pub(crate) fn new(logs: BTreeMap<usize, Log>) -> Self {
        let place = |(number, log): (usize, Log)| {
            let (dir, told) = (log.dir().to_path_buf(), Told::default());
            let held = Held { number, turn: Turn::Write, rounds: Rounds::new(log), told, has_more: false };
            (number, Place { dir, waiting: VecDeque::new(), state: State::Rests(Box::new(held)), due: None })
        };
        Self {
            places: logs.into_iter().map(place).collect(),
            to_write: VecDeque::new(),
            to_sync: VecDeque::new(),
            due: BTreeSet::new(),
            collects: None,
            is_closed: false,
        }
    }

    /// Puts a submission into the next round of log `number`. Whether somebody has to see to it who does not yet.
    pub(crate) fn submit(&mut self, number: usize, submission: Submission) -> Result<bool, Stopped> {
        let place = self.places.get_mut(&number).filter(|_| !self.is_closed).ok_or(Stopped)?;
        match std::mem::replace(&mut place.state, State::Taken) {
            State::Failed => {
                place.state = State::Failed;
                return Err(Stopped);
            }
            State::Rests(held) => {
                if let Some(at) = place.due.take() {
                    self.due.remove(&(at, number));
                }
                place.state = State::Waits(held);
                place.waiting.push_back(submission);
                self.to_write.push_back(number);
                return Ok(true);
            }
            other => place.state = other,
        }
        place.waiting.push_back(submission);
        Ok(false)
    }

    /// The log that is next: one that has something to write, so that all that can be written is before the first sync; then one
    /// to sync, in the order of the writes.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Box<Held>> {
        if !self.is_closed {
            self.wake(now);
        }
        let number = self.to_write.pop_front().or_else(|| self.to_sync.pop_front())?;
        let place = self.places.get_mut(&number)?;
        let State::Waits(mut held) = std::mem::replace(&mut place.state, State::Taken) else {
            unreachable!("a log is on one list while it waits, and nowhere else")
        };
        if held.turn == Turn::Write {
            place.waiting.drain(..).for_each(|submission| held.rounds.submit(submission));
        }
        Some(held)
    }

    /// Whether something is to be done at once.
    pub(crate) fn has_next(&self) -> bool {
        !self.to_write.is_empty() || !self.to_sync.is_empty()
    }

    /// When something is to be done that is not now.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at).filter(|_| !self.is_closed)
    }

    /// Puts on their list those that have waited long enough.
    fn wake(&mut self, now: Instant) {
        while let Some((at, number)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, number));
            let Some(place) = self.places.get_mut(&number) else { continue };
            place.due = None;
            place.state = match std::mem::replace(&mut place.state, State::Taken) {
                State::Rests(held) | State::Stalled(held) => {
                    self.to_write.push_back(number);
                    State::Waits(held)
                }
                other => other,
            };
        }
    }

    /// Takes back what [`Turns::take`] gave. Whether it has to be seen to before long by somebody who does not wait for that yet.
    pub(crate) fn put_back(&mut self, mut held: Box<Held>, after: After, now: Instant) -> bool {
        let number = held.number;
        self.collects.take_if(|collects| *collects == number);
        let Some(place) = self.places.get_mut(&number) else { return false };
        held.turn = if after == After::Written { Turn::Sync } else { Turn::Write };
        let is_soon = after == After::Stalled || held.has_more || held.rounds.log().left().is_some();
        match after {
            After::Written => {
                self.to_sync.push_back(number);
                place.state = State::Waits(held);
                return false;
            }
            After::Done if !place.waiting.is_empty() || held.rounds.has_waiting() => {
                self.to_write.push_back(number);
                place.state = State::Waits(held);
                return false;
            }
            After::Done => {
                let is_marked = held.rounds.log().is_marked();
                place.due = if is_soon { Some(now + PAUSE) } else { (!is_marked).then_some(now + MARK_INTERVAL) };
                place.state = State::Rests(held);
            }
            After::Stalled => {
                place.due = Some(now + PAUSE);
                place.state = State::Stalled(held);
            }
        }
        self.due.extend(place.due.map(|at| (at, number)));
        is_soon
    }

    /// Whether log `number`, which is taken, may collect until it is put back: one at a time, so that the disk has time for the others.
    pub(crate) fn may_collect(&mut self, number: usize) -> bool {
        *self.collects.get_or_insert(number) == number
    }

    /// Log `number`, which was taken, has failed: nothing that waits for it will be done.
    pub(crate) fn fail(&mut self, number: usize) {
        self.collects.take_if(|collects| *collects == number);
        if let Some(place) = self.places.get_mut(&number) {
            place.state = State::Failed;
            place.waiting.clear();
        }
    }

    /// Why a log has failed whose thread panicked.
    pub(crate) fn panicked(&self, number: usize) -> Round {
        let source = Arc::new(io::Error::other("its thread panicked, which is a defect of this program"));
        let dir = self.places.get(&number).map(|place| place.dir.clone()).unwrap_or_default();
        Round::Failed { reason: Failed { dir, operation: "go on", source } }
    }

    /// Nothing more is taken. What waits for a segment is given up, unless it can be written at once.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Takes out the logs that have not failed, once nobody has any.
    pub(crate) fn take_all(&mut self) -> Vec<Box<Held>> {
        let held = |place: Place| match place.state {
            State::Rests(held) | State::Stalled(held) | State::Waits(held) => Some(held),
            State::Taken | State::Failed => None,
        };
        std::mem::take(&mut self.places).into_values().filter_map(held).collect()
    }
}
