//! Duplication of a table to another cluster: what a partition keeps for it, and what the other side is told.
//!
//! A partition from which a table is duplicated keeps a *journal*: for each write, the rows as the write left them. What came of a
//! condition or an addition is settled then, so that the other side need not find out by itself. Each change of a row has a
//! [`Stamp`], and of two changes of a row the one with the later stamp stands, at both sides: changes may come again, and in any order.

use crate::op::Mutation;
use alloc::vec::Vec;
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// When a row was changed: the log's time of then (expiry-epoch seconds) above [`STAMP_COUNT_BITS`] bits that count. Each write of a
/// partition has a later one than every write and every foreign change that the partition had applied before. 0 = before there were stamps.
pub type Stamp = u64;

/// The lower bits of a [`Stamp`].
pub const STAMP_COUNT_BITS: u32 = 24;
/// How far ahead of a partition's time a foreign stamp may be, seconds. Beyond it a clock is wrong, and would win against all that follows.
pub const STAMP_AHEAD_MAX: u32 = 3_600;
/// For how long a removed row is remembered, seconds of the log's time: a foreign change that is older than the removal is not taken then.
pub const TOMBSTONE_SECONDS: u32 = 7 * 86_400;
/// For how long the stamp of a row that has expired is remembered, seconds of the log's time. Not as long as a removed row's: its value
/// stays on the disk as well, and a table may be full of rows that soon expire.
pub const EXPIRED_SECONDS: u32 = 3_600;
/// Most duplications of one table.
pub const DUPLICATION_COUNT_MAX: usize = 4;
/// Most changes that are told to another cluster in one write.
pub const DUPLICATE_CHANGES_MAX: usize = 256;
/// What a change of another cluster's row counts beside its key and value, bytes: what is there is looked up for it.
pub const CHANGE_COST: usize = 4 << 10;

/// The stamp of a partition's write at `now` (expiry-epoch seconds), after the stamp `last`.
pub const fn stamp_after(last: Stamp, now: u32) -> Stamp {
    let present = (now as u64) << STAMP_COUNT_BITS;
    if present > last { present } else { last.saturating_add(1) }
}

/// The time of a stamp, expiry-epoch seconds.
pub const fn stamp_seconds(stamp: Stamp) -> u32 {
    (stamp >> STAMP_COUNT_BITS) as u32
}

/// A row as a write left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// When.
    pub stamp: Stamp,
    /// Number of the cluster where it was made. Of two changes with one stamp, that of the cluster with the larger number stands.
    pub origin: u64,
    /// What. Its suffix is the whole storage key.
    pub mutation: Mutation,
}

/// Changes of another cluster's rows, to be done here too. Each is done unless the row was changed later here: see [`is_later`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// Number of the cluster that is told.
    pub here: u64,
    /// The changes.
    pub changes: Vec<Change>,
}

/// Whether the change with this stamp, from this cluster, stands against the `other` one. A change
/// that comes again does not: it was done.
pub fn is_later(change: (Stamp, u64), other: (Stamp, u64)) -> bool {
    change > other
}

/// How far a duplication has come in a partition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Position {
    /// Rows that were there when it began are copied, and those up to this engine key are.
    Copying(Bytes),
    /// All of them are, and the journal up to its entry with this number is told.
    Following {
        /// The number.
        entry: u64,
        /// Bytes of the journal up to there, since it began.
        bytes: u64,
    },
}

impl Position {
    /// Before the first row.
    pub const START: Self = Self::Copying(Bytes::new());

    /// Appends the encoded form to `out`.
    pub fn encode(&self, out: &mut BytesMut) {
        match self {
            Self::Copying(key) => {
                out.put_u8(0);
                out.put_slice(key);
            }
            Self::Following { entry, bytes } => {
                out.put_u8(1);
                out.put_u64(*entry);
                out.put_u64(*bytes);
            }
        }
    }

    /// The encoded form.
    pub fn encoded(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.encode(&mut out);
        out.freeze()
    }

    /// The inverse of [`Position::encode`].
    pub fn decode(mut data: Bytes) -> Option<Self> {
        if data.is_empty() {
            return None;
        }
        match data.get_u8() {
            0 => Some(Self::Copying(data)),
            1 if data.len() == 16 => Some(Self::Following { entry: data.get_u64(), bytes: data.get_u64() }),
            _ => None,
        }
    }
}

