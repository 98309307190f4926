//! Sequence numbers of writes: one counter per partition, never two unanswered writes in one slot of its window.
//!
//! The cluster remembers the result of a write in slot `sequence % SESSION_WINDOW` of the client's session in the
//! partition. A number may therefore be given out only while no unanswered write holds a number of the same slot, or the
//! newer write would overwrite what the older one's retry has to find. A slot that is still held is skipped: one slow
//! write must not stop the partition's others.

use hedgerow_types::Sequence;
use hedgerow_types::limit::SESSION_WINDOW;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

const WORDS: usize = (SESSION_WINDOW / 64) as usize;

/// The numbers of one partition's writes.
#[derive(Debug)]
pub(crate) struct Sequences {
    window: Mutex<Window>,
    freed: Notify,
}

#[derive(Debug)]
struct Window {
    next: Sequence,
    held: [u64; WORDS],
}

impl Sequences {
    /// Numbers from `first` (at least 1) on.
    pub(crate) fn starting_at(first: Sequence) -> Arc<Self> {
        Arc::new(Self { window: Mutex::new(Window { next: first.max(1), held: [0; WORDS] }), freed: Notify::new() })
    }

    /// The number that follows every number given out so far.
    pub(crate) fn next(&self) -> Sequence {
        self.lock().next
    }

    /// A number whose slot nobody holds, if there is one. The slot is held until the result is dropped.
    pub(crate) fn try_take(self: &Arc<Self>) -> Option<Held> {
        let sequence = self.lock().take()?;
        Some(Held { sequences: self.clone(), sequence })
    }

    /// As [`Sequences::try_take`], but waits while every slot is held.
    pub(crate) async fn take(self: &Arc<Self>) -> Held {
        loop {
            // Registered before the look, so that a slot freed in between is not missed.
            let freed = self.freed.notified();
            if let Some(held) = self.try_take() {
                return held;
            }
            freed.await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Window {
    fn take(&mut self) -> Option<Sequence> {
        for _ in 0..SESSION_WINDOW {
            let sequence = self.next;
            self.next += 1;
            let (word, bit) = slot(sequence);
            if self.held[word] & bit == 0 {
                self.held[word] |= bit;
                return Some(sequence);
            }
        }
        None
    }
}

fn slot(sequence: Sequence) -> (usize, u64) {
    let slot = sequence % SESSION_WINDOW;
    ((slot / 64) as usize, 1 << (slot % 64))
}

/// A sequence number in use.
#[derive(Debug)]
pub(crate) struct Held {
    sequences: Arc<Sequences>,
    sequence: Sequence,
}

impl Held {
    pub(crate) fn sequence(&self) -> Sequence {
        self.sequence
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (word, bit) = slot(self.sequence);
        self.sequences.lock().held[word] &= !bit;
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
        let sequences = Sequences::starting_at(0);
        let numbers: Vec<_> = (0..5).map(|_| sequences.try_take().expect("free").sequence()).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_slot_in_use_is_skipped_and_later_used_again() {
        let sequences = Sequences::starting_at(1);
        let slow = sequences.try_take().expect("free");
        for _ in 1..SESSION_WINDOW {
            drop(sequences.try_take().expect("free"));
        }
        let after = sequences.try_take().expect("free").sequence();
        assert_eq!(after, SESSION_WINDOW + 2, "the slot of 1 is held");
        drop(slow);
        for _ in 0..SESSION_WINDOW - 2 {
            drop(sequences.try_take().expect("free"));
        }
        assert_eq!(sequences.try_take().expect("free").sequence(), 2 * SESSION_WINDOW + 1);
    }

    #[test]
    fn a_full_window_waits_for_a_free_slot() {
        let sequences = Sequences::starting_at(1);
        let mut all: Vec<_> = (0..SESSION_WINDOW).map(|_| sequences.try_take().expect("free")).collect();
        let mut waiting = pin!(sequences.take());
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        let freed = all.swap_remove(17).sequence();
        match waiting.as_mut().poll(&mut context) {
            Poll::Ready(held) => assert_eq!(held.sequence() % SESSION_WINDOW, freed % SESSION_WINDOW),
            Poll::Pending => panic!("a slot is free"),
        };
    }
}
