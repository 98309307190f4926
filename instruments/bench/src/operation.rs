//! The operations that are measured apart.

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Read a row.
    Get,
    /// Replace a row.
    Set,
    /// Set a row that did not exist.
    Insert,
    /// Read a row, then replace it.
    ReadModifyWrite,
    /// Read several rows of one hash key.
    MultiGet,
    /// Replace several rows of one hash key in one request.
    BatchSet,
    /// Read rows one after the other.
    Scan,
    /// Add one to a counter.
    Incr,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Get,
        Self::Set,
        Self::Insert,
        Self::ReadModifyWrite,
        Self::MultiGet,
        Self::BatchSet,
        Self::Scan,
        Self::Incr,
    ];

    /// Its name in workload files and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Set => "set",
            Self::Insert => "insert",
            Self::ReadModifyWrite => "read_modify_write",
            Self::MultiGet => "multi_get",
            Self::BatchSet => "batch_set",
            Self::Scan => "scan",
            Self::Incr => "incr",
        }
    }

    /// The operation of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.name() == name)
    }
}
