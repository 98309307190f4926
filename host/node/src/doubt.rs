//! What a sender does when a checkpoint of its was refused: it reads the next one itself before it sends it.
//!
//! A receiver reads all of a checkpoint before it uses it. What it refuses was damaged here, on the way or there. The tables in
//! a checkpoint are those of the storage, so that reading the next one tells: if it is damaged, so is the storage of this replica,
//! which is given up; otherwise it is sent. Between one refusal and the next checkpoint is a pause that grows, for each
//! costs a read of all data at both ends and a transfer.

use crate::ids::ReplicaKey;
use crate::job::JobFailure;
use crate::replica::Hosted;
use crate::shard::Shard;
use hedgerow_env::Now;
use hedgerow_replication::SnapshotMeta;
use hedgerow_types::{GroupId, Instant, ReplicaId};
use std::time::Duration;

/// Time from a refusal to the next checkpoint; it doubles with each refusal up to the second.
const PAUSE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(600));

/// What refusals have made of a replica's trust in its checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Doubt {
    refused: Option<Refused>,
    /// A checkpoint is being made to be verified here, or is being verified.
    is_verifying: bool,
}

#[derive(Debug)]
struct Refused {
    /// By whom last.
    by: ReplicaId,
    /// How often in a row.
    count: u32,
    /// No checkpoint is made before.
    until: Instant,
}

impl Doubt {
    fn note_refused(&mut self, by: ReplicaId, now: Instant) {
        let count = self.refused.as_ref().map_or(0, |refused| refused.count) + 1;
        let pause = (PAUSE.0 * (1 << (count - 1).min(16))).min(PAUSE.1);
        self.refused = Some(Refused { by, count, until: now + pause });
    }

    /// A receiver has taken a checkpoint. Only that of the one who refused says that it was not this one's disk or way.
    pub(crate) fn note_taken(&mut self, by: ReplicaId) {
        self.refused.take_if(|refused| refused.by == by);
    }

    /// Whether checkpoints are verified before they are sent.
    pub(crate) const fn has_refusal(&self) -> bool {
        self.refused.is_some()
    }

    /// A checkpoint is being made.
    pub(crate) const fn note_making(&mut self) {
        self.is_verifying = self.refused.is_some();
    }

    pub(crate) fn end_verification(&mut self) {
        self.is_verifying = false;
    }
}

impl Shard {
    /// A checkpoint that was for `by` is of no use: it was found damaged there, or cannot be read here.
    pub(crate) fn doubt_checkpoint(&mut self, owner: ReplicaKey, by: ReplicaId, now: Now) {
        if let Some(replica) = self.running_as(owner) {
            replica.sending.doubt.note_refused(by, now.instant);
        }
        // Whoever else is being sent it would refuse it too.
        self.withdraw_checkpoint(owner, now);
    }

    /// A piece of a checkpoint could not be read for `to`. A lack passes, and the receiver asks again. Otherwise the files are
    /// gone or damaged, and another checkpoint is made.
    pub(crate) fn handle_not_read(&mut self, owner: ReplicaKey, to: ReplicaId, failure: &JobFailure, now: Now) {
        let reason = &failure.reason;
        tracing::warn!(group = %owner.group, %to, %reason, "a piece of a checkpoint could not be read");
        let Some(replica) = self.running_as(owner) else { return };
        if failure.kind.may_pass() {
            replica.sending.end_reading(to);
        } else {
            self.doubt_checkpoint(owner, to, now);
        }
    }

    /// Whether a checkpoint of this group may be made as far as doubts go: none of a replica that is known to be damaged; one that is
    /// to be verified has a pause before it, and a node verifies one at a time, so that threads and the disk are left to others.
    pub(crate) fn may_verify_own(&self, group: GroupId, now: Now) -> bool {
        let is_given_up = |hosted: &Hosted| matches!(hosted, Hosted::Running(replica) if replica.given_up.is_some());
        if self.replicas.hosted.get(&group).is_some_and(is_given_up) {
            return false;
        }
        let Some(refused) =
            self.replicas.hosted.get(&group).and_then(doubt_of).and_then(|doubt| doubt.refused.as_ref())
        else {
            return true;
        };
        let is_other_verifying = self.replicas.hosted.values().filter_map(doubt_of).any(|doubt| doubt.is_verifying);
        now.instant >= refused.until && !is_other_verifying
    }

    pub(crate) fn handle_own_verified(
        &mut self,
        owner: ReplicaKey,
        meta: SnapshotMeta,
        files: Vec<(String, u64)>,
        now: Now,
    ) {
        tracing::info!(group = %owner.group, "a checkpoint of this replica was verified and is sound");
        self.adopt_checkpoint(owner, meta, files, now);
    }

    pub(crate) fn handle_own_not_verified(&mut self, owner: ReplicaKey, failure: JobFailure, now: Now) {
        tracing::warn!(group = %owner.group, reason = failure.reason, "a checkpoint of this replica could not be verified");
        if let Some(replica) = self.running_as(owner) {
            replica.sending.end_making();
        }
        if failure.is_unreadable() {
            self.lose_for_good(owner.group, failure.reason, now);
        }
    }
}

fn doubt_of(hosted: &Hosted) -> Option<&Doubt> {
    match hosted {
        Hosted::Running(replica) => Some(&replica.sending.doubt),
        Hosted::Starting { .. } | Hosted::Lost { .. } => None,
    }
}
