//! Limits of the data model, checked at the edge. Values marked (P) are Pegasus' own.

/// Longest hash key, bytes: its length travels in 16 bits and the top value is reserved (P).
pub const HASH_KEY_SIZE_MAX: usize = 65_534;
/// Longest sort key and longest key of an ordered table, bytes.
pub const SORT_KEY_SIZE_MAX: usize = 65_535;
/// Largest body of one write request, bytes (P).
pub const WRITE_SIZE_MAX: usize = 1 << 20;
/// Most bytes of keys and values that one write may give to storage, where the prefix that its rows share counts for each of them.
pub const WRITE_STORED_SIZE_MAX: usize = 4 << 20;
/// Most rows in one multi-key write. Pegasus' clients stop at 1,000.
pub const MULTI_WRITE_COUNT_MAX: usize = 10_000;
/// Most rows that one read looks at, expired and filtered ones included (P).
pub const READ_ROWS_MAX: usize = 3_000;
/// Most bytes (keys and values) that one read returns (P).
pub const READ_SIZE_MAX: usize = 30 << 20;
/// Most rows in one page of a scan (P).
pub const SCAN_PAGE_ROWS_MAX: usize = 1_000;
/// Most keys in one batch read.
pub const BATCH_READ_COUNT_MAX: usize = 10_000;
/// Largest frame taken from a client, bytes.
pub const FRAME_SIZE_MAX: usize = 64 << 20;
/// Longest table name, bytes.
pub const TABLE_NAME_SIZE_MAX: usize = 128;
/// Partitions of one table: at least this many for a hash table, so that every Pegasus client accepts it (P).
pub const PARTITION_COUNT_MIN: u32 = 2;
/// Most partitions of one table.
pub const PARTITION_COUNT_MAX: u32 = 4_096;
/// Most tables of one cluster.
pub const TABLE_COUNT_MAX: usize = 1_024;
/// Most replicas of one partition.
pub const REPLICA_COUNT_MAX: u32 = 7;
/// Sequence numbers a client may have unanswered in one partition; also how many results a session keeps.
pub const SESSION_WINDOW: u64 = 1_024;
/// Seconds after its last write for which a session is kept, measured on the log's own timestamps.
pub const SESSION_IDLE_SECONDS: u32 = 3_600;
/// Bytes that the sessions of one partition may take, as the exactly-once table counts them. Beyond it those that wrote
/// longest ago are forgotten. All replicas of a partition must have the same limit, since it decides what they refuse.
pub const SESSION_BYTES_MAX: u64 = 32 << 20;
/// Largest encoded result of a write that is kept for a repetition, bytes. Of a larger one only is kept that there was one.
pub const SESSION_REPLY_SIZE_MAX: usize = 1_024;
/// How far ahead of its partition's present a write's sequence number may be, microseconds. What a partition's present is:
/// `host/storage/src/session.rs`.
pub const SESSION_AHEAD_MICROS: u64 = 3_600_000_000;
/// Time that each partition adds to what the creation of a table may take: clients and nodes wait for so long.
pub const CREATION_PER_PARTITION: core::time::Duration = core::time::Duration::from_millis(50);
