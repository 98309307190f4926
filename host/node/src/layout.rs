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
use hedgerow_env::{Disk, Space};
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

/// Groups with their next generations, by the log that they are in and the log that they come to. What that one has of them is void.
type Copied = BTreeMap<(LogId, LogId), Vec<(GroupId, u64)>>;

/// Bytes that are copied between two messages that tell how far it is, unless one group has more.
const PIECE_SIZE: u64 = 256 << 20;

/// Copies that are made at a time.
#[derive(Debug)]
struct Piece {
    from: LogId,
    to: LogId,
    groups: Vec<(GroupId, u64)>,
    bytes: u64,
}

/// Which groups leave which logs.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    copied: Copied,
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

    /// The logs that groups come out of.
    pub(crate) fn left(&self) -> impl Iterator<Item = LogId> {
        let logs: BTreeSet<LogId> = self.copied.keys().map(|(from, _)| *from).collect();
        logs.into_iter()
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
    pub(crate) fn carry_out(&mut self, mut moves: Moves, disk: &dyn Disk, config: &Config) -> Result<(), OpenError> {
        moves.keep_copies();
        self.copy_all(std::mem::take(&mut moves.copied), disk, config)?;
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

    /// Makes the copies, piece by piece, each of which is durable before the next one begins. None is begun unless there is room for all.
    fn copy_all(&mut self, copied: Copied, disk: &dyn Disk, config: &Config) -> Result<(), OpenError> {
        let pieces = self.pieces(copied);
        let (mut done, all) = (0, pieces.iter().map(|piece| piece.bytes).sum::<u64>());
        self.check_room(&pieces, disk, config)?;
        for piece in &pieces {
            let logs = self.logs.get_disjoint_mut([piece.from.0, piece.to.0]);
            let [source, target] = logs.expect("a group comes from one log to another");
            let (of, into, groups) = (source.dir().display(), target.dir().display(), piece.groups.len());
            tracing::info!(groups, from = %of, to = %into, done_mib = done >> 20, all_mib = all >> 20, "groups come to another log");
            target.copy_groups(source, &piece.groups).map_err(|error| match error {
                // The disk that does not give what was there a moment ago.
                CopyError::Unreadable { .. } => moving(source, error),
                CopyError::Halt(_) => moving(target, error),
            })?;
            done += piece.bytes;
        }
        Ok(())
    }

    fn pieces(&self, copied: Copied) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        for ((from, to), groups) in copied {
            for (group, generation) in groups {
                let bytes = self.logs[from.0].bytes_of(group);
                match pieces.last_mut() {
                    Some(last) if (last.from, last.to) == (from, to) && last.bytes + bytes <= PIECE_SIZE => {
                        last.groups.push((group, generation));
                        last.bytes += bytes;
                    }
                    _ => pieces.push(Piece { from, to, groups: vec![(group, generation)], bytes }),
                }
            }
        }
        pieces
    }

    /// An error if a disk has no room for the `pieces` that come to it. Data directories whose disks have the same room, to the byte, are
    /// taken for directories of one disk.
    fn check_room(&self, pieces: &[Piece], disk: &dyn Disk, config: &Config) -> Result<(), OpenError> {
        // Each log ends in a segment that is not full, and makes the next one ready.
        let mut by_log: BTreeMap<LogId, u64> = BTreeMap::new();
        for piece in pieces {
            *by_log.entry(piece.to).or_insert(2 * config.wal.segment_size) += piece.bytes;
        }
        let mut disks: Vec<(Space, u64, LogId)> = Vec::new();
        for (log, bytes) in by_log {
            let bytes = bytes.saturating_sub(self.logs[log.0].ready_bytes());
            // Whoever cannot say has it shown by writing.
            let Ok(space) = disk.free_space(config.path_of(self.home_of(log))) else { continue };
            match disks.iter_mut().find(|(of, ..)| *of == space) {
                Some((_, needed, _)) => *needed += bytes,
                None => disks.push((space, bytes, log)),
            }
        }
        match disks.into_iter().find(|(space, needed, _)| space.free < *needed) {
            Some((Space { free, .. }, needed, log)) => {
                let directory = self.logs[log.0].dir().to_path_buf();
                Err(OpenError::NoRoomToMove { directory, needed, free })
            }
            None => Ok(()),
        }
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
