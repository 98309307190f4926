//! Who a node is: the small file in each of its data directories, and the incarnation that says whether its data is whole.
//!
//! All directories of a node carry the same incarnation. If one of them comes back empty, or one is missing, the node
//! draws a new incarnation: replicas that are still there go on, and nobody recreates empty, under their old names,
//! those that are not. That is what makes a lost disk safe for Raft (a replica never forgets a vote or an entry).
//!
//! A directory of a known node that is not there, or cannot be read, is left out while others remain. It is not made
//! again: where a disk is not mounted, that would fill the root file system. Whoever replaces a disk makes the directory.
//!
//! The file also counts the starts of the node. The count is raised durably before anything else is done, so that no two
//! processes with the same data have the same count, unless one of them has a copy (see `lives.rs`).
//!
//! And it names the logs of the node, by numbers that go with them (see `log_id.rs`). Where they are not exactly those that are there, the
//! node draws a new incarnation too, in the same write that names the others: whichever log it goes on with, nobody begins anew
//! under an id that may have voted in one that is not there.

use crate::failure::{is_device_failure, takes_no_writes};
use crate::layout::LogLayout;
use crate::log_id;
use crate::peer::Founder;
use crate::reserve;
use hedgerow_env::{DirLock, Disk, OpenMode, read_file_if_exists, write_file_durably};
use hedgerow_placement::Ancestor;
use hedgerow_types::random::Random;
use hedgerow_types::{Incarnation, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

const FILE_NAME: &str = "identity.json";
const VERSION: u32 = 1;
/// The same where the logs are not one in each data directory. Programs that know no other layout refuse it.
const VERSION_WITH_LAYOUT: u32 = 2;
/// Logs that are remembered, those that are there not counted.
const LOGS_MAX: usize = 64;
/// Logs that groups came out of, and that are remembered.
const FORMER_LOGS_MAX: usize = 64;
/// Processes that are remembered.
const ANCESTORS_MAX: usize = 64;
/// Data that has lost an identity counts on from so far above the last count that is known: more starts than that are not unknown.
const LOST_STARTS_MAX: u64 = 1_000_000;

/// The content of `identity.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Identity {
    version: u32,
    node: u16,
    incarnation: u64,
    directories: usize,
    /// The cluster's id; 0 until it is founded.
    pub(crate) cluster: u64,
    /// The metadata nodes that founded it.
    pub(crate) founders: Vec<Founder>,
    /// Directories that are on another file system than the root directory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    mounted: Vec<PathBuf>,
    /// How often a process has been started with this data, the present one included.
    #[serde(default)]
    boot: u64,
    /// The last start that went on to use the logs: every directory that was used then says so, or is a copy from before.
    #[serde(default, skip_serializing_if = "is_zero")]
    used: u64,
    /// The node's logs, by number. One of those that were used last and is not there has taken along what it held, and one that is not
    /// among them lacks what others were used for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    log_ids: BTreeMap<u64, LogUse>,
    /// Where the logs are that were used last. While groups come from one layout to another it is the one that not every program knows.
    #[serde(default, skip_serializing_if = "is_default")]
    log_layout: LogLayout,
    /// Which processes have used this data, the newest last: its count of starts and its random number. Two have the same count where
    /// directories were away in turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ancestors: Vec<(u64, u64)>,
    /// The logs that groups of this data came out of, the newest last: what else has one of these is another copy of what was there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    moved_from: Vec<u64>,
    /// Of processes with smaller counts not all are known, and none is told: an identity had been lost, and with it the list of those that
    /// had used its log. This is the count of the start that found so, which is above all of theirs; 0 = the list is whole.
    #[serde(default, skip_serializing_if = "is_zero")]
    whole_since: u64,
    /// In files of versions before, instead of `log_ids`: the directories whose log has been written to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    logs: Vec<PathBuf>,
    /// In the file alone: CRC-32C of its text without this. A digit that was flipped would be another identity. Files of
    /// versions before have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crc32c: Option<u32>,
}

