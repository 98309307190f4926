//! Which reads the node's further threads have a part in.
//!
//! With one thread ([`Config::workers`](crate::Config::workers)) all reads that are in memory are served on the node's own. Each further
//! thread does nothing but look for the rows of such reads, in snapshots; what arrives, levels, replies and sockets stay where they are. So
//! a read is given away if
//!
//! - it names [`Config::shared_rows`](crate::Config::shared_rows) rows or more: giving one away costs as much as looking for a few rows;
//! - it is a first attempt, tied to none, of no bound, with time left: the others have no lanes, and what waits there counts as begun;
//! - its keys are few bytes: what waits there is in no budget of bytes;
//! - others wait behind it: if none did, the node's thread would only wait for the answer;
//! - the further threads have not so much to do already that the node's own will be through first.
//!
//! Whether its rows are in memory is not known before. Where they are not, it comes back, goes to the end of its connection's line, and is
//! served as if there were no further threads; and the next few are not given away.

use super::{ReadJob, ReadSize, rows_asked};
use crate::config::READS_AT_ONCE;
use crate::ids::ReplicaKey;
use crate::requests::callers::WaitsIn;
use crate::requests::queue::{Lane, Queued};
use crate::requests::{Requests, Serving};
use hedgerow_env::Now;
use hedgerow_types::op::Read;
use hedgerow_types::{Instant, ReadLevel, Refusal};
use std::time::Duration;

/// Reads that each further thread may have for each that waits for the node's own, which also takes in and answers what others look for.
const SHARE: usize = 3;
/// Reads that each may have in any case, and all together: their replies are kept in memory until the node's thread takes them. With rows
/// of 1 MiB, one more than the budget of each, that is 160 MiB.
const SHARED_EACH_MAX: usize = 64;
const SHARED_MAX: usize = 128;
/// Keys of a read that is given away, bytes.
const KEYS_MAX: usize = 64 << 10;
/// Time that it has left at least.
const TIME_MIN: Duration = Duration::from_millis(50);
/// After a read that came back so many are not given away.
const KEPT_AFTER_VAIN: u32 = 8;

/// What became of reads that were given away.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Reads that came back, since the node started.
    pub(super) in_vain: u64,
    /// Reads that are not given away.
    kept: u32,
}

impl Shared {
    fn note_in_vain(&mut self) {
        self.in_vain += 1;
        self.kept = KEPT_AFTER_VAIN;
    }

    /// Whether the next one is kept since one before it came back.
    fn is_kept(&mut self) -> bool {
        let is_kept = self.kept > 0;
        self.kept = self.kept.saturating_sub(1);
        is_kept
    }
}

/// Whether `helpers` further threads that have so many reads take one more, with so many that wait for the node's own.
fn has_room(running: usize, helpers: usize, waiting: usize) -> bool {
    let most = SHARED_MAX.min(helpers.saturating_mul(SHARED_EACH_MAX));
    running < most.min(helpers.saturating_mul(SHARE).saturating_mul(waiting))
}

impl Requests {
    /// Whether a read whose turn it is is given to another thread.
    pub(crate) fn gives_away(&mut self, queued: &Queued, workers: usize, shared_rows: u64, now: Instant) -> bool {
        let helpers = workers.saturating_sub(1);
        if helpers == 0
            || queued.has_come_back
            || !(shared_rows..=READS_AT_ONCE.rows).contains(&rows_asked(&queued.read))
        {
            return false;
        }
        let has_time =
            self.callers.get(queued.id).is_some_and(|caller| !caller.is_extra && caller.deadline >= now + TIME_MIN);
        let is_bounded = matches!(queued.terms.level, ReadLevel::Bounded(_));
        if !has_time || is_bounded || queued.tie.is_some() || queued.bytes > KEYS_MAX {
            return false;
        }
        let running = self.read_jobs.running(ReadSize::Shared);
        has_room(running, helpers, self.queue.total()) && !self.read_jobs.shared.is_kept()
    }
}

impl Serving<'_> {
    /// A read whose rows are not in memory is back.
    pub(crate) fn serve_again(&mut self, owner: ReplicaKey, ticket: u64, read: Read, now: Now) {
        let Some(ReadJob::Running { id, terms, bytes, .. }) = self.requests.read_jobs.take(ticket) else { return };
        self.requests.read_jobs.shared.note_in_vain();
        if self.replicas.running_as(owner).is_none() {
            // Another replica knows nothing of what this one was judged by.
            return self.refuse_waiting(id, &Refusal::NotHosted, now);
        }
        let Some(caller) = self.requests.callers.get(id) else { return };
        let (lane, connection) = (Lane::of(caller), caller.connection);
        self.note_not_run(lane);
        // Who is tied to it knows already that it has begun.
        let queued = Queued { id, read, terms, tie: None, bytes, has_come_back: true };
        let slot = self.requests.queue.push(lane, connection, queued);
        self.requests.callers.note(id, WaitsIn::Queued(slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_have_what_the_own_thread_would_not_be_through_with_first() {
        // A turn with sixteen reads, and one further thread.
        let running = (0..16).rev().fold(0, |running, waiting| running + usize::from(has_room(running, 1, waiting)));
        assert_eq!(running, 12, "three of four");
        assert!(!has_room(0, 0, 1_000) && !has_room(0, 3, 0));
        assert!(!has_room(SHARED_EACH_MAX, 1, 1_000) && has_room(SHARED_EACH_MAX, 2, 1_000));
        assert!(!has_room(SHARED_MAX, 1_000, 1_000));
    }

    #[test]
    fn after_one_that_came_back_a_few_are_kept() {
        let mut shared = Shared::default();
        shared.note_in_vain();
        assert_eq!((0..20).filter(|_| shared.is_kept()).count(), KEPT_AFTER_VAIN as usize);
    }
}
