//! What is to be done with directories of a data directory, in the order in which it was asked for: what nobody needs goes out of the way, and what
//! was received of a checkpoint is looked through. A job does it, one for each data directory at a time, so that a disk that stalls holds up
//! no thread that serves, and no other disk.
//!
//! What is asked for may rest on what was asked for before: a name is free for a new checkpoint once the errand that comes before its own has put away
//! what had it.

use crate::ids::{DirectoryId, ReplicaKey};
use crate::job::Job;
use crate::received::{Announced, Looked};
use crate::replica::{directories_of_replica, incoming_of};
use crate::shard::Shard;
use hedgerow_env::{Disk, Now};
use hedgerow_storage::Partition;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Errands that one job does, so that what follows from them is no long turn.
const ERRANDS_MAX: usize = 64;

/// Something to be done in a data directory.
#[derive(Debug)]
pub enum Errand {
    /// What lies at these paths goes.
    Discard(Vec<PathBuf>),
    /// What a replica was receiving goes.
    DiscardReceived(ReplicaKey),
    /// All that is of a replica goes, once its storage is closed.
    Clear(ReplicaKey, Option<Box<Partition>>),
    /// What a replica has received of a checkpoint is looked through, before more of it comes.
    LookThrough(Box<Announced>),
}

/// What came of errands.
#[derive(Debug, Default)]
pub struct ErrandsDone {
    /// Storage to be closed, and then directories to be removed, which have other names now.
    removals: Vec<(Option<Box<Partition>>, Vec<PathBuf>)>,
    /// What was received.
    looked: Vec<Looked>,
}

/// The errands that are not done.
#[derive(Debug, Default)]
pub(crate) struct Errands {
    waiting: BTreeMap<DirectoryId, Vec<Errand>>,
    /// Where a job does some.
    running: BTreeSet<DirectoryId>,
}

/// Where directories wait for their removal, under names that nothing else has or had.
#[derive(Debug)]
pub struct Trash {
    path: PathBuf,
    random: u64,
    count: usize,
}

impl Trash {
    /// In data directory `data`; no other has had the same `random` number.
    pub(crate) fn new(data: &Path, random: u64) -> Self {
        Self { path: trash_of(data), random, count: 0 }
    }

    /// The next name.
    pub(crate) fn name(&mut self) -> PathBuf {
        self.count += 1;
        self.path.join(format!("{:016x}-{}", self.random, self.count))
    }

    /// Gives what is there of `paths` the names that are returned, so that theirs can be used again while the removal takes its time.
    pub(crate) fn put_aside(&mut self, disk: &dyn Disk, paths: Vec<PathBuf>) -> Vec<PathBuf> {
        let mut removed = Vec::new();
        for path in paths {
            if !disk.exists(&path) {
                continue;
            }
            let name = self.name();
            match disk.create_dir_all(&self.path).and_then(|()| disk.rename(&path, &name)) {
                Ok(()) => removed.push(name),
                // The next start removes what nobody needs.
                Err(error) => tracing::warn!(directory = %path.display(), %error, "a directory cannot be removed"),
            }
        }
        removed
    }
}

impl Errand {
    /// Does it in data directory `data`.
    fn run(self, disk: &dyn Disk, data: &Path, trash: &mut Trash, done: &mut ErrandsDone) {
        let (storage, paths) = match self {
            Self::Discard(paths) => (None, paths),
            Self::DiscardReceived(owner) => (None, incoming_of(disk, data, owner)),
            Self::Clear(owner, storage) => (storage, directories_of_replica(disk, data, owner)),
            Self::LookThrough(announced) => {
                let (looked, others) = announced.look_through(disk, data);
                done.looked.push(looked);
                (None, others)
            }
        };
        done.removals.push((storage, trash.put_aside(disk, paths)));
    }
}

/// Does errands in data directory `data`, in their order. Blocks.
pub(crate) fn run(disk: &dyn Disk, data: &Path, mut trash: Trash, errands: Vec<Errand>) -> ErrandsDone {
    let mut done = ErrandsDone::default();
    errands.into_iter().for_each(|errand| errand.run(disk, data, &mut trash, &mut done));
    done
}