impl Identity {
    /// This life of the node's data.
    pub(crate) fn incarnation(&self) -> Incarnation {
        Incarnation(self.incarnation)
    }

    /// How often a process has been started with this data, the present one included.
    pub(crate) fn boot(&self) -> u64 {
        self.boot
    }

    /// The logs that were used last.
    fn used_logs(&self) -> impl Iterator<Item = (&u64, &LogUse)> {
        self.log_ids.iter().filter(|(_, log)| log.used == self.used)
    }

    /// Whether the node's logs are `present`, all of them and no others, and what was written to is there.
    pub(crate) fn has_logs(&self, present: &[FoundLog]) -> bool {
        if self.log_ids.is_empty() {
            return present.iter().filter(|log| log.is_begun).count() >= self.logs.len();
        }
        let is_there = |(id, log): (&u64, &LogUse)| {
            present.iter().any(|own| own.id == Some(*id) && (own.is_begun || !log.is_begun))
        };
        present.len() == self.used_logs().count() && self.used_logs().all(is_there)
    }

    /// Where the logs are that were used last.
    pub(crate) fn log_layout(&self) -> LogLayout {
        self.log_layout
    }

    /// To be saved before anything is written to a log of another layout, and again when all groups are in the logs of one.
    pub(crate) fn set_log_layout(&mut self, layout: LogLayout) {
        self.log_layout = layout;
        self.version = if layout == LogLayout::default() { VERSION } else { VERSION_WITH_LAYOUT };
    }

    /// Whether `log` is among those that were used last.
    pub(crate) fn has_used(&self, log: &FoundLog) -> bool {
        self.used_logs().any(|(id, _)| log.id == Some(*id))
    }

    /// Whether `log`, which lies in `directory`, is one of the node's, if anything has been written to it. Whatever was, was written under a
    /// number that stands here, unless that is lost, but by versions before, which knew no numbers. With neither the number nor what stands
    /// here nobody could tell how far the log was.
    pub(crate) fn check_log(&self, directory: &Path, log: &FoundLog) -> Result<(), IdentityError> {
        let is_of_version_before = !self.logs.is_empty();
        if !log.is_begun || is_of_version_before {
            return Ok(());
        }
        match log.id {
            Some(id) if self.log_ids.is_empty() || self.log_ids.contains_key(&id) => Ok(()),
            Some(id) => Err(IdentityError::of_log(directory, format!("says {id:016x}, which is no log of the node"))),
            None => Err(IdentityError::of_log(directory, "is not there".to_owned())),
        }
    }

    /// The random number of the process that uses the logs.
    pub(crate) fn start(&self) -> u64 {
        self.ancestors.last().map_or(0, |(_, start)| *start)
    }

    /// The processes before this one that have used the data, as far as they are remembered: from the first one on, all of them.
    pub(crate) fn ancestors(&self) -> Vec<Ancestor> {
        let before = self.ancestors.iter().filter(|(boot, _)| (self.whole_since..self.boot).contains(boot));
        before.map(|(boot, start)| Ancestor { boot: *boot, start: *start }).collect()
    }

    /// The logs that groups came out of, and which are none of those that are used now.
    pub(crate) fn former_logs(&self) -> impl Iterator<Item = u64> {
        let is_used = |id: &u64| self.used_logs().any(|(used, _)| used == id);
        self.moved_from.iter().copied().filter(move |id| !is_used(id))
    }

    /// Groups come out of these logs: to be saved before they are anywhere else.
    pub(crate) fn note_moved_from(&mut self, logs: &[u64]) {
        self.moved_from.extend(logs);
        keep_last(&mut self.moved_from);
    }

    /// An identity is lost, and start `known` of the node is known of otherwise. The count goes on above all that may have been: a list
    /// that lacks those processes says of none of them that the data does not come from it.
    fn count_on_from(&mut self, known: u64) {
        self.boot = self.boot.max(known.saturating_add(LOST_STARTS_MAX));
        self.whole_since = self.boot;
    }

