//! Room for what is written: which disks are full, and whose writes are refused because of that.
//!
//! A job for each data directory looks at its file system about once a second, and sooner where writes take a good part of what it
//! found. Below the watermark of a data directory the replicas there take no more data: leaders refuse writes that add some, and
//! followers tell their leaders, which go on as long as a majority has room. What is below the watermark is for what the node needs
//! itself: flushes, compactions, the metadata, and deletes, which make room.
//!
//! The log has a reserve of its own, the segment that it has made ready; once the disk refuses another, the log tells after
//! each round how much of it is left. Below half a segment clients' writes are refused, deletes too: by leaders there, and by
//! leaders elsewhere once that holds for a majority. Of what the others still send, a follower takes the entries before the
//! first large one, as long as an eighth of a segment stays. That eighth, room for some ten thousand votes in a segment of 64 MiB,
//! is for terms, votes and the metadata alone, so that leaders are elected and the cluster can be told what to do. A message
//! without its last entries is as safe as one that was sent without them: only what was taken is acknowledged and committed,
//! and the leader sends the rest again as after a loss.

use crate::config::Config;
use crate::debt::Debts;
use crate::drive::bytes_since;
use crate::ids::{DirectoryId, LogId};
use crate::job::Job;
use crate::layout::LogLayout;
use crate::node::Node;
use crate::peer::Report;
use crate::replica::{Hosted, Replica};
use crate::reserve;
use hedgerow_env::{Now, Space};
use hedgerow_replication::{Message, Role};
use hedgerow_storage::PARTS;
use hedgerow_types::op::{Mutation, Write};
use hedgerow_types::{GroupId, Instant, NodeId, Refusal, ReplicaId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How often the file systems are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(1_000);
/// How often at most: one is looked at again when its log has taken this share of what was free above the watermark. As much goes into
/// tables, and compactions may need it once more. Otherwise writes could take, between two looks, all of a small disk and the log's
/// reserve, without which deletes are refused as well.
const LOOK_INTERVAL_MIN: Duration = Duration::from_millis(20);
const LOOK_SHARE: u64 = 8;
/// How often it is made sure that the storage of replicas is still there.
const STORAGE_INTERVAL: Duration = Duration::from_secs(10);
/// The watermark where the configuration names none: this share of the file system, at most so much, and at least what the
/// log and a flush need, as far as that is not too large a share of a small file system.
const MARK_SHARE: u64 = 20;
const MARK_MAX: u64 = 1 << 30;
const MARK_SHARE_MAX: u64 = 8;
/// Writes return when so many parts in sixteen more than the watermark are free, so that they do not come and go.
const RETURN_SIXTEENTHS: u64 = 18;
/// Bytes of entries that a node takes although its flushes are behind.
const TAKEN_WHEN_BEHIND: usize = 4 << 10;
/// Below this share of a segment the log is short of room.
const SHORT_SHARE: u64 = 2;
/// This share of a segment is for terms, votes and the metadata.
const KEPT_SHARE: u64 = 8;
/// Bytes of data of the largest entry that a follower takes although its log is short of room. Deletes fit, and so does what
/// leaders write for themselves.
const SMALL_ENTRY: usize = 4 << 10;
/// On a full disk what is at least so large is flushed at once, so that its log can go.
const FLUSH_WHEN_FULL: u64 = 1 << 20;

/// What the node knows of the room on its disks.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// By data directory.
    directories: Vec<Directory>,
    /// By number.
    logs: Vec<LogRoom>,
    log_layout: LogLayout,
    /// Replicas elsewhere whose nodes have told that they do not take all.
    elsewhere: BTreeMap<(GroupId, ReplicaId), Takes>,
    /// Other nodes whose flushes do not keep up with writes.
    behind_elsewhere: BTreeSet<NodeId>,
    pub(crate) debts: Debts,
}

/// Which of its clients' writes a replica has room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Takes {
    /// None: its log is short of room.
    Nothing,
    /// Those that add no data: its disk is full.
    Deletes,
    /// All.
    #[default]
    All,
}

