//! Ids: each kind of thing has a type of its own, so that a node cannot be passed where a replica is meant.

use core::fmt;

/// A position in a group's log, from 1; 0 means "before the first entry". Pegasus calls it the decree.
pub type Index = u64;
/// An election epoch of a group, from 1; 0 means "before the first election". Pegasus calls it the ballot.
pub type Term = u64;

/// A node of the cluster, from 1. Set by the operator and never reused for another machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

/// One life of a node's data: drawn when its data directories are first formatted, drawn again when one of them was
/// lost. A replica assigned to an earlier incarnation is never created empty in a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// A table. Pegasus calls it the app id. 0 is the cluster's own metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u32);

/// A partition of a table, from 0.
pub type PartitionIndex = u32;

/// The replicas of one partition: a Raft group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId {
    /// The table that the group's partition belongs to.
    pub table: TableId,
    /// The partition within the table.
    pub partition: PartitionIndex,
}

impl GroupId {
    /// The group that holds the cluster's metadata.
    pub const META: Self = Self { table: TableId(0), partition: 0 };

    /// The group of partition `partition` of table `table`.
    pub const fn new(table: u32, partition: u32) -> Self {
        Self { table: TableId(table), partition }
    }

    /// The id as one number: table in the high half, partition in the low half.
    pub const fn to_u64(self) -> u64 {
        ((self.table.0 as u64) << 32) | self.partition as u64
    }

    /// The inverse of [`GroupId::to_u64`].
    pub const fn from_u64(value: u64) -> Self {
        Self::new((value >> 32) as u32, value as u32)
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.table.0, self.partition)
    }
}

impl fmt::Debug for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One replica in the life of the cluster. The node is part of the id, so that a message can be routed by it alone; the
/// counter is never reused, so that a replica that lost its data never votes again under its old name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub u64);

impl ReplicaId {
    /// The `counter`-th replica, on `node`. `counter` is from 1 and below 2^48.
    pub const fn new(counter: u64, node: NodeId) -> Self {
        Self((counter << 16) | node.0 as u64)
    }

    /// The node that the replica lives on.
    pub const fn node(self) -> NodeId {
        NodeId(self.0 as u16)
    }

    /// The part of the id that is unique in the cluster.
    pub const fn counter(self) -> u64 {
        self.0 >> 16
    }
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}@n{}", self.counter(), self.node().0)
    }
}

impl fmt::Debug for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// A client process, drawn at random by the client. 0 means that the caller did not name itself and that its writes
/// are not de-duplicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// The number of a write within its client, from 1, rising by one per write. A repeated attempt keeps its number.
pub type Sequence = u64;
