//! What follows when storage fails at work. Damage costs the replica, which is replaced; a lack of space, descriptors or
//! memory is waited out, with the data in memory and in the log, also where what is committed cannot be applied; a disk that
//! refuses costs the replicas of its directory. The node ends only when no directory is left.

use crate::damage::GivenUp;
use crate::drive::chain;
use crate::hosting::best_successor;
use crate::ids::{DirectoryId, ReplicaKey};
use crate::job::{Job, JobFailure, JobKind};
use crate::node::Node;
use crate::peer::ReplicaState;
use crate::replica::{Hosted, Replica};
use crate::shard::Shard;
use hedgerow_env::Now;
use hedgerow_replication::Role;
use hedgerow_storage::FailureKind;
use hedgerow_types::{GroupId, Instant, Refusal, ReplicaId};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

/// Time until work that failed is tried again; it doubles with each failure up to the second.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Failures in a row after which a disk that refuses is believed.
const REFUSALS_MAX: u32 = 3;
/// How often storage is asked whether its own work goes on.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// After this time the other nodes know of a damaged replica, and this one of theirs: a few of the reports that tell of it at once.
const DAMAGE_TOLD: Duration = Duration::from_secs(2);
/// EIO, ENXIO, ENODEV, ENOTCONN, ESTALE and EUCLEAN, as Linux numbers them.
const DEVICE_ERRORS: [i32; 6] = [5, 6, 19, 107, 116, 117];

/// Failures that are not dealt with yet.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    retries: Vec<(Instant, Retry)>,
    /// Failures in a row, by group, and how many of them a lack of something does not explain.
    in_row: BTreeMap<GroupId, (u32, u32)>,
    checked_at: Option<Instant>,
    /// Data directories that failed, or whose log has.
    failed: BTreeSet<DirectoryId>,
    /// Storage of some replica does not take what is committed, and that was said.
    pub(crate) is_apply_held: bool,
}

#[derive(Debug)]
enum Retry {
    Job(ReplicaKey, Box<Job>),
    Flush(ReplicaKey),
}

