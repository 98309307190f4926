//! What a cluster says of itself, as types. New versions of it may say more, and what an old one does not say is at its default. What a node
//! says only once it knows it is `null` before, and an `Option` here.

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
    /// All of it in a few figures; `None` if the node does not say it.
    pub summary: Option<Summary>,
    /// The group that keeps the catalogue.
    pub metadata: PartitionStatus,
    /// On whose word the node knows the time: `agreed`, `held` or `unknown`.
    pub time: String,
    /// The nodes of the configuration.
    pub nodes: Vec<NodeStatus>,
    /// The tables in use.
    pub tables: Vec<TableStatus>,
    /// The tables that are dropped and kept.
    pub dropped_tables: Vec<DroppedTableStatus>,
}

impl ClusterStatus {
    /// Nodes with a disk that takes no more data.
    pub fn full_nodes(&self) -> Vec<u16> {
        self.nodes.iter().filter(|node| node.has_full_disk()).map(|node| node.node).collect()
    }

    /// Nodes that do without one of their data directories.
    pub fn nodes_without_directory(&self) -> Vec<u16> {
        self.nodes.iter().filter(|node| !node.missing_directories.is_empty()).map(|node| node.node).collect()
    }

    /// Nodes without room for a checkpoint that a replica there needs, each with the most bytes that one of them lacks.
    pub fn nodes_without_room(&self) -> BTreeMap<u16, u64> {
        let mut nodes = BTreeMap::new();
        let partitions = self.tables.iter().flat_map(|table| &table.partitions);
        for replica in partitions.flat_map(|partition| &partition.replicas).filter(|replica| replica.lacking_bytes > 0)
        {
            let most: &mut u64 = nodes.entry(replica.node).or_default();
            *most = replica.lacking_bytes.max(*most);
        }
        nodes
    }

    /// How many replicas of tables do not serve.
    pub fn replicas_not_ok(&self) -> usize {
        self.tables.iter().map(TableStatus::replicas_not_ok).sum()
    }

    /// Whether everything can be read and written.
    pub fn is_served(&self) -> bool {
        self.summary.as_ref().is_none_or(Summary::is_whole) && self.full_nodes().is_empty()
    }

