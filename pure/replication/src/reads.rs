//! Linearizable reads that wait at a leader, and questions of other replicas: first for the proof that this replica still led
//! when they arrived, then for the storage.
//!
//! Reads are kept in the order of their arrival, which is also the order of the indices they need, so those that are
//! confirmed are always the first ones. Each keeps the index of its own arrival: a later, smaller answer cannot replace it.

use hedgerow_types::{Index, Instant};
use std::collections::VecDeque;

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
    waiting: VecDeque<Read<K>>,
    /// How many from the front are known to have arrived while this replica led.
    confirmed: usize,
    /// Reads that ended because the leadership did.
    refused: Vec<K>,
}

impl<K> Default for Reads<K> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), confirmed: 0, refused: Vec::new() }
    }
}

impl<K: Copy + PartialEq> Reads<K> {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.refused.is_empty()
    }

    pub(crate) fn has_unconfirmed(&self) -> bool {
        self.confirmed < self.waiting.len()
    }

    pub(crate) fn push(&mut self, key: K, arrived: Instant, index: Option<Index>) {
        if let Some(commit) = index {
            // The first commit of the term may have come since the others arrived: those without an index stay the last.
            self.assign(commit);
        }
        self.waiting.push_back(Read { key, arrived, index });
    }

    pub(crate) fn cancel(&mut self, key: &K) {
        if let Some(position) = self.waiting.iter().position(|read| read.key == *key) {
            self.waiting.remove(position);
            self.confirmed -= usize::from(position < self.confirmed);
        }
        self.refused.retain(|refused| refused != key);
    }

    /// The leadership is over: nothing that waits may be served.
    pub(crate) fn refuse_all(&mut self) {
        self.refused.extend(self.waiting.drain(..).map(|read| read.key));
        self.confirmed = 0;
    }

    pub(crate) fn take_refused(&mut self) -> Vec<K> {
        core::mem::take(&mut self.refused)
    }

    /// The replica led at `time`, so it led when everything until then arrived.
    pub(crate) fn confirm(&mut self, time: Instant) {
        while self.waiting.get(self.confirmed).is_some_and(|read| read.arrived <= time) {
            self.confirmed += 1;
        }
    }

    /// The leader has committed in its term, `commit` at least: reads without an index need this one.
    pub(crate) fn assign(&mut self, commit: Index) {
        let unassigned = self.waiting.iter_mut().rev().take_while(|read| read.index.is_none());
        unassigned.for_each(|read| read.index = Some(commit));
    }

    /// Takes the confirmed reads whose index is applied: `serve(read, index)`.
    pub(crate) fn release(&mut self, applied: Index, mut serve: impl FnMut(K, Index)) {
        while self.confirmed > 0
            && let Some(&Read { key, index: Some(index), .. }) = self.waiting.front()
            && index <= applied
        {
            self.waiting.pop_front();
            self.confirmed -= 1;
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
