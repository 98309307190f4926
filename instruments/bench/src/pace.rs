//! The generator's clock and alarm.
//!
//! The runtime's own timer knows milliseconds. A timer of the kernel that is waited for like a socket wakes within some ten
//! microseconds, on the clock that all processes of the machine share. Whoever needs it more exactly stays awake for the last
//! part of each wait, at the price of a core.

use hedgerow_env::timer::AsyncTimer;
use hedgerow_env::{Clock as _, os::OsClock};
use hedgerow_types::Instant;
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// Time in nanoseconds, from any origin.
pub(crate) trait Pace {
    /// Now.
    fn now(&self) -> u64;

    /// Ready when it is `at` or later, or when sleeping until then would be too late: then look again at once. One wait at a
    /// time: a new time takes the place of the last one.
    fn poll_until(&mut self, at: u64, context: &mut Context<'_>) -> Poll<()>;
}

/// The machine's clock, the same in all processes.
pub(crate) fn machine_now() -> u64 {
    OsClock.now().0
}

/// The machine's clock with a timer of the kernel.
#[derive(Debug)]
pub(crate) struct OsPace {
    timer: AsyncTimer,
    armed: Option<u64>,
    /// How long before the time it does not sleep any more, nanoseconds.
    spin: u64,
}

impl OsPace {
    /// A clock that stays awake for the last `spin` before a time that is waited for.
    pub(crate) fn new(spin: Duration) -> io::Result<Self> {
        let spin = u64::try_from(spin.as_nanos()).unwrap_or(u64::MAX);
        Ok(Self { timer: AsyncTimer::new()?, armed: None, spin })
    }

    fn arm(&mut self, at: u64) {
        if self.armed != Some(at) {
            self.timer.set(Instant(at)).expect("the timer is ours and the time is valid");
            self.armed = Some(at);
        }
    }
}

impl Pace for OsPace {
    fn now(&self) -> u64 {
        machine_now()
    }

    fn poll_until(&mut self, at: u64, context: &mut Context<'_>) -> Poll<()> {
        let wake_at = at.saturating_sub(self.spin);
        if self.now() >= wake_at {
            return Poll::Ready(());
        }
        self.arm(wake_at);
        loop {
            if ready!(self.timer.poll_rung(context)).is_err() {
                // The runtime is ending, and nobody will look at the time again.
                return Poll::Pending;
            }
            // An alarm that was set before may have rung instead.
            if self.now() >= wake_at {
                return Poll::Ready(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    #[tokio::test]
    async fn the_alarm_never_rings_early_and_can_be_moved() {
        let mut pace = OsPace::new(Duration::ZERO).unwrap();
        let start = pace.now();
        // Set far away first: a nearer time must take its place.
        let far = poll_fn(|context| Poll::Ready(pace.poll_until(start + 3_600_000_000_000, context))).await;
        assert!(far.is_pending());
        for step in 1..=20 {
            let at = start + step * 300_000;
            poll_fn(|context| pace.poll_until(at, context)).await;
            assert!(pace.now() >= at);
        }
    }

    #[tokio::test]
    async fn a_clock_that_stays_awake_comes_back_before_the_time() {
        let mut pace = OsPace::new(Duration::from_secs(3_000)).unwrap();
        let at = pace.now() + 2_000_000_000_000;
        poll_fn(|context| pace.poll_until(at, context)).await;
        assert!(pace.now() < at);
        let far = at + 3_000_000_000_000;
        assert!(poll_fn(|context| Poll::Ready(pace.poll_until(far, context))).await.is_pending());
    }
}