    /// Whether nothing is down, full, missing or in repair either. A moment after replicas were made or lost nobody repairs them yet: they do not
    /// serve all the same.
    pub fn is_healthy(&self) -> bool {
        let is_calm =
            |summary: &Summary| summary.is_whole() && summary.nodes_up >= summary.nodes && summary.in_repair == 0;
        let has_disks = self.full_nodes().is_empty() && self.nodes_without_directory().is_empty();
        self.summary.as_ref().is_some_and(is_calm) && has_disks && self.replicas_not_ok() == 0
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

impl Summary {
    /// Whether every record can be read and written as far as leaders go, and tables can be changed.
    pub fn is_whole(&self) -> bool {
        self.without_leader == 0 && self.metadata_has_leader
    }
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
    /// How slow it is, 1 (not at all) to 100; 0 = not told.
    pub slow_score: u8,
    /// Whether leaders leave it for that.
    pub is_slow: bool,
    /// Its data directories; `None` until it has reported.
    pub disks: Option<Vec<DiskStatus>>,
    /// Where its logs are, by the name of the setting `log.layout`; `None` until it has said so.
    pub log_layout: Option<String>,
    /// Whether its clients may do only what their users have been given, by the name of the setting `security.rights`; `None` until it has
    /// said so.
    pub rights: Option<String>,
    /// When the first of its certificates and authorities expires, unix seconds; `None` without TLS, and until it has said so.
    pub certificates_expire_unix_seconds: Option<u64>,
    /// Bytes of log that each of them keeps, and for others may keep at present; the same.
    pub log_bytes: Option<Vec<u64>>,
    /// See `log_bytes`.
    pub log_bytes_allowed: Option<Vec<u64>>,
    /// How far its clock is ahead of the time that a majority agrees on, milliseconds.
    pub clock_ahead_ms: Option<i64>,
    /// Whether that is more than allowed.
    pub is_clock_off: bool,
    /// Data directories that it does without, each with the reason.
    pub missing_directories: Vec<String>,
    /// Its labels.
    pub labels: Option<BTreeMap<String, String>>,
}

impl NodeStatus {
    /// Whether one of its disks takes no more data.
    pub fn has_full_disk(&self) -> bool {
        self.disks.iter().flatten().any(|disk| disk.state == "full" || disk.state == "stalled")
    }
}

/// The disk of a data directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct DiskStatus {
    /// `ok`, `full`, or `stalled` where even the log has no room.
    pub state: String,
    /// Bytes that are free; `None` while the node has not looked.
    pub free_bytes: Option<u64>,
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

impl TableStatus {
    /// How many of its replicas do not serve.
    pub fn replicas_not_ok(&self) -> usize {
        self.partitions.iter().flat_map(|partition| &partition.replicas).filter(|replica| replica.state != "ok").count()
    }
}

/// A table that is dropped and kept.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct DroppedTableStatus {
    /// Its number, by which it is recalled.
    pub id: u64,
    /// The name that it had.
    pub name: String,
    /// Number of partitions.
    pub partition_count: u64,
    /// When it is removed for good, unix seconds.
    pub kept_until_unix_seconds: u64,
    /// Its partitions, in order: they are repaired like others.
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
    /// `ok`, `learning`, `no room`, `missing`, `lost`, `damaged` or `down`.
    pub state: String,
    /// The last log index that its leader knows it to have.
    pub matched: u64,
    /// The last log index that it has applied.
    pub applied: u64,
    /// How many entries it is behind its leader.
    pub lag: u64,
    /// Bytes that its disk lacks for the checkpoint that it needs; 0 = none.
    pub lacking_bytes: u64,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A second after a cluster started: nodes that were not heard of, one that has not looked at its disk, no leaders.
    #[test]
    fn a_status_of_nodes_that_have_not_reported_is_read() {
        let status = r#"{"cluster":"00000000000000ab","catalogue_version":3,"time":"unknown",
            "summary":{"nodes":2,"nodes_up":0,"partitions":1,"without_leader":1,"in_repair":0,"metadata_has_leader":false},
            "metadata":{"index":0,"leader":null,"term":0,"commit":0,"replicas":[]},
            "nodes":[{"node":1,"address":"","state":"dead","replicas":0,"replicas_max":null,"leaders":0,"log_bytes":null,
                "log_bytes_max":null,"log_bytes_allowed":null,"slow_score":0,"is_slow":false,"disks":null,
                "clock_ahead_ms":null,"is_clock_off":false,"missing_directories":[],"labels":null},
                {"node":2,"address":"b:1","state":"alive","replicas":0,"replicas_max":9,"leaders":0,"log_bytes":[0],
                "log_bytes_max":1,"log_bytes_allowed":[1],"slow_score":1,"is_slow":false,
                "disks":[{"state":"ok","free_bytes":null,"total_bytes":0}],"clock_ahead_ms":0,"is_clock_off":false,
                "missing_directories":[],"labels":{}}],
            "tables":[{"id":1,"name":"t","kind":"hash","state":"creating","partition_count":1,"replica_count":1,
                "options":{},"created_unix_seconds":0,"partitions":[{"index":0,"leader":null,"term":0,"commit":0,
                "replicas":[{"node":1,"replica":"n1.1","role":"voter","matched":0,"applied":0,"lag":0,"transfer":null,
                "staleness_ms":null,"state":"down"},{"node":2,"replica":"n2.1","role":"voter","matched":0,"applied":0,
                "lag":0,"transfer":{"bytes_done":0,"bytes_total":1,"bytes_per_second":0,"seconds_left":null},
                "staleness_ms":null,"state":"learning"}]}]}],
            "dropped_tables":[]}"#;
        let status: ClusterStatus = serde_json::from_str(status).unwrap();
        assert_eq!(status.nodes[0].disks, None);
        assert_eq!(status.nodes[1].disks.as_ref().unwrap()[0].free_bytes, None);
        assert!(!status.is_served() && !status.nodes[1].has_full_disk());
        assert_eq!(status.replicas_not_ok(), 2);
    }
}
