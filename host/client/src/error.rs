//! What an operation can fail with. The kind says what the caller should do, the message what happened.

use hedgerow_types::{Refusal, Status};
use std::fmt;

/// The result of an operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed operation. The client has already tried again wherever that is safe, until the operation's deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    is_outcome_unknown: bool,
}

/// The kinds of [`Error`], by what the caller should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// An argument is not allowed, or the operation does not fit the table. Fix the call; repeating it cannot succeed.
    Invalid,
    /// What is there does not allow it: a name that is taken, a value that is no number, too few nodes. The message says what. Change that, or ask for
    /// something else.
    FailedPrecondition,
    /// An argument is larger than a limit of [`hedgerow_types::limit`]. Send less.
    TooLarge,
    /// There is no table of this name. Create it, or fix the name.
    NoTable,
    /// There is a table of this name already.
    TableExists,
    /// The deadline passed. Repeat the operation, or give it more time; see [`Error::is_outcome_unknown`].
    Timeout,
    /// No node could be reached. Check the addresses and the network, then try again.
    Unreachable,
    /// The cluster was reached but did not serve the request before the deadline: a leader was missing, a queue was full,
    /// a node was starting. Try again after a pause.
    Unavailable,
    /// The cluster no longer knows whether this write was applied. Read before writing again.
    Forgotten,
    /// The disks are full: what adds data is refused, reads and deletes are served. Make room, then write again.
    DiskFull,
    /// The user of this client has not been given the right to, the node did not let it log in
    /// ([`crate::ClientOptions::credentials`]), or no node believes its certificate, which may have expired or been revoked: the message says which. Have somebody give the right, or correct the password; one that was
    /// changed a moment ago, and failures that were too many, pass within a minute.
    NotAllowed,
    /// The stored data failed a check or the storage failed. Report it to whoever runs the cluster.
    Storage,
    /// The server sent something that is not the protocol, or does not know the operation. Report it: the versions of
    /// client and server may not fit.
    Protocol,
}

impl Error {
    /// An error of `kind`, for callers that check something of their own in front of the client.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), is_outcome_unknown: false }
    }

    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What happened, for people.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether a write may have been applied in spite of the error. Always false for reads.
    pub fn is_outcome_unknown(&self) -> bool {
        self.is_outcome_unknown
    }

    /// Whether the same call can succeed later.
    pub fn may_retry(&self) -> bool {
        match self.kind {
            ErrorKind::Timeout | ErrorKind::Unreachable | ErrorKind::Unavailable => true,
            ErrorKind::Invalid
            | ErrorKind::FailedPrecondition
            | ErrorKind::TooLarge
            | ErrorKind::NoTable
            | ErrorKind::TableExists
            | ErrorKind::Forgotten
            | ErrorKind::DiskFull
            | ErrorKind::NotAllowed
            | ErrorKind::Storage
            | ErrorKind::Protocol => false,
        }
    }

    pub(crate) fn with_unknown_outcome(mut self, is_unknown: bool) -> Self {
        self.is_outcome_unknown = is_unknown;
        self
    }

    /// The same error in other words.
    pub(crate) fn saying(self, message: String) -> Self {
        Self { message, ..self }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    pub(crate) fn failed_precondition(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::FailedPrecondition, message)
    }

    pub(crate) fn protocol(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Protocol, message)
    }

    /// The error for a storage reply whose status is none that the operation can explain itself.
    pub(crate) fn from_status(status: Option<Status>, operation: &'static str) -> Self {
        match status {
            Some(Status::InvalidArgument) => {
                Self::invalid(format!("{operation}: the server does not accept an argument"))
            }
            Some(Status::NotSupported) => Self::invalid(format!("{operation} does not exist for this kind of table")),
            Some(Status::Corruption) => Self::new(ErrorKind::Storage, format!("{operation}: stored data is damaged")),
            Some(Status::IoError) => Self::new(ErrorKind::Storage, format!("{operation}: the storage failed")),
            Some(Status::Ok | Status::NotFound | Status::Incomplete | Status::TryAgain) | None => {
                Self::protocol(format!("{operation}: unexpected status in the reply"))
            }
        }
    }
}

impl From<&Refusal> for ErrorKind {
    fn from(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::NotLeader { .. }
            | Refusal::NotReady(_)
            | Refusal::Lagging(_)
            | Refusal::NotHosted
            | Refusal::Busy(_)
            | Refusal::BusyFor { .. }
            | Refusal::Throttled
            | Refusal::Withdrawn
            | Refusal::Unresolved
            | Refusal::Creating
            | Refusal::Stopping(_) => Self::Unavailable,
            Refusal::Expired => Self::Timeout,
            Refusal::SessionWindow { .. } => Self::Forgotten,
            Refusal::Invalid(_) => Self::Invalid,
            Refusal::FailedPrecondition(_) => Self::FailedPrecondition,
            Refusal::TooLarge(_) => Self::TooLarge,
            Refusal::DiskFull(_) => Self::DiskFull,
            Refusal::NotAllowed(_) => Self::NotAllowed,
            Refusal::NoTable => Self::NoTable,
            Refusal::TableExists => Self::TableExists,
            Refusal::Unknown => Self::Protocol,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.is_outcome_unknown {
            f.write_str(" (the write may or may not have been applied)")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_whose_outcome_is_unknown_says_so() {
        let error = Error::new(ErrorKind::Unavailable, "no leader: 1 of 3 replicas up");
        assert_eq!(error.to_string(), "no leader: 1 of 3 replicas up");
        let said = error.with_unknown_outcome(true).to_string();
        assert_eq!(said, "no leader: 1 of 3 replicas up (the write may or may not have been applied)");
    }
}
