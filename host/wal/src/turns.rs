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
    /// Threads that wait for something to do, and how many of them have been woken and are on their way.
    sleeping: usize,
    woken: usize,
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
            sleeping: 0,
            woken: 0,
        }
    }

    /// Puts a submission into the next round of log `number`.
    pub(crate) fn submit(&mut self, number: usize, submission: Submission) -> Result<(), Stopped> {
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
                return Ok(());
            }
            other => place.state = other,
        }
        place.waiting.push_back(submission);
        Ok(())
    }

    /// The log that is next: one that has something to write, so that all that can be written is before the first sync; then one
    /// to sync, in the order of the writes. Where others are on their way to all that is to be written, whoever has just written to
    /// log `written` syncs it.
    pub(crate) fn take(&mut self, now: Instant, written: Option<usize>) -> Option<Box<Held>> {
        if !self.is_closed {
            self.wake(now);
        }
        let own = written.filter(|own| self.to_write.len() <= self.woken && self.to_sync.back() == Some(own));
        let number = match own {
            Some(_) => self.to_sync.pop_back(),
            None => self.to_write.pop_front().or_else(|| self.to_sync.pop_front()),
        }?;
        let place = self.places.get_mut(&number)?;
        let State::Waits(mut held) = std::mem::replace(&mut place.state, State::Taken) else {
            unreachable!("a log is on one list while it waits, and nowhere else")
        };
        if held.turn == Turn::Write {
            place.waiting.drain(..).for_each(|submission| held.rounds.submit(submission));
        }
        Some(held)
    }

    /// Whether a thread is to be woken: there is more to do than threads are on their way to, and one that sleeps.
    pub(crate) fn wants_thread(&mut self) -> bool {
        let is_wanted = self.to_write.len() + self.to_sync.len() > self.woken && self.sleeping > self.woken;
        self.woken += usize::from(is_wanted);
        is_wanted
    }

    /// A thread goes to sleep.
    pub(crate) fn sleep(&mut self) {
        self.sleeping += 1;
    }

    /// It is awake, for whatever reason.
    pub(crate) fn is_awake(&mut self) {
        self.sleeping -= 1;
        self.woken = self.woken.saturating_sub(1);
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
    pub(crate) fn take_all(&mut self) -> Vec<Rounds> {
        let held = |place: Place| match place.state {
            State::Rests(held) | State::Stalled(held) | State::Waits(held) => Some(held.rounds),
            State::Taken | State::Failed => None,
        };
        std::mem::take(&mut self.places).into_values().filter_map(held).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{Append, Options};
    use crate::rounds::Begun;
    use hedgerow_env::sim::SimDisk;
    use hedgerow_types::log::{Entry, EntryKind};
    use hedgerow_types::{GroupId, ReplicaId};
    use std::path::Path;

    const NOW: Instant = Instant(1_000_000_000);

    fn turns(disk: &SimDisk, count: usize) -> Turns {
        let open = |number: usize| {
            let dir = Path::new("/").join(number.to_string());
            Log::open(Arc::new(disk.clone()), &dir, Options { segment_size: 64 << 10, ..Options::default() }).unwrap().0
        };
        Turns::new((0..count).map(|number| (number, open(number))).collect())
    }

    /// It appends `count` entries from `first` on.
    fn entries(first: u64, count: u64) -> Submission {
        let entry = |index| Entry { index, term: 1, kind: EntryKind::Normal, data: vec![7; 1000].into() };
        let (group, entries) = (GroupId::new(1, 0), (first..first + count).map(entry).collect());
        let append = Append { group, replica: ReplicaId(1), reset: None, entries, hard_state: None };
        Submission { appends: vec![append], ticket: first, ..Submission::default() }
    }

    /// Does what the next log needs. Which one it was, what was done, and what became of it.
    fn step(turns: &mut Turns, now: Instant) -> Option<(usize, Turn, After)> {
        let mut held = turns.take(now, None)?;
        let (number, turn) = (held.number, held.turn);
        let after = match turn {
            Turn::Sync => {
                held.rounds.finish().unwrap();
                After::Done
            }
            Turn::Write => match held.rounds.begin().unwrap() {
                Begun::Written => After::Written,
                Begun::Stalled(_) => After::Stalled,
                Begun::Nothing => After::Done,
            },
        };
        turns.put_back(held, after, now);
        Some((number, turn, after))
    }

    #[test]
    fn all_that_waits_is_written_before_anything_is_synced() {
        let mut turns = turns(&SimDisk::new(), 3);
        assert!([2, 0, 1].into_iter().all(|number| turns.submit(number, entries(1, 1)).is_ok()));
        turns.submit(0, entries(2, 1)).unwrap();
        for number in [2, 0, 1] {
            assert_eq!(step(&mut turns, NOW), Some((number, Turn::Write, After::Written)));
        }
        turns.submit(2, entries(2, 1)).unwrap();
        assert_eq!(step(&mut turns, NOW), Some((2, Turn::Sync, After::Done)));
        assert_eq!(step(&mut turns, NOW), Some((2, Turn::Write, After::Written)), "before the others' syncs");
        for number in [0, 1, 2] {
            assert_eq!(step(&mut turns, NOW), Some((number, Turn::Sync, After::Done)));
        }
        assert_eq!(step(&mut turns, NOW), None);
    }

    #[test]
    fn a_log_that_is_taken_is_nobody_elses() {
        let mut turns = turns(&SimDisk::new(), 2);
        turns.submit(0, entries(1, 1)).unwrap();
        let held = turns.take(NOW, None).unwrap();
        turns.submit(0, entries(2, 1)).unwrap();
        assert!(turns.take(NOW, None).is_none());
        turns.put_back(held, After::Written, NOW);
        turns.submit(0, entries(3, 1)).unwrap();
        let held = turns.take(NOW, None).unwrap();
        assert_eq!(held.turn, Turn::Sync);
        assert!(turns.take(NOW, None).is_none(), "what waits is written after the sync");
        turns.put_back(held, After::Done, NOW);
        assert_eq!(turns.take(NOW, None).unwrap().turn, Turn::Write);
    }

    #[test]
    fn a_round_without_a_segment_is_tried_again_after_a_while_and_no_sooner() {
        let disk = SimDisk::new();
        let mut turns = turns(&disk, 2);
        for number in 0..2 {
            turns.submit(number, entries(1, 1)).unwrap();
        }
        while step(&mut turns, NOW).is_some() {}
        disk.set_full(true);
        turns.submit(0, entries(2, 100)).unwrap();
        assert_eq!(step(&mut turns, NOW), Some((0, Turn::Write, After::Stalled)));
        turns.submit(0, entries(102, 1)).unwrap();
        assert_eq!((step(&mut turns, NOW), turns.next_due()), (None, Some(NOW + PAUSE)));
        turns.submit(1, entries(2, 1)).unwrap();
        assert_eq!(step(&mut turns, NOW), Some((1, Turn::Write, After::Written)));
        assert_eq!(
            step(&mut turns, NOW + PAUSE),
            Some((0, Turn::Write, After::Stalled)),
            "though the other one is written"
        );
        disk.set_full(false);
        assert_eq!(step(&mut turns, NOW + PAUSE), Some((1, Turn::Sync, After::Done)));
        assert_eq!(step(&mut turns, NOW + PAUSE * 2), Some((0, Turn::Write, After::Written)));
    }

    #[test]
    fn one_log_collects_at_a_time() {
        let mut turns = turns(&SimDisk::new(), 3);
        (0..3).for_each(|number| turns.submit(number, entries(1, 1)).unwrap());
        let (first, _second) = (turns.take(NOW, None).unwrap(), turns.take(NOW, None).unwrap());
        assert!(turns.may_collect(0) && turns.may_collect(0) && !turns.may_collect(1));
        turns.put_back(first, After::Written, NOW);
        assert!(turns.may_collect(1) && !turns.may_collect(0));
        turns.fail(1);
        assert!(turns.may_collect(2), "one that has failed does not");
        // Who had to leave it is asked again before long.
        let mut third = turns.take(NOW, None).unwrap();
        assert_eq!(third.number, 2);
        assert!(matches!(third.rounds.begin().unwrap(), Begun::Written));
        third.rounds.finish().unwrap();
        third.has_more = true;
        assert!(turns.put_back(third, After::Done, NOW));
        assert_eq!(turns.next_due(), Some(NOW + PAUSE));
    }

    #[test]
    fn a_log_at_rest_is_due_when_it_has_something_to_note() {
        let mut turns = turns(&SimDisk::new(), 1);
        assert_eq!(turns.next_due(), None, "nothing is written yet");
        turns.submit(0, entries(1, 1)).unwrap();
        while step(&mut turns, NOW).is_some() {}
        assert_eq!(turns.next_due(), Some(NOW + MARK_INTERVAL));
        turns.submit(0, entries(2, 1)).unwrap();
        assert_eq!(turns.next_due(), None, "it is no longer at rest");
        while step(&mut turns, NOW).is_some() {}
        let later = NOW + MARK_INTERVAL;
        let mut held = turns.take(later, None).unwrap();
        assert!(matches!(held.rounds.begin().unwrap(), Begun::Nothing));
        held.rounds.mark(later);
        assert!(!turns.put_back(held, After::Done, later));
        assert_eq!(turns.next_due(), None);
    }
    /// A thread is woken for each thing to do, no more; and who has written syncs, if others come for the rest.
    #[test]
    fn as_many_threads_are_woken_as_have_something_to_do() {
        let mut turns = turns(&SimDisk::new(), 4);
        (0..3).for_each(|_| turns.sleep());
        for (number, is_woken) in [true, true, true, false].into_iter().enumerate() {
            turns.submit(number, entries(1, 1)).unwrap();
            assert_eq!(turns.wants_thread(), is_woken, "log {number}");
        }
        turns.is_awake();
        let mut held = turns.take(NOW, None).unwrap();
        assert!(!turns.wants_thread(), "nobody sleeps");
        held.rounds.begin().unwrap();
        turns.put_back(held, After::Written, NOW);
        let other = turns.take(NOW, Some(0)).unwrap();
        assert_eq!((other.number, other.turn), (1, Turn::Write), "two come, and three are to be written");
        turns.put_back(other, After::Stalled, NOW);
        let own = turns.take(NOW, Some(0)).unwrap();
        assert_eq!((own.number, own.turn), (0, Turn::Sync), "two come for the other two");
        turns.is_awake();
        turns.is_awake();
        turns.sleep();
        assert!(turns.wants_thread() && !turns.wants_thread(), "more is to be done than anybody comes for");
    }
}
