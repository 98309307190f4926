//! What the clients of one episode ask for: few records under contention, counters whose every increment can be told apart, some large
//! values, and groups of rows that are written together. The simulator's workload, for the real client.

use hedgerow_client::{ReadLevel, ReplicaRead};
use hedgerow_sim::history::{Answer, Call, Content};
use hedgerow_sim::once::Counters;
use hedgerow_types::random::Random;
use std::time::Duration;

/// Records with small values; the first few get half of the requests.
const REGISTERS: u32 = 24;
const HOT_REGISTERS: u32 = 4;
/// Keys from here on hold large values.
const LARGE_KEY_MIN: u32 = 500;
const LARGE_KEYS: u32 = 2;
/// Keys from here on stand for groups of rows that are written and read all together.
const GROUP_KEY_MIN: u32 = 600;
const GROUP_KEYS: u32 = 2;
/// Keys from here on are counters.
const COUNTER_KEY_MIN: u32 = 1_000;
/// The largest value that leaves room for its key within a write of a mebibyte.
const LARGE_SIZE: usize = (1 << 20) - 1_024;
/// One request in so many is about a large value, or a group.
const LARGE_INTERVAL: u64 = 250;
const GROUP_INTERVAL: u64 = 12;

/// How a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Manner {
    /// By a handle without options: at the leader, in no session.
    Plain,
    /// One attempt at a time, at the drawn level and replica, in the worker's session; so are all others.
    Single,
    /// A further attempt after a few milliseconds, of reads and writes.
    Hedged,
    /// Two replicas that know of each other.
    Tied,
    /// Linearizable within a few milliseconds, or else bounded.
    Fallback,
}

impl Manner {
    pub(crate) const ALL: [Self; 5] = [Self::Plain, Self::Single, Self::Hedged, Self::Tied, Self::Fallback];
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) key: u32,
    pub(crate) call: Call,
    pub(crate) manner: Manner,
    pub(crate) mode: ReplicaRead,
    /// Bytes of the value, if it writes one.
    pub(crate) size: usize,
}

/// Draws requests. No value is written twice in an episode, so that a read tells which write it saw.
#[derive(Debug)]
pub(crate) struct Workload {
    random: Random,
    next_value: i64,
    /// What a register was last seen to hold, for swaps that have a chance.
    seen: Vec<Content>,
    counters: Counters,
}

impl Workload {
    pub(crate) fn new(random: Random) -> Self {
        Self { random, next_value: 0, seen: vec![None; REGISTERS as usize], counters: Counters::from(COUNTER_KEY_MIN) }
    }

    /// The next request of some client.
    pub(crate) fn draw(&mut self) -> Wish {
        if self.random.chance(1, LARGE_INTERVAL) {
            let key = LARGE_KEY_MIN + self.random.below(u64::from(LARGE_KEYS)) as u32;
            return self.draw_whole(key, LARGE_SIZE);
        }
        if self.random.chance(1, GROUP_INTERVAL) {
            let key = GROUP_KEY_MIN + self.random.below(u64::from(GROUP_KEYS)) as u32;
            return self.draw_whole(key, 0);
        }
        let registers = if self.random.chance(1, 2) { HOT_REGISTERS } else { REGISTERS };
        let key = self.random.below(u64::from(registers)) as u32;
        let size = if self.random.chance(1, 8) { self.random.below(2_000) as usize } else { 0 };
        if self.random.chance(60, 100) {
            let key = if self.random.chance(1, 6) { self.counters.key() } else { key };
            return self.draw_read(key);
        }
        let (key, call) = match self.random.below(20) {
            0..9 => (key, Call::Put(self.value())),
            9..11 => (key, Call::Remove),
            11..14 => {
                let key = key % HOT_REGISTERS;
                (key, Call::Swap { expected: self.seen[key as usize], new: self.value() })
            }
            _ => self.counters.increment(),
        };
        // What swaps compare byte by byte has no filler.
        let is_filled = matches!(call, Call::Put(_)) && key >= HOT_REGISTERS;
        self.wish(key, call, if is_filled { size } else { 0 })
    }

    /// A read of what a client has just written, at a replica that may not have heard of it yet.
    pub(crate) fn draw_read_after(&mut self, key: u32) -> Wish {
        let mode = ReplicaRead::Follower;
        Wish { mode, ..self.draw_read(key) }
    }

    /// A request about what is only set, removed and read.
    fn draw_whole(&mut self, key: u32, size: usize) -> Wish {
        match self.random.below(8) {
            0..3 => {
                let value = self.value();
                self.wish(key, Call::Put(value), size)
            }
            3 => self.wish(key, Call::Remove, 0),
            _ => self.draw_read(key),
        }
    }

