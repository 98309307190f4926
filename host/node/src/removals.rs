//! Clearing up after replicas and checkpoints: storage is closed and directories are deleted by jobs, a few at a time, so
//! that a table of a thousand partitions can be dropped without the nodes looking slow.
//!
//! Closing a storage takes milliseconds, and longer where it has rows to flush: the node's thread never does it for a replica
//! that goes.

use crate::ids::DirectoryId;
use crate::job::Job;
use crate::shard::Shard;
use hedgerow_storage::Partition;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

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
            self.removals.waiting.push_back(Job::Remove { storage, directories });
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

    /// Removes what is below a data directory.
    pub(crate) fn discard(&mut self, directory: DirectoryId, paths: Vec<PathBuf>) {
        let removed = self.put_aside(directory, paths);
        self.enqueue_removal(None, removed);
    }

    /// Gives what is below a data directory the names that are returned, so that theirs can be used again while the removal
    /// takes its time.
    pub(crate) fn put_aside(&mut self, directory: DirectoryId, paths: Vec<PathBuf>) -> Vec<PathBuf> {
        let mut removed = Vec::new();
        for path in paths {
            if !self.disk.exists(&path) {
                continue;
            }
            let trash = self.trash_path(directory);
            let parent = hedgerow_env::parent_of(&trash);
            match self.disk.create_dir_all(parent).and_then(|()| self.disk.rename(&path, &trash)) {
                Ok(()) => removed.push(trash),
                // The next start removes what nobody needs.
                Err(error) => tracing::warn!(directory = %path.display(), %error, "a directory cannot be removed"),
            }
        }
        removed
    }

    /// Removes what an earlier life of the node has not come to remove.
    pub(crate) fn empty_trash(&mut self, directory: DirectoryId) {
        let trash = trash_of(self.config.path_of(directory));
        let names = self.disk.list(&trash).unwrap_or_default();
        let directories: Vec<PathBuf> = names.into_iter().map(|name| trash.join(name)).collect();
        self.enqueue_removal(None, directories);
    }

    /// A name that no other directory has or had.
    pub(crate) fn trash_path(&mut self, directory: DirectoryId) -> PathBuf {
        trash_of(self.config.path_of(directory)).join(format!("{:016x}", self.random.next_u64()))
    }
}

/// Where directories wait for their removal.
pub(crate) fn trash_of(data: &Path) -> PathBuf {
    data.join("trash")
}
