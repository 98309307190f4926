//! What the parts of a node call each other's things.

use hedgerow_types::{GroupId, ReplicaId};

/// A replica of a group. Another replica of the same group, here or elsewhere, has another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplicaKey {
    /// Its group.
    pub group: GroupId,
    /// Itself.
    pub replica: ReplicaId,
}

/// One of the data directories in use: its place among [`crate::Config::data`], from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirectoryId(pub usize);

/// One of the node's write-ahead logs: its place among [`crate::Opened::logs`], from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogId(pub usize);
