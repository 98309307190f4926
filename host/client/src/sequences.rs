//! Sequence numbers of writes: one counter per partition, never two unanswered writes in one slot of its window.
//!
//! The cluster remembers the result of a write in slot `sequence % SESSION_WINDOW` of the client's session in the
//! partition. A number may therefore be given out only while no unanswered write holds a number of the same slot, or the
//! newer write would overwrite what the older one's retry has to find. A slot that is still held is skipped: one slow
//! write must not stop the partition's others.
//!
//! The cluster does not remember for ever. It takes a write of a client that it does not know for a new one only if the
//! write's number is larger than that of every write that it has forgotten. So numbers follow the clock, in microseconds
//! since 1970: they rise by one, and leap forward once they have fallen behind. A leap is a multiple of the window, so that
//! slots are used in turn as without it. A client whose clock is behind or ahead of the partition's present is told the
//! range of numbers that are taken, and goes on there ([`Held::renew`]).

use crate::lock::lock;
use hedgerow_types::limit::{SESSION_AHEAD_MICROS, SESSION_WINDOW};
use hedgerow_types::{GroupId, Sequence};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;

const WORDS: usize = (SESSION_WINDOW / 64) as usize;
/// How far numbers may fall behind the clock before they leap, microseconds. Much more than a burst of a client's writes is
/// long, so that numbers leap where there was a pause, and little compared with how long sessions are remembered.
const LAG_MAX: u64 = 100_000;

/// The numbers of one partition's writes.
#[derive(Debug)]
pub(crate) struct Sequences {
    /// The partition.
    group: GroupId,
    window: Mutex<Window>,
    freed: Notify,
}

#[derive(Debug)]
struct Window {
    /// Whose numbers these are.
    client: u64,
    next: Sequence,
    /// The partition's present minus our clock, microseconds.
    offset: i64,
    held: [u64; WORDS],
}

/// The range of numbers that a partition takes, as a refusal tells it, and what a client needs to move into it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Renewal {
    /// Numbers up to this one may have been forgotten.
    pub(crate) floor: Sequence,
    /// Numbers above this one are too far ahead.
    pub(crate) ceiling: Sequence,
    /// The present, microseconds.
    pub(crate) clock: u64,
    /// A client id that nobody has.
    pub(crate) client: u64,
}

impl Sequences {
    /// Numbers of `client` in the partition `group` from `first` (at least 1) on.
    fn starting_at(group: GroupId, client: u64, first: Sequence) -> Arc<Self> {
        let window = Window { client, next: first.max(1), offset: 0, held: [0; WORDS] };
        Arc::new(Self { group, window: Mutex::new(window), freed: Notify::new() })
    }

    /// The number that follows every number given out so far.
    pub(crate) fn next(&self) -> Sequence {
        self.lock().next
    }

    /// A number whose slot nobody holds, if there is one. The slot is held until the result is dropped. `clock` is the
    /// present, microseconds.
    pub(crate) fn try_take(self: &Arc<Self>, clock: u64) -> Option<Held> {
        let mut window = self.lock();
        window.catch_up(clock);
        let sequence = window.take()?;
        Some(Held { sequences: self.clone(), client: window.client, sequence })
    }

