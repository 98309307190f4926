//! Clearing up after replicas and checkpoints: storage is closed and directories are deleted by jobs, a few at a time, so
//! that a table of a thousand partitions can be dropped without the nodes looking slow.
//!
//! Closing a storage takes milliseconds, and longer where it has rows to flush: the node's thread never does it for a replica
//! that goes.

use crate::job::Job;
use crate::shard::Shard;
use hedgerow_storage::Partition;
use std::collections::VecDeque;
use std::path::PathBuf;

/// Removals that a node carries out at a time. The other threads for jobs are for what serves.
const REMOVALS_MAX: usize = 2;

/// What is to be removed. At most as many as there are replicas and checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Removals {
    waiting: VecDeque<Job>,
    running: usize,
}

impl Shard {
    /// Closes `storage` and deletes `directories` when it is their turn.
    pub(crate) fn enqueue_removal(&mut self, storage: Option<Box<Partition>>, directories: Vec<PathBuf>) {
        if storage.is_some() || !directories.is_empty() {
            self.removals.waiting.push_back(Job::Remove { shard: self.id, storage, directories });
            self.start_removals();
        }
    }

    /// A removal has ended, well or not.
    pub(crate) fn note_removal_ended(&mut self) {
        self.removals.running = self.removals.running.saturating_sub(1);
        self.start_removals();
    }

    fn start_removals(&mut self) {
        while self.removals.running < REMOVALS_MAX
            && let Some(job) = self.removals.waiting.pop_front()
        {
            self.removals.running += 1;
            self.job(job);
        }
    }
}