    /// The catalogue beside the data knows start `known` of the node, which may be one that a lost identity has counted.
    pub(crate) fn note_known_start(&mut self, known: u64) {
        if self.whole_since == self.boot {
            self.count_on_from(known);
            tracing::warn!(
                boot = self.boot,
                "an identity.json is gone: the node's starts are counted on from far above those that are known"
            );
        }
    }

    /// Whether the data does not come from the process that used one of its logs last. Nothing is concluded of what it may have forgotten.
    fn lacks(&self, log: &LogUse) -> bool {
        let has_all = self.ancestors.len() < ANCESTORS_MAX;
        let remembers = has_all || self.ancestors.first().is_some_and(|(oldest, _)| *oldest < log.used);
        log.start != 0 && remembers && !self.ancestors.contains(&(log.used, log.start))
    }

    /// Whether any log of the node has been written to.
    pub(crate) fn has_any_log(&self) -> bool {
        self.used_logs().any(|(_, log)| log.is_begun)
    }

    /// A node whose identity is gone, but whose catalogue is there, belongs to the catalogue's cluster (0 = there is none).
    pub(crate) fn remember_cluster(&mut self, cluster: u64) {
        if self.cluster == 0 && cluster != 0 {
            tracing::warn!(cluster = format_args!("{cluster:016x}"), "the cluster was taken from the cached catalogue");
            self.cluster = cluster;
        }
    }

    /// The process with the random number `start` uses the data: to be saved in every directory before one says that it has used a log, so that
    /// a directory which does not remember it was not used by it. Logs that have been written to and get other numbers, `renamed`, are known by
    /// them, and used by nobody yet.
    pub(crate) fn begin(&mut self, start: u64, renamed: impl Iterator<Item = u64>) {
        self.ancestors.push((self.boot, start));
        keep_newest(&mut self.ancestors);
        self.log_ids.extend(renamed.map(|id| (id, LogUse { is_begun: true, used: 0, start: 0 })));
    }

    /// From now on these are the node's logs, each with whether it has been written to: to be saved before anything is written to one. Those
    /// that are away are remembered, with when they were used last.
    pub(crate) fn use_logs(&mut self, logs: impl Iterator<Item = (u64, bool)>) {
        let (used, start) = (self.boot, self.start());
        self.logs.clear();
        self.used = used;
        self.log_ids.extend(logs.map(|(id, is_begun)| (id, LogUse { is_begun, used, start })));
        let mut uses: Vec<u64> = self.log_ids.values().map(|log| log.used).collect();
        uses.sort_unstable_by_key(|used| std::cmp::Reverse(*used));
        let oldest = uses.get(LOGS_MAX).copied().unwrap_or(0);
        self.log_ids.retain(|_, log| log.used > oldest || log.used == self.used);
    }

    /// Logs with these numbers are not the node's any more: nothing is in them. They are known where one comes back.
    pub(crate) fn use_no_more(&mut self, ids: impl Iterator<Item = u64>) {
        let used = self.used.saturating_sub(1);
        self.log_ids.extend(ids.map(|id| (id, LogUse { is_begun: true, used, start: 0 })));
    }

    /// Notes that log `id` is written to. Returns whether that is news, which is to be saved.
    pub(crate) fn note_log_begun(&mut self, id: u64) -> bool {
        let (used, start) = (self.used, self.start());
        self.log_ids.insert(id, LogUse { is_begun: true, used, start }).is_none_or(|before| !before.is_begun)
    }

    /// Begins another life, because something of this one is lost. To be saved before anything follows from it.
    pub(crate) fn renew(&mut self, random: u64) {
        self.incarnation = random | 1;
    }

