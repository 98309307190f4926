//! What is compared: the scenarios of the published test, and single-row reads at every level.

use hedgerow_client::{ReadLevel, ReplicaRead};
use std::fmt;
use std::time::Duration;

/// The bound of bounded reads.
const BOUND: Duration = Duration::from_secs(2);

/// One variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::experiments) enum Case {
    /// Scans of several sizes.
    Scan(Scenario),
    /// Single rows, with the leader in the same place.
    Near(Scenario),
    /// Single rows 28 ms away from the leader.
    Far(FarRead),
}

/// The scenarios of the published test, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::experiments) enum Scenario {
    /// 1
    LeaderRemote,
    /// 2
    FollowerLocal,
    /// 3
    LeaderLocal,
    /// 4
    FollowerBeside,
}

/// A single-row read by clients beside the follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::experiments) struct FarRead {
    pub(super) level: ReadLevel,
    pub(super) mode: ReplicaRead,
    /// Whether the leader is far away; if not, the read shows what is local latency.
    pub(super) is_far: bool,
}

impl Scenario {
    pub(super) const ALL: [Self; 4] =
        [Self::LeaderRemote, Self::FollowerLocal, Self::LeaderLocal, Self::FollowerBeside];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::LeaderRemote => "1 leader remote",
            Self::FollowerLocal => "2 follower local",
            Self::LeaderLocal => "3 leader local",
            Self::FollowerBeside => "4 follower beside leader",
        }
    }

    fn is_far(self) -> bool {
        matches!(self, Self::LeaderRemote | Self::FollowerLocal)
    }

    fn mode(self) -> ReplicaRead {
        match self {
            Self::LeaderRemote | Self::LeaderLocal => ReplicaRead::Leader,
            Self::FollowerLocal | Self::FollowerBeside => ReplicaRead::Follower,
        }
    }
}

impl FarRead {
    pub(super) const BOUNDED: ReadLevel = ReadLevel::Bounded(BOUND);

    /// Far away, and two with the leader in the same place for comparison.
    pub(super) fn all() -> Vec<Self> {
        let read = |level, mode, is_far| Self { level, mode, is_far };
        vec![
            read(ReadLevel::Linearizable, ReplicaRead::Leader, true),
            read(ReadLevel::Linearizable, ReplicaRead::Follower, true),
            read(ReadLevel::Session, ReplicaRead::Follower, true),
            read(Self::BOUNDED, ReplicaRead::Follower, true),
            read(ReadLevel::Eventual, ReplicaRead::Follower, true),
            Self::local(),
        ]
    }

    /// A read that is local in every respect.
    pub(super) fn local() -> Self {
        Self { level: ReadLevel::Eventual, mode: ReplicaRead::Follower, is_far: false }
    }
}

impl fmt::Display for FarRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.is_far { "" } else { ", leader in the same place" };
        write!(f, "{} at the {}{place}", self.level, self.mode)
    }
}

impl Case {
    pub(super) fn is_far(&self) -> bool {
        match self {
            Self::Scan(scenario) | Self::Near(scenario) => scenario.is_far(),
            Self::Far(read) => read.is_far,
        }
    }

    pub(super) fn level(&self) -> ReadLevel {
        match self {
            Self::Scan(_) | Self::Near(_) => ReadLevel::Linearizable,
            Self::Far(read) => read.level,
        }
    }

    pub(super) fn mode(&self) -> ReplicaRead {
        match self {
            Self::Scan(scenario) | Self::Near(scenario) => scenario.mode(),
            Self::Far(read) => read.mode,
        }
    }
}

/// The name of the variant.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scan(scenario) | Self::Near(scenario) => f.write_str(scenario.name()),
            Self::Far(read) => read.fmt(f),
        }
    }
}
