//! Flushes: when what a replica keeps in memory is written to its storage, so that the log can be cut.

use crate::ids::{DirectoryId, ReplicaKey};
use crate::job::Job;
use crate::notice::Notice;
use crate::replica::Hosted;
use crate::shard::Shard;
use hedgerow_env::Now;
use hedgerow_storage::{Debt, FlushPoint};
use hedgerow_types::GroupId;
use hedgerow_types::time::expiry_seconds;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A node that holds so many times what it should flush at refuses writes: its disk does not keep up.
const UNFLUSHED_FACTOR_MAX: u64 = 4;
/// Flushes that run at the same time in one data directory. They keep a pace, and other jobs need threads too.
const FLUSHES_MAX: usize = 2;

impl Shard {
    /// Flushes storage where much has gathered, so that the log can be cut: every replica above its own limit, and the
    /// largest one while the node is above its limit.
    pub(crate) fn tick_storage(&mut self) {
        let limit = UNFLUSHED_FACTOR_MAX.saturating_mul(self.config.flush_node_bytes);
        let held = self.view.room.held_in_memory();
        let is_behind = held > limit;
        if is_behind != self.view.is_storage_behind {
            self.notices.push(Notice::Behind(is_behind));
        }
        let gathered = |(group, hosted): (&GroupId, &Hosted)| (bytes_since(hosted), *group);
        let mut by_size: Vec<(u64, GroupId)> = self.replicas.hosted.iter().map(gathered).collect();
        let total: u64 = by_size.iter().map(|(bytes, _)| bytes).sum();
        let largest = by_size.iter().max().copied();
        by_size.retain(|(bytes, _)| *bytes > self.config.flush_replica_bytes);
        let may_hold = self.config.flush_node_bytes;
        let is_above = total > self.config.share_of(may_hold) || (held > may_hold && total > 0);
        if is_above && by_size.is_empty() {
            by_size.extend(largest);
        }
        by_size
            .extend(self.replicas.hosted.iter().filter(|(_, hosted)| self.is_due_on_full_disk(hosted)).map(gathered));
        let due: BTreeSet<(u64, GroupId)> = by_size.into_iter().collect();
        let mut running = self.flushes_running();
        for (_, group) in due.into_iter().rev() {
            let directory = self.replicas.hosted.get(&group).map_or(DirectoryId(0), Hosted::directory);
            let there = running.entry(directory).or_default();
            if *there < FLUSHES_MAX {
                *there += 1;
                self.start_flush(group, is_behind);
            }
        }
    }

    /// How many flushes run, by data directory.
    fn flushes_running(&self) -> BTreeMap<DirectoryId, usize> {
        let mut running = BTreeMap::new();
        for hosted in self.replicas.hosted.values() {
            let Hosted::Running(replica) = hosted else { continue };
            if replica.flush.is_running && !replica.flush.is_waiting {
                *running.entry(replica.directory).or_default() += 1;
            }
        }
        running
    }

    fn start_flush(&mut self, group: GroupId, is_behind: bool) {
        let is_pressing = is_behind || self.view.is_draining || self.view.room.has_full_disk();
        let Some(replica) = self.running(group) else { return };
        let Some(storage) = &replica.storage else { return };
        let job = Job::Flush {
            is_pressing,
            owner: replica.owner,
            engine: Arc::clone(storage.engine()),
            point: storage.flush_point(),
        };
        replica.flush.is_running = true;
        replica.kept.note_flush_begun();
        replica.flush.bytes_running = std::mem::take(&mut replica.flush.bytes_since);
        replica.storage_users += 1;
        self.job(job);
    }

    /// Storage of a replica holds durably what it held at `point`, and compactions there have a debt.
    pub(crate) fn handle_flushed(&mut self, owner: ReplicaKey, point: FlushPoint, debt: Debt, now: Now) {
        self.note_debt(owner, debt, false);
        let Some(replica) = self.running_as(owner) else { return };
        replica.flush.is_running = false;
        replica.flush.bytes_running = 0;
        replica.flush.position = point.position();
        replica.kept.note_flushed(point.position());
        if let Some(storage) = &mut replica.storage {
            storage.mark_flushed(point, expiry_seconds(now.unix_micros));
        }
        self.cut_log(owner, now);
    }
}

/// What would be flushed of a replica now, in bytes of its log.
pub(crate) fn bytes_since(hosted: &Hosted) -> u64 {
    match hosted {
        // What is being installed takes the place of what would be flushed.
        Hosted::Running(replica) if !replica.flush.is_running && replica.storage.is_some() => replica.flush.bytes_since,
        Hosted::Running(_) | Hosted::Starting { .. } | Hosted::Lost { .. } => 0,
    }
}