/// A change of a partition's journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalWrite {
    /// The journal is kept for this duplication from now on, and all rows are to be copied. Changes nothing but its limit if it has
    /// begun this round, or a later one, unless it still copies, and to another table.
    Begin {
        /// Its number.
        id: u64,
        /// How often it was begun anew.
        round: u32,
        /// Number of this cluster.
        cluster: u64,
        /// What stands for the other cluster and its table: another one has been told nothing. Kept from when the copy began.
        target: u64,
        /// Bytes of the journal that are kept for it. Beyond them it is given up, and must begin anew.
        bytes_max: u64,
    },
    /// The other cluster was told all up to `position`.
    Reached {
        /// The duplication.
        id: u64,
        /// The round in which it was.
        round: u32,
        /// How far.
        position: Position,
    },
    /// There is no such duplication any more.
    End {
        /// Its number.
        id: u64,
    },
}

/// A question for what another cluster is to be told next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalRead {
    /// The duplication.
    pub id: u64,
    /// The round in which `from` was said.
    pub round: u32,
    /// From where on; `None`, or of another round = from where it is by what was [reached](JournalWrite::Reached).
    pub from: Option<Position>,
    /// A page ends once it has this many bytes.
    pub bytes_max: u32,
}

/// Where a duplication is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// The partition does not know of it.
    #[default]
    Absent = 0,
    /// Rows that were there when it began are copied.
    Copying = 1,
    /// What is written is told.
    Following = 2,
    /// The journal became too long, and is not kept for it any more: it must begin anew.
    Overrun = 3,
}

impl Phase {
    /// The phase with number `code`.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Absent),
            1 => Some(Self::Copying),
            2 => Some(Self::Following),
            3 => Some(Self::Overrun),
            _ => None,
        }
    }
}

/// What a partition answers to a [`JournalRead`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalPage {
    /// Where the duplication is.
    pub phase: Phase,
    /// Its round.
    pub round: u32,
    /// Whom it tells.
    pub target: u64,
    /// The changes to tell, in order.
    pub changes: Vec<Change>,
    /// How far they reach; `None` if there is no such duplication, or nothing to tell it.
    pub position: Option<Position>,
    /// Whether there is more behind them.
    pub has_more: bool,
    /// Entries of the journal that it has not reached.
    pub entries_left: u64,
    /// Their bytes.
    pub bytes_left: u64,
    /// When the first change of the page was made, expiry-epoch seconds; 0 = not known.
    pub oldest: u32,
    /// The log's time.
    pub now: u32,
    /// Entries of the journal that no duplication needs any more, and that are not removed yet: each [`JournalWrite`] removes some of them.
    pub unneeded: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_grow_whatever_the_clock_does() {
        let first = stamp_after(0, 100);
        assert_eq!(stamp_seconds(first), 100);
        let second = stamp_after(first, 100);
        assert!(second > first);
        assert_eq!(stamp_after(second, 50), second + 1);
        assert_eq!(stamp_seconds(stamp_after(second, 101)), 101);
        assert_eq!(stamp_after(u64::MAX, 1), u64::MAX);
    }

    #[test]
    fn of_two_changes_exactly_one_stands_at_both_sides() {
        for (a, b) in [((5, 1), (5, 2)), ((6, 1), (5, 2)), ((5, 9), (5, 2))] {
            assert_ne!(is_later(a, b), is_later(b, a), "{a:?} {b:?}");
        }
        assert!(!is_later((5, 1), (5, 1)), "what comes again was done");
    }

    #[test]
    fn a_position_survives_the_round_trip_and_nothing_else_is_one() {
        for position in [
            Position::START,
            Position::Copying(Bytes::from_static(b"dkey")),
            Position::Following { entry: 7, bytes: u64::MAX },
        ] {
            assert_eq!(Position::decode(position.encoded()), Some(position));
        }
        for data in [&[][..], &[1], &[1; 16], &[1; 18], &[2]] {
            assert_eq!(Position::decode(Bytes::copy_from_slice(data)), None);
        }
    }
}
