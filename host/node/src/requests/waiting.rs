//! What waits here for a time or for another node: found by number and by time.

use hedgerow_types::Instant;
use std::collections::{BTreeMap, BTreeSet};

/// Waiting requests, each with what is to be done with it.
#[derive(Debug)]
pub(crate) struct Waiting<T> {
    requests: BTreeMap<u64, One<T>>,
    by_time: BTreeSet<(Instant, u64)>,
    /// What all of them count.
    bytes: usize,
}

#[derive(Debug)]
struct One<T> {
    until: Instant,
    bytes: usize,
    value: T,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self { requests: BTreeMap::new(), by_time: BTreeSet::new(), bytes: 0 }
    }
}

impl<T> Waiting<T> {
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Bytes that all of them count.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// `number` must be new.
    pub(crate) fn insert(&mut self, number: u64, until: Instant, bytes: usize, value: T) {
        self.bytes += bytes;
        self.requests.insert(number, One { until, bytes, value });
        self.by_time.insert((until, number));
    }

    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        self.requests.get(&number).map(|one| &one.value)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.requests.values().map(|one| &one.value)
    }

    /// Those that wait, with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.requests.iter().map(|(number, one)| (*number, &one.value))
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let One { until, bytes, value } = self.requests.remove(&number)?;
        self.bytes -= bytes;
        self.by_time.remove(&(until, number));
        Some(value)
    }

    /// Until when the first one waits.
    pub(crate) fn first(&self) -> Option<Instant> {
        self.by_time.first().map(|(until, _)| *until)
    }

    /// The first one that waits until `now` at most.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<T> {
        self.pop_due_with(now).map(|(_, value)| value)
    }

    /// The same with its number.
    pub(crate) fn pop_due_with(&mut self, now: Instant) -> Option<(u64, T)> {
        let (until, number) = *self.by_time.first()?;
        if until > now { None } else { self.remove(number).map(|value| (number, value)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_comes_in_the_order_of_time() {
        let mut waiting = Waiting::default();
        for (number, until) in [(1, 30), (2, 10), (3, 20)] {
            waiting.insert(number, Instant(until), 5, until);
        }
        assert_eq!((waiting.first(), waiting.pop_due(Instant(9)), waiting.bytes()), (Some(Instant(10)), None, 15));
        assert_eq!((waiting.pop_due(Instant(20)), waiting.pop_due(Instant(20))), (Some(10), Some(20)));
        assert_eq!((waiting.pop_due(Instant(20)), waiting.get(1)), (None, Some(&30)));
    }

    #[test]
    fn r17_what_leaves_leaves_nothing_behind() {
        let mut waiting = Waiting::default();
        (0..100).for_each(|number| waiting.insert(number, Instant(number % 7), number as usize, number));
        assert_eq!((waiting.remove(0), waiting.remove(0), waiting.remove(1)), (Some(0), None, Some(1)));
        assert_eq!(std::iter::from_fn(|| waiting.pop_due(Instant(9))).count(), 98);
        assert_eq!((waiting.len(), waiting.by_time.len(), waiting.bytes()), (0, 0, 0));
    }
}
