//! What is shared by all requests of one kind: policy, latencies by class and replica, counters.

use crate::policy::{Plan, Policy};
use crate::race::Kind;
use crate::time::Time;
use core::time::Duration;

/// Which latencies are alike: operation, read level and size, numbered by the caller from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class(pub u8);

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its reply decided the request.
    Won,
    /// It succeeded, and another had decided before.
    Late,
    /// It was given up: its latency is at least what is told.
    Cancelled,
    /// It was dropped unrun by its server, as another attempt had begun or as the server had too many.
    Dropped,
    /// It failed; how fast says nothing.
    Failed,
}

/// An attempt that is over, for [`Hedger::note_attempt`].
#[derive(Clone, Copy, Debug)]
pub struct AttemptEnd {
    /// Of which class its request is.
    pub class: Class,
    /// Who was asked, by a number of the caller's.
    pub replica: u64,
    /// Why it was sent.
    pub kind: Kind,
    /// How it ended.
    pub ended: Ended,
    /// How long after it was sent.
    pub took: Duration,
}

/// What happened so far. Extra attempts are counted by [`Kind`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// First attempts.
    pub first: u64,
    /// Extra attempts sent, by [`Kind::index`].
    pub sent: [u64; Kind::COUNT],
    /// Of these: they decided their request.
    pub won: [u64; Kind::COUNT],
    /// Of these: not sent, for want of budget.
    pub suppressed: [u64; Kind::COUNT],
    /// Attempts of any kind that were given up while they ran.
    pub cancelled: u64,
    /// Attempts of any kind that were dropped unrun: cancelled in time.
    pub dropped: u64,
    /// Time that attempts which decided nothing were waited for, microseconds.
    pub wasted_us: u64,
}

/// Decides for all requests of one kind. Not shared between threads by itself: put it behind a lock.
#[derive(Debug)]
pub struct Hedger {
    policy: Policy,
    counters: Counters,
}

impl Hedger {
    /// With nothing known. `seed` decides the draws of policies that hedge with a probability.
    pub fn new(policy: Policy, seed: u64) -> Self {
        let _ = seed;
        Self { policy, counters: Counters::default() }
    }

    /// A request of `class` starts.
    pub fn begin(&mut self, class: Class, now: Time) -> Plan {
        let _ = (class, now, &self.policy);
        self.counters.first += 1;
        Plan::default()
    }

    /// An extra attempt is sent, or not, for want of budget.
    pub fn note_extra(&mut self, kind: Kind, is_sent: bool) {
        let counter = if is_sent { &mut self.counters.sent } else { &mut self.counters.suppressed };
        counter[kind.index()] += 1;
    }

    /// An attempt is over.
    pub fn note_attempt(&mut self, end: AttemptEnd, now: Time) {
        let _ = (end, now);
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }
}
