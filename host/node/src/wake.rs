//! When the node is to be woken although nothing happens: a read has waited long enough, a request's deadline has come, a
//! proof of freshness is to be renewed, questions are to leave.
//!
//! Only groups that wait for something are listed, so that thousands of idle ones cost nothing. A group's deadline is a
//! lower bound: requests that were answered before it are not looked for, and the group is looked at once in vain.

use crate::notice::Notice;
use crate::replica::{Hosted, Origin, PendingWrite, Replica};
use crate::shard::Shard;
use hedgerow_env::Now;
use hedgerow_types::{GroupId, Instant, Refusal};
use std::time::Duration;

/// A group is not woken again before this time has passed: it must not keep the node from everything else.
const WAKE_MIN: Duration = Duration::from_millis(1);

impl Replica {
    /// A request that is to be answered by `deadline` waits here.
    pub(crate) fn note_deadline(&mut self, deadline: Instant) {
        self.first_deadline = Some(self.first_deadline.map_or(deadline, |first| first.min(deadline)));
    }

    fn find_first_deadline(&self) -> Option<Instant> {
        let reads = self.reads.values().map(|read| &read.origin);
        let writes = self.writes.values().flat_map(PendingWrite::origins);
        reads.chain(writes).filter_map(Origin::deadline).min()
    }
}

impl Shard {
    /// As [`crate::Node::wakes_at`].
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        let group = self.replicas.wakes.first().map(|(at, _)| *at);
        [group, self.read_indexes.wakes_at(), self.requests.wakes_at()].into_iter().flatten().min()
    }

    /// The time of [`Shard::wakes_at`] has come. Early, late and repeated calls are harmless.
    pub(crate) fn handle_wake(&mut self, now: Now) {
        let now = self.view.agreed(now);
        let mut serving = self.serving();
        serving.serve_delayed(now);
        serving.expire_forwards(now);
        serving.expire_read_jobs(now);
        while let Some((_, group)) = self.replicas.wakes.first().copied().filter(|(at, _)| *at <= now.instant) {
            self.replicas.wakes.pop_first();
            if let Some(replica) = self.running(group) {
                replica.wake = None;
                replica.may_wake = now.instant + WAKE_MIN;
                replica.group.handle_tick(now.instant);
                self.expire_waiting(group, now);
                self.mark_dirty(group);
            }
        }
    }

    /// Has the next groups notice that time has passed. A node may host thousands, and others wait while it looks at them.
    pub(crate) fn tick_groups(&mut self, now: Now) {
        for group in self.replicas.next_to_tick() {
            let Some(replica) = self.running(group) else { continue };
            replica.group.handle_tick(now.instant);
            if replica.tick_settling(now.instant) {
                self.notices.push(Notice::Urgent(group));
            }
            self.mark_dirty(group);
            self.expire_waiting(group, now);
            self.tick_receiving(group, now);
        }
    }

    /// Lists `group` under the time at which it wants to be looked at, if that has changed.
    pub(crate) fn update_wake(&mut self, group: GroupId) {
        let Some(Hosted::Running(replica)) = self.replicas.hosted.get_mut(&group) else { return };
        // A group without storage is not driven, so that what it wants would not be done.
        let wanted = if replica.storage.is_some() { replica.group.wakes_at() } else { None };
        let wake = match (wanted, replica.first_deadline) {
            (Some(wanted), Some(deadline)) => Some(wanted.min(deadline)),
            (wanted, deadline) => wanted.or(deadline),
        };
        let wake = wake.map(|at| at.max(replica.may_wake));
        if wake == replica.wake {
            return;
        }
        let before = std::mem::replace(&mut replica.wake, wake);
        before.map(|at| self.replicas.wakes.remove(&(at, group)));
        self.replicas.wakes.extend(wake.map(|at| (at, group)));
    }

    /// Answers requests of `group` whose deadline has passed. A write may still take effect; its outcome is then not known.
    pub(crate) fn expire_waiting(&mut self, group: GroupId, now: Now) {
        let Some(replica) = self.running(group) else { return };
        if replica.first_deadline.is_none_or(|first| first > now.instant) {
            return;
        }
        let reads = replica.reads.iter().filter(|(_, read)| read.origin.is_late(now.instant));
        let reads: Vec<u64> = reads.map(|(ticket, _)| *ticket).collect();
        let mut late = Vec::new();
        let writes = replica.writes.iter_mut();
        let writes = writes.filter_map(|(index, write)| (!write.drop_late(now.instant, &mut late)).then_some(*index));
        let writes: Vec<u64> = writes.collect();
        for ticket in reads {
            replica.group.cancel_read(ticket);
            late.extend(replica.reads.remove(&ticket).map(|read| read.origin));
        }
        for index in writes {
            late.extend(replica.writes.remove(&index).into_iter().flat_map(PendingWrite::into_origins));
        }
        replica.first_deadline = replica.find_first_deadline();
        late.into_iter().for_each(|origin| self.refuse(origin, &Refusal::Expired, now));
    }
}