    /// As [`Sequences::try_take`], but waits while every slot is held.
    pub(crate) async fn take(self: &Arc<Self>, clock: impl Fn() -> u64) -> Held {
        loop {
            // Registered before the look, so that a slot freed in between is not missed.
            let freed = self.freed.notified();
            if let Some(held) = self.try_take(clock()) {
                return held;
            }
            freed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Window> {
        lock(&self.window)
    }
}

impl Window {
    /// Where all are held, looking for one uses up none: numbers must not run ahead of the clock.
    fn take(&mut self) -> Option<Sequence> {
        let sequence = (self.next..self.next + SESSION_WINDOW).find(|sequence| {
            let (word, bit) = slot(*sequence);
            self.held[word] & bit == 0
        })?;
        let (word, bit) = slot(sequence);
        self.held[word] |= bit;
        self.next = sequence + 1;
        Some(sequence)
    }

    fn free(&mut self, sequence: Sequence) {
        let (word, bit) = slot(sequence);
        self.held[word] &= !bit;
    }

    fn catch_up(&mut self, clock: u64) {
        let lag = clock.saturating_add_signed(self.offset).saturating_sub(self.next);
        if lag > LAG_MAX {
            self.next += lag / SESSION_WINDOW * SESSION_WINDOW;
        }
    }

    /// Moves the next number into the range that the partition takes, unless another write of the same moment has.
    fn renew(&mut self, renewal: Renewal) {
        let Renewal { floor, ceiling, clock, client } = renewal;
        self.catch_up(clock);
        let present = ceiling.saturating_sub(SESSION_AHEAD_MICROS);
        if self.next > ceiling {
            // Numbers never go down: one that was given out and whose fate is not known could come again. They begin anew
            // under another name.
            self.client = client;
            self.next = present + 1;
        } else if self.next <= floor {
            let lag = present.max(floor) - self.next;
            self.next += (lag / SESSION_WINDOW + 1) * SESSION_WINDOW;
        } else {
            return;
        }
        self.offset = self.next.wrapping_sub(clock) as i64;
    }
}

fn slot(sequence: Sequence) -> (usize, u64) {
    let slot = sequence % SESSION_WINDOW;
    ((slot / 64) as usize, 1 << (slot % 64))
}

/// The numbers of all partitions that a client writes to. Whoever opens a table, and however often, takes its numbers from
/// here: two writes with one number in one partition would be taken for one.
#[derive(Debug)]
pub(crate) struct AllSequences {
    client: u64,
    partitions: Mutex<FxHashMap<GroupId, Arc<Sequences>>>,
}

impl AllSequences {
    /// Numbers of `client`, which has written nothing yet.
    pub(crate) fn of(client: u64) -> Self {
        Self { client, partitions: Mutex::default() }
    }

    /// Those of a partition. One that is new to the client goes on from the clock, and from the highest number of the table:
    /// it may have been split off another and know that one's numbers.
    pub(crate) fn partition(&self, group: GroupId, clock: u64) -> Arc<Sequences> {
        let mut partitions = lock(&self.partitions);
        if let Some(known) = partitions.get(&group) {
            return known.clone();
        }
        let highest =
            partitions.values().filter(|known| known.group.table == group.table).map(|known| known.next()).max();
        let new = Sequences::starting_at(group, self.client, highest.unwrap_or(1).max(clock));
        partitions.insert(group, new.clone());
        new
    }
}

/// A sequence number in use.
#[derive(Debug)]
pub(crate) struct Held {
    sequences: Arc<Sequences>,
    client: u64,
    sequence: Sequence,
}

impl Held {
    pub(crate) fn sequence(&self) -> Sequence {
        self.sequence
    }

    /// The partition in which it is one.
    pub(crate) fn group(&self) -> GroupId {
        self.sequences.group
    }

    /// Whose number it is.
    pub(crate) fn client(&self) -> u64 {
        self.client
    }

    /// Takes another number in the place of this one, which the partition refused and never will take. Returns whether
    /// there was one.
    pub(crate) fn renew(&mut self, renewal: Renewal) -> bool {
        let mut window = self.sequences.lock();
        window.renew(renewal);
        // Its own slot is free afterwards, but nobody else gets it before.
        window.free(self.sequence);
        let Some(sequence) = window.take() else { return false };
        (self.client, self.sequence) = (window.client, sequence);
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.sequences.lock().free(self.sequence);
        self.sequences.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    #[test]
    fn numbers_rise_by_one() {
        let sequences = Sequences::starting_at(GroupId::META, 7, 0);
        let numbers: Vec<_> = (0..5).map(|_| sequences.try_take(0).expect("free").sequence()).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_slot_in_use_is_skipped_and_later_used_again() {
        let sequences = Sequences::starting_at(GroupId::META, 7, 1);
        let slow = sequences.try_take(0).expect("free");
        for _ in 1..SESSION_WINDOW {
            drop(sequences.try_take(0).expect("free"));
        }
        let after = sequences.try_take(0).expect("free").sequence();
        assert_eq!(after, SESSION_WINDOW + 2, "the slot of 1 is held");
        drop(slow);
        for _ in 0..SESSION_WINDOW - 2 {
            drop(sequences.try_take(0).expect("free"));
        }
        assert_eq!(sequences.try_take(0).expect("free").sequence(), 2 * SESSION_WINDOW + 1);
    }

    #[test]
    fn a_full_window_waits_for_a_free_slot() {
        let sequences = Sequences::starting_at(GroupId::META, 7, 1);
        let mut all: Vec<_> = (0..SESSION_WINDOW).map(|_| sequences.try_take(0).expect("free")).collect();
        let mut waiting = pin!(sequences.take(|| 0));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert!((0..1_000).all(|_| sequences.try_take(0).is_none()));
        assert_eq!(sequences.next(), SESSION_WINDOW + 1, "numbers that nobody got are not used up");
        let freed = all.swap_remove(17).sequence();
        match waiting.as_mut().poll(&mut context) {
            Poll::Ready(held) => assert_eq!(held.sequence() % SESSION_WINDOW, freed % SESSION_WINDOW),
            Poll::Pending => panic!("a slot is free"),
        };
    }

    #[test]
    fn d9_numbers_that_fell_behind_the_clock_leap_to_the_same_slot() {
        let sequences = Sequences::starting_at(GroupId::META, 7, 5);
        let take = |clock| sequences.try_take(clock).expect("free").sequence();
        assert_eq!([take(5), take(LAG_MAX + 6), take(LAG_MAX + 7)], [5, 6, 7]);
        let leapt = take(1_000_000);
        assert_eq!(leapt % SESSION_WINDOW, 8);
        assert!((1_000_000 - SESSION_WINDOW..=1_000_000).contains(&leapt), "{leapt}");
        assert_eq!([take(1_000_001), take(0)], [leapt + 1, leapt + 2], "a clock that goes back changes nothing");
    }

    #[test]
    fn d9_a_leap_passes_over_slots_that_are_held() {
        let sequences = Sequences::starting_at(GroupId::META, 7, 1);
        let slow = [sequences.try_take(1).expect("free"), sequences.try_take(1).expect("free")];
        for _ in 2..SESSION_WINDOW {
            drop(sequences.try_take(1).expect("free"));
        }
        let after = sequences.try_take(10 * LAG_MAX).expect("free").sequence();
        assert_eq!(after % SESSION_WINDOW, 3, "the slots of {slow:?} are held");
    }

    #[test]
    fn d9_a_client_whose_clock_is_behind_goes_on_above_the_floor() {
        let sequences = Sequences::starting_at(GroupId::META, 7, 1_000);
        let (mut one, mut other) = (sequences.try_take(1_000).expect("free"), sequences.try_take(1_000).expect("free"));
        let floor = 50_000_000;
        let renewal = Renewal { floor, ceiling: floor + SESSION_AHEAD_MICROS, clock: 2_000, client: 8 };
        assert!(one.renew(renewal) && other.renew(renewal));
        assert!((floor + 1..=floor + 2 * SESSION_WINDOW).contains(&one.sequence()), "{one:?}");
        assert_eq!((other.sequence(), other.client()), (one.sequence() + 1, 7), "they move once");
        let later = sequences.try_take(2_000 + 1_000_000).expect("free").sequence();
        assert!((floor + 1_000_000 - SESSION_WINDOW..floor + 1_001_000 + SESSION_WINDOW).contains(&later), "{later}");
    }

    #[test]
    fn d9_a_client_whose_clock_is_ahead_begins_anew_under_another_name() {
        let clock = 3 * SESSION_AHEAD_MICROS;
        let sequences = Sequences::starting_at(GroupId::META, 7, clock);
        let (mut one, mut other) = (sequences.try_take(clock).expect("free"), sequences.try_take(clock).expect("free"));
        let renewal = Renewal { floor: 0, ceiling: SESSION_AHEAD_MICROS + 500, clock, client: 8 };
        assert!(one.renew(renewal) && other.renew(Renewal { client: 9, ..renewal }));
        assert_eq!((one.client(), one.sequence()), (8, 501));
        assert_eq!((other.client(), other.sequence()), (8, 502), "they move once");
        let later = sequences.try_take(clock + 1_000_000).expect("free");
        assert_eq!(later.client(), 8);
        assert!((1_000_500 - SESSION_WINDOW..=1_000_502).contains(&later.sequence()), "{later:?}");
    }

    #[test]
    fn d9_a_renewed_number_gives_its_slot_back() {
        let sequences = Sequences::starting_at(GroupId::META, 7, 1);
        let mut all: Vec<_> = (0..SESSION_WINDOW).map(|_| sequences.try_take(0).expect("free")).collect();
        let renewal = Renewal { floor: 5_000, ceiling: SESSION_AHEAD_MICROS, clock: 0, client: 8 };
        assert!(all[3].renew(renewal));
        assert!(all[3].sequence() > 5_000);
        assert!(sequences.try_take(0).is_none(), "every slot is held");
        drop(all);
        assert!(sequences.try_take(0).is_some());
    }
}