    /// Of the text without it.
    fn checksum(&self) -> serde_json::Result<u32> {
        serde_json::to_vec(&Self { crc32c: None, ..self.clone() }).map(|text| crc32c::crc32c(&text))
    }

    /// Writes the identity to every directory, durably.
    pub(crate) fn save(&self, disk: &dyn Disk, directories: &[PathBuf]) -> io::Result<()> {
        let crc32c = Some(self.checksum().map_err(io::Error::other)?);
        let text = serde_json::to_vec(&Self { crc32c, ..self.clone() }).map_err(io::Error::other)?;
        directories.iter().try_for_each(|directory| write_file_durably(disk, &directory.join(FILE_NAME), &text))
    }

    /// As [`Identity::save`], and a directory that refuses keeps none of the others from it. The first refusal.
    pub(crate) fn save_to_each(&self, disk: &dyn Disk, directories: &[PathBuf]) -> Result<(), IdentityError> {
        let save = |directory: &PathBuf| {
            let saved = self.save(disk, std::slice::from_ref(directory));
            saved.map_err(|source| IdentityError::Io { directory: directory.clone(), source })
        };
        let results: Vec<_> = directories.iter().map(save).collect();
        results.into_iter().collect()
    }

    /// As [`Identity::save`]. A directory whose disk refuses is added to those that are `missing`, if another one takes it.
    fn save_where_possible(
        &self,
        disk: &dyn Disk,
        directories: &[PathBuf],
        missing: &mut Vec<Missing>,
    ) -> Result<(), IdentityError> {
        let mut failure = None;
        let mut is_saved = false;
        for directory in directories {
            match self.save(disk, std::slice::from_ref(directory)) {
                Ok(()) => is_saved = true,
                Err(source) => {
                    let may_stay = takes_no_writes(&source);
                    let reason = source.to_string();
                    let error = IdentityError::Io { directory: directory.clone(), source };
                    if !may_stay {
                        return Err(error);
                    }
                    missing.push((directory.clone(), reason));
                    failure.get_or_insert(error);
                }
            }
        }
        match failure {
            Some(failure) if !is_saved => Err(failure),
            Some(_) | None => Ok(()),
        }
    }
}

/// What is remembered of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LogUse {
    /// Whether anything has been written to it.
    #[serde(rename = "begun")]
    is_begun: bool,
    /// The last start that used it.
    used: u64,
    /// The random number of the process that this was; 0 in files of versions before.
    #[serde(default, skip_serializing_if = "is_zero")]
    start: u64,
}

/// A log that lies in a data directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundLog {
    /// Its number, if it can be read.
    pub(crate) id: Option<u64>,
    /// Whether anything has been written to it.
    pub(crate) is_begun: bool,
}

/// What the directories remember together: their logs, each with the last use that any of them knows of, and the processes that they
/// come from. Directories that were away in turn know different ones, and all of them have been.
fn remembered(found: &[Identity]) -> (BTreeMap<u64, LogUse>, Vec<(u64, u64)>) {
    let mut log_ids: BTreeMap<u64, LogUse> = BTreeMap::new();
    for (id, log) in found.iter().flat_map(|one| &one.log_ids) {
        let known = log_ids.entry(*id).or_insert(*log);
        let is_begun = known.is_begun || log.is_begun;
        let newest = if (log.used, log.start) > (known.used, known.start) { *log } else { *known };
        *known = LogUse { is_begun, ..newest };
    }
    let ancestors: BTreeSet<(u64, u64)> = found.iter().flat_map(|one| one.ancestors.iter().copied()).collect();
    let mut ancestors: Vec<(u64, u64)> = ancestors.into_iter().collect();
    keep_newest(&mut ancestors);
    (log_ids, ancestors)
}

/// The logs that groups came out of, by what the directories remember together.
fn former_logs_of(found: &[Identity]) -> Vec<u64> {
    let mut by_use: Vec<&Identity> = found.iter().collect();
    by_use.sort_by_key(|one| one.used);
    let mut logs: Vec<u64> = by_use.into_iter().flat_map(|one| one.moved_from.iter().copied()).collect();
    keep_last(&mut logs);
    logs
}

