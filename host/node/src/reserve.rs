//! Room for a start on a disk that others have filled: a file in each data directory that nobody reads.
//!
//! A start writes a little: how often the node has started, what RocksDB notes of each replica that it opens. Where the disk has no room
//! even for that, the file goes first, so that the node comes up, serves reads, and can be told to drop a table. It is made again
//! once the disk has room.

use crate::identity;
use hedgerow_env::{Disk, OpenMode, write_file_durably};
use std::io;
use std::path::{Path, PathBuf};

const FILE_NAME: &str = "reserve";

/// Bytes that are kept, where a segment of the log has so many: 32 MiB of 64 MiB. The log takes half of it, see `room.rs`.
pub(crate) fn size(segment_size: u64) -> usize {
    usize::try_from(segment_size / 2).unwrap_or(usize::MAX)
}

/// Gives the room back in those of `directories` whose disk has less than that.
pub(crate) fn use_where_full(disk: &dyn Disk, directories: &[PathBuf]) {
    for directory in directories {
        let path = directory.join(FILE_NAME);
        let Ok(size) = disk.open(&path, OpenMode::Read).and_then(|file| file.len()) else { continue };
        if !disk.free_space(directory).is_ok_and(|space| space.free < size) {
            continue;
        }
        let directory = directory.display();
        match disk.remove_file(&path) {
            Ok(()) => {
                tracing::warn!(%directory, bytes = size, "the disk is full: the start uses the room that was kept for it")
            }
            Err(error) => {
                tracing::warn!(%directory, %error, "the disk is full, and the room that was kept for a start cannot be used")
            }
        }
    }
}

/// Keeps `size` bytes of room for a start in `directory`, unless that was done.
pub(crate) fn keep(disk: &dyn Disk, directory: &Path, size: usize) -> io::Result<()> {
    let path = directory.join(FILE_NAME);
    // Where the disk itself is away, this would be written to another one.
    if disk.exists(&path) || !identity::is_in(disk, directory) {
        return Ok(());
    }
    let kept = write_file_durably(disk, &path, &vec![0; size]);
    if kept.is_err() {
        // What was written of it is room as well.
        let _ = disk.remove_file(&directory.join(format!("{FILE_NAME}.tmp")));
    }
    kept
}