/// One data directory.
#[derive(Clone, Debug, Default)]
struct Directory {
    space: Option<Space>,
    looked: Option<Instant>,
    /// The same for the storage of its replicas.
    looked_for_storage: Option<Instant>,
    /// A job does. A file system that does not answer holds up no other.
    is_looking: bool,
    /// Bytes of entries that its replicas' log took since the last look, and of how many another one is due.
    written: u64,
    written_max: u64,
    is_full: bool,
    /// The last look did not find what says that it is the node's.
    is_away: bool,
}

/// One log.
#[derive(Clone, Debug, Default)]
struct LogRoom {
    /// It waits for a segment.
    is_stalled: bool,
    /// What is left of it, once the disk refuses it more room.
    left: Option<u64>,
    /// Less is left than clients' writes may use.
    is_short: bool,
}

impl Room {
    pub(crate) fn new(config: &Config) -> Self {
        let directories = vec![Directory::default(); config.data.len()];
        let logs = vec![LogRoom::default(); config.log_count()];
        Self { directories, logs, log_layout: config.log_layout, ..Self::default() }
    }

    /// What the last look at a data directory found. Returns whether it was away at that one and at the one before.
    pub(crate) fn note_away(&mut self, directory: DirectoryId, is_away: bool) -> bool {
        let one = self.directories.get_mut(directory.0);
        one.is_some_and(|one| std::mem::replace(&mut one.is_away, is_away) && is_away)
    }

    /// The log of a data directory's replicas has taken so many bytes.
    pub(crate) fn note_written(&mut self, directory: DirectoryId, bytes: u64) {
        if let Some(one) = self.directories.get_mut(directory.0) {
            one.written = one.written.saturating_add(bytes);
        }
    }

    /// What replicas of a data directory have room for.
    pub(crate) fn takes(&self, directory: DirectoryId) -> Takes {
        let is_full = |directory: DirectoryId| self.directories.get(directory.0).is_some_and(|one| one.is_full);
        match self.log_of(directory) {
            Some(log) if log.is_short || log.is_stalled => Takes::Nothing,
            _ if is_full(directory) || is_full(self.log_layout.home_of(self.log_layout.log_of(directory))) => {
                Takes::Deletes
            }
            _ => Takes::All,
        }
    }

    /// The log of the replicas in a data directory.
    fn log_of(&self, directory: DirectoryId) -> Option<&LogRoom> {
        self.logs.get(self.log_layout.log_of(directory).0)
    }

    /// Whether a data directory takes no more data.
    pub(crate) fn is_full(&self, directory: DirectoryId) -> bool {
        self.takes(directory) < Takes::All
    }

    /// What is free on the file system of a data directory, of how much.
    pub(crate) fn space(&self, directory: DirectoryId) -> Option<Space> {
        self.directories.get(directory.0)?.space
    }

    /// Whether the log of a data directory's replicas waits for a segment.
    pub(crate) fn is_stalled(&self, directory: DirectoryId) -> bool {
        self.log_of(directory).is_some_and(|log| log.is_stalled)
    }

    /// Whether a data directory takes no clients' writes, so that the end of their log is left.
    pub(crate) fn is_short(&self, directory: DirectoryId) -> bool {
        self.takes(directory) == Takes::Nothing
    }

    /// What a replica on another node has room for.
    fn takes_elsewhere(&self, group: GroupId, replica: ReplicaId) -> Takes {
        self.elsewhere.get(&(group, replica)).copied().unwrap_or_default()
    }

    /// Whether a replica on another node takes no more data.
    pub(crate) fn is_full_elsewhere(&self, group: GroupId, replica: ReplicaId) -> bool {
        self.takes_elsewhere(group, replica) < Takes::All
    }

    /// Decides which writes a group that is led here takes: what its leader and a majority have room for.
    fn update_stop(&self, replica: &mut Replica) {
        let group = replica.owner.group;
        let a_majority_takes =
            |wanted: &Takes| has_majority_without(replica, |voter| self.takes_elsewhere(group, *voter) < *wanted);
        let by_majority = [Takes::All, Takes::Deletes].into_iter().find(a_majority_takes).unwrap_or(Takes::Nothing);
        let is_behind = |voter: &ReplicaId| self.behind_elsewhere.contains(&voter.node());
        replica.takes_here = self.takes(replica.directory);
        replica.takes = replica.takes_here.min(by_majority);
        replica.is_outpaced = !has_majority_without(replica, is_behind);
        self.update_push_back(replica);
    }