/// Each number once, where it came last.
fn keep_last(logs: &mut Vec<u64>) {
    let mut seen = BTreeSet::new();
    logs.reverse();
    logs.retain(|id| seen.insert(*id));
    logs.truncate(FORMER_LOGS_MAX);
    logs.reverse();
}

fn keep_newest(ancestors: &mut Vec<(u64, u64)>) {
    let surplus = ancestors.len().saturating_sub(ANCESTORS_MAX);
    ancestors.drain(..surplus);
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_default(layout: &LogLayout) -> bool {
    *layout == LogLayout::default()
}

/// Why a node's directories cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The directory cannot be read or written.
    #[error("cannot use data directory {}", directory.display())]
    Io {
        /// Which one.
        directory: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The identity file is not one.
    #[error(
        "{} is not an identity file of version {VERSION} or {VERSION_WITH_LAYOUT}: {reason}. Without it the node begins anew in its cluster and goes on \
         with the replicas that it has: move the file away and start the node again, or put back the right one",
        path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The directory was made by another node.
    #[error("{} belongs to node {found}, this is node {expected}: correct `node` or `data`, or name an empty directory", directory.display())]
    WrongNode {
        /// Which directory.
        directory: PathBuf,
        /// Whose it is.
        found: u16,
        /// Who we are.
        expected: u16,
    },
    /// Another process has the directory open.
    #[error("data directory {} is in use by another process, or listed twice", directory.display())]
    InUse {
        /// Which directory.
        directory: PathBuf,
    },
    /// The directory is a copy from earlier.
    #[error(
        "{} is older than the node's other directories (start {boot}; its log was used at start {known}): it was put back from a copy, or \
         the copy was used instead of it. Empty it and let the node learn again",
        directory.display()
    )]
    Older {
        /// Which directory.
        directory: PathBuf,
        /// Its count of starts.
        boot: u64,
        /// The one at which its log was used last.
        known: u64,
    },
    /// The directory is a copy from earlier, and its count does not show it.
    #[error(
        "{} lacks what start {known} of the node has added to its log, as another directory of the node says: it was put back from a copy, or \
         the copy was used instead of it. Empty it and let the node learn again",
        directory.display()
    )]
    Copy {
        /// Which directory.
        directory: PathBuf,
        /// The start at which its log was used last.
        known: u64,
    },
    /// A log that has been written to has no number that the node knows. Nothing of what it holds was used.
    #[error(
        "{} {reason}, so that the log there cannot be told from a copy of it: put the file back as it was, or move what is in {} elsewhere, so \
         that the node learns it again",
        path.display(), directory.display()
    )]
    LogNumber {
        /// The file with the number.
        path: PathBuf,
        /// The data directory.
        directory: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The directories come from different clusters.
    #[error("{} belongs to another cluster than the directories before it", directory.display())]
    WrongCluster {
        /// Which directory.
        directory: PathBuf,
    },
}

impl IdentityError {
    fn of_log(directory: &Path, reason: String) -> Self {
        Self::LogNumber { path: log_id::path_of(directory), directory: directory.to_path_buf(), reason }
    }
}

/// A data directory that is left out, and why.
pub(crate) type Missing = (PathBuf, String);

/// What a node's directories say, and which of them it can use.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) identity: Identity,
    /// The counts of starts that were found.
    found_in: BTreeMap<PathBuf, u64>,
    /// In the order in which they are configured.
    pub(crate) present: Vec<PathBuf>,
    /// The others, and why they are left out.
    pub(crate) missing: Vec<Missing>,
    /// The numbers of the logs in those that have an identity.
    pub(crate) logs: Vec<u64>,
    /// They keep other processes out.
    pub(crate) locks: Vec<DirLock>,
}

