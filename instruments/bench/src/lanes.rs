//! Requests in flight: futures of one type, polled by one task, in slots that are used again.
//!
//! A task per request would cost an allocation and the runtime's queue. Here a slot that was woken puts its number on a
//! list, and the one task polls what is on it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Slots for futures, each with a tag that says what it is about.
pub(crate) struct Lanes<F, T> {
    slots: Vec<Slot<F, T>>,
    free: Vec<u32>,
    bell: Arc<Bell>,
    woken: Vec<u32>,
}

struct Slot<F, T> {
    future: Pin<Box<Option<F>>>,
    tag: Option<T>,
    waker: Waker,
}

/// The slots that were woken, and the task to tell.
#[derive(Debug, Default)]
pub(crate) struct Bell(Mutex<Rung>);

#[derive(Debug, Default)]
struct Rung {
    slots: Vec<u32>,
    task: Option<Waker>,
}

impl Bell {
    fn lock(&self) -> MutexGuard<'_, Rung> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the task take a turn.
    pub(crate) fn ring(&self) {
        let task = self.lock().task.clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}

struct SlotBell {
    index: u32,
    bell: Arc<Bell>,
}

impl Wake for SlotBell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut rung = self.bell.lock();
        rung.slots.push(self.index);
        // The first one to ring tells the task, which then finds all of them.
        let task = if rung.slots.len() == 1 { rung.task.clone() } else { None };
        drop(rung);
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl<F: Future, T> Lanes<F, T> {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), bell: Arc::default(), woken: Vec::new() }
    }

    /// What rings when a slot can go on.
    pub(crate) fn bell(&self) -> Arc<Bell> {
        self.bell.clone()
    }

    /// Futures that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Starts a future and polls it once; gives its result if that was enough.
    pub(crate) fn start(&mut self, future: F, tag: T) -> Option<(F::Output, T)> {
        let index = self.free.pop().unwrap_or_else(|| self.add_slot());
        let slot = &mut self.slots[index as usize];
        slot.future.set(Some(future));
        slot.tag = Some(tag);
        self.poll_slot(index)
    }

    /// Remembers whom to tell, and hands the results of all futures that have ended to `ended`.
    pub(crate) fn poll_woken(&mut self, context: &Context<'_>, mut ended: impl FnMut(F::Output, T)) {
        let mut woken = std::mem::take(&mut self.woken);
        let mut rung = self.bell.lock();
        if !rung.task.as_ref().is_some_and(|task| task.will_wake(context.waker())) {
            rung.task = Some(context.waker().clone());
        }
        std::mem::swap(&mut rung.slots, &mut woken);
        drop(rung);
        for index in woken.drain(..) {
            if let Some((output, tag)) = self.poll_slot(index) {
                ended(output, tag);
            }
        }
        self.woken = woken;
    }

    /// Gives up all futures; their tags remain.
    pub(crate) fn abandon(&mut self) -> impl Iterator<Item = T> {
        self.free.clear();
        self.slots.drain(..).filter_map(|slot| slot.tag)
    }

    fn add_slot(&mut self) -> u32 {
        let index = self.slots.len() as u32;
        let waker = Arc::new(SlotBell { index, bell: self.bell.clone() }).into();
        self.slots.push(Slot { future: Box::pin(None), tag: None, waker });
        index
    }

    /// A slot may have been woken more often than it had to, or by a future that has ended: then nothing happens.
    fn poll_slot(&mut self, index: u32) -> Option<(F::Output, T)> {
        let slot = &mut self.slots[index as usize];
        let future = slot.future.as_mut().as_pin_mut()?;
        let Poll::Ready(output) = future.poll(&mut Context::from_waker(&slot.waker)) else { return None };
        slot.future.set(None);
        self.free.push(index);
        let tag = slot.tag.take().expect("a slot with a future has a tag");
        Some((output, tag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    fn poll<F: Future>(lanes: &mut Lanes<F, u32>) -> Vec<(F::Output, u32)> {
        let mut ended = Vec::new();
        lanes.poll_woken(&Context::from_waker(Waker::noop()), |output, tag| ended.push((output, tag)));
        ended
    }

    #[test]
    fn futures_end_in_the_order_in_which_they_are_woken_and_leave_their_slots() {
        let mut lanes = Lanes::new();
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..3).map(|_| oneshot::channel::<u8>()).unzip();
        let mut senders: Vec<_> = senders.into_iter().map(Some).collect();
        for (tag, receiver) in receivers.into_iter().enumerate() {
            assert!(lanes.start(receiver, tag as u32).is_none());
        }
        assert!(poll(&mut lanes).is_empty());
        for index in [2, 0] {
            senders[index].take().unwrap().send(index as u8).unwrap();
        }
        assert_eq!(poll(&mut lanes), [(Ok(2), 2), (Ok(0), 0)]);
        assert_eq!(lanes.len(), 1);
        let (sender, receiver) = oneshot::channel();
        sender.send(9).unwrap();
        assert_eq!(lanes.start(receiver, 7), Some((Ok(9), 7)));
        assert_eq!(lanes.slots.len(), 3);
        assert_eq!(lanes.abandon().collect::<Vec<_>>(), [1]);
        assert_eq!(lanes.len(), 0);
    }
}
