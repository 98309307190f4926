//! Errors in two layers, as the client protocol has them: an operation's own outcome, and a refusal to run it at all.

use crate::id::NodeId;
use crate::read::Lag;
use alloc::string::String;

/// The outcome of an operation that ran. The numbers are those of RocksDB and travel on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Status {
    /// It did what it says.
    Ok = 0,
    /// The record does not exist or has expired.
    NotFound = 1,
    /// Stored data failed a check.
    Corruption = 2,
    /// The operation does not exist for this kind of table.
    NotSupported = 3,
    /// An argument is not allowed: an empty list, a number that is not one, an overflow.
    InvalidArgument = 4,
    /// The storage failed.
    IoError = 5,
    /// Rows were returned, and more remain behind a limit.
    Incomplete = 7,
    /// The check of a check-and-set did not hold.
    TryAgain = 13,
}

impl Status {
    /// The status with the wire number `code`, if there is one.
    pub const fn from_code(code: i32) -> Option<Self> {
        Some(match code {
            0 => Self::Ok,
            1 => Self::NotFound,
            2 => Self::Corruption,
            3 => Self::NotSupported,
            4 => Self::InvalidArgument,
            5 => Self::IoError,
            7 => Self::Incomplete,
            13 => Self::TryAgain,
            _ => return None,
        })
    }

    /// The wire number.
    pub const fn code(self) -> i32 {
        self as i32
    }
}

/// Why a node did not run a request. Whether the caller may send it again is part of each meaning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another replica leads the partition. Nothing happened; ask the leader, or the map.
    #[error("this replica does not lead the partition")]
    NotLeader {
        /// The leader, if this replica knows it.
        leader: Option<NodeId>,
    },
    /// The replica or the node cannot do it yet, for the reason that it tells in a whole sentence: starting, learning, without a leader's
    /// confirmation. Nothing happened; try again.
    #[error("{0}")]
    NotReady(String),
    /// The replica is too far behind for the read level that was asked for, or cannot know whether it is. Nothing
    /// happened; ask another replica.
    #[error("the replica lags: {0}")]
    Lagging(Lag),
    /// The node does not host the partition. Nothing happened; ask the map.
    #[error("the partition is not on this node")]
    NotHosted,
    /// A queue is full. Nothing happened; try again later.
    #[error("the node is busy: {0}")]
    Busy(String),
    /// The node's queue is expected to take longer than the caller would wait. Nothing happened; ask another replica at
    /// once, or this one after that time.
    #[error("the node is busy: a request waits for about {estimated_wait_ms} ms")]
    BusyFor {
        /// How long the request would have waited, ms.
        estimated_wait_ms: u32,
    },
    /// A note about an extra attempt: the table's limit on these dropped it. Nothing happened, and nothing follows: the
    /// request's other attempts decide. Only callers that sent an extension are told.
    #[error("the table's limit on extra attempts dropped this one")]
    Throttled,
    /// A note about an attempt of a tied request: the other one began first, and this one was dropped unrun. Nothing
    /// follows: the other attempt decides.
    #[error("another attempt of the request began first")]
    Withdrawn,
    /// A write was proposed but its outcome is not known: leadership changed under it. Only safe to send again with the
    /// same client id and sequence.
    #[error("leadership changed while the write was in flight")]
    Unresolved,
    /// The deadline passed. For a write the outcome is not known.
    #[error("the deadline passed")]
    Expired,
    /// A write was not applied now, because its partition cannot tell whether it was before: its result is no longer kept,
    /// or its number is out of range. Do not send it again under this number. If it was sent only once, it was never
    /// applied, and may be sent under a number within the range.
    #[error("the result of write {sequence} is not kept, if it was applied")]
    SessionWindow {
        /// The write's number.
        sequence: u64,
        /// Numbers up to this one may have been forgotten.
        floor: u64,
        /// Numbers above this one are too far ahead of the partition's present; 0 = the range is not known.
        ceiling: u64,
    },
    /// The request is not allowed as it stands. Do not send it again.
    #[error("{0}")]
    Invalid(String),
    /// What is there does not allow it, such as a name that is taken: the reason in a whole sentence. Nothing happened; change that first.
    #[error("{0}")]
    FailedPrecondition(String),
    /// The request is larger than a limit. Do not send it again.
    #[error("{0}")]
    TooLarge(String),
    /// No table has this name or id.
    #[error("the table does not exist")]
    NoTable,
    /// The table is being created; try again.
    #[error("the table is being created")]
    Creating,
    /// A table with this name exists already.
    #[error("the table exists already")]
    TableExists,
    /// The node is stopping or its log failed; ask another.
    #[error("the node is stopping: {0}")]
    Stopping(String),
    /// The write would add data, and the disks of the partition's nodes are full. Nothing happened, and nothing will before
    /// space is made: reads and deletes are served.
    #[error("the disk is full: {0}")]
    DiskFull(String),
    /// Whoever asks has not been given the right to, for the reason that it tells in a whole sentence. Nothing happened; do not send it again.
    #[error("{0}")]
    NotAllowed(String),
    /// The node does not know this operation.
    #[error("the operation is not known")]
    Unknown,
}
