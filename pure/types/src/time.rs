//! Time as data: a point on a monotonic clock is a number that the caller passes in.

use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

/// A point on one machine's monotonic clock, in nanoseconds. Points of different machines cannot be compared; only
/// elapsed time is ever used, and clock rates are assumed to lie within `1 +- rho` of each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// The clock's zero, earlier than anything that happens.
    pub const ZERO: Self = Self(0);

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;
    fn sub(self, rhs: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}s", self.0 as f64 / 1e9)
    }
}

/// Seconds from 1970 to 2016-01-01, the epoch in which records count their expiry.
pub const EXPIRY_EPOCH_UNIX_SECONDS: u64 = 1_451_606_400;

/// `unix_micros` in the expiry epoch's seconds; 0 before 2016.
pub const fn expiry_seconds(unix_micros: u64) -> u32 {
    let seconds = (unix_micros / 1_000_000).saturating_sub(EXPIRY_EPOCH_UNIX_SECONDS);
    if seconds > u32::MAX as u64 { u32::MAX } else { seconds as u32 }
}

/// The beginning of a second of the expiry epoch, in microseconds since 1970.
pub const fn unix_micros(expiry_seconds: u32) -> u64 {
    (EXPIRY_EPOCH_UNIX_SECONDS + expiry_seconds as u64) * 1_000_000
}

/// Whether a record that expires at `expire_at` (expiry-epoch seconds, 0 = never) is dead at `now`.
pub const fn is_expired(expire_at: u32, now: u32) -> bool {
    expire_at != 0 && expire_at <= now
}
