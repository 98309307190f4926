//! Reads and writes of records, and their replies.
//!
//! In all of these, `error` is a [`hedgerow_types::Status`] code, expiry times are expiry-epoch seconds (an unsigned
//! number in a signed field, 0 = never), `decree` is the log index, and `server` is the serving node's `host:port`.

use super::message;
use crate::value::Text;
use alloc::vec::Vec;
use bytes::Bytes;

message! {
    /// PUT: sets a record.
    pub struct Put {
        /// Full key.
        1 => key: Bytes,
        /// New value.
        2 => value: Bytes,
        /// When it expires.
        3 => expire_ts_seconds: i32,
    }

    /// Reply to PUT, REMOVE and MULTI_PUT.
    pub struct UpdateReply {
        /// Status code.
        1 => error: i32,
        /// Table.
        2 => app_id: i32,
        /// Partition.
        3 => partition_index: i32,
        /// Log index of the write.
        4 => decree: i64,
        /// Serving node.
        5 => server: Text,
    }

    /// Reply to GET.
    pub struct GetReply {
        /// Status code.
        1 => error: i32,
        /// Value; empty if there is none.
        2 => value: Bytes,
        /// Table.
        3 => app_id: i32,
        /// Partition.
        4 => partition_index: i32,
        /// Serving node.
        6 => server: Text,
    }

    /// Reply to TTL.
    pub struct TtlReply {
        /// Status code.
        1 => error: i32,
        /// Seconds left; -1 = never expires.
        2 => ttl_seconds: i32,
        /// Table.
        3 => app_id: i32,
        /// Partition.
        4 => partition_index: i32,
        /// Serving node.
        6 => server: Text,
    }

    /// Reply to SORTKEY_COUNT.
    pub struct CountReply {
        /// Status code.
        1 => error: i32,
        /// Live rows.
        2 => count: i64,
        /// Table.
        3 => app_id: i32,
        /// Partition.
        4 => partition_index: i32,
        /// Serving node.
        6 => server: Text,
    }

    /// A row: in multi operations with its sort key, in scans with its full key.
    pub struct KeyValue {
        /// Sort key or full key.
        1 => key: Bytes,
        /// Value.
        2 => value: Bytes,
        /// When it expires, where that was asked for.
        3 => expire_ts_seconds: Option<i32>,
    }

    /// MULTI_PUT: sets rows of one hash key.
    pub struct MultiPut {
        /// Hash key.
        1 => hash_key: Bytes,
        /// Sort keys and values.
        2 => kvs: Vec<KeyValue>,
        /// When they expire.
        3 => expire_ts_seconds: i32,
    }

    /// MULTI_REMOVE: deletes rows of one hash key.
    pub struct MultiRemove {
        /// Hash key.
        1 => hash_key: Bytes,
        /// Sort keys.
        2 => sort_keys: Vec<Bytes>,
        /// Without meaning; Java sends 100.
        3 => max_count: i64,
    }

    /// Reply to MULTI_REMOVE.
    pub struct MultiRemoveReply {
        /// Status code.
        1 => error: i32,
        /// How many sort keys were sent, there or not.
        2 => count: i64,
        /// Table.
        3 => app_id: i32,
        /// Partition.
        4 => partition_index: i32,
        /// Log index of the write.
        5 => decree: i64,
        /// Serving node.
        6 => server: Text,
    }

    /// MULTI_GET: rows of one hash key, either by sort key or by range.
    pub struct MultiGet {
        /// Hash key.
        1 => hash_key: Bytes,
        /// Sort keys; empty = the range below.
        2 => sort_keys: Vec<Bytes>,
        /// Most rows; 0 or less = the server's limit.
        3 => max_kv_count: i32,
        /// Most bytes; 0 or less = the server's limit.
        4 => max_kv_size: i32,
        /// Leave values out.
        5 => no_value: bool,
        /// Lower bound of the range.
        6 => start_sortkey: Bytes,
        /// Upper bound; empty = to the end of the hash key.
        7 => stop_sortkey: Bytes,
        /// Whether the lower bound belongs to the range.
        8 => start_inclusive: bool,
        /// Whether the upper bound belongs to the range.
        9 => stop_inclusive: bool,
        /// Kind of the filter on sort keys.
        10 => sort_key_filter_type: i32,
        /// Its pattern.
        11 => sort_key_filter_pattern: Bytes,
        /// Read from the upper end.
        12 => reverse: bool,
    }

    /// Reply to MULTI_GET.
    pub struct MultiGetReply {
        /// Status code; `Incomplete` if more rows remain.
        1 => error: i32,
        /// Rows with their sort keys.
        2 => kvs: Vec<KeyValue>,
        /// Table.
        3 => app_id: i32,
        /// Partition.
        4 => partition_index: i32,
        /// Serving node.
        6 => server: Text,
    }

    /// A key in two parts.
    pub struct FullKey {
        /// Hash key.
        1 => hash_key: Bytes,
        /// Sort key.
        2 => sort_key: Bytes,
    }

    /// BATCH_GET: records by key.
    pub struct BatchGet {
        /// Their keys.
        1 => keys: Vec<FullKey>,
    }

    /// A record of a batch.
    pub struct FullData {
        /// Hash key.
        1 => hash_key: Bytes,
        /// Sort key.
        2 => sort_key: Bytes,
        /// Value.
        3 => value: Bytes,
    }

    /// Reply to BATCH_GET; absent records are left out.
    pub struct BatchGetReply {
        /// Status code.
        1 => error: i32,
        /// The records.
        2 => data: Vec<FullData>,
        /// Table.
        3 => app_id: i32,
        /// Partition.
        4 => partition_index: i32,
        /// Serving node.
        6 => server: Text,
    }

    /// INCR: adds to a decimal number.
    pub struct Incr {
        /// Full key.
        1 => key: Bytes,
        /// What to add.
        2 => increment: i64,
        /// 0 keeps the record's expiry, above 0 sets it, below 0 removes it.
        3 => expire_ts_seconds: i32,
    }

    /// Reply to INCR.
    pub struct IncrReply {
        /// Status code.
        1 => error: i32,
        /// The new value; on overflow the old one.
        2 => new_value: i64,
        /// Table.
        3 => app_id: i32,
        /// Partition.
        4 => partition_index: i32,
        /// Log index of the write.
        5 => decree: i64,
        /// Serving node.
        6 => server: Text,
    }

    /// CHECK_AND_SET: sets one row if another (or itself) passes a check.
    pub struct CheckAndSet {
        /// Hash key.
        1 => hash_key: Bytes,
        /// Sort key of the checked row.
        2 => check_sort_key: Bytes,
        /// Number of the check.
        3 => check_type: i32,
        /// What the value is compared with.
        4 => check_operand: Bytes,
        /// Whether the row to set is another one than the checked.
        5 => set_diff_sort_key: bool,
        /// Its sort key, if so.
        6 => set_sort_key: Bytes,
        /// New value.
        7 => set_value: Bytes,
        /// When it expires.
        8 => set_expire_ts_seconds: i32,
        /// Return the checked row's value from before.
        9 => return_check_value: bool,
    }

    /// One change of CHECK_AND_MUTATE.
    pub struct Mutate {
        /// 0 = put, 1 = delete.
        1 => operation: i32,
        /// Sort key.
        2 => sort_key: Bytes,
        /// New value, for a put.
        3 => value: Bytes,
        /// When it expires, for a put.
        4 => set_expire_ts_seconds: i32,
    }

    /// CHECK_AND_MUTATE: changes rows if one passes a check.
    pub struct CheckAndMutate {
        /// Hash key.
        1 => hash_key: Bytes,
        /// Sort key of the checked row.
        2 => check_sort_key: Bytes,
        /// Number of the check.
        3 => check_type: i32,
        /// What the value is compared with.
        4 => check_operand: Bytes,
        /// The changes.
        5 => mutate_list: Vec<Mutate>,
        /// Return the checked row's value from before.
        6 => return_check_value: bool,
    }

    /// Reply to CHECK_AND_SET and CHECK_AND_MUTATE.
    pub struct CheckReply {
        /// Status code; `TryAgain` if the check failed.
        1 => error: i32,
        /// Whether the next two say anything.
        2 => check_value_returned: bool,
        /// Whether the checked row existed.
        3 => check_value_exist: bool,
        /// Its value.
        4 => check_value: Bytes,
        /// Table.
        5 => app_id: i32,
        /// Partition.
        6 => partition_index: i32,
        /// Log index of the write.
        7 => decree: i64,
        /// Serving node.
        8 => server: Text,
    }
}
