//! A clock that moves when told, at its own rate.

use crate::clock::Clock;
use hedgerow_types::Instant;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A clock of one simulated node. Clones are the same clock.
#[derive(Clone, Debug)]
pub struct SimClock(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    nanos: u64,
    /// Wall time minus steady time, in microseconds.
    unix_offset_micros: i64,
    rate_error_ppm: i64,
}

impl SimClock {
    /// A clock whose steady time is zero and whose wall time is `unix_micros`.
    pub fn new(unix_micros: u64) -> Self {
        Self(Arc::new(Mutex::new(State { nanos: 0, unix_offset_micros: unix_micros as i64, rate_error_ppm: 0 })))
    }

    /// Lets `elapsed` of true time pass; the clock advances by that times its rate.
    pub fn advance(&self, elapsed: Duration) {
        let mut state = self.state();
        let rate = (1_000_000 + state.rate_error_ppm) as u128;
        state.nanos = state.nanos.saturating_add((elapsed.as_nanos() * rate / 1_000_000) as u64);
    }

    /// Makes the clock run fast (positive) or slow (negative) from now on, in parts per million. Above -1,000,000.
    pub fn set_rate_error_ppm(&self, ppm: i64) {
        assert!(ppm > -1_000_000, "a clock that stands still or runs backwards is not simulated");
        self.state().rate_error_ppm = ppm;
    }

    /// Steps the wall clock. The steady clock does not notice.
    pub fn step_unix_micros(&self, step: i64) {
        self.state().unix_offset_micros += step;
    }

    /// True time that must pass until the steady clock reads `instant` or later, at the present rate.
    pub fn until(&self, instant: Instant) -> Duration {
        let state = self.state();
        let left = instant.0.saturating_sub(state.nanos) as u128;
        let rate = (1_000_000 + state.rate_error_ppm) as u128;
        Duration::from_nanos((left * 1_000_000).div_ceil(rate) as u64)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for SimClock {
    fn now(&self) -> Instant {
        Instant(self.state().nanos)
    }

    fn unix_micros(&self) -> u64 {
        let state = self.state();
        ((state.nanos / 1_000) as i64 + state.unix_offset_micros).max(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_clock_gains_and_a_stepped_wall_clock_leaves_the_steady_one_alone() {
        let clock = SimClock::new(1_000_000);
        clock.set_rate_error_ppm(5_000);
        clock.advance(Duration::from_secs(1));
        assert_eq!(clock.now(), Instant(1_005_000_000));
        clock.step_unix_micros(-500_000);
        assert_eq!(clock.unix_micros(), 1_000_000 + 1_005_000 - 500_000);
        assert_eq!(clock.now(), Instant(1_005_000_000));
        let wait = clock.until(Instant(2_010_000_000));
        assert_eq!(wait, Duration::from_secs(1));
        clock.advance(wait);
        assert!(clock.now() >= Instant(2_010_000_000));
    }
}
