//! Operations on one partition, as the storage runs them: keys are storage keys, prefixes are what the rows of one hash
//! key share (empty in an ordered table), and time is a number of expiry-epoch seconds.

use crate::error::Status;
use crate::id::{ClientId, Sequence};
use crate::journal::{CHANGE_COST, Duplicate, JournalPage, JournalRead, JournalWrite, Position};
use crate::key;
use alloc::vec::Vec;
use bytes::Bytes;

/// When a record expires, in expiry-epoch seconds; 0 = never.
pub type ExpireAt = u32;

/// A pattern that a key must match. An empty pattern matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// How the pattern is applied.
    pub kind: FilterKind,
    /// The bytes to look for.
    pub pattern: Bytes,
}

/// Where a [`Filter`]'s pattern must stand. The numbers travel on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum FilterKind {
    /// Everything matches.
    #[default]
    None = 0,
    /// Anywhere in the key.
    Anywhere = 1,
    /// At its beginning.
    Prefix = 2,
    /// At its end.
    Postfix = 3,
}

impl Filter {
    /// Whether `key` passes.
    pub fn matches(&self, key: &[u8]) -> bool {
        let pattern = &self.pattern[..];
        pattern.is_empty()
            || match self.kind {
                FilterKind::None => true,
                // A pattern is prepared for each search, which must not cost more than the key is long.
                FilterKind::Anywhere => pattern.len() <= key.len() && memchr::memmem::find(key, pattern).is_some(),
                FilterKind::Prefix => key.starts_with(pattern),
                FilterKind::Postfix => key.ends_with(pattern),
            }
    }
}

/// A read of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// One record's value.
    Get {
        /// Storage key.
        key: Bytes,
    },
    /// One record's remaining life.
    Ttl {
        /// Storage key.
        key: Bytes,
    },
    /// Several records under one prefix.
    MultiGet(MultiGet),
    /// Several records by storage key, absent ones left out.
    BatchGet {
        /// Storage keys.
        keys: Vec<Bytes>,
    },
    /// Live records under a prefix.
    SortKeyCount {
        /// The prefix.
        prefix: Bytes,
    },
    /// One page of a range.
    Scan(Scan),
    /// A checksum over every live row of the partition (key, value, expiry), for comparing replicas.
    Checksum,
    /// What another cluster is to be told next.
    Journal(JournalRead),
}

/// Several records under one prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MultiGet {
    /// What the storage keys start with.
    pub prefix: Bytes,
    /// Which of them.
    pub selection: Selection,
    /// Most rows; 0 or less = no limit but the server's.
    pub count_max: i32,
    /// Most bytes of sort keys and values; 0 or less = no limit but the server's.
    pub size_max: i32,
    /// Leave the values out.
    pub no_value: bool,
}

/// Which records of a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Those with these suffixes (sort keys), in this order.
    Suffixes(Vec<Bytes>),
    /// Those of a range of suffixes.
    Range {
        /// Lower bound.
        start: Bytes,
        /// Whether the lower bound itself belongs to the range.
        start_inclusive: bool,
        /// Upper bound; empty = to the end of the prefix.
        stop: Bytes,
        /// Whether the upper bound itself belongs to the range.
        stop_inclusive: bool,
        /// Only suffixes that match.
        filter: Filter,
        /// Read from the upper end; rows are still returned in ascending order.
        reverse: bool,
    },
}

/// One page of a range scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Lower bound, a storage key; empty = the partition's beginning.
    pub start: Bytes,
    /// Whether the lower bound itself belongs to the range.
    pub start_inclusive: bool,
    /// Upper bound, a storage key; empty = the partition's end.
    pub stop: Bytes,
    /// Whether the upper bound itself belongs to the range.
    pub stop_inclusive: bool,
    /// Whether storage keys have the form of a hash table (see [`crate::key`]); the filters then apply to the hash key
    /// and the sort key, otherwise `sort_key_filter` applies to the whole key.
    pub is_hash_table: bool,
    /// Only hash keys that match.
    pub hash_key_filter: Filter,
    /// Only sort keys that match.
    pub sort_key_filter: Filter,
    /// Most rows in the page; capped at [`crate::limit::SCAN_PAGE_ROWS_MAX`].
    pub rows_max: u32,
    /// Leave the values out.
    pub no_value: bool,
    /// Return when each row expires.
    pub return_expire: bool,
    /// Return only how many rows there are.
    pub only_count: bool,
}