    /// Changes what is known of data directories or logs. Returns the directories that have room for more or less than before.
    fn change(&mut self, change: impl FnOnce(&mut Self)) -> Vec<DirectoryId> {
        let takes = |room: &Self| -> Vec<Takes> {
            (0..room.directories.len()).map(|number| room.takes(DirectoryId(number))).collect()
        };
        let before = takes(self);
        change(self);
        let changed = takes(self).into_iter().zip(before).enumerate().filter(|(_, (now, before))| now != before);
        changed.map(|(number, _)| DirectoryId(number)).collect()
    }
}

impl Replica {
    /// Why `write` is refused for want of room.
    pub(crate) fn why_no_room(&self, write: &Write) -> Option<Refusal> {
        let needed = if adds_data(write) { Takes::All } else { Takes::Deletes };
        if self.takes >= needed {
            return None;
        }
        let whose = if self.takes_here < needed { "of the leader" } else { "of most replicas" };
        let served = if self.takes == Takes::Deletes { "reads and deletes" } else { "reads" };
        Some(Refusal::DiskFull(format!(
            "the disk {whose} has no room for it; {served} are served, and a table that is dropped with `--now` frees its \
             room at once"
        )))
    }
}

/// Below so many free bytes a disk takes no more data.
fn mark(config: &Config, total: u64) -> u64 {
    config.free_disk_min.unwrap_or_else(|| {
        let needed = (2 * config.wal.segment_size).saturating_add(config.flush_replica_bytes);
        (total / MARK_SHARE).min(MARK_MAX).max(needed.min(total / MARK_SHARE_MAX))
    })
}

impl Node {
    /// Has the disks looked at when it is time.
    pub(crate) fn tick_room(&mut self, now: Now) {
        for directory in self.config.directories() {
            let one = &mut self.room.directories[directory.0];
            let interval = if one.written > one.written_max { LOOK_INTERVAL_MIN } else { LOOK_INTERVAL };
            let is_due = one.looked.is_none_or(|looked| now.instant.since(looked) >= interval);
            if is_due && !one.is_looking {
                (one.looked, one.is_looking, one.written) = (Some(now.instant), true, 0);
                let has_space = one.space.is_some() && !one.is_full;
                let looks_for_storage =
                    one.looked_for_storage.is_none_or(|looked| now.instant.since(looked) >= STORAGE_INTERVAL);
                if looks_for_storage {
                    one.looked_for_storage = Some(now.instant);
                }
                let storage = if looks_for_storage { self.storage_in(directory) } else { Vec::new() };
                let path = self.config.path_of(directory).to_owned();
                let keeps_reserve = looks_for_storage && has_space && !self.room.is_stalled(directory);
                let reserve = if keeps_reserve { reserve::size(self.config.wal.segment_size) } else { 0 };
                self.shard.job(Job::Space { directory, path, storage, reserve });
            }
        }
    }

    /// What a look at the disk of a data directory found; `None` where it could not look.
    pub(crate) fn handle_space(&mut self, directory: DirectoryId, space: Option<Space>) {
        if let Some(one) = self.room.directories.get_mut(directory.0) {
            one.is_looking = false;
        }
        let Some(space) = space else { return };
        // What is in memory has been acknowledged and will need its place on the disk.
        let free = space.free.saturating_sub(self.unflushed_in(directory));
        let mark = mark(&self.config, space.total);
        let changed = self.room.change(|room| {
            let Some(one) = room.directories.get_mut(directory.0) else { return };
            one.space = Some(space);
            let limit = if one.is_full { mark.saturating_mul(RETURN_SIXTEENTHS) / 16 } else { mark };
            one.is_full = free < limit;
            one.written_max = free.saturating_sub(mark) / LOOK_SHARE;
        });
        self.note_room(&changed);
    }

    pub(crate) fn handle_log_stalled(&mut self, log: LogId, is_stalled: bool) {
        self.change_log(log, |log| log.is_stalled = is_stalled);
    }

    /// A log has told what is left of it.
    pub(crate) fn handle_log_room(&mut self, log: LogId, left: Option<u64>) {
        let is_short = left.is_some_and(|left| left < self.config.wal.segment_size / SHORT_SHARE);
        self.change_log(log, |log| (log.left, log.is_short) = (left, is_short));
    }

