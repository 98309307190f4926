//! What is compared: the rows of the published tests, and the variants that each is measured with.

use super::published::{self, Published};
use crate::hedged::{BOUND, BOUNDED, Offered, adaptive, once_after};
use anyhow::Result;
use hedgerow_bench::{Hedging, Operation, Reading};
use hedgerow_client::{Fallback, HedgeOptions, ReadLevel, ReplicaRead};
use std::fmt;
use std::time::Duration;

/// Clients, each with one connection to every node, a budget and its own knowledge of latencies.
pub(super) const CLIENTS: u32 = 3;
/// Nodes of the cluster.
pub(super) const NODE_COUNT: usize = 3;
/// The share of extra attempts of the adaptive policy, percent.
pub(super) const ADAPTIVE_PERCENT: f64 = 2.0;
/// The budget of all other variants: far above what they should need, so that it is the delay that decides, and still an end.
const BUDGET: f64 = 0.02;

/// A row of a published table.
#[derive(Debug)]
pub(super) struct Row {
    /// The name of the group.
    pub(super) name: &'static str,
    /// The built-in workload.
    pub(super) workload: &'static str,
    /// Threads of each client: what is in flight in the closed loop.
    pub(super) threads: u32,
    pub(super) read: Operation,
    pub(super) write: Option<Operation>,
    /// Requests per second of the open loop. Three nodes and the load on two cores bear them with a p99.9 of some milliseconds.
    pub(super) per_s: f64,
    /// How long one open run of a full variant takes if the machine is as expected: long enough that three of them read a
    /// million times.
    pub(super) expected: Duration,
    pub(super) variants: &'static [(Variant, Length)],
    /// What nodes suffer.
    pub(super) stalls: Stalls,
    pub(super) published: Option<Published>,
}

/// How nodes stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stalls {
    /// So seldom that fewer than one read in a thousand meets it, and more than one in ten thousand.
    Rare,
    /// Every node for 20 to 200 ms every 2 to 8 seconds.
    Often,
}

/// How long a variant is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    /// Until its p99.99 means something.
    Full,
    /// As long as its p99.9 needs.
    Short,
}

/// What is compared within a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// Linearizable at the leader, nothing hedged.
    Off,
    /// One more attempt after the p99.9 of `Off`, data at most a second old: what a client of Pegasus gets here.
    Backup,
    /// The same, linearizable: the copy's node asks the logs of a majority.
    BackupLinearizable,
    /// As `BackupLinearizable`, and once more after the same time, at most a second old.
    Fallback,
    /// As `Backup`, with the delay that the policy finds.
    Adaptive,
    /// As `BackupLinearizable`, with the delay that the policy finds.
    AdaptiveLinearizable,
    /// As `Adaptive`, with the first attempt at any replica: what it hedges is `Selection`.
    AdaptiveAny,
    /// Nothing hedged, at any replica.
    Selection,
    /// As `Off`, and nobody stands still.
    Oracle,
}

use Length::{Full, Short};
use Variant::{Adaptive, AdaptiveAny, AdaptiveLinearizable, Backup, BackupLinearizable, Off, Oracle, Selection};

/// The length of a rare stall is that of its run, so that who meets one is always measured in full; the oracle meets none.
const MAIN: [(Variant, Length); 4] = [(Off, Full), (Backup, Full), (BackupLinearizable, Full), (Oracle, Short)];
const ALL: [(Variant, Length); 7] = [
    (Off, Full),
    (Backup, Full),
    (BackupLinearizable, Full),
    (Adaptive, Full),
    (Variant::Fallback, Full),
    (Selection, Full),
    (Oracle, Short),
];
const OFTEN: [(Variant, Length); 6] = [
    (Off, Short),
    (Adaptive, Short),
    (AdaptiveLinearizable, Short),
    (AdaptiveAny, Short),
    (Selection, Short),
    (Oracle, Short),
];