impl Found {
    /// Writes the identity to the directories that are present, durably. One whose disk refuses is missing from here on, if another one takes it:
    /// the start goes on in a life drawn from `random`, since the directory was not there at each start of the one before.
    pub(crate) fn save(&mut self, disk: &dyn Disk, random: &mut Random) -> Result<(), IdentityError> {
        reserve::use_where_full(disk, &self.present);
        // Where the count is smaller it is raised first: however often a start is interrupted, directories differ by one.
        let mut by_count = self.present.clone();
        by_count.sort_by_key(|directory| self.found_in.get(directory).copied().unwrap_or(0));
        let known_missing = self.missing.len();
        self.identity.save_where_possible(disk, &by_count, &mut self.missing)?;
        if self.missing.len() > known_missing {
            self.identity.renew(random.next_u64());
        }
        let missing = &self.missing;
        self.present.retain(|directory| missing.iter().all(|(missing, _)| missing != directory));
        Ok(())
    }
}

/// A data directory before anything is done to it.
enum Look {
    /// With the number of its log.
    Used(Box<Identity>, Option<u64>),
    /// It has no identity.
    Empty(Option<u64>),
    Absent,
    Failed(io::Error),
}

/// Whether a node's data is in `directory`: the file system that holds it is there.
pub(crate) fn is_in(disk: &dyn Disk, directory: &Path) -> bool {
    disk.exists(&directory.join(FILE_NAME))
}

/// Whether it is certain that none is: what cannot be looked at may be there.
pub(crate) fn is_away(disk: &dyn Disk, directory: &Path) -> bool {
    let file = disk.open(&directory.join(FILE_NAME), OpenMode::Read);
    file.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Locks `directories` and reads the identity that they share, or draws a new incarnation from `random` where they do not
/// agree. Counts the start, which [`Found::save`] makes durable: nothing is changed before it is clear that they are this node's, but that
/// those which are not there are made on a node's first start.
pub(crate) fn open(
    disk: &dyn Disk,
    directories: &[PathBuf],
    node: NodeId,
    random: u64,
) -> Result<Found, IdentityError> {
    let first = look_at_all(disk, directories, node)?;
    let (present, missing) = sort_out(disk, directories, first)?;
    let mut locks = Vec::new();
    for directory in &present {
        let io_error = |source| IdentityError::Io { directory: directory.clone(), source };
        hedgerow_env::create_dir_durably(disk, directory).map_err(io_error)?;
        locks.push(disk.lock_dir(directory).map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => IdentityError::InUse { directory: directory.clone() },
            _ => io_error(source),
        })?);
    }
    // Once more, now that nobody else can change it.
    let mut found: Vec<Identity> = Vec::new();
    let (mut found_in, mut logs, mut nobodys) = (BTreeMap::new(), Vec::new(), Vec::new());
    for (directory, look) in present.iter().zip(look_at_all(disk, &present, node)?) {
        match look {
            Look::Used(identity, log) => {
                found_in.insert(directory.clone(), identity.boot);
                found.push(*identity);
                logs.extend(log);
            }
            Look::Empty(log) => {
                tracing::info!(directory = %directory.display(), "a data directory is begun: it was empty, or its identity.json is gone");
                nobodys.extend(log);
            }
            Look::Absent | Look::Failed(_) => {}
        }
    }
    let is_whole = found.len() == directories.len()
        && found.iter().all(|one| one.incarnation == found[0].incarnation && one.directories == directories.len());
    let founded = found.iter().find(|identity| identity.cluster != 0).or(found.first());
    let (log_ids, ancestors) = remembered(&found);
    let is_mounted =
        |directory: &&PathBuf| !present.contains(directory) || disk.is_on_root(directory).is_ok_and(|it| !it);
    let known: Vec<&PathBuf> = found.iter().flat_map(|one| &one.mounted).collect();
    let is_known = |directory: &&PathBuf| present.contains(directory) || known.contains(directory);
    let is_lost = |log: &u64| found.is_empty() || log_ids.get(log).is_some_and(|log| log.is_begun);
    let has_lost = nobodys.iter().any(is_lost);
    let mut identity = Identity {
        version: VERSION,
        node: node.0,
        incarnation: if is_whole && !found.is_empty() { found[0].incarnation } else { random | 1 },
        directories: directories.len(),
        cluster: founded.map_or(0, |identity| identity.cluster),
        founders: founded.map_or_else(Vec::new, |identity| identity.founders.clone()),
        mounted: directories.iter().filter(is_known).filter(is_mounted).cloned().collect(),
        boot: found.iter().map(|one| one.boot).max().unwrap_or(0).saturating_add(1),
        used: found.iter().map(|one| one.used).max().unwrap_or(0),
        moved_from: former_logs_of(&found),
        whole_since: found.iter().map(|one| one.whole_since).max().unwrap_or(0),
        log_ids,
        log_layout: LogLayout::default(),
        ancestors,
        logs: found.iter().flat_map(|one| one.logs.iter().cloned()).collect::<BTreeSet<_>>().into_iter().collect(),
        crc32c: None,
    };
    let newest = found.iter().max_by_key(|one| (one.used, one.version));
    identity.set_log_layout(newest.map_or(LogLayout::default(), |one| one.log_layout));
    if has_lost {
        identity.count_on_from(identity.boot);
    }
    Ok(Found { identity, found_in, present, missing, logs, locks })
}