impl Scan {
    /// What is left of it behind the row with the storage key `last`. An ordered table may have a row with the empty key, and an
    /// empty start is the partition's beginning: behind that row comes the smallest key above it.
    #[must_use]
    pub fn after(self, last: Bytes) -> Self {
        let (start, start_inclusive) = key::after(last);
        Self { start, start_inclusive, ..self }
    }

    fn strings_mut(&mut self) -> Vec<&mut Bytes> {
        let Self { start, stop, hash_key_filter, sort_key_filter, .. } = self;
        Vec::from([start, stop, &mut hash_key_filter.pattern, &mut sort_key_filter.pattern])
    }

    /// Gives it bytes of its own, for one that is kept: what came in a message keeps the whole message in memory. Returns how many.
    pub fn detach(&mut self) -> usize {
        detach(self.strings_mut())
    }
}

impl Read {
    /// The same as [`Scan::detach`].
    pub fn detach(&mut self) -> usize {
        detach(match self {
            Self::Get { key } | Self::Ttl { key } | Self::SortKeyCount { prefix: key } => Vec::from([key]),
            Self::BatchGet { keys } => keys.iter_mut().collect(),
            Self::Scan(scan) => scan.strings_mut(),
            Self::Journal(JournalRead { from: Some(Position::Copying(key)), .. }) => Vec::from([key]),
            Self::Checksum | Self::Journal(_) => Vec::new(),
            Self::MultiGet(MultiGet { prefix, selection, .. }) => match selection {
                Selection::Suffixes(suffixes) => core::iter::once(prefix).chain(suffixes).collect(),
                Selection::Range { start, stop, filter, .. } => Vec::from([prefix, start, stop, &mut filter.pattern]),
            },
        })
    }
}

/// Copies strings into one buffer of theirs.
fn detach(strings: Vec<&mut Bytes>) -> usize {
    let size = strings.iter().map(|string| string.len()).sum();
    let mut all = Vec::with_capacity(size);
    strings.iter().for_each(|string| all.extend_from_slice(string));
    let mut all = Bytes::from(all);
    strings.into_iter().for_each(|string| *string = all.split_to(string.len()));
    size
}

/// A row of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Storage key (scan, batch get) or suffix (multi get).
    pub key: Bytes,
    /// Value, empty where it was not asked for.
    pub value: Bytes,
    /// When the row expires; `None` where it was not asked for.
    pub expire_at: Option<ExpireAt>,
}

/// The answer to a [`Read`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadReply {
    /// To `Get`: the value, or [`Status::NotFound`].
    Value(Result<Bytes, Status>),
    /// To `Ttl`: seconds left, -1 without expiry, or [`Status::NotFound`].
    Ttl(Result<i32, Status>),
    /// To `MultiGet` and `BatchGet`.
    Rows {
        /// `Ok`, `Incomplete` when more rows remain behind a limit, or `InvalidArgument`.
        status: Status,
        /// The rows.
        rows: Vec<Row>,
    },
    /// To `SortKeyCount`.
    Count(Result<i64, Status>),
    /// To `Scan`.
    Page {
        /// `Ok` or an error.
        status: Status,
        /// The rows; empty if only their number was asked for.
        rows: Vec<Row>,
        /// How many rows matched in this page.
        count: u32,
        /// The last storage key looked at, if the range goes on: [`Scan::after`] it.
        resume_after: Option<Bytes>,
    },
    /// To `Checksum`.
    Checksum {
        /// Order-independent checksum of all live rows.
        checksum: u64,
        /// Live rows.
        rows: u64,
        /// Log position that the checksum reflects.
        index: u64,
    },
    /// To `Journal`.
    Journal(JournalPage),
}

/// A write to one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Changes nothing. Leaders propose it to learn what is committed.
    Nothing,
    /// Sets a record.
    Put {
        /// Storage key.
        key: Bytes,
        /// New value.
        value: Bytes,
        /// When the record expires.
        expire_at: ExpireAt,
    },
    /// Deletes a record.
    Remove {
        /// Storage key.
        key: Bytes,
    },
    /// Sets several records under one prefix, atomically.
    MultiPut {
        /// What the storage keys start with.
        prefix: Bytes,
        /// Suffix and value of each.
        rows: Vec<(Bytes, Bytes)>,
        /// When they expire.
        expire_at: ExpireAt,
    },
    /// Deletes several records under one prefix, atomically.
    MultiRemove {
        /// What the storage keys start with.
        prefix: Bytes,
        /// Their suffixes.
        suffixes: Vec<Bytes>,
    },
    /// Adds to a decimal number.
    Incr {
        /// Storage key.
        key: Bytes,
        /// What to add.
        by: i64,
        /// 0 keeps the record's expiry, above 0 sets it, below 0 removes it.
        expire_at: i32,
    },
    /// Checks one record and, if the check holds, changes others under the same prefix, atomically. Serves both of
    /// Pegasus' check-and-set and check-and-mutate.
    CheckAndMutate {
        /// What the storage keys start with.
        prefix: Bytes,
        /// What must hold.
        check: Check,
        /// What to do then; an empty list is [`Status::InvalidArgument`].
        mutations: Vec<Mutation>,
        /// Return the checked record's value from before the write.
        return_check_value: bool,
    },
    /// Does here what was done in another cluster.
    Duplicate(Duplicate),
    /// Changes what is kept for other clusters.
    Journal(JournalWrite),
}