    fn change_log(&mut self, log: LogId, change: impl FnOnce(&mut LogRoom)) {
        let changed = self.room.change(|room| {
            if let Some(log) = room.logs.get_mut(log.0) {
                change(log);
            }
        });
        self.note_room(&changed);
    }

    /// Disks have room for more or less than before: the leaders elsewhere hear of it at once.
    fn note_room(&mut self, changed: &[DirectoryId]) {
        changed.iter().for_each(|directory| self.tell_room(*directory));
        let there = self.shard.replicas.hosted.iter().filter(|(_, hosted)| changed.contains(&hosted.directory()));
        self.reports.urgent.extend(there.map(|(group, _)| *group));
        if !changed.is_empty() {
            self.update_stops();
        }
    }

    fn tell_room(&self, directory: DirectoryId) {
        let free_mib = self.room.space(directory).map_or(0, |space| space.free >> 20);
        let path = self.config.path_of(directory).display();
        match self.room.takes(directory) {
            Takes::Nothing => {
                tracing::warn!(directory = %path, free_mib, "the log is short of room: writes are refused, reads go on")
            }
            Takes::Deletes => {
                tracing::warn!(directory = %path, free_mib, "the disk is full: writes that add data are refused, deletes and reads go on");
            }
            Takes::All => tracing::info!(directory = %path, free_mib, "the disk has room again"),
        }
    }

    /// A node has told how its replicas are.
    pub(crate) fn note_room_elsewhere(&mut self, from: NodeId, report: &Report) {
        let known = &mut self.room.elsewhere;
        let before = known.clone();
        if report.is_complete {
            known.retain(|(_, replica), _| replica.node() != from);
        }
        for one in &report.replicas {
            let name = (GroupId::from_u64(one.group), ReplicaId(one.replica));
            match (one.is_short, one.is_full) {
                (true, _) => known.insert(name, Takes::Nothing),
                (false, true) => known.insert(name, Takes::Deletes),
                (false, false) => known.remove(&name),
            };
        }
        let behind = &mut self.room.behind_elsewhere;
        let is_news = if report.is_behind { behind.insert(from) } else { behind.remove(&from) };
        let is_news = self.room.debts.note_elsewhere(from, report) || is_news;
        if is_news || self.room.elsewhere != before {
            self.update_stops();
        }
    }

    /// Notes whether flushes keep up with writes; leaders elsewhere hear at once of a change.
    pub(crate) fn note_behind(&mut self, is_behind: bool) {
        if std::mem::replace(&mut self.shard.view.is_storage_behind, is_behind) != is_behind {
            tracing::debug!(is_behind, "whether flushes are behind has changed");
            self.reports.urgent.extend(self.shard.replicas.hosted.keys().next().copied());
        }
    }

    /// Whether what a leader sent is dropped, as a lossy link would: this node holds more unflushed rows than it may, or has
    /// all writes of the group refused, and takes it when the leader sends it again. What is small comes through: elections
    /// need it.
    pub(crate) fn has_no_room_for(&self, group: GroupId, message: &Message) -> bool {
        if group == GroupId::META || message.entries_size() <= TAKEN_WHEN_BEHIND {
            return false;
        }
        let has_debt = |hosted: &Hosted| match hosted {
            Hosted::Running(replica) => self.room.parts_refused(replica) == PARTS,
            Hosted::Starting { .. } | Hosted::Lost { .. } => false,
        };
        self.shard.view.is_storage_behind || self.shard.replicas.hosted.get(&group).is_some_and(has_debt)
    }

    /// Leaves out of what a leader sent the entries that the end of the log is not for.
    pub(crate) fn keep_what_fits(&self, group: GroupId, message: &mut Message) {
        let is_meant = group != GroupId::META && message.entry_count() > 0;
        let Some(hosted) = self.shard.replicas.hosted.get(&group).filter(|_| is_meant) else { return };
        let Some(left) = self.log_left(self.config.log_of(hosted.directory())) else { return };
        let segment = self.config.wal.segment_size;
        if left < segment / SHORT_SHARE {
            let free = left.saturating_sub(segment / KEPT_SHARE);
            message.keep_small(SMALL_ENTRY, usize::try_from(free).unwrap_or(usize::MAX));
        }
    }

