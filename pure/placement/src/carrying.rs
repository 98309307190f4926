//! What those say who carry a node's tables to other clusters ([`crate::duplication`]).

use hedgerow_types::PartitionIndex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// Those who carry beside a node.
pub trait Carriers: fmt::Debug + Send + Sync {
    /// How it goes. Asked by the node's own thread: it is ready, and only handed out.
    fn told(&self) -> Arc<Carried>;
}

/// How it goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// The clusters that the node's configuration names.
    pub clusters: BTreeSet<String>,
    /// Why it is not known what is to be carried, if it is not.
    pub failure: Option<String>,
    /// By the number of each duplication of which the node carries anything.
    pub duplications: BTreeMap<u64, Carrying>,
}

/// How one duplication goes, in the partitions that the node carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carrying {
    /// How many these are.
    pub partitions: u32,
    /// Of these, how many copy the rows that were there.
    pub copying: u32,
    /// Of these, how many have all rows copied, and carry what is written.
    pub following: u32,
    /// Of these, those that do not go on, by the reason. The reason of most of them first.
    pub stopped: Vec<Stopped>,
    /// Changes that the other cluster was not told yet, as far as known.
    pub entries_left: u64,
    /// Their bytes.
    pub bytes_left: u64,
    /// How old the oldest of them is, in whole seconds, as far as that is known; `None` = of no partition, as in a copy.
    pub lag_seconds: Option<u64>,
    /// Changes that the other cluster was told since the node's start; one that was told twice counts twice.
    pub changes_told: u64,
    /// Bytes of their keys and values.
    pub bytes_told: u64,
}

/// Why some partitions do not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Why.
    pub reason: String,
    /// How many partitions.
    pub partitions: u32,
    /// One of them.
    pub partition: PartitionIndex,
    /// For how long the first one has not, in whole seconds.
    pub seconds: u64,
}

impl Carrying {
    /// How many partitions do not go on.
    pub fn stopped_count(&self) -> u32 {
        self.stopped.iter().map(|it| it.partitions).sum()
    }
}
