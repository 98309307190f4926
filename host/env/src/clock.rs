//! What time it is: a steady clock for durations and leases, a wall clock for expiry and for people.

use hedgerow_types::Instant;

/// Both readings of a clock, taken together. Event handlers get this instead of a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The steady clock: never goes back, goes on while the machine sleeps.
    pub instant: Instant,
    /// Microseconds since 1970 by the wall clock, which may step either way.
    pub unix_micros: u64,
}

/// A source of time. Two clocks agree on nothing but the length of a second, within the configured rate error.
pub trait Clock: Send + Sync {
    /// The steady clock. Its zero means nothing and differs from machine to machine.
    fn now(&self) -> Instant;

    /// The wall clock, in microseconds since 1970.
    fn unix_micros(&self) -> u64;

    /// Both readings.
    fn read(&self) -> Now {
        Now { instant: self.now(), unix_micros: self.unix_micros() }
    }
}