    /// The same before a message is sent to a replica whose log is known to be short: nothing large travels there in vain.
    pub(crate) fn keep_what_is_taken(&self, group: GroupId, to: ReplicaId, message: &mut Message) {
        if group != GroupId::META && self.room.takes_elsewhere(group, to) == Takes::Nothing {
            message.keep_small(SMALL_ENTRY, usize::MAX);
        }
    }

    /// What is left of a log whose disk refuses it more, without what is on its way there.
    fn log_left(&self, log: LogId) -> Option<u64> {
        let one = self.room.logs.get(log.0)?;
        let told = if one.is_stalled { Some(0) } else { one.left };
        told.map(|left| left.saturating_sub(self.shard.log_writes.bytes_under_way(log)))
    }

    /// Decides for every group that is led here whether it takes more data.
    fn update_stops(&mut self) {
        for hosted in self.shard.replicas.hosted.values_mut() {
            if let Hosted::Running(replica) = hosted {
                self.room.update_stop(replica);
            }
        }
    }

    /// The same for one group, whose leader or voters have changed.
    pub(crate) fn update_stop(&mut self, group: GroupId) {
        if let Some(Hosted::Running(replica)) = self.shard.replicas.hosted.get_mut(&group) {
            self.room.update_stop(replica);
        }
    }

    /// Whether a disk of this node takes no more data.
    pub(crate) fn has_full_disk(&self) -> bool {
        self.config.directories().any(|directory| self.room.is_full(directory))
    }

    /// Of a replica that leads: whether its own disk is full and another leader's group would take data. While this one
    /// counts as full the others do not hand it back.
    pub(crate) fn could_take_data_elsewhere(&self, replica: &Replica) -> bool {
        let group = replica.owner.group;
        let is_full = |voter: &ReplicaId| *voter == replica.id() || self.room.is_full_elsewhere(group, *voter);
        self.room.is_full(replica.directory) && has_majority_without(replica, is_full)
    }

    /// Whether a replica is on a full disk and should be flushed so that its log can go.
    pub(crate) fn is_due_on_full_disk(&self, hosted: &Hosted) -> bool {
        bytes_since(hosted) >= FLUSH_WHEN_FULL && self.room.is_full(hosted.directory())
    }

    /// What is free on the disk of a data directory beside what is in memory and will need its place, and how much of it
    /// is to be left free.
    pub(crate) fn free_and_mark(&self, directory: DirectoryId) -> Option<(u64, u64)> {
        let space = self.room.space(directory)?;
        Some((space.free.saturating_sub(self.unflushed_in(directory)), mark(&self.config, space.total)))
    }

    /// Whether half of what is to be left free is gone, or the log is short of room.
    pub(crate) fn must_give_room(&self, directory: DirectoryId) -> bool {
        let is_low = self.free_and_mark(directory).is_some_and(|(free, mark)| free < mark / 2);
        is_low || self.room.is_short(directory)
    }

    fn unflushed_in(&self, directory: DirectoryId) -> u64 {
        let of = |hosted: &Hosted| match hosted {
            Hosted::Running(replica) if replica.directory == directory => {
                replica.storage.as_ref().map_or(0, |storage| storage.engine().unflushed_bytes())
            }
            Hosted::Running(_) | Hosted::Starting { .. } | Hosted::Lost { .. } => 0,
        };
        self.shard.replicas.hosted.values().map(of).sum()
    }
}

/// Whether the voters of a group that is led here outvote those that `cannot` take a write.
fn has_majority_without(replica: &Replica, cannot: impl Fn(&ReplicaId) -> bool) -> bool {
    replica.group.role() != Role::Leader || replica.group.membership().is_majority(|voter| !cannot(&voter))
}

/// Whether a write may make more of what is stored.
fn adds_data(write: &Write) -> bool {
    match write {
        Write::Put { .. } | Write::MultiPut { .. } | Write::Incr { .. } => true,
        Write::CheckAndMutate { mutations, .. } => mutations.iter().any(|it| matches!(it, Mutation::Put { .. })),
        Write::Nothing | Write::Remove { .. } | Write::MultiRemove { .. } => false,
    }
}