/// Looks at every directory and changes nothing. An error if one of them is not this node's.
fn look_at_all(disk: &dyn Disk, directories: &[PathBuf], node: NodeId) -> Result<Vec<Look>, IdentityError> {
    let mut cluster = 0;
    let mut looks = Vec::new();
    for directory in directories {
        let look = look_at(disk, directory)?;
        if let Look::Used(identity, _) = &look {
            if identity.node != node.0 {
                let (directory, found) = (directory.clone(), identity.node);
                return Err(IdentityError::WrongNode { directory, found, expected: node.0 });
            }
            if cluster != 0 && identity.cluster != 0 && identity.cluster != cluster {
                return Err(IdentityError::WrongCluster { directory: directory.clone() });
            }
            cluster = cluster.max(identity.cluster);
        }
        looks.push(look);
    }
    check_counts(directories, &looks)?;
    Ok(looks)
}

/// A directory that lacks a start at which its log was used, by what another one says, was put back from a copy, or a copy was used
/// instead of it. One that was away meanwhile is neither.
fn check_counts(directories: &[PathBuf], looks: &[Look]) -> Result<(), IdentityError> {
    let mut found = Vec::new();
    for (directory, look) in directories.iter().zip(looks) {
        if let Look::Used(identity, log) = look {
            found.push((directory, identity, log));
        }
    }
    for (directory, identity, log) in &found {
        let used_by = |other: &Identity| {
            let of_log = log.and_then(|log| other.log_ids.get(&log)).map(|log| log.used);
            // One of the same incarnation was there at each start.
            of_log.max((other.incarnation == identity.incarnation).then_some(other.used))
        };
        let known = found.iter().filter_map(|(_, other, _)| used_by(other)).max().unwrap_or(0);
        if known > identity.boot {
            let (directory, boot) = (directory.to_path_buf(), identity.boot);
            return Err(IdentityError::Older { directory, boot, known });
        }
        // By its own word: what the directories remember together may be another one's.
        let uses = found.iter().filter_map(|(_, other, _)| other.log_ids.get(&(**log)?));
        if let Some(LogUse { used: known, .. }) = uses.copied().find(|log| identity.lacks(log)) {
            return Err(IdentityError::Copy { directory: directory.to_path_buf(), known });
        }
    }
    Ok(())
}

