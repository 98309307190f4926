//! What goes into operations and comes out of them.

use bytes::Bytes;
use hedgerow_types::op::{Filter, FilterKind};
use std::time::Duration;

/// A row of a hash table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its hash key, which decides the partition.
    pub hash_key: Bytes,
    /// Its sort key, which orders the rows of a hash key.
    pub sort_key: Bytes,
    /// Its value; empty where values were not asked for.
    pub value: Bytes,
    /// How long it has to live; `None` without expiry, and where that was not asked for.
    pub time_to_live: Option<Duration>,
}

impl Row {
    /// A row without expiry.
    pub fn new(hash_key: impl Into<Bytes>, sort_key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self { hash_key: hash_key.into(), sort_key: sort_key.into(), value: value.into(), time_to_live: None }
    }
}

/// A sort key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortRow {
    /// The sort key.
    pub sort_key: Bytes,
    /// The value; empty where values were not asked for.
    pub value: Bytes,
}

/// A row of an ordered table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderedRow {
    /// Its key.
    pub key: Bytes,
    /// Its value; empty where values were not asked for.
    pub value: Bytes,
    /// How long it has to live; `None` without expiry, and where that was not asked for.
    pub time_to_live: Option<Duration>,
}

/// How long a record has to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It never expires.
    Forever,
    /// It expires after this time, known to the second.
    Left(Duration),
}

/// What an addition does to the record's expiry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expiry {
    /// It stays as it is.
    #[default]
    Keep,
    /// The record expires after this time.
    After(Duration),
    /// The record never expires.
    Never,
}

/// Some rows of one hash key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SortRows {
    /// The rows: in the order of the request's sort keys, or in ascending order for a range.
    pub rows: Vec<SortRow>,
    /// Whether these are all; false if a limit ended the read while more remained.
    pub is_complete: bool,
}

/// Which rows of a hash key a range read returns, and how many. The default is all of them, up to the server's limits.
///
/// ```
/// use hedgerow_client::{Range, Select};
/// let first_ten_users = Select { prefix: "user".into(), count_max: 10, ..Select::default() };
/// let newest = Select { range: Range::between("2026-01-01", "2027-01-01"), count_max: 1, is_reverse: true, ..Select::default() };
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Select {
    /// Bounds of the sort keys.
    pub range: Range,
    /// Only sort keys that begin with this; empty = all. Excludes `filter`.
    pub prefix: Bytes,
    /// Only sort keys that match.
    pub filter: Filter,
    /// Most rows; 0 = the server's limit (3,000 rows looked at).
    pub count_max: u32,
    /// Most bytes of sort keys and values; 0 = the server's limit (30 MiB).
    pub size_max: u32,
    /// Leave the values out.
    pub no_value: bool,
    /// Take rows from the upper end. They are still returned in ascending order.
    pub is_reverse: bool,
}

impl Select {
    pub(crate) fn filter(&self) -> Filter {
        if self.prefix.is_empty() {
            self.filter.clone()
        } else {
            Filter { kind: FilterKind::Prefix, pattern: self.prefix.clone() }
        }
    }
}

/// A range of keys or of sort keys. The default is everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// Lower bound; empty = from the first.
    pub start: Bytes,
    /// Whether the lower bound belongs to the range.
    pub start_inclusive: bool,
    /// Upper bound; empty = to the last.
    pub stop: Bytes,
    /// Whether the upper bound belongs to the range.
    pub stop_inclusive: bool,
}

impl Default for Range {
    fn default() -> Self {
        Self { start: Bytes::new(), start_inclusive: true, stop: Bytes::new(), stop_inclusive: false }
    }
}

impl Range {
    /// From `start` (inclusive) to `stop` (exclusive); an empty bound is none.
    pub fn between(start: impl Into<Bytes>, stop: impl Into<Bytes>) -> Self {
        Self { start: start.into(), stop: stop.into(), ..Self::default() }
    }

    /// From `start` (inclusive) on.
    pub fn from(start: impl Into<Bytes>) -> Self {
        Self { start: start.into(), ..Self::default() }
    }

    /// Everything that begins with `prefix`.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let start = prefix.into();
        let stop = hedgerow_types::key::prefix_end(&start).unwrap_or_default();
        Self { start, stop, ..Self::default() }
    }
}

/// How a scan reads. The default reads everything in pages of 500 rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanOptions {
    /// Rows per page, 1 to 1,000.
    pub page_rows: u32,
    /// Leave the values out.
    pub no_value: bool,
    /// Return how long each row has to live.
    pub with_time_to_live: bool,
    /// Only hash keys that match. Has no meaning in an ordered table.
    pub hash_key_filter: Filter,
    /// Only sort keys (in an ordered table: keys) that match.
    pub sort_key_filter: Filter,
}

