//! Duplication between clusters: our own calls. What the words mean: [`hedgerow_types::journal`].

use super::message;
use crate::value::Text;
use alloc::vec::Vec;
use bytes::Bytes;
use hedgerow_types::journal::Phase;

message! {
    /// A row as a write left it.
    pub struct RowChange {
        /// 0 = set, 1 = deleted.
        1 => operation: i32,
        /// Full key.
        2 => key: Bytes,
        /// Its value, if it was set.
        3 => value: Bytes,
        /// When it expires, expiry-epoch seconds in an unsigned number; 0 = never.
        4 => expire_ts_seconds: i32,
        /// When it was changed.
        5 => stamp: u64,
        /// Number of the cluster that changed it.
        6 => origin: u64,
    }

    /// Does in this cluster what was done in another one.
    pub struct Duplicate {
        /// What the sender takes for the number of the cluster that it tells.
        1 => cluster: u64,
        /// The changes, all of one partition.
        2 => changes: Vec<RowChange>,
    }

    /// Asks what another cluster is to be told next.
    pub struct JournalRead {
        /// Number of the duplication.
        1 => id: u64,
        /// From where on, as a reply said it; empty = from where the duplication is.
        2 => from: Bytes,
        /// Bytes of a page.
        3 => bytes_max: i32,
        /// Round of the reply that said it.
        4 => round: i32,
    }

    /// Reply to a [`JournalRead`].
    pub struct JournalReply {
        /// Status code.
        1 => error: i32,
        /// Number of the [`hedgerow_types::journal::Phase`].
        2 => phase: i32,
        /// Round of the duplication.
        3 => round: i32,
        /// The changes, in order.
        4 => changes: Vec<RowChange>,
        /// How far they reach; empty = there is nothing to reach.
        5 => position: Bytes,
        /// Whether there is more behind them.
        6 => has_more: bool,
        /// Entries that the duplication has not reached.
        7 => entries_left: u64,
        /// Their bytes.
        8 => bytes_left: u64,
        /// When the first change was made, expiry-epoch seconds; 0 = not known.
        9 => oldest_seconds: u64,
        /// The log's time, expiry-epoch seconds.
        10 => now_seconds: u64,
        /// Entries that no duplication needs any more, and that are not removed yet.
        11 => unneeded: u64,
        /// Whom the duplication tells.
        12 => target: u64,
        /// Table.
        13 => app_id: i32,
        /// Partition.
        14 => partition_index: i32,
        /// Serving node.
        15 => server: Text,
    }

    /// Changes what a partition keeps for other clusters.
    pub struct JournalWrite {
        /// 0 = begin, 1 = reached, 2 = end.
        1 => action: i32,
        /// Number of the duplication.
        2 => id: u64,
        /// Its round.
        3 => round: i32,
        /// To begin: the number of the cluster itself.
        4 => cluster: u64,
        /// To begin: bytes of the journal that are kept.
        5 => bytes_max: u64,
        /// Of what was reached: how far, as the reply to a question said it.
        6 => position: Bytes,
        /// To begin: what stands for the other cluster and its table.
        7 => target: u64,
    }
}

impl JournalReply {
    /// Where the duplication is; `None` if this version does not know it.
    pub fn known_phase(&self) -> Option<Phase> {
        u8::try_from(self.phase).ok().and_then(Phase::from_code)
    }

    /// How old the oldest change is that the other cluster was not told, whole seconds; `None` = not known, as while rows are copied.
    pub fn lag_seconds(&self) -> Option<u64> {
        match (self.known_phase()?, self.entries_left, self.oldest_seconds) {
            (Phase::Following, 0, _) => Some(0),
            (Phase::Following, _, 1..) => Some(self.now_seconds.saturating_sub(self.oldest_seconds)),
            _ => None,
        }
    }
}

/// [`JournalWrite::action`]: begins a duplication, or a round of it.
pub const JOURNAL_BEGIN: i32 = 0;
/// [`JournalWrite::action`]: says how far the other cluster was told.
pub const JOURNAL_REACHED: i32 = 1;
/// [`JournalWrite::action`]: ends a duplication.
pub const JOURNAL_END: i32 = 2;
/// [`RowChange::operation`]: the row was set.
pub const CHANGE_PUT: i32 = 0;
/// [`RowChange::operation`]: the row was deleted.
pub const CHANGE_REMOVE: i32 = 1;
