//! What a group's log holds: entries, the hard state beside them, and positions.

use crate::id::{Index, ReplicaId, Term};
use bytes::Bytes;

/// A position in a log together with the term of the entry there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition {
    /// Term of the entry.
    pub term: Term,
    /// Index of the entry; 0 = before the first.
    pub index: Index,
}

/// What an entry's data means. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EntryKind {
    /// A [`crate::op::Proposal`], or nothing at all (a new leader's first entry).
    Normal = 0,
    /// A change of the group's membership.
    Membership = 1,
}

impl EntryKind {
    /// The kind with the stored number `code`, if there is one.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Normal),
            1 => Some(Self::Membership),
            _ => None,
        }
    }
}

/// One entry of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its index.
    pub index: Index,
    /// The term of the leader that appended it.
    pub term: Term,
    /// What the data means.
    pub kind: EntryKind,
    /// The data; a slice of a larger buffer more often than not.
    pub data: Bytes,
}

impl Entry {
    /// Where the entry stands.
    pub const fn position(&self) -> LogPosition {
        LogPosition { term: self.term, index: self.index }
    }
}

/// What a replica must remember besides its log (Raft, figure 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The latest term the replica has seen.
    pub term: Term,
    /// Whom it voted for in that term.
    pub vote: Option<ReplicaId>,
    /// The highest index it knows to be committed. Losing it is harmless.
    pub commit: Index,
}
