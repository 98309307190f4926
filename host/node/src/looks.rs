//! Looking at the disks: a job for each data directory looks at its file system about once a second, and sooner where writes take a good part
//! of what it found. What follows for the replicas there is in `room.rs`.

use crate::config::Config;
use crate::ids::{DirectoryId, LogId};
use crate::job::Job;
use crate::node::Node;
use crate::peer::Report;
use crate::reserve;
use crate::room::{Takes, mark};
use crate::shard::Shard;
use hedgerow_env::{Now, Space};
use hedgerow_types::{Instant, NodeId};
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

/// When the disks were looked at.
#[derive(Debug)]
pub(crate) struct Looks {
    /// By data directory.
    directories: Vec<Look>,
}

/// Looks at one data directory.
#[derive(Clone, Debug, Default)]
struct Look {
    looked: Option<Instant>,
    /// The same for the storage of its replicas.
    looked_for_storage: Option<Instant>,
    /// A job does. A file system that does not answer holds up no other.
    is_looking: bool,
    /// Bytes of entries that its replicas' log took since the last look, and of how many another one is due.
    written: u64,
    written_max: u64,
    /// The last look did not find what says that it is the node's.
    is_away: bool,
}

impl Looks {
    pub(crate) fn new(config: &Config) -> Self {
        Self { directories: vec![Look::default(); config.data.len()] }
    }

    /// What the last look at a data directory found. Returns whether it was away at that one and at the one before.
    pub(crate) fn note_away(&mut self, directory: DirectoryId, is_away: bool) -> bool {
        let one = self.directories.get_mut(directory.0);
        one.is_some_and(|one| std::mem::replace(&mut one.is_away, is_away) && is_away)
    }

    /// Whether a data directory's file system answers: no look at it is under way for long.
    pub(crate) fn answers(&self, directory: DirectoryId, now: Instant) -> bool {
        let is_long = |looked: Instant| now.since(looked) >= LOOK_INTERVAL;
        self.directories.get(directory.0).is_none_or(|one| !(one.is_looking && one.looked.is_some_and(is_long)))
    }

    /// The log of a data directory's replicas has taken so many bytes.
    pub(crate) fn note_written(&mut self, directory: DirectoryId, bytes: u64) {
        if let Some(one) = self.directories.get_mut(directory.0) {
            one.written = one.written.saturating_add(bytes);
        }
    }
}

impl Node {
    /// Has the disks looked at when it is time.
    pub(crate) fn tick_room(&mut self, now: Now) {
        for directory in self.config.directories() {
            let one = &mut self.looks.directories[directory.0];
            let interval = if one.written > one.written_max { LOOK_INTERVAL_MIN } else { LOOK_INTERVAL };
            let is_due = one.looked.is_none_or(|looked| now.instant.since(looked) >= interval);
            if is_due && !one.is_looking {
                (one.looked, one.is_looking, one.written) = (Some(now.instant), true, 0);
                let looks_for_storage =
                    one.looked_for_storage.is_none_or(|looked| now.instant.since(looked) >= STORAGE_INTERVAL);
                if looks_for_storage {
                    one.looked_for_storage = Some(now.instant);
                }
                let storage = if looks_for_storage {
                    self.shards.iter().flat_map(|shard| shard.storage_in(directory)).collect()
                } else {
                    Vec::new()
                };
                let path = self.config.path_of(directory).to_owned();
                let room = &self.view.room;
                let keeps_reserve = looks_for_storage && room.has_space(directory) && !room.is_stalled(directory);
                let reserve = if keeps_reserve { reserve::size(self.config.wal.segment_size) } else { 0 };
                self.shards.first().job(Job::Space { directory, path, storage, reserve });
            }
        }
    }

    /// What a look at the disk of a data directory found; `None` where it could not look.
    pub(crate) fn handle_space(&mut self, directory: DirectoryId, space: Option<Space>) {
        let Some(look) = self.looks.directories.get_mut(directory.0) else { return };
        look.is_looking = false;
        let Some(space) = space else { return };
        // What is in memory has been acknowledged and will need its place on the disk.
        let free = space.free.saturating_sub(self.view.room.sizes(directory).unflushed);
        let mark = mark(&self.config, space.total);
        look.written_max = free.saturating_sub(mark) / LOOK_SHARE;
        let changed = self.change_room(|room| room.note_space(directory, space, (free, mark)));
        self.note_room(&changed);
    }

    pub(crate) fn handle_log_stalled(&mut self, log: LogId, is_stalled: bool) {
        // As after nearly every round.
        if self.view.room.is_log_stalled(log) == is_stalled {
            return;
        }
        let changed = self.change_room(|room| room.note_log_stalled(log, is_stalled));
        self.note_room(&changed);
    }

    /// A log has told what is left of it.
    pub(crate) fn handle_log_room(&mut self, log: LogId, left: Option<u64>) {
        let segment_size = self.config.wal.segment_size;
        let changed = self.change_room(|room| room.note_log_left(log, left, segment_size));
        self.note_room(&changed);
    }

    /// Disks have room for more or less than before: the leaders elsewhere hear of it at once.
    fn note_room(&mut self, changed: &[DirectoryId]) {
        changed.iter().for_each(|directory| self.tell_room(*directory));
        let there = self.shards.all_hosted().filter(|(_, hosted)| changed.contains(&hosted.directory()));
        self.reports.urgent.extend(there.map(|(group, _)| *group));
        if !changed.is_empty() {
            self.shards.iter_mut().for_each(Shard::update_stops);
        }
    }

    fn tell_room(&self, directory: DirectoryId) {
        let free_mib = self.view.room.space(directory).map_or(0, |space| space.free >> 20);
        let path = self.config.path_of(directory).display();
        match self.view.room.takes(directory) {
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
        if self.change_room(|room| room.note_elsewhere(from, report)) {
            self.shards.iter_mut().for_each(Shard::update_stops);
        }
    }

    /// Notes whether flushes keep up with writes; leaders elsewhere hear at once of a change.
    pub(crate) fn note_behind(&mut self, is_behind: bool) {
        if self.view.is_storage_behind != is_behind {
            self.change_view(|view| view.is_storage_behind = is_behind);
            tracing::debug!(is_behind, "whether flushes are behind has changed");
            self.reports.urgent.extend(self.shards.all_hosted().next().map(|(group, _)| *group));
        }
    }
}
