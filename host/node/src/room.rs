//! Room for what is written: which disks are full, and whose writes are refused because of that.
//!
//! Below the watermark of a data directory the replicas there take no more data: leaders refuse writes that add some, and
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
use crate::flush::bytes_since;
use crate::ids::{DirectoryId, LogId};
use crate::layout::LogLayout;
use crate::peer::Report;
use crate::receive::Receiving;
use crate::replica::{Hosted, Replica};
use crate::replicas::Sizes;
use crate::shard::Shard;
use hedgerow_env::Space;
use hedgerow_replication::{Message, Role};
use hedgerow_storage::PARTS;
use hedgerow_types::op::{Mutation, Write};
use hedgerow_types::{GroupId, NodeId, Refusal, ReplicaId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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

/// What is known of the room on the node's disks, and of that on others as far as leaders have to know it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room {
    /// By data directory.
    directories: Vec<Directory>,
    /// By number.
    logs: Vec<LogRoom>,
    log_layout: LogLayout,
    /// Replicas elsewhere whose nodes have told that they do not take all.
    elsewhere: Arc<BTreeMap<(GroupId, ReplicaId), Takes>>,
    /// Other nodes whose flushes do not keep up with writes.
    behind_elsewhere: BTreeSet<NodeId>,
    pub(crate) debts: Debts,
    /// What the replicas in each data directory have in memory and will need its place, as of the last tick.
    sizes: Vec<Sizes>,
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
    is_full: bool,
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

    /// A look found `space` on the file system of a data directory: `free` bytes beside what is in memory and will need its place, of
    /// which `mark` are to be left free. Returns the directories that have room for more or less than before.
    pub(crate) fn note_space(
        &mut self,
        directory: DirectoryId,
        space: Space,
        (free, mark): (u64, u64),
    ) -> Vec<DirectoryId> {
        self.change(|room| {
            let Some(one) = room.directories.get_mut(directory.0) else { return };
            one.space = Some(space);
            let limit = if one.is_full { mark.saturating_mul(RETURN_SIXTEENTHS) / 16 } else { mark };
            one.is_full = free < limit;
        })
    }

    /// A log waits for a segment, or does not any more. Returns as [`Room::note_space`].
    pub(crate) fn note_log_stalled(&mut self, log: LogId, is_stalled: bool) -> Vec<DirectoryId> {
        self.change_log(log, |log| log.is_stalled = is_stalled)
    }

    /// What is left of a log whose segments have `segment_size`; `None` while the disk gives it more. Returns as [`Room::note_space`].
    pub(crate) fn note_log_left(&mut self, log: LogId, left: Option<u64>, segment_size: u64) -> Vec<DirectoryId> {
        let is_short = left.is_some_and(|left| left < segment_size / SHORT_SHARE);
        self.change_log(log, |log| (log.left, log.is_short) = (left, is_short))
    }

    /// Another node has told how its replicas are. Returns whether leaders here have to take notice.
    pub(crate) fn note_elsewhere(&mut self, from: NodeId, report: &Report) -> bool {
        let before = Arc::clone(&self.elsewhere);
        let known = Arc::make_mut(&mut self.elsewhere);
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
        let behind = &mut self.behind_elsewhere;
        let is_news = if report.is_behind { behind.insert(from) } else { behind.remove(&from) };
        let has_debts = self.debts.note_elsewhere(from, report);
        is_news || has_debts || self.elsewhere != before
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

    /// Whether this is what was noted last.
    pub(crate) fn has_sizes(&self, sizes: &[Sizes]) -> bool {
        self.sizes == sizes
    }

    /// What the replicas in each data directory take of its disk, for all that is decided by it until the next tick.
    pub(crate) fn note_sizes(&mut self, sizes: Vec<Sizes>) {
        self.sizes = sizes;
    }

    /// What the replicas in a data directory take of its disk, as of the last tick.
    pub(crate) fn sizes(&self, directory: DirectoryId) -> Sizes {
        self.sizes.get(directory.0).copied().unwrap_or_default()
    }

    /// Bytes that replicas keep in memory until they are flushed, or can be applied, as of the last tick.
    pub(crate) fn held_in_memory(&self) -> u64 {
        self.sizes.iter().map(|sizes| sizes.unflushed + sizes.held).sum()
    }

    /// Whether a disk of this node takes no more data.
    pub(crate) fn has_full_disk(&self) -> bool {
        (0..self.directories.len()).any(|number| self.is_full(DirectoryId(number)))
    }

    /// What is free on the file system of a data directory, of how much.
    pub(crate) fn space(&self, directory: DirectoryId) -> Option<Space> {
        self.directories.get(directory.0)?.space
    }

    /// Whether there was more on a data directory's own file system, when it was last looked at, than is to be left free.
    pub(crate) fn has_space(&self, directory: DirectoryId) -> bool {
        self.directories.get(directory.0).is_some_and(|one| one.space.is_some() && !one.is_full)
    }

    /// Whether a log waits for a segment.
    pub(crate) fn is_log_stalled(&self, log: LogId) -> bool {
        self.logs.get(log.0).is_some_and(|log| log.is_stalled)
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
    pub(crate) fn update_stop(&self, replica: &mut Replica) {
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

    /// Of a replica that leads: whether its own disk is full and another leader's group would take data. While this one
    /// counts as full the others do not hand it back.
    pub(crate) fn could_take_data_elsewhere(&self, replica: &Replica) -> bool {
        let group = replica.owner.group;
        let is_full = |voter: &ReplicaId| *voter == replica.id() || self.is_full_elsewhere(group, *voter);
        self.is_full(replica.directory) && has_majority_without(replica, is_full)
    }

    fn change_log(&mut self, log: LogId, change: impl FnOnce(&mut LogRoom)) -> Vec<DirectoryId> {
        self.change(|room| {
            if let Some(log) = room.logs.get_mut(log.0) {
                change(log);
            }
        })
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
pub(crate) fn mark(config: &Config, total: u64) -> u64 {
    config.free_disk_min.unwrap_or_else(|| {
        let needed = (2 * config.wal.segment_size).saturating_add(config.flush_replica_bytes);
        (total / MARK_SHARE).min(MARK_MAX).max(needed.min(total / MARK_SHARE_MAX))
    })
}

impl Shard {
    /// Whether what a leader sent is dropped, as a lossy link would: this node holds more unflushed rows than it may, or has
    /// all writes of the group refused, and takes it when the leader sends it again. What is small comes through: elections
    /// need it.
    pub(crate) fn has_no_room_for(&self, group: GroupId, message: &Message) -> bool {
        if group == GroupId::META || message.entries_size() <= TAKEN_WHEN_BEHIND {
            return false;
        }
        let has_debt = |hosted: &Hosted| match hosted {
            Hosted::Running(replica) => self.view.room.parts_refused(replica) == PARTS,
            Hosted::Starting { .. } | Hosted::Lost { .. } => false,
        };
        self.view.is_storage_behind || self.replicas.hosted.get(&group).is_some_and(has_debt)
    }

    /// Leaves out of what a leader sent the entries that the end of the log is not for.
    pub(crate) fn keep_what_fits(&self, group: GroupId, message: &mut Message) {
        let is_meant = group != GroupId::META && message.entry_count() > 0;
        let Some(hosted) = self.replicas.hosted.get(&group).filter(|_| is_meant) else { return };
        let log = self.config.log_of(hosted.directory());
        let Some(left) = self.log_left(log) else { return };
        let (segment, under_way) = (self.config.wal.segment_size, self.log_writes.bytes_under_way(log));
        if left.saturating_sub(under_way) < segment / SHORT_SHARE {
            // No shard knows what others have on its way.
            let free = self.config.share_of(left.saturating_sub(segment / KEPT_SHARE)).saturating_sub(under_way);
            message.keep_small(SMALL_ENTRY, usize::try_from(free).unwrap_or(usize::MAX));
        }
    }

    /// The same before a message is sent to a replica whose log is known to be short: nothing large travels there in vain.
    pub(crate) fn keep_what_is_taken(&self, group: GroupId, to: ReplicaId, message: &mut Message) {
        if group != GroupId::META && self.view.room.takes_elsewhere(group, to) == Takes::Nothing {
            message.keep_small(SMALL_ENTRY, usize::MAX);
        }
    }

    /// What is left of a log whose disk refuses it more, what is on its way there included.
    fn log_left(&self, log: LogId) -> Option<u64> {
        let one = self.view.room.logs.get(log.0)?;
        if one.is_stalled { Some(0) } else { one.left }
    }

    /// Decides for every group that is led here whether it takes more data.
    pub(crate) fn update_stops(&mut self) {
        for hosted in self.replicas.hosted.values_mut() {
            if let Hosted::Running(replica) = hosted {
                self.view.room.update_stop(replica);
            }
        }
    }

    /// The same for one group, whose leader or voters have changed.
    pub(crate) fn update_stop(&mut self, group: GroupId) {
        if let Some(Hosted::Running(replica)) = self.replicas.hosted.get_mut(&group) {
            self.view.room.update_stop(replica);
        }
    }

    /// Whether a replica is on a full disk and should be flushed so that its log can go.
    pub(crate) fn is_due_on_full_disk(&self, hosted: &Hosted) -> bool {
        bytes_since(hosted) >= FLUSH_WHEN_FULL && self.view.room.is_full(hosted.directory())
    }

    /// What is free on the disk of a data directory beside what is in memory and will need its place, and how much of it
    /// is to be left free.
    pub(crate) fn free_and_mark(&self, directory: DirectoryId) -> Option<(u64, u64)> {
        let space = self.view.room.space(directory)?;
        Some((space.free.saturating_sub(self.view.room.sizes(directory).unflushed), mark(&self.config, space.total)))
    }

    /// Whether half of what is to be left free is gone, or the log is short of room.
    pub(crate) fn must_give_room(&self, directory: DirectoryId) -> bool {
        let is_low = self.free_and_mark(directory).is_some_and(|(free, mark)| free < mark / 2);
        is_low || self.view.room.is_short(directory)
    }

    /// Whether so many bytes of a checkpoint would fit on the disk, as of the last tick.
    pub(crate) fn may_have_room(&self, directory: DirectoryId, missing: u64) -> bool {
        let promised = self.view.room.sizes(directory).promised;
        let fits = |(free, mark): (u64, u64)| missing.saturating_add(mark).saturating_add(promised) <= free;
        self.free_and_mark(directory).is_none_or(fits)
    }

    /// Looks at all replicas: what those in each data directory take of its disk.
    pub(crate) fn measure_replicas(&self) -> Vec<Sizes> {
        let mut sizes = vec![Sizes::default(); self.config.data.len()];
        for hosted in self.replicas.hosted.values() {
            if let Hosted::Running(replica) = hosted
                && let Some(one) = sizes.get_mut(replica.directory.0)
            {
                one.unflushed += replica.storage.as_ref().map_or(0, |storage| storage.engine().unflushed_bytes());
                one.held += replica.group.held_bytes() as u64;
                let promised = replica.receiving.as_ref().map_or(0, Receiving::missing);
                one.promised = one.promised.saturating_add(promised);
            }
        }
        sizes
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
        Write::Duplicate(duplicate) => duplicate.changes.iter().any(|it| matches!(it.mutation, Mutation::Put { .. })),
        // It makes room, but for the beginning of a duplication.
        Write::Nothing | Write::Journal(_) | Write::Remove { .. } | Write::MultiRemove { .. } => false,
    }
}
