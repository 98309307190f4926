//! Linearizable reads that wait at a leader, and questions of other replicas: first for the proof that this replica still led
//! when they arrived, then for the storage.
//!
//! Reads are kept in the order of their arrival, which is also the order of the indices they need, so those that are
//! confirmed are always the first ones. Each keeps the index of its own arrival: a later, smaller answer cannot replace it.

use hedgerow_types::{Index, Instant};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
struct Read<K> {
    key: K,
    arrived: Instant,
    /// What the storage must have applied; `None` until the leader has committed an entry of its own term.
    index: Option<Index>,
}

/// Reads named by `K`: a ticket, or who asks with which question.
#[derive(Debug)]
pub(crate) struct Reads<K> {
    /// By their numbers, which rise as they come.
    waiting: BTreeMap<u64, Read<K>>,
    next: u64,
    /// Reads with smaller numbers are known to have arrived while this replica led.
    confirmed_to: u64,
    /// Reads that ended because the leadership did.
    refused: BTreeMap<u64, K>,
    /// The number of each, so that to cancel one does not cost more where many wait (N11).
    numbers: BTreeMap<K, u64>,
}

impl<K> Default for Reads<K> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), next: 0, confirmed_to: 0, refused: BTreeMap::new(), numbers: BTreeMap::new() }
    }
}

impl<K: Copy + Ord> Reads<K> {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.refused.is_empty()
    }

    pub(crate) fn has_unconfirmed(&self) -> bool {
        self.waiting.last_key_value().is_some_and(|(number, _)| *number >= self.confirmed_to)
    }

    pub(crate) fn push(&mut self, key: K, arrived: Instant, index: Option<Index>) {
        if let Some(commit) = index {
            // The first commit of the term may have come since the others arrived: those without an index stay the last.
            self.assign(commit);
        }
        self.waiting.insert(self.next, Read { key, arrived, index });
        self.numbers.insert(key, self.next);
        self.next += 1;
    }

    pub(crate) fn cancel(&mut self, key: &K) {
        if let Some(number) = self.numbers.remove(key) {
            self.waiting.remove(&number);
            self.refused.remove(&number);
        }
    }

    /// The leadership is over: nothing that waits may be served.
    pub(crate) fn refuse_all(&mut self) {
        let refused = core::mem::take(&mut self.waiting).into_iter();
        self.refused.extend(refused.map(|(number, read)| (number, read.key)));
        self.confirmed_to = self.next;
    }

    pub(crate) fn take_refused(&mut self) -> Vec<K> {
        let refused: Vec<K> = core::mem::take(&mut self.refused).into_values().collect();
        refused.iter().for_each(|key| self.forget(key));
        refused
    }

    fn forget(&mut self, key: &K) {
        self.numbers.remove(key);
    }

    /// The replica led at `time`, so it led when everything until then arrived.
    pub(crate) fn confirm(&mut self, time: Instant) {
        let unconfirmed = self.waiting.range(self.confirmed_to..);
        if let Some((number, _)) = unconfirmed.take_while(|(_, read)| read.arrived <= time).last() {
            self.confirmed_to = number + 1;
        }
    }

    /// The leader has committed in its term, `commit` at least: reads without an index need this one.
    pub(crate) fn assign(&mut self, commit: Index) {
        let unassigned = self.waiting.values_mut().rev().take_while(|read| read.index.is_none());
        unassigned.for_each(|read| read.index = Some(commit));
    }

    /// Takes the confirmed reads whose index is applied: `serve(read, index)`.
    pub(crate) fn release(&mut self, applied: Index, mut serve: impl FnMut(K, Index)) {
        while let Some((&number, &Read { key, index: Some(index), .. })) = self.waiting.first_key_value()
            && number < self.confirmed_to
            && index <= applied
        {
            self.waiting.remove(&number);
            self.forget(&key);
            serve(key, index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn released(reads: &mut Reads<u64>, applied: Index) -> Vec<u64> {
        let mut tickets = Vec::new();
        reads.release(applied, |ticket, _| tickets.push(ticket));
        tickets
    }

    #[test]
    fn a_read_waits_for_confirmation_and_for_its_own_index() {
        let mut reads = Reads::default();
        reads.push(1, Instant(10), Some(5));
        reads.push(2, Instant(20), Some(7));
        assert_eq!(released(&mut reads, 9), []);
        reads.confirm(Instant(10));
        assert_eq!(released(&mut reads, 4), []);
        assert_eq!(released(&mut reads, 9), [1]);
        assert!(reads.has_unconfirmed());
        reads.confirm(Instant(20));
        assert_eq!(released(&mut reads, 6), []);
        assert_eq!(released(&mut reads, 7), [2]);
    }

    #[test]
    fn reads_of_a_new_leader_get_their_index_at_its_first_commit() {
        let mut reads = Reads::default();
        reads.push(1, Instant(10), None);
        reads.push(2, Instant(11), None);
        reads.confirm(Instant(11));
        assert_eq!(released(&mut reads, 100), []);
        reads.assign(101);
        reads.assign(102);
        assert_eq!(released(&mut reads, 101), [1, 2]);
    }

    /// A new leader under load: reads came before its first commit, and one more came after it in the same batch of events.
    #[test]
    fn reads_from_before_the_first_commit_get_their_index_although_a_later_one_has_its_own() {
        let mut reads = Reads::default();
        reads.push(1, Instant(10), None);
        reads.push(2, Instant(11), None);
        reads.push(3, Instant(12), Some(101));
        reads.assign(101);
        reads.confirm(Instant(12));
        assert_eq!(released(&mut reads, 101), [1, 2, 3]);
        assert!(reads.is_empty());
    }

    /// Each was looked for among all that wait, 20 billion looks here. No clock is looked at: done so, this test takes minutes.
    #[test]
    fn n11_to_cancel_a_read_at_a_leader_does_not_cost_more_where_many_wait() {
        const COUNT: u64 = 200_000;
        let mut reads = Reads::default();
        for round in [0, COUNT] {
            (0..COUNT).for_each(|number| reads.push(round + number, Instant(number), Some(1)));
            reads.confirm(Instant(COUNT / 2));
            if round > 0 {
                reads.refuse_all();
            }
            (1..COUNT).rev().for_each(|number| reads.cancel(&(round + number)));
            assert_eq!(reads.numbers.len(), 1);
            let left = if round > 0 { reads.take_refused() } else { released(&mut reads, 1) };
            assert_eq!((left, reads.numbers.len(), reads.is_empty()), (vec![round], 0, true));
        }
    }

    #[test]
    fn a_cancelled_read_does_not_come_back_and_does_not_disturb_the_count() {
        let mut reads = Reads::default();
        (1..=3).for_each(|i| reads.push(i, Instant(i), Some(1)));
        reads.confirm(Instant(2));
        reads.cancel(&1);
        reads.cancel(&3);
        reads.cancel(&99);
        assert_eq!(released(&mut reads, 1), [2]);
        reads.push(4, Instant(4), Some(1));
        reads.refuse_all();
        reads.cancel(&5);
        assert_eq!(reads.take_refused(), [4]);
        assert!(reads.is_empty());
    }
}
