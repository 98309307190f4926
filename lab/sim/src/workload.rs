//! What the clients ask for: a few records under contention, and counters whose every increment can be told apart.

use crate::history::{Answer, Call, Content};
use crate::once::Counters;
use crate::reading::{Mix, TableReads, Wish};
use crate::scenario::Plan;
use crate::session::Sessions;
use hedgerow_types::random::Random;
use std::ops::Range;

/// Keys from here on are counters.
pub const COUNTER_KEY_MIN: u32 = 1_000;
/// What is written to these records expires. They hold a value until then, by true time, and are absent soon after it; both
/// are judged by `oracle.rs` alone.
pub const FLEETING_KEYS: Range<u32> = 900..904;

/// Seconds that `value` lives in a record of [`FLEETING_KEYS`].
pub const fn life_of(value: i64) -> u64 {
    1 + value.unsigned_abs() % 4
}

/// One operation in so many is on a record that expires.
const FLEETING_INTERVAL: u64 = 8;

/// Draws operations. Values are never written twice, so that a read tells which write it saw.
#[derive(Debug)]
pub struct Workload {
    random: Random,
    register_count: u32,
    write_percent: u64,
    mix: Mix,
    table: TableReads,
    /// What the clients' sessions have seen.
    pub sessions: Sessions,
    next_value: i64,
    /// What a register was last seen to hold, for swaps that have a chance.
    seen: Vec<Content>,
    counters: Counters,
}

impl Workload {
    /// The workload of `plan`, over its registers (at least 1) besides the counters.
    pub fn new(plan: &Plan, random: Random) -> Self {
        Self {
            random,
            register_count: plan.register_count,
            write_percent: plan.write_percent,
            mix: plan.mix,
            table: plan.table_reads,
            sessions: Sessions::new(plan.client_count as usize),
            next_value: 0,
            seen: vec![None; plan.register_count as usize],
            counters: Counters::from(COUNTER_KEY_MIN),
        }
    }

    /// The next operation of some client.
    pub fn draw(&mut self) -> Wish {
        let mut key = self.random.below(u64::from(self.register_count)) as u32;
        if self.random.chance(1, FLEETING_INTERVAL) {
            key = FLEETING_KEYS.start + key % FLEETING_KEYS.len() as u32;
        }
        if !self.random.chance(self.write_percent, 100) {
            let key = if self.random.chance(1, 6) { self.counters.key() } else { key };
            return self.mix.draw(key, &self.table, &mut self.random);
        }
        let (key, call) = self.draw_write(key);
        self.mix.draw_write(key, call, &mut self.random)
    }

    fn draw_write(&mut self, key: u32) -> (u32, Call) {
        match self.random.below(10) {
            _ if FLEETING_KEYS.contains(&key) => (key, Call::Put(self.value())),
            0..4 => (key, Call::Put(self.value())),
            4 => (key, Call::Remove),
            5 | 6 => (key, Call::Swap { expected: self.seen[key as usize], new: self.value() }),
            _ => self.counters.increment(),
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
        (0..self.register_count).chain(FLEETING_KEYS).chain(COUNTER_KEY_MIN..=self.counters.key())
    }

    fn value(&mut self) -> i64 {
        self.next_value += 1;
        self.next_value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn workload(register_count: u32, write_percent: u64) -> Workload {
        let plan = Plan { register_count, write_percent, ..Plan::new(1, None, None) };
        Workload::new(&plan, Random::new(1))
    }

    #[test]
    fn no_value_is_written_twice_and_no_two_increments_of_a_counter_are_equal() {
        let mut workload = workload(3, 80);
        let (mut values, mut increments) = (BTreeSet::new(), BTreeSet::new());
        for _ in 0..2_000 {
            let Wish { key, call, .. } = workload.draw();
            let is_new = match call {
                Call::Put(value) | Call::Swap { new: value, .. } => values.insert(value),
                Call::Incr(by) => increments.insert((key, by)),
                Call::Get(_) | Call::Remove => true,
            };
            assert!(is_new, "{call:?}");
            assert!(workload.keys().any(|known| known == key));
        }
        assert!(values.len() > 500 && increments.len() > 300);
    }

    #[test]
    fn a_swap_expects_what_was_seen_last() {
        let mut workload = workload(1, 100);
        workload.note(0, &Call::Put(7), &Answer::Done);
        let swap = std::iter::repeat_with(|| workload.draw().call).find(|call| matches!(call, Call::Swap { .. }));
        assert!(matches!(swap, Some(Call::Swap { expected: Some(7), .. })));
        workload.note(0, &Call::Remove, &Answer::Done);
        let swap = std::iter::repeat_with(|| workload.draw().call).find(|call| matches!(call, Call::Swap { .. }));
        assert!(matches!(swap, Some(Call::Swap { expected: None, .. })));
    }
}
