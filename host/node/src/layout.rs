//! Where a node's logs are, and how its groups come from the logs of one layout to those of another.
//!
//! Changing the layout is an ordinary start with another setting. Before anything else is written for a group its log is copied, whole and
//! durably, to the log where it belongs from now on, and then struck out where it was; until then the copy is pending. So a log of each that
//! is not pending, or a copy that is whole, is there whenever the machine stops, and the start that ends what another one began need not know
//! how far that came (`recover.rs`). A log that no group is in any more is removed.
//!
//! A replica that stays behind, because its storage is away or another one of its group goes on, keeps its place in the log where it was,
//! which is opened at each start until nobody is left in it.

use crate::config::Config;
use crate::ids::{DirectoryId, LogId};
use crate::log_id;
use crate::open::OpenError;
use hedgerow_env::Disk;
use hedgerow_types::GroupId;
use hedgerow_wal::{CopyError, Log};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Where the write-ahead logs of a node are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLayout {
    /// Each data directory has one, for the replicas whose storage is there: a disk that is lost or slow costs these alone.
    #[default]
    Disk,
    /// The first data directory has one, for all replicas: the others hold nothing but storage. With that directory the node loses
    /// every log.
    Node,
}

impl LogLayout {
    /// Its name in configuration and status.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Node => "node",
        }
    }

    /// The log of the replicas whose storage is in `directory`.
    pub(crate) const fn log_of(self, directory: DirectoryId) -> LogId {
        match self {
            Self::Disk => LogId(directory.0),
            Self::Node => LogId(0),
        }
    }

    /// Where log `log` lies.
    pub(crate) const fn home_of(self, log: LogId) -> DirectoryId {
        match self {
            Self::Disk => DirectoryId(log.0),
            Self::Node => DirectoryId(0),
        }
    }
}

impl Config {
    /// The log of the replicas whose storage is in `directory`.
    pub fn log_of(&self, directory: DirectoryId) -> LogId {
        self.log_layout.log_of(directory)
    }

    /// Where log `log` lies.
    pub fn home_of(&self, log: LogId) -> DirectoryId {
        self.log_layout.home_of(log)
    }

    /// The data directories whose replicas use log `log`.
    pub(crate) fn directories_of(&self, log: LogId) -> impl Iterator<Item = DirectoryId> + use<> {
        let layout = self.log_layout;
        self.directories().filter(move |directory| layout.log_of(*directory) == log)
    }

    /// How many logs the node uses.
    pub(crate) fn log_count(&self) -> usize {
        self.directories().map(|directory| self.log_of(directory).0 + 1).max().unwrap_or(0)
    }
}

/// The logs that were found: first those that the node uses, by number, then those of another layout.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    pub(crate) logs: Vec<Log>,
    /// Where each one lies.
    pub(crate) homes: Vec<DirectoryId>,
    /// How far each one was when it was opened. Copies of groups are no proof that it has forgotten nothing.
    pub(crate) begun: Vec<u64>,
    /// The logs that were used last are all there, and nothing is lost of which nobody knows whose it was.
    pub(crate) is_whole: bool,
}

/// Which groups leave which logs.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// By the log that they are in and the log that they come to. What that one has of them is void.
    copied: BTreeMap<(LogId, LogId), Vec<(GroupId, u64)>>,
    /// By log: what is not needed there.
    struck: BTreeMap<LogId, BTreeSet<GroupId>>,
    /// By log: copies that are alone once that is done.
    settled: BTreeMap<LogId, Vec<GroupId>>,
}

impl Moves {
    /// The log of `group` comes from `from` to `to`, where it has this generation.
    pub(crate) fn copy(&mut self, group: GroupId, from: LogId, to: LogId, generation: u64) {
        self.copied.entry((from, to)).or_default().push((group, generation));
        self.strike(group, from);
        self.settle(group, to);
    }

    /// What `log` has of `group` is all that there is.
    pub(crate) fn settle(&mut self, group: GroupId, log: LogId) {
        self.settled.entry(log).or_default().push(group);
    }

    /// What `log` has of `group` is not needed.
    pub(crate) fn strike(&mut self, group: GroupId, log: LogId) {
        self.struck.entry(log).or_default().insert(group);
    }

    /// Where the copies of groups are made, what was there of them is void already.
    fn keep_copies(&mut self) {
        for ((_, to), groups) in &self.copied {
            if let Some(struck) = self.struck.get_mut(to) {
                groups.iter().for_each(|(group, _)| _ = struck.remove(group));
            }
        }
    }
}

impl Shelf {
    /// Where log `log` lies.
    pub(crate) fn home_of(&self, log: LogId) -> DirectoryId {
        self.homes[log.0]
    }

    /// Carries out `moves`: all copies are durable before anything is struck out, and all of that before a copy counts as all there is.
    pub(crate) fn carry_out(&mut self, mut moves: Moves) -> Result<(), OpenError> {
        moves.keep_copies();
        for ((from, to), groups) in &moves.copied {
            let logs = self.logs.get_disjoint_mut([from.0, to.0]);
            let [source, target] = logs.expect("a group comes from one log to another");
            let (of, into) = (source.dir().display(), target.dir().display());
            let mib = source.stats().live_bytes >> 20;
            tracing::info!(groups = groups.len(), mib, from = %of, to = %into, "groups come to another log: this takes as long as writing it");
            target.copy_groups(source, groups).map_err(|source| moving(target, source))?;
        }
        for (log, groups) in moves.struck {
            let groups: Vec<GroupId> = groups.into_iter().collect();
            let log = &mut self.logs[log.0];
            log.strike_groups(&groups).map_err(|halt| moving(log, halt.into()))?;
        }
        for (log, groups) in moves.settled {
            let log = &mut self.logs[log.0];
            log.settle_groups(&groups).map_err(|halt| moving(log, halt.into()))?;
        }
        Ok(())
    }

    /// Takes out the logs that the node does not use and that no group is in: what one had lost is remembered by now. With where each one
    /// was.
    pub(crate) fn take_idle(&mut self, used: usize) -> Vec<(DirectoryId, Log)> {
        let mut taken = Vec::new();
        for number in (used..self.logs.len()).rev() {
            if self.logs[number].stats().groups == 0 {
                self.begun.remove(number);
                taken.push((self.homes.remove(number), self.logs.remove(number)));
            }
        }
        taken
    }
}

/// Whether nothing is in a log that anybody could need, nor was.
pub(crate) fn is_idle(log: &Log) -> bool {
    log.stats().groups == 0 && !log.has_unknown_loss()
}

/// Whether a log lies in data directory `data`, or what is left of one.
pub(crate) fn has_log(disk: &dyn Disk, data: &Path) -> bool {
    // What cannot be looked at may be there.
    !disk.list(&log_id::log_of(data)).is_ok_and(|names| names.is_empty()) && disk.exists(&log_id::log_of(data))
}

fn moving(log: &Log, source: CopyError) -> OpenError {
    OpenError::Moving { directory: log.dir().to_path_buf(), source }
}
