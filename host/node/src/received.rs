//! What is here of a checkpoint before it is received: whole files of an earlier transfer, of this checkpoint or of another one of its sender. A job
//! looks it through (`errands.rs`).

use crate::ids::ReplicaKey;
use crate::peer::{SnapshotBegin, SnapshotFile};
use crate::replica::{directory_of, incoming_directory, incoming_of, sender_of};
use hedgerow_env::{Disk, OpenMode};
use hedgerow_types::ReplicaId;
use std::path::{Path, PathBuf};

/// A checkpoint that is offered.
#[derive(Debug)]
pub struct Announced {
    pub(crate) owner: ReplicaKey,
    pub(crate) begin: SnapshotBegin,
    /// Replicas of whose checkpoints nothing is removed, because one of them may lead again.
    pub(crate) awaited: Vec<ReplicaId>,
    /// Whether it is asked how large the storage is that the checkpoint would replace.
    pub(crate) wants_size: bool,
}

/// What was found.
#[derive(Debug)]
pub(crate) struct Looked {
    pub(crate) owner: ReplicaKey,
    pub(crate) begin: SnapshotBegin,
    pub(crate) found: Found,
}

/// What is here of a checkpoint.
#[derive(Debug)]
pub(crate) enum Found {
    /// Tables of another sender's, which is awaited: all is as it was.
    Awaits(ReplicaId),
    /// Its first files, which are whole.
    Received {
        /// Where it is gathered.
        path: PathBuf,
        /// How many files.
        whole: usize,
        /// Something was here of the same sender's.
        goes_on: bool,
        /// Bytes of the storage that it would replace; 0 if that is not asked.
        own_size: u64,
    },
}

impl Announced {
    /// Looks in data directory `data`, and takes over what is of use. Also returns the directories of which nothing is of use any more.
    pub(crate) fn look_through(self, disk: &dyn Disk, data: &Path) -> (Looked, Vec<PathBuf>) {
        let Self { owner, begin, awaited, wants_size } = self;
        let sender = ReplicaId(begin.from);
        let path = incoming_directory(data, owner, sender, begin.id);
        // What was received of others before, also in an earlier life.
        let mut others = incoming_of(disk, data, owner);
        others.retain(|other| *other != path);
        let is_awaited = |former: &ReplicaId| *former != sender && awaited.contains(former);
        let mut formers = others.iter().filter_map(|other| Some((sender_of(other)?, other)));
        if let Some((former, _)) = formers.find(|(former, other)| is_awaited(former) && has_tables(disk, other)) {
            return (Looked { owner, begin, found: Found::Awaits(former) }, Vec::new());
        }
        let goes_on = others.iter().any(|other| sender_of(other) == Some(sender));
        take_over(disk, &others, sender, &path, &begin.files);
        let whole = begin.files.iter().take_while(|file| has_whole(disk, &path, file)).count();
        let own_size = if wants_size { size_of(disk, &directory_of(data, owner)) } else { 0 };
        (Looked { owner, begin, found: Found::Received { path, whole, goes_on, own_size } }, others)
    }
}

fn has_tables(disk: &dyn Disk, directory: &Path) -> bool {
    disk.list(directory).unwrap_or_default().iter().any(|name| hedgerow_storage::is_table(name))
}

/// Moves tables of `files` to `directory` from what was received of the same sender before. What cannot be moved is
/// received again. The move is durable with the next file that is whole: there is one, since no checkpoint has only tables.
fn take_over(disk: &dyn Disk, others: &[PathBuf], sender: ReplicaId, directory: &Path, files: &[SnapshotFile]) {
    for other in others.iter().filter(|other| sender_of(other) == Some(sender)) {
        let is_here = |file: &&SnapshotFile| hedgerow_storage::is_table(&file.name) && has_whole(disk, other, file);
        for file in files.iter().filter(is_here) {
            let moved = (disk.create_dir_all(directory))
                .and_then(|()| disk.rename(&other.join(&file.name), &directory.join(&file.name)));
            if let Err(error) = moved {
                tracing::debug!(%error, "a table that was received before cannot be taken over");
            }
        }
    }
}

/// Whether a file of the checkpoint is there already, from before a restart. Files get their name once they are
/// whole and synced.
fn has_whole(disk: &dyn Disk, directory: &Path, file: &SnapshotFile) -> bool {
    let path = directory.join(&file.name);
    disk.exists(&path) && disk.open(&path, OpenMode::Read).and_then(|it| it.len()).is_ok_and(|size| size == file.size)
}

/// Bytes of the files in a directory.
fn size_of(disk: &dyn Disk, directory: &Path) -> u64 {
    let names = disk.list(directory).unwrap_or_default();
    let size = |name: String| disk.open(&directory.join(name), OpenMode::Read).and_then(|file| file.len());
    names.into_iter().filter_map(|name| size(name).ok()).sum()
}