impl Shard {
    /// Has something done in a data directory, after what is to be done there already.
    pub(crate) fn send_on_errand(&mut self, directory: DirectoryId, errand: Errand) {
        let waiting = self.errands.waiting.entry(directory).or_default();
        if let Errand::LookThrough(new) = &errand {
            // Only the last one that was offered counts.
            waiting.retain(|it| !matches!(it, Errand::LookThrough(old) if old.owner == new.owner));
        }
        waiting.push(errand);
        self.start_errands(directory);
    }

    fn start_errands(&mut self, directory: DirectoryId) {
        let Some(waiting) = self.errands.waiting.get_mut(&directory).filter(|waiting| !waiting.is_empty()) else {
            return;
        };
        if self.errands.running.insert(directory) {
            let errands = waiting.drain(..ERRANDS_MAX.min(waiting.len())).collect();
            let data = self.config.path_of(directory).to_owned();
            let trash = self.trash(directory);
            self.job(Job::Errands { shard: self.id, directory, data, trash, errands });
        }
    }

    /// Names for what is to be removed.
    pub(crate) fn trash(&mut self, directory: DirectoryId) -> Trash {
        Trash::new(self.config.path_of(directory), self.random.next_u64())
    }

    /// Errands in a data directory are done.
    pub(crate) fn handle_errands(&mut self, directory: DirectoryId, done: ErrandsDone, now: Now) {
        self.errands.running.remove(&directory);
        self.start_errands(directory);
        done.removals.into_iter().for_each(|(storage, directories)| self.enqueue_removal(storage, directories));
        done.looked.into_iter().for_each(|looked| self.handle_looked(looked, now));
    }
}

/// Where directories wait for their removal.
pub(crate) fn trash_of(data: &Path) -> PathBuf {
    data.join("trash")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use hedgerow_env::OpenMode;
    use hedgerow_env::sim::SimDisk;
    use hedgerow_types::{GroupId, ReplicaId};

    const DATA: &str = "/data";

    fn file(disk: &SimDisk, path: &Path) {
        disk.create_dir_all(hedgerow_env::parent_of(path)).unwrap();
        disk.open(path, OpenMode::Create).unwrap().write_at(0, b"rows").unwrap();
    }

    #[test]
    fn a_name_is_free_after_the_errand_that_puts_away_what_had_it() {
        let (disk, data) = (SimDisk::new(), Path::new(DATA));
        let owner = |replica| ReplicaKey { group: GroupId::new(1, 0), replica: ReplicaId(replica) };
        let received = |replica| crate::replica::incoming_directory(data, owner(replica), ReplicaId(9), 5);
        file(&disk, &received(1).join("000001.sst"));
        file(&disk, &received(2).join("000001.sst"));
        let begin = crate::peer::SnapshotBegin {
            from: 9,
            id: 5,
            files: vec![crate::peer::SnapshotFile { name: "000001.sst".into(), size: 4 }],
            ..Default::default()
        };
        let look = |replica| {
            let (owner, begin) = (owner(replica), begin.clone());
            Errand::LookThrough(Box::new(Announced { owner, begin, awaited: Vec::new(), wants_size: false }))
        };
        let errands = vec![Errand::DiscardReceived(owner(1)), look(1), look(2)];
        let done = run(&disk, data, Trash::new(data, 7), errands);
        let whole: Vec<usize> = done
            .looked
            .iter()
            .map(|looked| match looked.found {
                crate::received::Found::Received { whole, .. } => whole,
                crate::received::Found::Awaits(_) => panic!("nobody is awaited"),
            })
            .collect();
        assert_eq!(whole, [0, 1], "what was put away before is not found");
        let removed: Vec<&PathBuf> = done.removals.iter().flat_map(|(_, directories)| directories).collect();
        assert_eq!(removed, [&trash_of(data).join("0000000000000007-1")]);
        assert!(disk.exists(removed[0]) && !disk.exists(&received(1)) && disk.exists(&received(2)));
    }
}
