//! How the process ends: one number per kind of outcome, the same for every command.

use crate::serve::Taken;
use hedgerow_client::ErrorKind;
use std::fmt;
use std::process::ExitCode;

/// The exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Everything was done.
    Done = 0,
    /// The record or the table does not exist.
    NotFound = 1,
    /// The command line or the input is not right.
    Usage = 2,
    /// No node could be reached, or the cluster did not serve the request in time.
    Unreachable = 3,
    /// The cluster refused, or its data is not as it should be.
    Refused = 4,
    /// Part of the work was done; some lines were bad or the work was interrupted.
    Partial = 5,
    /// A node could not start or could not go on.
    NodeFailed = 6,
    /// A measurement means nothing: the load generator was the bottleneck.
    Void = 7,
    /// A node's address is in use.
    AddressTaken = 8,
}

/// What is asked for does not go with how things are in the cluster.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// The end of every help text.
pub(crate) const HELP: &str = "\
Exit codes:
  0  done
  1  the record or the table does not exist
  2  the command line or the input is not right
  3  no node could be reached, or the cluster did not answer in time
  4  the cluster refused, replicas differ, (status) not everything is served, a disk is full or a data directory is missing, or
     (wal) a log is damaged
  5  partly done: some lines were bad, or the work was interrupted
  6  a node could not start or could not go on
  7  a measurement is VOID: the load generator was the bottleneck
  8  a node's address is in use";

impl Exit {
    /// The code for an error that ended a node.
    pub(crate) fn of_node(error: &anyhow::Error) -> Self {
        if error.is::<Taken>() { Self::AddressTaken } else { Self::NodeFailed }
    }

    /// The code for an error that ended a command.
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        if error.is::<Refused>() {
            return Self::Refused;
        }
        let Some(error) = error.chain().find_map(|cause| cause.downcast_ref::<hedgerow_client::Error>()) else {
            return Self::Usage;
        };
        match error.kind() {
            ErrorKind::NoTable => Self::NotFound,
            ErrorKind::Invalid | ErrorKind::TooLarge => Self::Usage,
            ErrorKind::Timeout | ErrorKind::Unreachable | ErrorKind::Unavailable => Self::Unreachable,
            ErrorKind::TableExists
            | ErrorKind::FailedPrecondition
            | ErrorKind::Forgotten
            | ErrorKind::DiskFull
            | ErrorKind::NotAllowed
            | ErrorKind::Storage
            | ErrorKind::Protocol => Self::Refused,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