    fn draw_read(&mut self, key: u32) -> Wish {
        let level = match self.random.below(20) {
            0..8 => ReadLevel::Linearizable,
            8..13 => ReadLevel::Session,
            13..17 => ReadLevel::Bounded(Duration::from_millis(10 << self.random.below(9))),
            _ => ReadLevel::Eventual,
        };
        let wish = self.wish(key, Call::Get(level), 0);
        match wish.manner {
            // What its handle asks for.
            Manner::Plain | Manner::Fallback => Wish { call: Call::GET, ..wish },
            Manner::Single | Manner::Hedged | Manner::Tied => wish,
        }
    }

    fn wish(&mut self, key: u32, call: Call, size: usize) -> Wish {
        let manner = Manner::ALL[self.random.below(Manner::ALL.len() as u64) as usize];
        let mode = ReplicaRead::ALL[self.random.below(ReplicaRead::ALL.len() as u64) as usize];
        Wish { key, call, manner, mode, size }
    }

    /// Takes note of an answer.
    pub(crate) fn note(&mut self, key: u32, call: &Call, answer: &Answer) {
        let Some(seen) = self.seen.get_mut(key as usize) else { return };
        match (*answer, call) {
            (Answer::Content(content), _) => *seen = content,
            (Answer::Swapped { is_applied: false, previous }, _) => *seen = previous,
            (Answer::Swapped { is_applied: true, .. }, Call::Swap { new: value, .. })
            | (Answer::Done, Call::Put(value)) => *seen = Some(*value),
            (Answer::Done, _) => *seen = None,
            (Answer::Swapped { .. } | Answer::Sum(_), _) => {}
        }
    }

    /// Every key that an operation may have touched.
    pub(crate) fn keys(&self) -> Vec<u32> {
        let large = LARGE_KEY_MIN..LARGE_KEY_MIN + LARGE_KEYS;
        let groups = GROUP_KEY_MIN..GROUP_KEY_MIN + GROUP_KEYS;
        (0..REGISTERS).chain(large).chain(groups).chain(COUNTER_KEY_MIN..=self.counters.key()).collect()
    }

    fn value(&mut self) -> i64 {
        self.next_value += 1;
        self.next_value
    }
}

/// Whether `key` is a counter.
pub(crate) const fn is_counter(key: u32) -> bool {
    key >= COUNTER_KEY_MIN
}

/// Whether `key` holds large values.
pub(crate) const fn is_large(key: u32) -> bool {
    key >= LARGE_KEY_MIN && key < GROUP_KEY_MIN
}

/// Whether `key` stands for a group of rows.
pub(crate) const fn is_group(key: u32) -> bool {
    key >= GROUP_KEY_MIN && key < COUNTER_KEY_MIN
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn everything_is_drawn_and_no_value_twice() {
        let mut workload = Workload::new(Random::new(1));
        let mut seen: BTreeMap<String, u32> = BTreeMap::new();
        let (mut values, mut increments) = (BTreeSet::new(), BTreeSet::new());
        for _ in 0..20_000 {
            let Wish { key, call, manner, mode, size } = workload.draw();
            let is_new = match call {
                Call::Put(value) | Call::Swap { new: value, .. } => values.insert(value),
                Call::Incr(by) => increments.insert((key, by)),
                Call::Get(_) | Call::Remove => true,
            };
            assert!(is_new, "{call:?}");
            assert!(workload.keys().contains(&key));
            let kind = match call {
                Call::Get(ReadLevel::Bounded(_)) => "bounded".to_owned(),
                Call::Get(level) => level.to_string(),
                other => format!("{other:?}").split(['(', ' ']).next().unwrap_or_default().to_owned(),
            };
            let sized = match size {
                0 => "small",
                LARGE_SIZE => "large",
                _ => "filled",
            };
            let group = if is_group(key) { "group" } else { "single" };
            for name in [kind, format!("{manner:?}"), format!("{mode:?}"), sized.to_owned(), group.to_owned()] {
                *seen.entry(name).or_default() += 1;
            }
        }
        let wanted = "linearizable session bounded eventual Put Remove Swap Incr Plain Single Hedged Tied Fallback Leader \
            Follower LeaderAndFollower PreferLeader ClosestReplicas ClosestAdaptive Learner small filled large group";
        for name in wanted.split_whitespace() {
            assert!(seen.get(name).is_some_and(|count| *count > 10), "{name}: {seen:?}");
        }
    }
}
