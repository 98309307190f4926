//! How old the data of a replica may be, by its own proof and its own clock, and when the proof is to be renewed.
//!
//! ```text
//! replica's clock    q: asks          a: takes the index     b: has applied it       now: serves
//!                     \              /                                                age = (now - q) / (1 - rho)
//! leader               index taken --
//! ```
//!
//! The index covers everything acknowledged before q, and it was committed for ever, so the proof never becomes wrong: it
//! outlives leaders and terms and only grows old. It counts from the asking, not from the answer: what was acknowledged
//! while the answer travelled is not in it. A response to a heartbeat is such a question, and a later heartbeat its answer.

use core::time::Duration;
use hedgerow_types::{Index, Instant};
use std::collections::VecDeque;

/// Proofs whose index is not applied yet. When there are more, every second one is dropped.
const UNAPPLIED_MAX: usize = 64;
/// For how long reads of one bound keep the proof fresh: this many times the bound, or the least time if that is longer. Long,
/// because the bounded reads that matter most are rare: they are sent when the leader is slow, and a replica without proof
/// would have to ask exactly that leader.
const DEMAND_BOUNDS: u32 = 600;
const DEMAND_MIN: Duration = Duration::from_secs(2);
/// Responses to heartbeats that a heartbeat may be the answer to,
const STAMPS_MAX: usize = 16;
/// and how far they are apart at least, so that they are those of 0.6 s and more: a response that follows another one sooner
/// carries its stamp.
const STAMP_GAP_MIN: Duration = Duration::from_millis(40);
/// The proof is not renewed more often than this.
const REFRESH_MIN: Duration = Duration::from_millis(5);

/// The proofs of one replica, and the demand for them.
#[derive(Debug, Default)]
pub(crate) struct Freshness {
    /// The storage is complete as of this time of the own clock.
    complete_at: Option<Instant>,
    /// Complete as of these times once these indices are applied; both ascend.
    unapplied: VecDeque<(Instant, Index)>,
    /// The latest time in either.
    newest: Instant,
    demand: Option<Demand>,
    /// When the last responses to heartbeats left, oldest first: what a leader gives back has to be one of them.
    stamps: VecDeque<Instant>,
}

/// Somebody reads with this bound.
#[derive(Clone, Copy, Debug)]
struct Demand {
    bound: Duration,
    until: Instant,
}

impl Freshness {
    /// The replica is complete as of `asked_at` once it has applied `index`.
    pub(crate) fn prove(&mut self, asked_at: Instant, index: Index, applied: Index) {
        if self.complete_at.is_some_and(|complete_at| complete_at >= asked_at) {
            return;
        }
        self.newest = self.newest.max(asked_at);
        // A later time with a smaller or equal index says more: what it covers is dropped, and what is covered not kept.
        if self.unapplied.iter().any(|&(time, other)| time >= asked_at && other <= index) {
            return self.apply(applied);
        }
        self.unapplied.retain(|&(time, other)| time > asked_at || other < index);
        let position = self.unapplied.partition_point(|&(time, _)| time < asked_at);
        self.unapplied.insert(position, (asked_at, index));
        if self.unapplied.len() > UNAPPLIED_MAX {
            let mut is_kept = false;
            self.unapplied.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
        }
        self.apply(applied);
    }

    /// A response to a heartbeat leaves. Returns the stamp that it is to carry.
    pub(crate) fn stamp(&mut self, now: Instant) -> Instant {
        if let Some(last) = self.stamps.back()
            && now.since(*last) < STAMP_GAP_MIN
        {
            return *last;
        }
        self.stamps.push_back(now);
        if self.stamps.len() > STAMPS_MAX {
            self.stamps.pop_front();
        }
        now
    }

    /// Whether this process sent a response with this stamp lately. A clock may begin anew with another process, whose stamps say nothing here.
    pub(crate) fn has_stamp(&self, stamp: Instant) -> bool {
        self.stamps.contains(&stamp)
    }

    /// Everything up to `applied` is in the storage. Only then does a proof count (S1).
    pub(crate) fn apply(&mut self, applied: Index) {
        while let Some(&(time, index)) = self.unapplied.front()
            && index <= applied
        {
            self.complete_at = self.complete_at.max(Some(time));
            self.unapplied.pop_front();
        }
    }

    /// The time of the own clock as of which the storage is complete; `None` if there is no proof.
    pub(crate) fn complete_at(&self) -> Option<Instant> {
        self.complete_at
    }

    /// Somebody reads with `bound`: the proof is to be kept fresh enough for a while. A tighter bound replaces a looser
    /// one until it is no longer asked for.
    pub(crate) fn note_demand(&mut self, bound: Duration, now: Instant) {
        if self.demand.is_none_or(|demand| bound <= demand.bound || now >= demand.until) {
            let lasts = bound.saturating_mul(DEMAND_BOUNDS).max(DEMAND_MIN);
            self.demand = Some(Demand { bound, until: now + lasts });
        }
    }

