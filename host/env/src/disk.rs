//! Files and directories, with durability as an explicit step: nothing survives a crash for sure until it was synced.
//!
//! Three things must be synced apart: the bytes of a file ([`File::sync_data`]), and the names in a directory
//! ([`Disk::sync_dir`]), for each directory that gained, lost or renamed an entry.

use std::any::Any;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// What is read at a time of a file that may not be readable everywhere, and around what is not.
const PIECE_SIZE: usize = 1 << 20;
const PIECE_SIZE_MIN: usize = 4 << 10;

/// How [`Disk::open`] treats the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// An existing file, to read.
    Read,
    /// An existing file, to read and write. Its content stays.
    Write,
    /// To read and write; a new file, or an existing one cut to nothing.
    Create,
}

/// A file system. Methods block until the operating system has answered.
pub trait Disk: Send + Sync + fmt::Debug {
    /// Makes `dir` and whatever is missing above it. Nothing happens if it is there.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;
    /// Opens a file. [`io::ErrorKind::NotFound`] if it must exist and does not.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn File>>;
    /// Opens a file that is written from front to back and seldom read, in a mode that permits writing. Where the system
    /// can, writes pass its cache by. What follows a write up to the next multiple of 4,096 bytes may read as zeros
    /// afterwards, and the file may grow to such a multiple.
    fn open_sequential(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn File>> {
        self.open(path, mode)
    }
    /// Names of the files and directories in `dir`, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Whether there is a file or directory at `path`.
    fn exists(&self, path: &Path) -> bool;
    /// Whether there is a directory at `path`.
    fn is_dir(&self, path: &Path) -> bool;
    /// Keeps others from locking the directory `dir` until the result is dropped or the process ends.
    /// [`io::ErrorKind::WouldBlock`] if it is locked. Changes nothing on the disk.
    fn lock_dir(&self, dir: &Path) -> io::Result<DirLock>;
    /// Which file system `dir` lies on: the same number for two directories of one. What is written there shares a device, as far as the
    /// operating system says.
    fn device(&self, dir: &Path) -> io::Result<u64>;
    /// Whether `dir` lies on the file system of the root directory, as what is to be mounted elsewhere does until it is.
    fn is_on_root(&self, dir: &Path) -> io::Result<bool> {
        Ok(self.device(dir)? == self.device(Path::new("/"))?)
    }
    /// Gives `from` the name `to`, replacing a file there, in one step.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives the file `from` a second name, `to`, which must be free.
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file. Open handles keep working.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory and everything below it.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in `dir` durable: creations, renames, links and removals.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// The room on the file system that holds `dir`.
    fn free_space(&self, dir: &Path) -> io::Result<Space>;
}

/// The room on a file system, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// What this process may still write.
    pub free: u64,
    /// Its size.
    pub total: u64,
}

/// See [`Disk::lock_dir`].
pub struct DirLock(#[allow(dead_code, reason = "it counts by being there")] Box<dyn Any + Send + Sync>);

impl DirLock {
    /// A lock that holds while `guard` lives.
    pub fn new(guard: impl Any + Send + Sync) -> Self {
        Self(Box::new(guard))
    }
}

impl fmt::Debug for DirLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DirLock")
    }
}

/// An open file. Positions are explicit, so that readers and a writer can share one handle.
pub trait File: Send + Sync + fmt::Debug {
    /// Reads at `offset` into `buffer`; returns how many bytes, fewer than asked only at the end of the file.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// Writes all of `data` at `offset`, extending the file if need be. After an error any part may have been written.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Makes the bytes durable, and the length if it changed. After an error nothing is known about bytes written since
    /// the last sync, and a later success does not cover them: never retry.
    fn sync_data(&self) -> io::Result<()>;
    /// As [`File::sync_data`], with all other metadata.
    fn sync_all(&self) -> io::Result<()>;
    /// The length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether there is no byte in it.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Cuts or extends (with zeros) to `len` bytes.
    fn set_len(&self, len: u64) -> io::Result<()>;
}

