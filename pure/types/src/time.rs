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

/// How far the log's time may be ahead of the time that a majority agrees on, in seconds, before it is set back. Far above
/// what the times of two leaders can differ by: twice the bound of the clocks, which is at most a minute, and what a clock
/// that nobody corrects gains in a week.
pub const LOG_TIME_AHEAD_MAX: u32 = 300;

/// The log's time after an entry whose leader took it for `now`, all in expiry-epoch seconds; `now` = 0 says nothing.
///
/// It goes ahead with leaders' times and ignores later ones that are a little behind, so that what has expired does not come
/// back. If it is far ahead of an agreed time, a clock was wrong when it got there: it is set back. A function of the log
/// alone, so that all replicas do the same.
pub const fn log_time_after(before: u32, now: u32, is_agreed: bool) -> u32 {
    let is_wrong = is_agreed && now != 0 && before.saturating_sub(now) > LOG_TIME_AHEAD_MAX;
    if is_wrong || now > before { now } else { before }
}

/// Whether a record that expires at `expire_at` (expiry-epoch seconds, 0 = never) is dead at `now`.
pub const fn is_expired(expire_at: u32, now: u32) -> bool {
    expire_at != 0 && expire_at <= now
}
