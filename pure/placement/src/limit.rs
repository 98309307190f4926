//! Limits of the catalogue beside those of the data model ([`hedgerow_types::limit`]).

use hedgerow_types::limit::REPLICA_COUNT_MAX;

/// Most nodes of one cluster.
pub const NODE_COUNT_MAX: usize = 1_024;
/// Longest address of a node, bytes: a host name of 253, a colon and a port.
pub const ADDRESS_SIZE_MAX: usize = 259;
/// Most labels of one node.
pub const LABEL_COUNT_MAX: usize = 16;
/// Longest name and longest value of a label, bytes.
pub const LABEL_SIZE_MAX: usize = 63;
/// Most bytes of all split keys of one table together, so that a table's row stays small: below 1.5 MB.
pub const SPLIT_KEYS_SIZE_MAX: usize = 64 << 10;
/// Most replicas listed for one partition beside learners: every voter, and one joining for each.
pub const REPLICAS_LISTED_MAX: usize = 2 * REPLICA_COUNT_MAX as usize;
/// Most read-only replicas (learners) of one partition.
pub const READ_REPLICA_COUNT_MAX: u32 = 7;
/// Most bytes that all tables may take in the catalogue, by [`crate::Table::row_size`]: a node tells others the catalogue in one frame
/// of at most 32 MiB, and writes many of its rows at once.
pub const TABLES_SIZE_MAX: usize = 16 << 20;
/// Longest name of a user or a role, bytes: what a certificate can name a client.
pub const HOLDER_NAME_SIZE_MAX: usize = 56;
/// Most rights of one user or role.
pub const GRANTS_PER_HOLDER_MAX: usize = 256;
/// Most bytes that all rights may take in the catalogue, so that it still fits into one frame.
pub const RIGHTS_SIZE_MAX: usize = 1 << 20;
/// Most users that have a password.
pub const PASSWORD_COUNT_MAX: usize = 4_096;
/// Longest comment on a table, bytes.
pub const COMMENT_SIZE_MAX: usize = 256;
/// Smallest threshold of a slow query, milliseconds.
pub const SLOW_QUERY_THRESHOLD_MS_MIN: u32 = 20;
/// Longest name of an option that is stored without effect, bytes.
pub const STORED_KEY_SIZE_MAX: usize = 128;
/// Longest value of one, bytes.
pub const STORED_VALUE_SIZE_MAX: usize = 4_096;
/// Most of them in one table.
pub const STORED_COUNT_MAX: usize = 64;
/// Longest name of another cluster to which tables are duplicated, bytes.
pub const CLUSTER_NAME_SIZE_MAX: usize = 64;
/// Fewest bytes of its journal that a partition keeps for a duplication: room for some of the largest writes.
pub const JOURNAL_BYTES_MIN: u64 = 1 << 20;
/// Most of them.
pub const JOURNAL_BYTES_MAX: u64 = 1 << 40;