/// The rows of the test with get and set, and one with more stalls.
pub(super) static SET: [Row; 4] = [
    Row {
        name: "1-3",
        workload: "read-write-1-3",
        threads: 15,
        read: Operation::Get,
        write: Some(Operation::Set),
        per_s: 8_000.0,
        expected: Duration::from_secs(170),
        variants: &MAIN,
        stalls: Stalls::Rare,
        published: Some(published::SET_1_3),
    },
    Row {
        name: "1-0",
        workload: "read-only",
        threads: 100,
        read: Operation::Get,
        write: None,
        per_s: 16_000.0,
        expected: Duration::from_secs(60),
        variants: &MAIN,
        stalls: Stalls::Rare,
        published: Some(published::SET_1_0),
    },
    Row {
        name: "30-1",
        workload: "read-write-30-1",
        threads: 30,
        read: Operation::Get,
        write: Some(Operation::Set),
        per_s: 12_000.0,
        expected: Duration::from_secs(60),
        variants: &ALL,
        stalls: Stalls::Rare,
        published: Some(published::SET_30_1),
    },
    Row {
        name: "stall",
        workload: "read-write-30-1",
        threads: 30,
        read: Operation::Get,
        write: Some(Operation::Set),
        per_s: 12_000.0,
        expected: Duration::from_secs(60),
        variants: &OFTEN,
        stalls: Stalls::Often,
        published: None,
    },
];

/// The rows of the test with `multi_get` and `batch_set`.
pub(super) static BATCH: [Row; 2] = [
    Row {
        name: "x7",
        workload: "multi-20-1",
        threads: 7,
        read: Operation::MultiGet,
        write: Some(Operation::BatchSet),
        per_s: 6_000.0,
        expected: Duration::from_secs(60),
        variants: &MAIN,
        stalls: Stalls::Rare,
        published: Some(published::BATCH_X7),
    },
    Row {
        name: "x15",
        workload: "multi-20-1",
        threads: 15,
        read: Operation::MultiGet,
        write: Some(Operation::BatchSet),
        per_s: 6_000.0,
        expected: Duration::from_secs(60),
        variants: &MAIN,
        stalls: Stalls::Rare,
        published: Some(published::BATCH_X15),
    },
];

impl Row {
    /// The name under which results compare its variants.
    pub(super) fn open_name(&self) -> String {
        let what = if self.read == Operation::Get { "get-set" } else { "multi-20-1" };
        format!("{what}-{}", self.name)
    }

    /// The same of the closed loops.
    pub(super) fn closed_name(&self) -> String {
        format!("{}-closed", self.open_name())
    }
}

impl Variant {
    pub(super) fn reading(self) -> Reading {
        let (level, mode) = match self {
            Self::Off | Self::Oracle | Self::BackupLinearizable | Self::AdaptiveLinearizable | Self::Fallback => {
                (ReadLevel::Linearizable, ReplicaRead::Leader)
            }
            // The first attempt goes to the leader; a copy goes to whoever may answer at the level.
            Self::Backup | Self::Adaptive => (BOUNDED, ReplicaRead::Leader),
            Self::Selection | Self::AdaptiveAny => (BOUNDED, ReplicaRead::LeaderAndFollower),
        };
        Reading { level: Some(level), mode, ..Reading::default() }
    }

    /// `delay` is the p99.9 without extra attempts.
    pub(super) fn hedging(self, delay: Duration, offered: Offered) -> Result<Hedging> {
        let budget = Some(offered.budget(BUDGET, CLIENTS, NODE_COUNT));
        let options = match self {
            Self::Off | Self::Selection | Self::Oracle => HedgeOptions::default(),
            Self::Backup | Self::BackupLinearizable => {
                HedgeOptions { reads: once_after(delay), budget, ..HedgeOptions::default() }
            }
            Self::Fallback => {
                let fallback = Some(Fallback { after: delay * 2, bound: BOUND });
                HedgeOptions { reads: once_after(delay), fallback, budget, ..HedgeOptions::default() }
            }
            Self::Adaptive | Self::AdaptiveLinearizable | Self::AdaptiveAny => {
                adaptive(ADAPTIVE_PERCENT, offered, CLIENTS, NODE_COUNT)
            }
        };
        Hedging::of(&options)
    }

    pub(super) fn meets_stalls(self) -> bool {
        self != Self::Oracle
    }
}

/// The name of the variant.
impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Backup => "backup",
            Self::BackupLinearizable => "backup-linearizable",
            Self::Fallback => "fallback",
            Self::Adaptive => "adaptive",
            Self::AdaptiveLinearizable => "adaptive-linearizable",
            Self::AdaptiveAny => "adaptive-any",
            Self::Selection => "selection",
            Self::Oracle => "oracle",
        })
    }
}