    /// When the proof is to be renewed for those who read: when it is half as old as they allow. `None` without demand.
    pub(crate) fn refresh_at(&self) -> Option<Instant> {
        let demand = self.demand?;
        let due = self.newest + (demand.bound / 2).max(REFRESH_MIN);
        (due < demand.until).then_some(due)
    }

    /// Forgets a demand that is over.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.demand = self.demand.filter(|demand| now < demand.until);
    }

    /// Whether somebody reads with a bound.
    #[cfg(test)]
    fn has_demand(&self) -> bool {
        self.demand.is_some()
    }
}

/// How much true time can have passed at most between two readings of a clock whose rate may be wrong by
/// `rate_error_ppm`: the difference / (1 - rho), rounded up.
pub fn age(since: Instant, now: Instant, rate_error_ppm: u32) -> Duration {
    let million = 1_000_000_u128;
    let nanos = (now.since(since).as_nanos() * million).div_ceil(million - u128::from(rate_error_ppm));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: u64 = 1_000_000;

    fn at(millis: u64) -> Instant {
        Instant((1_000 + millis) * MILLI)
    }

    #[test]
    fn a_proof_counts_when_its_index_is_applied_and_from_the_asking() {
        let mut freshness = Freshness::default();
        freshness.prove(at(10), 7, 5);
        assert_eq!(freshness.complete_at(), None);
        freshness.apply(6);
        assert_eq!(freshness.complete_at(), None);
        freshness.prove(at(20), 9, 6);
        freshness.apply(7);
        assert_eq!(freshness.complete_at(), Some(at(10)));
        freshness.prove(at(30), 7, 7);
        assert_eq!(freshness.complete_at(), Some(at(30)));
        freshness.apply(9);
        assert_eq!(freshness.complete_at(), Some(at(30)), "it never goes back");
    }

    #[test]
    fn proofs_out_of_order_keep_what_says_more() {
        let mut freshness = Freshness::default();
        freshness.prove(at(20), 9, 1);
        freshness.prove(at(10), 12, 1);
        freshness.prove(at(15), 5, 1);
        assert_eq!(freshness.unapplied, [(at(15), 5), (at(20), 9)]);
        freshness.prove(at(30), 4, 1);
        assert_eq!(freshness.unapplied, [(at(30), 4)]);
    }

    #[test]
    fn a_replica_that_applies_slowly_keeps_a_bounded_number_of_proofs_and_still_gets_on() {
        let mut freshness = Freshness::default();
        for i in 0..1_000 {
            freshness.prove(at(i), i + 100, i);
            assert!(freshness.unapplied.len() <= UNAPPLIED_MAX);
        }
        let complete_at = freshness.complete_at().expect("a proof");
        assert!(complete_at >= at(700), "{complete_at:?}");
    }

    #[test]
    fn the_proof_is_renewed_only_while_somebody_reads() {
        let mut freshness = Freshness::default();
        freshness.prove(at(0), 1, 1);
        assert_eq!(freshness.refresh_at(), None);
        let ms = Duration::from_millis;
        freshness.note_demand(ms(1_000), at(100));
        assert_eq!(freshness.refresh_at(), Some(at(500)));
        freshness.note_demand(ms(2), at(100));
        freshness.note_demand(ms(1_000), at(200));
        assert_eq!(freshness.refresh_at(), Some(at(5)));
        freshness.prove(at(2_097), 1, 1);
        assert_eq!(freshness.refresh_at(), None, "the demand ends before");
        freshness.tick(at(2_100));
        assert!(!freshness.has_demand());
        freshness.note_demand(ms(1_000), at(2_200));
        assert_eq!(freshness.refresh_at(), Some(at(2_597)));
    }

    #[test]
    fn only_stamps_that_left_lately_are_answered() {
        let mut freshness = Freshness::default();
        assert!(!freshness.has_stamp(at(5)), "of another process, or invented");
        for i in 0..20 {
            assert_eq!(freshness.stamp(at(100 * i)), at(100 * i));
            assert_eq!(freshness.stamp(at(100 * i + 39)), at(100 * i), "many responses at once are one question");
        }
        assert!(!freshness.has_stamp(at(300)) && freshness.has_stamp(at(400)) && freshness.has_stamp(at(1_900)));
        assert_eq!(freshness.stamps.len(), STAMPS_MAX);
    }

    #[test]
    fn an_age_is_what_the_slowest_allowed_clock_may_hide() {
        assert_eq!(age(at(0), at(100), 0), Duration::from_millis(100));
        assert_eq!(age(at(0), at(99), 10_000), Duration::from_millis(100));
        assert_eq!(age(Instant(0), Instant(1), 5_000), Duration::from_nanos(2));
        assert_eq!(age(at(5), at(1), 5_000), Duration::ZERO);
        assert_eq!(age(Instant(0), Instant(u64::MAX), 100_000), Duration::from_nanos(u64::MAX));
    }
}
