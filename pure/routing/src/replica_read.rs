//! Which replicas a read may be sent to, in the field's names (TiDB's `tidb_replica_read`).

use alloc::borrow::ToOwned;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;

/// Which replica a read prefers. Every replica is a candidate before the read fails, but with [`ReplicaRead::Leader`], and the
/// leader is the last one where it is not among the first; the mode never changes how fresh the read is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReplicaRead {
    /// The leader, and nobody else.
    #[default]
    Leader,
    /// Any replica that does not lead, learners included; then the leader.
    Follower,
    /// Any replica.
    LeaderAndFollower,
    /// The leader, unless it fails, lags or is overloaded; then the others.
    PreferLeader,
    /// The replicas that share most labels with the client, then the next nearest. Others are asked only if the nearest
    /// ones fail or are overloaded.
    ClosestReplicas,
    /// As [`ReplicaRead::ClosestReplicas`], but the others share the work as soon as the nearest ones are clearly
    /// slower than they are; later for large replies, whose bytes cost most on a long way.
    ClosestAdaptive,
    /// The learners; then the followers; then the leader.
    Learner,
}

impl ReplicaRead {
    /// Every mode.
    pub const ALL: [Self; 7] = [
        Self::Leader,
        Self::Follower,
        Self::LeaderAndFollower,
        Self::PreferLeader,
        Self::ClosestReplicas,
        Self::ClosestAdaptive,
        Self::Learner,
    ];
    /// What [`ReplicaRead::from_str`] takes, for error messages and help.
    pub const FORMS: &str =
        "leader, follower, leader-and-follower, prefer-leader, closest-replicas, closest-adaptive or learner";

    /// Its name, as settings write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::LeaderAndFollower => "leader-and-follower",
            Self::PreferLeader => "prefer-leader",
            Self::ClosestReplicas => "closest-replicas",
            Self::ClosestAdaptive => "closest-adaptive",
            Self::Learner => "learner",
        }
    }
}

impl fmt::Display for ReplicaRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} does not say which replicas to read from; there are {forms}", forms = ReplicaRead::FORMS)]
pub struct InvalidReplicaRead(String);

impl FromStr for ReplicaRead {
    type Err = InvalidReplicaRead;

    fn from_str(text: &str) -> Result<Self, InvalidReplicaRead> {
        Self::ALL.into_iter().find(|mode| mode.name() == text).ok_or_else(|| InvalidReplicaRead(text.to_owned()))
    }
}
