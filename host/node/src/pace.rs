//! How fast a group's log grows, and so whether a replica that lacks its end has caught up.
//!
//! A replica is near if what it lacks was written within the last second: under load that is thousands of entries, and a
//! fixed number would never be reached.

use hedgerow_types::{Index, Instant};
use std::collections::VecDeque;
use std::time::Duration;

/// Entries that anybody may lack.
pub(crate) const ENTRIES_NEAR: u64 = 256;
/// What a replica that is near lacks is younger.
const NEAR: Duration = Duration::from_secs(1);
/// Time between two samples.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);

/// The last index of a log at several times, oldest first; all but the first are younger than [`NEAR`].
#[derive(Debug, Default)]
pub(crate) struct Pace {
    samples: VecDeque<(Instant, Index)>,
}

impl Pace {
    pub(crate) fn note(&mut self, last: Index, now: Instant) {
        if self.samples.back().is_some_and(|(at, _)| now.since(*at) < SAMPLE_EVERY) {
            return;
        }
        self.samples.push_back((now, last));
        while self.samples.get(1).is_some_and(|(at, _)| now.since(*at) >= NEAR) {
            self.samples.pop_front();
        }
    }

    /// Whether a replica that holds everything up to `matched` of a log that ends with `last` has caught up.
    pub(crate) fn is_near(&self, matched: Index, last: Index) -> bool {
        let (oldest, newest) = (self.samples.front(), self.samples.back());
        let spanned = oldest.zip(newest).filter(|(oldest, newest)| newest.0.since(oldest.0) >= NEAR - SAMPLE_EVERY);
        matched + ENTRIES_NEAR >= last || spanned.is_some_and(|(oldest, _)| matched >= oldest.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_within_a_second_may_be_lacking() {
        let mut pace = Pace::default();
        for tick in 0..40_u64 {
            pace.note(tick * 500, Instant(tick * 50_000_000));
        }
        let last = 39 * 500;
        assert!(pace.is_near(last - 9_000, last));
        assert!(!pace.is_near(last - 12_000, last));
        assert!(pace.is_near(last - 256, last));
    }

    #[test]
    fn a_new_leader_knows_no_rate_yet() {
        let mut pace = Pace::default();
        pace.note(0, Instant(0));
        pace.note(10_000, Instant(500_000_000));
        assert!(!pace.is_near(9_000, 10_000));
        assert!(pace.is_near(9_900, 10_000));
    }
}