/// Whether an error says, by itself or by a cause, that a device or its file system fails: neither damage of what is stored
/// nor a lack of anything.
pub(crate) fn is_device_failure(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let number = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        if number.is_some_and(|number| DEVICE_ERRORS.contains(&number)) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Whether a disk takes no writes: its device fails, or its file system is read-only, as one becomes whose device has failed.
pub(crate) fn takes_no_writes(error: &io::Error) -> bool {
    is_device_failure(error) || error.kind() == io::ErrorKind::ReadOnlyFilesystem
}

impl Failures {
    /// Whether a data directory was given up.
    pub(crate) fn has_failed(&self, directory: DirectoryId) -> bool {
        self.failed.contains(&directory)
    }

    /// Work on a group's storage failed: how often in a row by now, and whether a disk is believed to refuse. A full disk that has
    /// space again and refuses once is not to be taken for one that always refuses.
    fn note_failure(&mut self, group: GroupId, kind: FailureKind) -> (u32, bool) {
        let (failures, refusals) = self.in_row.entry(group).or_default();
        *failures += 1;
        *refusals += u32::from(kind == FailureKind::Other);
        (*failures, *refusals >= REFUSALS_MAX)
    }

    /// Work on a group's storage went well.
    pub(crate) fn note_success(&mut self, group: GroupId) {
        self.in_row.remove(&group);
    }
}

impl Node {
    pub(crate) fn tick_failures(&mut self, now: Now) {
        let (due, later) =
            std::mem::take(&mut self.failures.retries).into_iter().partition(|(at, _)| *at <= now.instant);
        self.failures.retries = later;
        for (_, retry) in due {
            self.retry(retry);
        }
        if self.failures.checked_at.is_none_or(|at| now.instant.since(at) >= CHECK_INTERVAL) {
            self.failures.checked_at = Some(now.instant);
            self.shards.iter_mut().for_each(Shard::check_engines);
            self.reconsider_damaged(now);
            self.adopt_current();
        }
        self.note_apply_resumed();
    }

    fn note_apply_resumed(&mut self) {
        let is_held = |hosted: &Hosted| matches!(hosted, Hosted::Running(replica) if replica.group.is_held());
        if self.failures.is_apply_held && !self.shards.each_hosted().any(is_held) {
            self.failures.is_apply_held = false;
            tracing::info!("storage takes writes again");
        }
    }

    fn retry(&mut self, retry: Retry) {
        match retry {
            Retry::Job(owner, job) if self.shards.has(owner) => {
                self.shards.first().job(*job);
            }
            // Its replica is gone, and so is what it was made of.
            Retry::Job(owner, job) => self.shards.of(owner.group).enqueue_removal(None, job.leavings()),
            Retry::Flush(owner) => {
                if let Some(replica) = self.shards.running_as(owner) {
                    (replica.flush.is_running, replica.flush.is_waiting) = (false, false);
                    replica.flush.bytes_since += std::mem::take(&mut replica.flush.bytes_running);
                }
            }
        }
    }

    /// Storage lacks something to apply what is committed with. That is said once, until everything is applied on this node.
    pub(crate) fn note_apply_held(&mut self, group: GroupId, error: &str) {
        if !std::mem::replace(&mut self.failures.is_apply_held, true) {
            tracing::warn!(%group, error, "storage takes no writes for the moment: they are kept, and applied when it does");
        }
    }

    /// A replica was given up: the others hear of it at once, and one of them is to lead.
    pub(crate) fn note_given_up(&mut self, group: GroupId, now: Now) {
        self.reports.urgent.insert(group);
        self.leave_to_sound(group, now);
    }

    /// Damaged replicas may be spared by now, and should not lead.
    fn reconsider_damaged(&mut self, now: Now) {
        let given_up = |(group, hosted): (&GroupId, &Hosted)| match hosted {
            Hosted::Running(replica) => Some((*group, replica.given_up.clone()?)),
            Hosted::Starting { .. } | Hosted::Lost { .. } => None,
        };
        let given_up: Vec<(GroupId, GivenUp)> = self.shards.all_hosted().filter_map(given_up).collect();
        for (group, GivenUp { reason, since }) in given_up {
            let Some(Hosted::Running(replica)) = self.shards.hosted(group) else { continue };
            if now.instant.since(since) < DAMAGE_TOLD || !self.can_be_spared(replica) {
                self.leave_to_sound(group, now);
            } else {
                self.lose(group, &reason, true, now);
            }
        }
    }

    /// Has a sound replica lead instead of a damaged one, if there is any.
    fn leave_to_sound(&mut self, group: GroupId, now: Now) {
        let best = self.successor_here(group);
        let Some(best) = best.filter(|best| !self.is_damaged(group, *best)) else { return };
        // What it has still to write and to apply counts, unlike that of a replica that steps down because it is gone.
        if let Some(replica) = self.shards.running(group)
            && let Err(error) = replica.group.transfer_leader(best, now.instant)
        {
            tracing::debug!(%group, to = %best, %error, "a damaged replica leads on");
        }
        self.shards.mark_dirty(group);
    }

    /// Who should lead a group instead, if it is led here.
    fn successor_here(&self, group: GroupId) -> Option<ReplicaId> {
        match self.shards.hosted(group)? {
            Hosted::Running(replica) if replica.group.role() == Role::Leader => best_successor(self, replica),
            Hosted::Running(_) | Hosted::Starting { .. } | Hosted::Lost { .. } => None,
        }
    }

    /// Whether most of the voters are there without this one, by what their nodes said last. Of several that are damaged the one
    /// with the lowest id goes first, and the others wait for its successor.
    fn can_be_spared(&self, replica: &Replica) -> bool {
        let group = replica.owner.group;
        let id = replica.id();
        let goes_first = |voter: ReplicaId| voter < id && self.is_damaged(group, voter);
        let votes = |voter: ReplicaId| voter != id && self.is_voting(group, voter) && !goes_first(voter);
        replica.group.membership().is_majority(votes)
    }

    pub(crate) fn is_voting(&self, group: GroupId, replica: ReplicaId) -> bool {
        let report = self.replica_report(group, replica.0, replica.node());
        let state = report.and_then(|report| ReplicaState::from_code(report.state));
        self.was_alive(replica.node()) && matches!(state, Some(ReplicaState::Leader | ReplicaState::Follower))
    }

    /// Whether a group takes no writes without `owner`, by what the nodes of the other voters said last.
    pub(crate) fn is_needed_to_write(&self, owner: ReplicaKey) -> bool {
        let catalogue = self.view.catalogue.as_ref();
        let Some(partition) = catalogue.and_then(|catalogue| catalogue.group(owner.group)) else { return false };
        let is_other = |voter: &ReplicaId| *voter != owner.replica && self.is_voting(owner.group, *voter);
        partition.voters().filter(is_other).count() <= partition.voters().count() / 2
    }

    /// Whether a replica's node says that it is damaged and kept.
    pub(crate) fn is_damaged(&self, group: GroupId, replica: ReplicaId) -> bool {
        self.reports.told().is_damaged(group, replica)
    }

    /// Stops a replica that cannot go on, being damaged or in a directory that failed; it is reported and will be replaced.
    pub(crate) fn lose(&mut self, group: GroupId, reason: &str, is_damaged: bool, now: Now) {
        self.step_down(group, now);
        // One that is lost already stays listed: nobody may make it anew.
        if self.shards.running(group).is_none() {
            return;
        }
        let Some(Hosted::Running(mut replica)) = self.shards.of(group).replicas.hosted.remove(&group) else { return };
        let (owner, directory) = (replica.owner, replica.directory);
        self.shards.of(group).enqueue_removal(replica.take_storage(), Vec::new());
        self.shards.of(group).dismiss(*replica, &Refusal::NotReady("the replica is damaged".into()), now);
        self.insert_lost(owner, directory, reason, is_damaged);
        // The others must know before they give up theirs.
        self.reports.urgent.insert(group);
    }

    /// Has another replica take over at once where this one leads, which is gone after that.
    pub(crate) fn step_down(&mut self, group: GroupId, now: Now) {
        let Some(best) = self.successor_here(group) else { return };
        let Some(replica) = self.shards.running(group) else { return };
        let id = replica.id();
        if replica.group.transfer_leader_at_once(best, now.instant).is_err() {
            return;
        }
        // Only what it says to others still counts.
        while let Some(ready) = self.shards.running(group).and_then(|replica| replica.group.poll_ready(now.instant)) {
            for (to, message) in &ready.messages {
                let buffer = self.shards.of(group).outbox.peer(to.node());
                crate::peer::put_replication(buffer, group, id, *to, |out| message.encode(out));
            }
        }
    }

    pub(crate) fn handle_job_failed(&mut self, owner: ReplicaKey, kind: JobKind, failure: JobFailure, now: Now) {
        let reason = &failure.reason;
        if !self.shards.has(owner) {
            tracing::debug!(group = %owner.group, %reason, "a job of a removed replica failed");
            self.shards
                .of(owner.group)
                .enqueue_removal(None, failure.again.map_or_else(Vec::new, |job| job.leavings()));
            if let JobKind::Read(ticket, ..) = kind {
                self.handle_not_done(ticket, failure.reason, Refusal::NotHosted, now);
            }
            return;
        }
        match kind {
            JobKind::Make | JobKind::Flush => self.handle_storage_failed(owner, failure, now),
            JobKind::Copy => {
                tracing::warn!(group = %owner.group, %reason, "making a checkpoint failed");
                self.shards.running_as(owner).into_iter().for_each(|replica| replica.sending.end_making());
                if failure.kind == FailureKind::Damage {
                    self.shards.of(owner.group).lose_for_good(owner.group, failure.reason, now);
                }
            }
            JobKind::Write(id) => {
                tracing::warn!(group = %owner.group, %reason, "writing a piece of a checkpoint failed");
                self.shards.of(owner.group).handle_write_failed(owner, id, failure.kind);
            }
            JobKind::Send(to) => self.shards.of(owner.group).handle_not_read(owner, to, &failure, now),
            JobKind::Verify(id) => {
                tracing::warn!(group = %owner.group, %reason, "a received checkpoint cannot be used");
                if self.view.is_draining || failure.kind.may_pass() {
                    self.shards.of(owner.group).put_off_received(owner, id);
                } else {
                    self.shards.of(owner.group).refuse_received(owner, id);
                }
            }
            JobKind::VerifyOwn => self.shards.of(owner.group).handle_own_not_verified(owner, failure, now),
            JobKind::Fetch(fetch) => {
                tracing::warn!(group = %owner.group, %reason, "reading old log entries failed");
                let Some(replica) = self.shards.running_as(owner) else { return };
                if let Some(position) = failure.unreadable {
                    // Whoever needs this entry gets a checkpoint instead. On the disk the entry stays as long as its like.
                    replica.group.truncated(position);
                }
                replica.group.handle_entries_fetched(fetch, Vec::new(), now.instant);
                self.shards.mark_dirty(owner.group);
            }
            JobKind::Read(ticket, ..) => {
                let is_damage = failure.is_unreadable();
                let told = if is_damage { "the replica is damaged" } else { failure.reason.as_str() };
                self.handle_not_done(ticket, failure.reason.clone(), Refusal::NotReady(told.to_owned()), now);
                if is_damage {
                    self.shards.of(owner.group).lose_for_good(owner.group, failure.reason, now);
                }
            }
            JobKind::LoadSessions => {
                tracing::warn!(group = %owner.group, %reason, "what keeps writes from being applied twice could not be read");
                // Anything else the first write comes across as well.
                if failure.is_unreadable() {
                    self.shards.of(owner.group).lose_for_good(owner.group, failure.reason, now);
                }
            }
            JobKind::Remove(_)
            | JobKind::Space
            | JobKind::Catalogue
            | JobKind::Tell
            | JobKind::Errands
            | JobKind::Debt => {}
        }
    }

    fn handle_storage_failed(&mut self, owner: ReplicaKey, failure: JobFailure, now: Now) {
        let group = owner.group;
        let JobFailure { reason, mut kind, again, .. } = failure;
        if kind == FailureKind::Other && self.shards.of(group).is_storage_gone(group) {
            kind = FailureKind::Damage;
        }
        let (failures, has_refused) = self.failures.note_failure(group, kind);
        let directory = self.shards.hosted(group).map_or(DirectoryId(0), Hosted::directory);
        match kind {
            FailureKind::Damage if matches!(self.shards.hosted(group), Some(Hosted::Starting { .. })) => {
                return self.note_lost(owner, directory, &reason);
            }
            FailureKind::Damage if again.is_some() => return self.lose(group, &reason, true, now),
            FailureKind::Damage => {
                self.shards.of(group).lose_for_good(group, reason.clone(), now);
                // One that is kept is flushed again.
                if self.shards.running_as(owner).is_none() {
                    return;
                }
            }
            FailureKind::Other if has_refused => return self.fail_directory(directory, &reason, now),
            FailureKind::NoSpace | FailureKind::NoDescriptors | FailureKind::NoMemory | FailureKind::Other => {}
        }
        tracing::error!(%group, %reason, "work on storage failed and will be tried again");
        let pause = (RETRY_AFTER.0 * (1 << (failures - 1).min(8))).min(RETRY_AFTER.1);
        let retry = again.map_or(Retry::Flush(owner), |job| Retry::Job(owner, job));
        if let Retry::Flush(owner) = &retry
            && let Some(replica) = self.shards.running_as(*owner)
        {
            replica.flush.is_waiting = true;
        }
        self.failures.retries.push((now.instant + pause, retry));
    }

    /// Gives up a data directory with the replicas in it, and those whose log was there. They are reported as lost, and nothing of them is
    /// removed.
    pub(crate) fn fail_directory(&mut self, directory: DirectoryId, reason: &str, now: Now) {
        if self.failures.has_failed(directory) {
            return;
        }
        let path = self.config.path_of(directory).to_owned();
        let log = self.config.log_of(directory);
        let mut failed = vec![directory];
        if self.config.home_of(log) == directory {
            self.shards.iter_mut().for_each(|shard| shard.log_writes.fail(log));
            self.speeds.note_log_failed(log);
            failed.extend(self.config.directories_of(log));
        }
        self.failures.failed.extend(failed.iter().copied());
        if self.failures.failed.len() == self.config.data.len() {
            return self.shards.first().outbox.fail(format!("data directory {} failed: {reason}", path.display()));
        }
        tracing::error!(directory = %path.display(), %reason, "a data directory failed; its replicas are given up");
        let lost = format!("data directory {} failed", path.display());
        self.missing.push((path, reason.to_owned()));
        let there = self.shards.all_hosted().filter(|(_, hosted)| failed.contains(&hosted.directory()));
        let groups: Vec<(GroupId, DirectoryId)> = there.map(|(group, hosted)| (*group, hosted.directory())).collect();
        for (group, directory) in groups {
            match self.shards.hosted(group) {
                Some(Hosted::Starting { owner, .. }) => self.note_lost(*owner, directory, &lost),
                Some(Hosted::Running(_)) => self.lose(group, &lost, false, now),
                Some(Hosted::Lost { .. }) | None => {}
            }
        }
    }
}

impl Shard {
    /// Compactions meet damage that nobody has read yet.
    fn check_engines(&mut self) {
        for (group, hosted) in &self.replicas.hosted {
            let Hosted::Running(replica) = hosted else { continue };
            let failure = replica.storage.as_ref().and_then(|storage| storage.engine().background_failure());
            // A device that does not give back a table costs this replica, as with a read, and not those beside it.
            if let Some(failure) = failure.filter(|failure| failure.is_damage() || is_device_failure(failure)) {
                self.replicas.damaged.push((*group, chain(&failure)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m3_a_lack_of_space_does_not_count_as_a_disk_that_refuses() {
        let (mut failures, group) = (Failures::default(), GroupId::META);
        let lacks = [FailureKind::NoSpace, FailureKind::NoDescriptors, FailureKind::NoMemory];
        for (kind, count) in lacks.into_iter().zip(1..) {
            assert_eq!(failures.note_failure(group, kind), (count, false));
        }
        let mut refuse = || failures.note_failure(group, FailureKind::Other);
        assert_eq!([refuse(), refuse(), refuse()], [(4, false), (5, false), (6, true)]);
        failures.note_success(group);
        assert_eq!(failures.note_failure(group, FailureKind::Other), (1, false));
    }
}
