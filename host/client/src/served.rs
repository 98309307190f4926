//! What a caller is told about a read: who served it, and what it reflects.

use hedgerow_hedge::Kind;
use hedgerow_routing::Address;
use hedgerow_types::{Index, PartitionIndex, ReadLevel};
use std::fmt;
use std::time::Duration;

/// Who served a read, and what it reflects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The node that served it.
    pub node: Address,
    /// The part that the node's replica plays, as far as this client knows.
    pub role: Option<Role>,
    /// The partition.
    pub partition: PartitionIndex,
    /// The log index that the read reflects; 0 = not told.
    pub index: Index,
    /// How old the data was at most; `None` if that is not known or, as for linearizable reads, has no meaning.
    pub staleness: Option<Duration>,
    /// Attempts that it took, this one included.
    pub attempts: u32,
    /// How long the request waited at the node until it was served; `None` = not told.
    pub queue: Option<Duration>,
    /// What serving costs the node at the moment, on average; `None` = not told.
    pub service: Option<Duration>,
    /// The level at which it was served; `None` = not told. It differs from the one that was asked for where a
    /// [`crate::Fallback`] answered.
    pub level: Option<ReadLevel>,
    /// Why the attempt was sent that served it.
    pub kind: Kind,
    /// How the node came to its answer, if [`crate::HedgeOptions::wants_trace`].
    pub mode: Option<String>,
}

/// The part that a replica plays in its partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It leads.
    Leader,
    /// It votes.
    Follower,
    /// It only follows.
    Learner,
}

impl Role {
    /// What a node calls itself at the beginning of its words on how it came to an answer.
    pub(crate) fn told(mode: &str) -> Option<Self> {
        [Self::Leader, Self::Follower, Self::Learner]
            .into_iter()
            .find(|role| mode.split(' ').next() == Some(role.name()))
    }

    /// Its name in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::Learner => "learner",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
