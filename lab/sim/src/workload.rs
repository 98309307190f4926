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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_value_is_written_twice_and_no_two_increments_of_a_counter_are_equal() {
        let mut workload = Workload::new(3, 80, Random::new(1));
        let (mut values, mut increments) = (BTreeSet::new(), BTreeSet::new());
        for _ in 0..2_000 {
            let (key, call) = workload.draw();
            let is_new = match call {
                Call::Put(value) | Call::Swap { new: value, .. } => values.insert(value),
                Call::Incr(by) => increments.insert((key, by)),
                Call::Get | Call::Remove => true,
            };
            assert!(is_new, "{call:?}");
            assert!(workload.keys().any(|known| known == key));
        }
        assert!(values.len() > 500 && increments.len() > 300);
    }

    #[test]
    fn a_swap_expects_what_was_seen_last() {
        let mut workload = Workload::new(1, 100, Random::new(1));
        workload.note(0, &Call::Put(7), &Answer::Done);
        let swap = std::iter::repeat_with(|| workload.draw().1).find(|call| matches!(call, Call::Swap { .. }));
        assert!(matches!(swap, Some(Call::Swap { expected: Some(7), .. })));
        workload.note(0, &Call::Remove, &Answer::Done);
        let swap = std::iter::repeat_with(|| workload.draw().1).find(|call| matches!(call, Call::Swap { .. }));
        assert!(matches!(swap, Some(Call::Swap { expected: None, .. })));
    }
}
