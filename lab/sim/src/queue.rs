//! What happens next: events by time, and at one instant in the order in which they were pushed.

use crate::history::Time;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Future events. Popping one moves time to it.
#[derive(Debug)]
pub struct Queue<E> {
    heap: BinaryHeap<Waiting<E>>,
    pushed: u64,
    now: Time,
}

#[derive(Debug)]
struct Waiting<E> {
    at: Time,
    order: u64,
    event: E,
}

impl<E> PartialEq for Waiting<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Waiting<E> {}

impl<E> PartialOrd for Waiting<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Waiting<E> {
    /// Reversed: the heap's largest is the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), pushed: 0, now: 0 }
    }
}

impl<E> Queue<E> {
    /// The present.
    pub const fn now(&self) -> Time {
        self.now
    }

    /// Lets `event` happen at `at`, or now if that has passed.
    pub fn push(&mut self, at: Time, event: E) {
        self.pushed += 1;
        self.heap.push(Waiting { at: at.max(self.now), order: self.pushed, event });
    }

    /// When the next event happens.
    pub fn next_at(&self) -> Option<Time> {
        self.heap.peek().map(|next| next.at)
    }

    /// Time moves to `at`, before which nothing happens here.
    pub fn pass_to(&mut self, at: Time) {
        debug_assert!(self.next_at().is_none_or(|next| next >= at), "no event is passed over");
        self.now = self.now.max(at);
    }

    /// The next event, unless it lies after `until`; time then moves to `until`.
    pub fn pop(&mut self, until: Time) -> Option<E> {
        if self.heap.peek().is_none_or(|next| next.at > until) {
            self.now = self.now.max(until);
            return None;
        }
        let next = self.heap.pop()?;
        self.now = next.at;
        Some(next.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_by_order() {
        let mut queue = Queue::default();
        for (at, event) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b'), (9, 'e')] {
            queue.push(at, event);
        }
        let popped: Vec<(char, Time)> = std::iter::from_fn(|| queue.pop(6).map(|event| (event, queue.now()))).collect();
        assert_eq!(popped, [('a', 3), ('b', 3), ('c', 5), ('d', 5)]);
        assert_eq!(queue.now(), 6);
        queue.push(1, 'f');
        assert_eq!((queue.pop(99), queue.now()), (Some('f'), 6), "the past cannot be changed");
    }
}
