//! Scans: opening one, its next page, and the pages.

use super::{KeyValue, message};
use crate::value::Text;
use alloc::vec::Vec;
use bytes::Bytes;

/// `context_id` of a page after which nothing comes.
pub const SCAN_DONE: i64 = -1;

message! {
    /// GET_SCANNER: opens a scan and asks for its first page.
    pub struct GetScanner {
        /// Lower bound, a full key.
        1 => start_key: Bytes,
        /// Upper bound, a full key; `FF FF` or empty = the partition's end.
        2 => stop_key: Bytes,
        /// Whether the lower bound belongs to the range.
        3 => start_inclusive: bool,
        /// Whether the upper bound belongs to the range.
        4 => stop_inclusive: bool,
        /// Rows per page; 0 or less = the server's choice.
        5 => batch_size: i32,
        /// Leave values out.
        6 => no_value: bool,
        /// Kind of the filter on hash keys.
        7 => hash_key_filter_type: i32,
        /// Its pattern.
        8 => hash_key_filter_pattern: Bytes,
        /// Kind of the filter on sort keys.
        9 => sort_key_filter_type: i32,
        /// Its pattern.
        10 => sort_key_filter_pattern: Bytes,
        /// Hide rows that belong to another partition after a split; absent = yes.
        11 => validate_partition_hash: Option<bool>,
        /// Return when each row expires; absent = no.
        12 => return_expire_ts: Option<bool>,
        /// Whether the caller scans the whole table; a hint.
        13 => full_scan: Option<bool>,
        /// Return only the number of rows; absent = no.
        14 => only_return_count: Option<bool>,
    }

    /// SCAN: the next page of an open scan.
    pub struct Scan {
        /// What the last page gave.
        1 => context_id: i64,
    }

    /// Reply to GET_SCANNER and SCAN.
    pub struct ScanReply {
        /// Status code; `NotFound` if the context is unknown, whereupon clients open the scan anew.
        1 => error: i32,
        /// Rows with their full keys.
        2 => kvs: Vec<KeyValue>,
        /// What the next SCAN must name, or [`SCAN_DONE`].
        3 => context_id: i64,
        /// Table.
        4 => app_id: i32,
        /// Partition.
        5 => partition_index: i32,
        /// Serving node.
        6 => server: Text,
        /// Number of rows, only where nothing else was asked for.
        7 => kv_count: Option<i32>,
    }
}