fn look_at(disk: &dyn Disk, directory: &Path) -> Result<Look, IdentityError> {
    match disk.list(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Look::Absent),
        Err(error) if is_device_failure(&error) => return Ok(Look::Failed(error)),
        Err(source) => return Err(IdentityError::Io { directory: directory.to_path_buf(), source }),
        Ok(_) => {}
    }
    let log = match log_id::read(disk, directory) {
        Ok(log) => log,
        Err(error) if is_device_failure(&error) => return Ok(Look::Failed(error)),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Err(IdentityError::of_log(directory, format!("cannot be used ({error})")));
        }
        // It may be whole, and be read the next time.
        Err(error) => {
            let source = io::Error::new(error.kind(), format!("{}: {error}", log_id::path_of(directory).display()));
            return Err(IdentityError::Io { directory: directory.to_path_buf(), source });
        }
    };
    match read(disk, directory) {
        Ok(Some(identity)) => Ok(Look::Used(Box::new(identity), log)),
        Ok(None) => Ok(Look::Empty(log)),
        Err(IdentityError::Io { source, .. }) if is_device_failure(&source) => Ok(Look::Failed(source)),
        Err(error) => Err(error),
    }
}

/// Which directories can be used, and which are left out and why. An error if none is left.
fn sort_out(
    disk: &dyn Disk,
    directories: &[PathBuf],
    looks: Vec<Look>,
) -> Result<(Vec<PathBuf>, Vec<Missing>), IdentityError> {
    let known: Vec<Identity> = looks
        .iter()
        .filter_map(|look| if let Look::Used(identity, _) = look { Some((**identity).clone()) } else { None })
        .collect();
    let had_all = known.iter().any(|identity| identity.directories >= directories.len());
    let (mut present, mut missing, mut failure) = (Vec::new(), Vec::new(), None);
    for (directory, look) in directories.iter().zip(looks) {
        let was_mounted = known.iter().any(|identity| identity.mounted.contains(directory));
        let reason = match look {
            Look::Used(..) => None,
            Look::Empty(_) if was_mounted && disk.is_on_root(directory).unwrap_or(false) => {
                Some("nothing is mounted there, and it was a mount point before".to_owned())
            }
            Look::Absent if had_all => Some(
                "it is not there, and the node had it before: mount it, or make an empty directory in its place, and start the node again"
                    .to_owned(),
            ),
            Look::Empty(_) | Look::Absent => None,
            Look::Failed(source) => {
                let reason = source.to_string();
                failure.get_or_insert(IdentityError::Io { directory: directory.clone(), source });
                Some(reason)
            }
        };
        match reason {
            None => present.push(directory.clone()),
            Some(reason) => missing.push((directory.clone(), reason)),
        }
    }
    match failure {
        // Without any identity nobody can tell whether the node is new.
        Some(failure) if known.is_empty() => Err(failure),
        Some(_) | None => Ok((present, missing)),
    }
}

fn read(disk: &dyn Disk, directory: &Path) -> Result<Option<Identity>, IdentityError> {
    let path = directory.join(FILE_NAME);
    let bytes = read_file_if_exists(disk, &path);
    // Where there is none, another is written.
    let Some(bytes) = bytes.map_err(|source| IdentityError::Io { directory: directory.to_path_buf(), source })? else {
        return Ok(None);
    };
    let malformed = |reason: String| IdentityError::Malformed { path: path.clone(), reason };
    let identity: Identity = serde_json::from_slice(&bytes).map_err(|error| malformed(error.to_string()))?;
    if !(VERSION..=VERSION_WITH_LAYOUT).contains(&identity.version) {
        return Err(malformed(format!("its version is {}", identity.version)));
    }
    let checksum = identity.checksum().map_err(|error| malformed(error.to_string()))?;
    if identity.crc32c.is_some_and(|stored| stored != checksum) {
        return Err(malformed("its content does not match its checksum".into()));
    }
    Ok(Some(Identity { crc32c: None, ..identity }))
}

#[cfg(test)]
#[path = "identity_tests.rs"]
mod tests;