/// Whether something is wanting that others may give back: space, descriptors, memory. What was asked for may be asked for
/// again later.
pub fn is_shortage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::OutOfMemory)
        || matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::EFBIG))
}

/// Whether a device does not give back what it holds, or a file system finds that it is not what it wrote: damage of what
/// was to be read, and of nothing else.
pub fn is_unreadable(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EREMOTEIO | libc::EBADMSG | libc::EUCLEAN | libc::ENODATA))
}

/// The first `most` bytes of a file as far as they can be read. What the device does not give back is zeros, and is listed.
pub fn read_what_is_readable(disk: &dyn Disk, path: &Path, most: u64) -> io::Result<(Vec<u8>, Vec<Range<usize>>)> {
    let file = disk.open(path, OpenMode::Read)?;
    let size = usize::try_from(file.len()?.min(most)).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    let mut bytes = vec![0; size];
    let mut unreadable = Vec::new();
    let mut at = 0;
    let mut piece = PIECE_SIZE;
    while at < size {
        let end = size.min(at + piece - at % piece);
        match file.read_at(at as u64, &mut bytes[at..end]) {
            Ok(0) => break,
            Ok(count) => {
                at += count;
                piece = if at % PIECE_SIZE == 0 { PIECE_SIZE } else { piece };
            }
            Err(error) if is_unreadable(&error) && piece > PIECE_SIZE_MIN => piece = PIECE_SIZE_MIN,
            Err(error) if is_unreadable(&error) => {
                bytes[at..end].fill(0);
                unreadable.push(at..end);
                at = end;
                piece = if at % PIECE_SIZE == 0 { PIECE_SIZE } else { piece };
            }
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(at);
    Ok((bytes, unreadable))
}

/// As [`read_file`], or `None` if there is no such file. [`Disk::exists`] would take one that cannot be looked at for none.
pub fn read_file_if_exists(disk: &dyn Disk, path: &Path) -> io::Result<Option<Vec<u8>>> {
    match read_file(disk, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// The whole content of a file.
pub fn read_file(disk: &dyn Disk, path: &Path) -> io::Result<Vec<u8>> {
    let file = disk.open(path, OpenMode::Read)?;
    let size = usize::try_from(file.len()?).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    let mut bytes = vec![0; size];
    let mut filled = 0;
    while filled < size {
        match file.read_at(filled as u64, &mut bytes[filled..])? {
            0 => break,
            count => filled += count,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Replaces the file at `path` by `bytes`, so that after a crash it holds either the old or the new content, and after
/// `Ok` the new one. Uses the name `<path>.tmp` on the way.
pub fn write_file_durably(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    let file = disk.open(&temporary, OpenMode::Create)?;
    file.write_at(0, bytes)?;
    file.sync_all()?;
    disk.rename(&temporary, path)?;
    disk.sync_dir(parent_of(path))
}

/// Makes `dir` with everything missing above it, and makes their names durable. Each level is durable before the next
/// one is made, so that a stop in the middle leaves at most one name to sync: that of the lowest directory there is.
pub fn create_dir_durably(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    let levels: Vec<&Path> = dir.ancestors().filter(|path| !path.as_os_str().is_empty()).collect();
    let missing = levels.iter().position(|path| disk.is_dir(path)).unwrap_or(levels.len());
    if let Some(lowest) = levels.get(missing) {
        match disk.sync_dir(parent_of(lowest)) {
            // Whoever may not look into it has not made it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            result => result?,
        }
    }
    for path in levels[..missing].iter().rev() {
        disk.create_dir_all(path)?;
        disk.sync_dir(parent_of(path))?;
    }
    Ok(())
}

/// The directory that holds `path`'s name; `.` for a bare name, `/` for itself.
pub fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        None => path,
    }
}
