//! Storage that is removed while the node runs: a replica whose directory is gone, or what its engine cannot be opened
//! without, is lost like a damaged one. A data directory that is gone as a whole, or whose file system is, has failed like its disk.
//!
//! Files stay readable and writable as long as they are open, so that nothing but a look at the directory tells before the next start,
//! which would find nothing of what was acknowledged meanwhile. What says that a replica's storage was removed, and that no file system
//! is away, is the node's identity in the data directory.

use crate::identity;
use crate::ids::{DirectoryId, ReplicaKey};
use crate::node::Node;
use crate::replica::{Hosted, directory_of};
use hedgerow_env::Now;
use hedgerow_types::GroupId;
use std::path::PathBuf;

impl Node {
    /// Where the storage of the replicas in a data directory is, of those that have one now.
    pub(crate) fn storage_in(&self, directory: DirectoryId) -> Vec<(ReplicaKey, PathBuf)> {
        let here = self.shard.replicas.hosted.values().filter(|hosted| hosted.directory() == directory);
        here.filter_map(|hosted| self.storage_of(hosted).map(|directory| (hosted.owner(), directory))).collect()
    }

    /// `None` while a checkpoint takes the place of what was there.
    fn storage_of(&self, hosted: &Hosted) -> Option<PathBuf> {
        let Hosted::Running(replica) = hosted else { return None };
        let is_in_place = replica.storage.is_some() && replica.install.is_none();
        is_in_place.then(|| directory_of(self.config.path_of(replica.directory), replica.owner))
    }

    /// Whether the storage of this node's replica of `group` was removed under it.
    pub(crate) fn is_storage_gone(&self, group: GroupId) -> bool {
        let Some(hosted) = self.shard.replicas.hosted.get(&group) else { return false };
        let Some(directory) = self.storage_of(hosted) else { return false };
        self.engines.is_gone(&directory) && identity::is_in(&*self.disk, self.config.path_of(hosted.directory()))
    }

    /// A look at a data directory has found whether the node's identity is away. Once may be a mistake of a moment; the next look is a
    /// second later.
    pub(crate) fn handle_directory_away(&mut self, directory: DirectoryId, is_away: bool, now: Now) {
        if self.looks.note_away(directory, is_away) {
            let reason = "its identity.json is not there any more: it was removed, or its file system is away";
            self.fail_directory(directory, reason, now);
        }
    }

    /// A look at a data directory has missed the storage of these. A checkpoint may have been installed meanwhile, so that each
    /// is looked at once more.
    pub(crate) fn handle_storage_missed(&mut self, missed: Vec<ReplicaKey>, now: Now) {
        for owner in missed {
            if self.shard.running_as(owner).is_some() && self.is_storage_gone(owner.group) {
                self.lose_for_good(owner.group, "its storage was removed".into(), now);
            }
        }
    }
}
