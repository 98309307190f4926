//! What the catalogue is made of: nodes, tables, partitions and replicas, as plain data.

use hedgerow_types::{Incarnation, NodeId, ReplicaId, TableId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Where clients reach it, `host:port`.
    pub address: String,
    /// The life of its data. [`Node::UNREGISTERED`] until the node has first said it.
    pub incarnation: Incarnation,
    /// What the operator says about its place; `zone` is used for placement.
    pub labels: BTreeMap<String, String>,
    /// How often a process has been started with that data; 0 = not known. See [`crate::Life`].
    pub boot: u64,
    /// The random number of the process that was.
    pub start: u64,
    /// The numbers of the logs that it uses.
    pub logs: Vec<u64>,
    /// Earlier incarnations, the newest last.
    pub retired: Vec<Incarnation>,
}

impl Node {
    /// The incarnation of a node that the catalogue was founded with and that has not registered yet.
    pub const UNREGISTERED: Incarnation = Incarnation(0);

    /// A node without labels, of which no process is known.
    pub fn new(address: impl Into<String>, incarnation: Incarnation) -> Self {
        let (labels, logs, retired) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { address: address.into(), incarnation, labels, boot: 0, start: 0, logs, retired }
    }

    /// Whether the node has said which life of its data it is in. Only then replicas are placed on it.
    pub fn is_registered(&self) -> bool {
        self.incarnation != Self::UNREGISTERED
    }
}

/// How a table's keys are spread over its partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableKind {
    /// By the hash of the hash key.
    Hash,
    /// By ranges of the key itself.
    Ordered,
}

/// Whether a table serves. One that is dropped has [`Table::dropped`] while it is kept; after that it is simply absent, and its
/// id is never used again: a replica of a table whose id is below [`crate::Catalogue::next_table`] and that the catalogue does
/// not hold was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableState {
    /// Its replicas are being created; it does not serve yet.
    Creating,
    /// Every partition has had a leader: it serves.
    Available,
}

/// That a table was dropped and is kept for a while, so that it can be recalled. Nobody is served from it and its name is free;
/// its replicas stay as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dropped {
    /// When it was dropped, seconds since 1970.
    pub at_unix_seconds: u64,
    /// When it is removed for good, seconds since 1970.
    pub until_unix_seconds: u64,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its id, never reused.
    pub id: TableId,
    /// Its name, unique among the tables that are not dropped.
    pub name: String,
    /// How keys find their partition.
    pub kind: TableKind,
    /// Voters that each partition should have.
    pub replica_count: u32,
    /// Options as they were set; every key and value is known to [`crate::option`].
    pub options: BTreeMap<String, String>,
    /// The partitions, by index. At least one.
    pub partitions: Vec<Partition>,
    /// Where it is in its life.
    pub state: TableState,
    /// When it was created, seconds since 1970, by the clock of the metadata leader.
    pub created_unix_seconds: u64,
    /// Absent: it is in use.
    pub dropped: Option<Dropped>,
}

/// One partition: its lower bound and who keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Ordered tables: the smallest key of the partition. Hash tables and the metadata group: empty.
    pub start: Vec<u8>,
    /// Its replicas, those to be removed included until their replacement is finished: voters first, then joining ones
    /// in the order in which they were assigned, then learners.
    pub replicas: Vec<Replica>,
    /// The one of `replicas` that should lead when it can.
    pub preferred_leader: ReplicaId,
    /// From 1, one more with every change of `replicas`.
    pub version: u64,
}

impl Partition {
    /// The replica `id`, if it belongs to the partition.
    pub fn replica(&self, id: ReplicaId) -> Option<&Replica> {
        self.replicas.iter().find(|replica| replica.id == id)
    }

    /// The replicas that vote, lost ones included until their replacement is finished.
    pub fn voters(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        self.replicas.iter().filter(|replica| replica.role == ReplicaRole::Voter).map(|replica| replica.id)
    }

    /// The voters that the group began with, as long as it has changed in nothing but that some of them are to be replaced.
    pub fn first_voters(&self) -> Option<impl Iterator<Item = ReplicaId> + '_> {
        let is_joining = |replica: &&Replica| matches!(replica.role, ReplicaRole::Joining { .. });
        let joining = self.replicas.iter().filter(is_joining).count() as u64;
        // Every change raises the version, and only the beginning of a replacement adds a joining replica.
        (self.version == 1 + joining).then(|| self.voters())
    }

    /// The replicas that never vote: the partition's read-only replicas.
    pub fn learners(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        self.replicas.iter().filter(|replica| replica.role == ReplicaRole::Learner).map(|replica| replica.id)
    }

    /// Whether a replica of the partition is on `node`.
    pub fn is_on(&self, node: NodeId) -> bool {
        self.replicas.iter().any(|replica| replica.id.node() == node)
    }

    /// The replica that is being added in the place of `id`, if there is one.
    pub fn replacement_of(&self, id: ReplicaId) -> Option<ReplicaId> {
        let replaces = |replica: &&Replica| replica.role == ReplicaRole::Joining { replaces: Some(id) };
        self.replicas.iter().find(replaces).map(|replica| replica.id)
    }
}

/// One replica of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Its id, which names its node.
    pub id: ReplicaId,
    /// The incarnation of its node when the replica was assigned. A node in another life must not create it: the
    /// replica is lost.
    pub incarnation: Incarnation,
    /// What it is for.
    pub role: ReplicaRole,
}

/// What a replica is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaRole {
    /// It votes.
    Voter,
    /// It learns, and becomes a voter when it has caught up.
    Joining {
        /// The replica that leaves the group when this one becomes a voter.
        replaces: Option<ReplicaId>,
    },
    /// It learns and never votes: a read-only replica.
    Learner,
}

/// A request to create a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSpec {
    /// Its name: 1 to 128 of `A-Z a-z 0-9 _ . : -`.
    pub name: String,
    /// How keys find their partition.
    pub kind: TableKind,
    /// Hash: a power of two from 2 to 4096. Ordered: 1 to 4096.
    pub partition_count: u32,
    /// Voters per partition, 1 to 7 and at most the nodes that are alive.
    pub replica_count: u32,
    /// Options, see [`crate::option`].
    pub options: BTreeMap<String, String>,
    /// Succeed without a change if the table exists with the same kind and counts.
    pub if_not_exists: bool,
    /// Ordered tables: the lower bounds of partitions 1, 2, ... in ascending order, one less than `partition_count`.
    /// Empty: the partitions divide the first two bytes of the key evenly.
    pub split_keys: Vec<Vec<u8>>,
}

impl TableSpec {
    /// A hash table without options.
    pub fn hash(name: impl Into<String>, partition_count: u32, replica_count: u32) -> Self {
        Self {
            name: name.into(),
            kind: TableKind::Hash,
            partition_count,
            replica_count,
            options: BTreeMap::new(),
            if_not_exists: false,
            split_keys: Vec::new(),
        }
    }

    /// An ordered table without options, its partitions spread over the first two bytes of the key.
    pub fn ordered(name: impl Into<String>, partition_count: u32, replica_count: u32) -> Self {
        Self { kind: TableKind::Ordered, ..Self::hash(name, partition_count, replica_count) }
    }
}
