//! What the clients ask for: a few records under contention, and counters whose every increment can be told apart.

use crate::history::{Answer, Call, Content};
use crate::once;
use hedgerow_types::random::Random;

/// Keys from here on are counters.
pub const COUNTER_KEY_MIN: u32 = 1_000;

/// Draws operations. Values are never written twice, so that a read tells which write it saw.
#[derive(Debug)]
pub struct Workload {
    random: Random,
    register_count: u32,
    write_percent: u64,
    next_value: i64,
    /// What a register was last seen to hold, for swaps that have a chance.
    seen: Vec<Content>,
    counter: u32,
    increments: u32,
}

impl Workload {
    /// A workload over `register_count` (at least 1) records besides the counters; so many operations in a hundred write.
    pub fn new(register_count: u32, write_percent: u64, random: Random) -> Self {
        let seen = vec![None; register_count as usize];
        Self { random, register_count, write_percent, next_value: 0, seen, counter: COUNTER_KEY_MIN, increments: 0 }
    }

    /// The next operation of some client.
    pub fn draw(&mut self) -> (u32, Call) {
        let key = self.random.below(u64::from(self.register_count)) as u32;
        if !self.random.chance(self.write_percent, 100) {
            return (if self.random.chance(1, 6) { self.counter } else { key }, Call::Get);
        }
        match self.random.below(10) {
            0..4 => (key, Call::Put(self.value())),
            4 => (key, Call::Remove),
            5 | 6 => (key, Call::Swap { expected: self.seen[key as usize], new: self.value() }),
            _ => self.increment(),
        }
    }

    /// Takes note of an answer.
    pub fn note(&mut self, key: u32, call: &Call, answer: &Answer) {
        let Some(seen) = self.seen.get_mut(key as usize) else { return };
        match (*answer, call) {
            (Answer::Content(content), _) => *seen = content,
            (Answer::Swapped { is_applied: false, previous }, _) => *seen = previous,
            (Answer::Swapped { is_applied: true, .. }, Call::Swap { new: value, .. })
            | (Answer::Done, Call::Put(value)) => {
                *seen = Some(*value);
            }
            (Answer::Done, _) => *seen = None,
            (Answer::Swapped { .. } | Answer::Sum(_), _) => {}
        }
    }

    /// Every key that an operation may have touched.
    pub fn keys(&self) -> impl Iterator<Item = u32> + use<> {
        (0..self.register_count).chain(COUNTER_KEY_MIN..=self.counter)
    }

    fn value(&mut self) -> i64 {
        self.next_value += 1;
        self.next_value
    }

    fn increment(&mut self) -> (u32, Call) {
        if self.increments == once::INCREMENTS_MAX {
            self.counter += 1;
            self.increments = 0;
        }
        self.increments += 1;
        (self.counter, Call::Incr(once::amount(self.increments - 1)))
    }
}
