//! A rate of so many per second, kept without a clock: what has been taken, as the time that it takes to refill.

use hedgerow_types::Instant;
use std::time::Duration;

/// What a bucket holds: what is refilled in so long.
const HELD: Duration = Duration::from_secs(1);

/// Tokens for one second, refilled all the time; at least one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    /// When it would be full, if nothing more were taken.
    full_at: Instant,
}

impl Bucket {
    /// Takes a token, if there is one. They come at this interval; `None`: never.
    pub(crate) fn take(&mut self, interval: Option<Duration>, now: Instant) -> bool {
        let Some(interval) = interval else { return false };
        let full_at = self.full_at.max(now) + interval;
        let has_one = full_at.since(now) <= interval.max(HELD);
        if has_one {
            self.full_at = full_at;
        }
        has_one
    }

    /// Takes what is refilled in `cost`, however little is left: what is lacking has to come back first.
    pub(crate) fn charge(&mut self, cost: Duration, at: Instant) {
        self.full_at = self.full_at.max(at) + cost;
    }

    /// Whether nothing is left.
    pub(crate) fn is_spent(self, now: Instant) -> bool {
        self.full_at.since(now) >= HELD
    }

    /// Whether nothing is missing.
    pub(crate) fn is_full(self, now: Instant) -> bool {
        self.full_at <= now
    }
}
