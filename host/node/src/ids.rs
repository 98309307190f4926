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

/// One of the parts of a node that serve: its place among them, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShardId(pub usize);

/// One of the node's write-ahead logs: its place among [`crate::Opened::logs`], from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogId(pub usize);

/// Numbers that the shards of a node give, each its own: whoever sees one knows which shard has given it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    last: u64,
    step: u64,
}

impl Numbers {
    /// Those of one of `count` shards.
    pub(crate) const fn new(shard: ShardId, count: usize) -> Self {
        Self { last: shard.0 as u64, step: count as u64 }
    }

    /// The same from about `start` on.
    pub(crate) const fn from(self, start: u64) -> Self {
        Self { last: start - start % self.step + self.last % self.step, ..self }
    }

    /// The next one, which nothing has had.
    pub(crate) const fn next(&mut self) -> u64 {
        self.last += self.step;
        self.last
    }

    /// The one that [`Numbers::next`] gives.
    pub(crate) const fn peek(&self) -> u64 {
        self.last + self.step
    }

    /// The shard, of `count`, that has given a number.
    pub(crate) const fn giver(number: u64, count: usize) -> ShardId {
        ShardId((number % count as u64) as usize)
    }
}
