//! Storage that is removed while the node runs: a replica whose directory is gone, or what its engine cannot be opened
//! without, is lost like a damaged one. A data directory that is gone as a whole, or whose file system is, has failed like its disk.
//!
//! Files stay readable and writable as long as they are open, so that nothing but a look at the directory tells before the next start,
//! which would find nothing of what was acknowledged meanwhile. What says that a replica's storage was removed, and that no file system
//! is away, is the node's identity in the data directory.

use crate::ids::{DirectoryId, ReplicaKey};
use crate::node::Node;
use hedgerow_env::Now;

impl Node {
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
            if self.shards.running_as(owner).is_some() && self.shards.of(owner.group).is_storage_gone(owner.group) {
                self.shards.of(owner.group).lose_for_good(owner.group, "its storage was removed".into(), now);
            }
        }
    }
}
