//! Stepping back: what a failure says about whom, for how long, and how a replica comes back.
//!
//! A replica or node that failed is asked only if all others failed too, for a time that doubles with each failure in
//! a row. Then one request at a time tries it (a probe, without any message of its own), and the first success clears
//! it. A failure says something about one partition's replica on a node, about the whole node, or about the request
//! alone.

use crate::Failure;
use crate::refusal::meaning;
use core::time::Duration;
use hedgerow_types::Instant;

/// How long the first failure sets back.
pub const REPLICA_BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// The longest time that a failure sets back: so long at most does a replica that is well again stay unused.
pub const REPLICA_BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Whom a failure is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The request, or the client's own connection: the replica is as good as before.
    Request,
    /// This partition's replica: it lags, starts, learns or has gone.
    Replica,
    /// The node and all its replicas: it has no room.
    Node,
    /// As [`Scope::Node`], and what was known of its speed is void: it stops, or nobody knows what it does.
    NodeLife,
}

pub(crate) fn scope(failure: Failure<'_>) -> Scope {
    match failure {
        Failure::Unreachable | Failure::ConnectionLost | Failure::NoReply => Scope::NodeLife,
        Failure::Refused(refusal) => meaning(refusal).scope,
    }
}

/// One series of failures.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
    since: Instant,
    until: Instant,
}

impl Backoff {
    pub(crate) fn note_failure(&mut self, now: Instant) {
        // Requests that were under way together fail together and are one failure.
        if self.failures > 0 && now < self.until {
            return;
        }
        let pause = REPLICA_BACKOFF_FIRST.saturating_mul(1 << self.failures.min(16)).min(REPLICA_BACKOFF_MAX);
        *self = Self { failures: self.failures + 1, since: now, until: now + pause };
    }

    /// A request that was sent at `sent` succeeded. One that was under way before the failure says nothing.
    pub(crate) fn note_success(&mut self, sent: Instant) {
        if sent >= self.since {
            *self = Self::default();
        }
    }

    /// Until when others are to be asked first.
    pub(crate) fn until(self) -> Instant {
        self.until
    }

    /// Whether a failure has not been followed by a success.
    pub(crate) fn is_open(self) -> bool {
        self.failures > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    #[test]
    fn failures_in_a_row_set_back_for_longer_up_to_a_limit() {
        let mut backoff = Backoff::default();
        let mut now = at(0);
        let pauses: [u64; 8] = core::array::from_fn(|_| {
            backoff.note_failure(now);
            // Those that were under way fail too, and change nothing.
            backoff.note_failure(now + Duration::from_millis(1));
            let pause = backoff.until().since(now);
            now = backoff.until();
            pause.as_millis() as u64
        });
        assert_eq!(pauses, [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
    }

    #[test]
    fn only_a_success_that_was_sent_after_the_failure_clears_it() {
        let mut backoff = Backoff::default();
        backoff.note_failure(at(10));
        backoff.note_success(at(9));
        assert!(backoff.is_open());
        backoff.note_success(at(11));
        assert!(!backoff.is_open());
    }
}
