//! How a request ended.

use hedgerow_client::{Error, ErrorKind};

/// How a request ended.
pub(crate) type Reply = Result<Found, Failure>;

/// What a request that succeeded found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// All that was asked for.
    All,
    /// A row was missing.
    NotAll,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It took too long.
    Timeout,
    /// Anything else, by its name.
    Error(&'static str),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(match error.kind() {
            ErrorKind::Timeout => return Self::Timeout,
            ErrorKind::Invalid => "invalid",
            ErrorKind::FailedPrecondition => "failed_precondition",
            ErrorKind::TooLarge => "too_large",
            ErrorKind::NoTable => "no_table",
            ErrorKind::TableExists => "table_exists",
            ErrorKind::Unreachable => "unreachable",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Forgotten => "forgotten",
            ErrorKind::DiskFull => "disk_full",
            ErrorKind::NotAllowed => "not_allowed",
            ErrorKind::Storage => "storage",
            ErrorKind::Protocol => "protocol",
        })
    }
}
