//! The configuration query: which partitions a table has and where their replicas are.

use super::message;
use crate::error_name::ErrorName;
use crate::value::{Address, Binary, HostPort, PartitionId, PlainAddress, PlainAddresses, Text};
use alloc::vec::Vec;

message! {
    /// Asks for a table's partitions by the table's name.
    pub struct QueryConfig {
        /// Name of the table.
        1 => app_name: Text,
        /// Which partitions; empty = all.
        2 => partition_indices: Vec<i32>,
    }

    /// Reply to a configuration query.
    pub struct QueryConfigReply {
        /// `ERR_OK`; `ERR_FORWARD_TO_OTHERS` with the leader as primary of the only partition; or an error.
        1 => err: ErrorName,
        /// Id of the table.
        2 => app_id: i32,
        /// Number of its partitions, a power of two for hash tables.
        3 => partition_count: i32,
        /// Always true: Python takes a table for missing without it.
        4 => is_stateful: bool,
        /// The partitions.
        5 => partitions: Vec<PartitionConfig>,
        /// 0 = hash table, 1 = ordered table; only to callers that sent an extension.
        110 => table_kind: Option<i32>,
        /// Of an ordered table, where each partition begins; only to callers that sent an extension.
        111 => start_keys: Option<Vec<Binary>>,
        /// Where the nodes of these partitions are, for callers that prefer near ones; only to callers that sent an
        /// extension.
        112 => nodes: Option<Vec<NodePlace>>,
    }

    /// Where one partition is.
    pub struct PartitionConfig {
        /// Table and index.
        1 => pid: PartitionId,
        /// Rises with every change; negative = the partition does not exist yet.
        2 => ballot: i64,
        /// How many replicas it should have.
        3 => max_replica_count: i32,
        /// The leader. Go refuses the whole table if one is missing.
        4 => primary: Address,
        /// The other replicas.
        5 => secondaries: Vec<Address>,
        /// Replicas that were lost; of no use to clients.
        6 => last_drops: Vec<Address>,
        /// Of no use to clients.
        7 => last_committed_decree: i64,
        /// Of no use to clients.
        8 => partition_flags: i32,
        /// The leader by name (Pegasus 2.6 only).
        9 => hp_primary: Option<HostPort>,
        /// The other replicas by name (Pegasus 2.6 only).
        10 => hp_secondaries: Option<Vec<HostPort>>,
        /// Lost replicas by name (Pegasus 2.6 only).
        11 => hp_last_drops: Option<Vec<HostPort>>,
        /// Read-only replicas; only to callers that sent an extension.
        110 => learners: Option<PlainAddresses>,
    }

    /// Where a node is, by its operator's word.
    pub struct NodePlace {
        /// The node.
        1 => address: PlainAddress,
        /// Its labels, each as `key=value`, in the order of their keys.
        2 => labels: Vec<Text>,
    }
}