impl Default for ScanOptions {
    fn default() -> Self {
        Self {
            page_rows: 500,
            no_value: false,
            with_time_to_live: false,
            hash_key_filter: Filter::default(),
            sort_key_filter: Filter::default(),
        }
    }
}

/// What must hold of one row's value for a conditional write to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    Always,
    /// The row does not exist.
    Absent,
    /// It does not exist or its value is empty.
    AbsentOrEmpty,
    /// It exists.
    Exists,
    /// It exists and its value is not empty.
    NotEmpty,
    /// Its value contains this.
    Contains(Bytes),
    /// Its value begins with this.
    StartsWith(Bytes),
    /// Its value ends with this.
    EndsWith(Bytes),
    /// Its value compares so, byte by byte.
    Bytes(Comparison, Bytes),
    /// Its value, a decimal number, compares so.
    Number(Comparison, i64),
}

/// How a value compares with an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The value is smaller.
    Less,
    /// Smaller or equal.
    LessOrEqual,
    /// Equal.
    Equal,
    /// Greater or equal.
    GreaterOrEqual,
    /// Greater.
    Greater,
}

impl Condition {
    /// Pegasus' number of the condition and its operand.
    pub(crate) fn to_wire(&self) -> (i32, Bytes) {
        match self {
            Self::Always => (0, Bytes::new()),
            Self::Absent => (1, Bytes::new()),
            Self::AbsentOrEmpty => (2, Bytes::new()),
            Self::Exists => (3, Bytes::new()),
            Self::NotEmpty => (4, Bytes::new()),
            Self::Contains(operand) => (5, operand.clone()),
            Self::StartsWith(operand) => (6, operand.clone()),
            Self::EndsWith(operand) => (7, operand.clone()),
            Self::Bytes(comparison, operand) => (8 + comparison.offset(), operand.clone()),
            Self::Number(comparison, operand) => (13 + comparison.offset(), operand.to_string().into()),
        }
    }
}

impl Comparison {
    const fn offset(self) -> i32 {
        match self {
            Self::Less => 0,
            Self::LessOrEqual => 1,
            Self::Equal => 2,
            Self::GreaterOrEqual => 3,
            Self::Greater => 4,
        }
    }
}

/// A condition on the row with one sort key.
///
/// ```
/// use hedgerow_client::{Check, Comparison, Condition};
/// let free = Check::absent("lock");
/// let mine = Check::equals("lock", "worker-7").and_return_value();
/// let poor = Check::new("balance", Condition::Number(Comparison::Less, 100));
/// # assert!(mine.return_value && !free.return_value && poor.sort_key == "balance");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The row's sort key.
    pub sort_key: Bytes,
    /// What must hold.
    pub condition: Condition,
    /// Return the row's value from before the write.
    pub return_value: bool,
}

impl Check {
    /// That `condition` holds of the row with this sort key.
    pub fn new(sort_key: impl Into<Bytes>, condition: Condition) -> Self {
        Self { sort_key: sort_key.into(), condition, return_value: false }
    }

    /// That there is no such row.
    pub fn absent(sort_key: impl Into<Bytes>) -> Self {
        Self::new(sort_key, Condition::Absent)
    }

    /// That there is such a row.
    pub fn exists(sort_key: impl Into<Bytes>) -> Self {
        Self::new(sort_key, Condition::Exists)
    }

    /// That the row has this value.
    pub fn equals(sort_key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self::new(sort_key, Condition::Bytes(Comparison::Equal, value.into()))
    }

    /// And [`Checked::before`] is to say what the row was.
    #[must_use]
    pub fn and_return_value(self) -> Self {
        Self { return_value: true, ..self }
    }
}

/// One change of a conditional write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Sets a row.
    Set {
        /// Its sort key.
        sort_key: Bytes,
        /// Its new value.
        value: Bytes,
        /// How long it has to live; `None` = forever.
        time_to_live: Option<Duration>,
    },
    /// Deletes a row.
    Delete {
        /// Its sort key.
        sort_key: Bytes,
    },
}

impl Mutation {
    /// Sets a row that never expires.
    pub fn set(sort_key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self::Set { sort_key: sort_key.into(), value: value.into(), time_to_live: None }
    }

    /// Deletes a row.
    pub fn delete(sort_key: impl Into<Bytes>) -> Self {
        Self::Delete { sort_key: sort_key.into() }
    }
}

/// How a conditional write went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Whether the condition held and the changes were made.
    pub is_applied: bool,
    /// What the checked row was before.
    pub before: Before,
}

/// What a row was before a write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Before {
    /// Nobody asked ([`Check::return_value`]).
    #[default]
    NotAsked,
    /// There was no such row.
    Absent,
    /// It had this value.
    Value(Bytes),
}

impl Before {
    /// The value that it had, if that was asked for and there was one.
    pub fn value(&self) -> Option<&Bytes> {
        match self {
            Self::Value(value) => Some(value),
            Self::NotAsked | Self::Absent => None,
        }
    }
}
