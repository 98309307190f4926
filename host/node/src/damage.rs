//! Replicas here that are found damaged, or whose storage was removed. They go on voting, for their logs are sound, until the rest of the node
//! finds that their groups can spare them (`failure.rs`).

use crate::drive::chain;
use crate::failure::is_device_failure;
use crate::identity;
use crate::ids::{DirectoryId, ReplicaKey};
use crate::notice::Notice;
use crate::replica::{Hosted, directory_of};
use crate::shard::Shard;
use hedgerow_env::Now;
use hedgerow_storage::{EngineError, FailureKind};
use hedgerow_types::{GroupId, Instant, Refusal, ReplicaId};
use std::path::PathBuf;

/// What a replica is given up for.
#[derive(Clone, Debug)]
pub(crate) struct GivenUp {
    pub(crate) reason: String,
    pub(crate) since: Instant,
}

/// A read of a replica's storage failed; the refusal for whoever asked. A replica that the error shows to be damaged is listed in `damaged`.
pub(crate) fn note_read(damaged: &mut Vec<(GroupId, String)>, group: GroupId, error: &EngineError) -> Refusal {
    let is_device = is_device_failure(error);
    match error.kind() {
        FailureKind::Damage => {}
        FailureKind::Other if is_device => {}
        FailureKind::NoSpace | FailureKind::NoDescriptors | FailureKind::NoMemory => {
            return Refusal::NotReady(chain(error));
        }
        FailureKind::Other => return Refusal::Stopping(error.to_string()),
    }
    damaged.push((group, chain(error)));
    Refusal::NotReady("the replica is damaged".into())
}

impl Shard {
    /// Gives up the replicas that reads and compactions have found damaged.
    pub(crate) fn lose_damaged(&mut self, now: Now) {
        for (group, reason) in std::mem::take(&mut self.replicas.damaged) {
            self.lose_for_good(group, reason, now);
        }
    }

    /// A replica is damaged. It is lost once its group can spare it: another one may be in repair, or be found damaged in the
    /// same moment. Until then it goes on voting, for its log is sound, and leaves it to others to lead and to be copied.
    pub(crate) fn lose_for_good(&mut self, group: GroupId, reason: String, now: Now) {
        if let Some(replica) = self.give_up(group, &reason, now) {
            tracing::error!(%group, %replica, %reason, "a replica is damaged");
        }
    }

    /// As [`Shard::lose_for_good`], of a replica that may be sound. Which one it is, unless that was done before.
    pub(crate) fn give_up(&mut self, group: GroupId, reason: &str, now: Now) -> Option<ReplicaId> {
        let replica = self.running(group).filter(|replica| replica.given_up.is_none())?;
        replica.given_up = Some(GivenUp { reason: reason.to_owned(), since: now.instant });
        let id = replica.id();
        self.notices.push(Notice::GivenUp(group));
        Some(id)
    }

    /// Where the storage of the replicas in a data directory is, of those that have one now.
    pub(crate) fn storage_in(&self, directory: DirectoryId) -> Vec<(ReplicaKey, PathBuf)> {
        let here = self.replicas.hosted.values().filter(|hosted| hosted.directory() == directory);
        here.filter_map(|hosted| self.storage_of(hosted).map(|directory| (hosted.owner(), directory))).collect()
    }

    /// Whether the storage of this node's replica of `group` was removed under it.
    pub(crate) fn is_storage_gone(&self, group: GroupId) -> bool {
        let Some(hosted) = self.replicas.hosted.get(&group) else { return false };
        let Some(directory) = self.storage_of(hosted) else { return false };
        self.engines.is_gone(&directory) && identity::is_in(&*self.disk, self.config.path_of(hosted.directory()))
    }

    /// Where a replica's storage is; `None` while a checkpoint takes the place of what was there.
    fn storage_of(&self, hosted: &Hosted) -> Option<PathBuf> {
        let Hosted::Running(replica) = hosted else { return None };
        let is_in_place = replica.storage.is_some() && replica.install.is_none();
        is_in_place.then(|| directory_of(self.config.path_of(replica.directory), replica.owner))
    }
}