impl Write {
    /// Whether what it does depends on a row that is there, and so on what has expired.
    pub const fn looks_up(&self) -> bool {
        match self {
            Self::Incr { .. } | Self::CheckAndMutate { .. } | Self::Duplicate(_) => true,
            Self::Nothing
            | Self::Journal(_)
            | Self::Put { .. }
            | Self::Remove { .. }
            | Self::MultiPut { .. }
            | Self::MultiRemove { .. } => false,
        }
    }

    /// Bytes of keys and values that storage is given for it. The prefix that rows share is stored with each of them.
    pub fn stored_size(&self) -> usize {
        match self {
            Self::Nothing | Self::Journal(_) => 0,
            Self::Put { key, value, .. } => key.len() + value.len(),
            Self::Remove { key } | Self::Incr { key, .. } => key.len(),
            Self::MultiPut { prefix, rows, .. } => {
                rows.iter().map(|(suffix, value)| prefix.len() + suffix.len() + value.len()).sum()
            }
            Self::MultiRemove { prefix, suffixes } => suffixes.iter().map(|suffix| prefix.len() + suffix.len()).sum(),
            Self::CheckAndMutate { prefix, mutations, .. } => {
                mutations.iter().map(|mutation| prefix.len() + mutation.stored_size()).sum()
            }
            Self::Duplicate(duplicate) => {
                duplicate.changes.iter().map(|it| CHANGE_COST + it.mutation.stored_size()).sum()
            }
        }
    }
}

/// A condition on one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Suffix of the record's key.
    pub suffix: Bytes,
    /// Pegasus' number of the condition; unknown ones are [`Status::InvalidArgument`].
    pub kind: i32,
    /// What the value is compared with.
    pub operand: Bytes,
}

/// One change under a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Sets a record.
    Put {
        /// Suffix of its key.
        suffix: Bytes,
        /// New value.
        value: Bytes,
        /// When it expires.
        expire_at: ExpireAt,
    },
    /// Deletes a record.
    Remove {
        /// Suffix of its key.
        suffix: Bytes,
    },
}

impl Mutation {
    /// Suffix of the key of the record that it changes.
    pub fn suffix(&self) -> &Bytes {
        match self {
            Self::Put { suffix, .. } | Self::Remove { suffix } => suffix,
        }
    }

    /// Bytes of its suffix and value.
    pub fn stored_size(&self) -> usize {
        match self {
            Self::Put { suffix, value, .. } => suffix.len() + value.len(),
            Self::Remove { suffix } => suffix.len(),
        }
    }
}

/// The answer to a [`Write`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteReply {
    /// How it went.
    pub status: Status,
    /// What else there is to say.
    pub detail: WriteDetail,
}

/// The part of a [`WriteReply`] that depends on the operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteDetail {
    /// Nothing (put, remove, multi put).
    None,
    /// Multi remove: how many suffixes were sent.
    Removed(i64),
    /// Incr: the new value; on overflow the old one.
    Value(i64),
    /// Check and mutate: the checked record's value, where it was asked for; the inner `None` means that it did not exist.
    Checked(Option<Option<Bytes>>),
}

/// A write as it stands in a group's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Who wrote; 0 = not de-duplicated.
    pub client: ClientId,
    /// The write's number within its client.
    pub sequence: Sequence,
    /// The leader's time when it proposed, in expiry-epoch seconds; 0 = it knew none. The log's time follows from it
    /// ([`log_time_after`](crate::time::log_time_after)), and all replicas judge expiry by that.
    pub now: u32,
    /// Whether a majority of the nodes' clocks stands behind `now`.
    pub is_agreed: bool,
    /// What to do.
    pub write: Write,
}
