//! Waiting for a moment more exactly than to the millisecond of the runtime's own timer: one timer of the kernel for all
//! that wait on one thread.

use hedgerow_env::Clock as _;
use hedgerow_env::os::OsClock;
use hedgerow_env::timer::AsyncTimer;
use hedgerow_types::Instant;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Wakes whoever waits on its thread. [`Alarm::serve`] has to run beside them.
pub(super) struct Alarm {
    timer: AsyncTimer,
    waiting: RefCell<BTreeMap<(Instant, u64), Waker>>,
    last: Cell<u64>,
}

impl Alarm {
    /// To be made within a runtime.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { timer: AsyncTimer::new()?, waiting: RefCell::default(), last: Cell::new(0) })
    }

    /// Wakes those whose time has come, for ever.
    pub(super) async fn serve(&self) -> io::Result<()> {
        loop {
            self.timer.wait().await?;
            let now = OsClock.now();
            loop {
                let mut waiting = self.waiting.borrow_mut();
                let Some(first) = waiting.first_entry().filter(|first| first.key().0 <= now) else { break };
                let waker = first.remove();
                drop(waiting);
                waker.wake();
            }
            if let Some(((first, _), _)) = self.waiting.borrow().first_key_value() {
                self.timer.set(*first)?;
            }
        }
    }

    /// Ready at `at`.
    pub(super) fn sleep_until(&self, at: Instant) -> Sleep<'_> {
        self.last.set(self.last.get() + 1);
        Sleep { alarm: self, key: (at, self.last.get()) }
    }
}

/// A wait.
pub(super) struct Sleep<'a> {
    alarm: &'a Alarm,
    key: (Instant, u64),
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if OsClock.now() >= self.key.0 {
            return Poll::Ready(());
        }
        let mut waiting = self.alarm.waiting.borrow_mut();
        let is_first = waiting.first_key_value().is_none_or(|(first, _)| self.key < *first);
        waiting.insert(self.key, context.waker().clone());
        drop(waiting);
        if is_first {
            self.alarm.timer.set(self.key.0).expect("the time and the descriptor are valid");
        }
        Poll::Pending
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        self.alarm.waiting.borrow_mut().remove(&self.key);
    }
}
