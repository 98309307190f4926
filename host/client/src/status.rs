//! What a cluster says of itself, as types. New versions of it may say more, and what an old one does not say is at its default.

use serde::Deserialize;
use std::collections::BTreeMap;

/// What the node that was asked knows of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ClusterStatus {
    /// The cluster's id, 16 hexadecimal digits.
    pub cluster: String,
    /// The version of the catalogue that the node acts on.
    pub catalogue_version: u64,
    /// All of it in a few figures.
    pub summary: Summary,
    /// The group that keeps the catalogue.
    pub metadata: PartitionStatus,
    /// What the nodes know of the time: `agreed`, `held` or `unknown`.
    pub time: String,
    /// The nodes of the configuration.
    pub nodes: Vec<NodeStatus>,
    /// The tables in use.
    pub tables: Vec<TableStatus>,
}

impl ClusterStatus {
    /// Whether every node is up, every partition and the metadata have a leader, and nothing is being repaired.
    pub fn is_whole(&self) -> bool {
        let Summary { nodes, nodes_up, without_leader, in_repair, metadata_has_leader, .. } = self.summary;
        nodes > 0 && nodes_up == nodes && without_leader == 0 && in_repair == 0 && metadata_has_leader
    }
}

/// A cluster in a few figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Summary {
    /// Nodes of the configuration.
    pub nodes: u64,
    /// Those that are up.
    pub nodes_up: u64,
    /// Partitions of tables in use, the metadata's included.
    pub partitions: u64,
    /// Those whose leader has no majority behind it, or that have none.
    pub without_leader: u64,
    /// Those with a replica that is lost, damaged, learning or being replaced.
    pub in_repair: u64,
    /// Whether tables can be created.
    pub metadata_has_leader: bool,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct NodeStatus {
    /// Its number in the configuration.
    pub node: u16,
    /// Where it serves clients; empty if it has never said.
    pub address: String,
    /// `alive` or `dead`.
    pub state: String,
    /// Replicas that it has.
    pub replicas: u64,
    /// Of these, how many lead.
    pub leaders: u64,
    /// How slow it is, 1 (not at all) to 100.
    pub slow_score: Option<f64>,
    /// Whether leaders leave it for that.
    pub is_slow: bool,
    /// Its data directories; `None` until it has reported.
    pub disks: Option<Vec<DiskStatus>>,
    /// How far its clock is ahead, milliseconds.
    pub clock_ahead_ms: Option<i64>,
    /// Whether that is more than allowed.
    pub is_clock_off: bool,
    /// Data directories that it does without.
    pub missing_directories: Vec<String>,
    /// Its labels.
    pub labels: Option<BTreeMap<String, String>>,
}

/// The disk of a data directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct DiskStatus {
    /// `ok`, `full` or `stalled`.
    pub state: String,
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Bytes that it has.
    pub total_bytes: u64,
}

/// One table.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct TableStatus {
    /// Its number.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// `hash` or `ordered`.
    pub kind: String,
    /// `creating` or `available`.
    pub state: String,
    /// Number of partitions.
    pub partition_count: u64,
    /// Replicas of each.
    pub replica_count: u64,
    /// Options by name.
    pub options: BTreeMap<String, String>,
    /// When it was created, unix seconds; 0 = not known.
    pub created_unix_seconds: u64,
    /// Its partitions, in order.
    pub partitions: Vec<PartitionStatus>,
}

/// One partition.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct PartitionStatus {
    /// Its number in the table.
    pub index: u32,
    /// Where its leader serves clients; `None` without one that has a majority.
    pub leader: Option<String>,
    /// The leader's term.
    pub term: u64,
    /// The leader's commit index.
    pub commit: u64,
    /// Its replicas.
    pub replicas: Vec<ReplicaStatus>,
}

/// One replica.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ReplicaStatus {
    /// The number of its node.
    pub node: u16,
    /// Its id, which is never used twice.
    pub replica: String,
    /// `voter`, `joining` or `learner`.
    pub role: String,
    /// `ok`, `learning`, `missing`, `lost`, `damaged` or `down`.
    pub state: String,
    /// The last log index that it has applied.
    pub applied: u64,
    /// How many entries it is behind its leader.
    pub lag: u64,
    /// The checkpoint that it is being sent.
    pub transfer: Option<Transfer>,
    /// How old its data is at most, milliseconds; `None` if that is not known.
    pub staleness_ms: Option<u64>,
}

/// A checkpoint on its way to a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Transfer {
    /// Bytes that have arrived.
    pub bytes_done: u64,
    /// Bytes in all.
    pub bytes_total: u64,
    /// Bytes per second of late.
    pub bytes_per_second: u64,
    /// Seconds that are left at that rate; `None` while it stands still.
    pub seconds_left: Option<u64>,
}
