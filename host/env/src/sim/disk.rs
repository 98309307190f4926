//! A disk in memory that loses in a crash what was not synced, and fails on demand.

use super::tree::{FileNode, Node, Tree};
use crate::disk::{DirLock, Disk, File, OpenMode, Space};
use hedgerow_types::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The size of a disk without a limit.
const SIZE: u64 = 1 << 40;
/// What [`Disk::device`] says of whatever is mounted nowhere else.
const ROOT_DEVICE: u64 = 0;

/// A simulated disk. Clones are the same disk. Everything it does follows from the calls and from the seed of the
/// generator given to [`SimDisk::crash`].
#[derive(Clone)]
pub struct SimDisk(Arc<Shared>);

struct Shared {
    tree: Mutex<Tree>,
    faults: Mutex<Faults>,
}

#[derive(Debug, Default)]
struct Faults {
    /// Counts crashes: a handle from before the latest one is dead.
    life: u64,
    failing_syncs: BTreeSet<PathBuf>,
    /// Files that cannot be opened, and the error's number.
    failing_opens: BTreeMap<PathBuf, i32>,
    /// Bytes of files that cannot be read.
    unreadable: Vec<(PathBuf, Range<u64>)>,
    is_full: bool,
    /// Bytes that fit on it.
    capacity: Option<u64>,
    is_read_only: bool,
    sync_count: u64,
    /// How many more calls that change something succeed.
    calls_left: Option<u64>,
    locked: BTreeSet<PathBuf>,
    /// Directories that are mount points, and what is mounted there.
    mounts: BTreeMap<PathBuf, u64>,
}

impl Default for SimDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl SimDisk {
    /// An empty disk.
    pub fn new() -> Self {
        Self(Arc::new(Shared { tree: Mutex::new(Tree::new()), faults: Mutex::default() }))
    }

    /// Another disk without faults that holds what programs see on this one at this moment, as after `cp`.
    pub fn copy(&self) -> Self {
        let tree = self.tree().copy();
        Self(Arc::new(Shared { tree: Mutex::new(tree), faults: Mutex::default() }))
    }

    /// Stops the machine at this moment. Of the bytes not synced, each 4096-byte page is kept, lost or torn on its own,
    /// and a file's changed length likewise; of the names not synced, each directory keeps the changes up to some
    /// point. Handles opened before fail from now on. Faults stay as they are set.
    pub fn crash(&self, random: &mut Random) {
        self.kill_process();
        self.tree().crash(random);
    }

    /// Lets `count` more calls that write, sync or rename succeed and fails all that follow, until the crash or the kill:
    /// the way to stop in the middle of whatever comes next.
    pub fn stop_after(&self, count: u64) {
        self.faults().calls_left = Some(count);
    }

    /// Makes handles fail without losing anything: the process dies, the machine stays.
    pub fn kill_process(&self) {
        let mut faults = self.faults();
        faults.life += 1;
        faults.calls_left = None;
        faults.locked.clear();
    }

    /// Whether `dir` is on a file system of its own, and so on a device of its own.
    pub fn set_mounted(&self, dir: &Path, is_mounted: bool) {
        let mut faults = self.faults();
        if is_mounted {
            let other = faults.mounts.values().max().map_or(ROOT_DEVICE, |last| *last) + 1;
            faults.mounts.entry(dir.to_owned()).or_insert(other);
        } else {
            faults.mounts.remove(dir);
        }
    }

    /// Whether syncs of files and directories whose path starts with `prefix` fail. The bytes of a failed sync count as
    /// written back: no later sync saves them, as on Linux.
    pub fn fail_syncs(&self, prefix: &Path, fail: bool) {
        let mut faults = self.faults();
        if fail {
            faults.failing_syncs.insert(prefix.to_owned());
        } else {
            faults.failing_syncs.remove(prefix);
        }
    }

    /// Opening the file, or listing the directory, at `path` fails with the system's error `errno`; `None`: no longer.
    pub fn fail_opens(&self, path: &Path, errno: Option<i32>) {
        let mut faults = self.faults();
        match errno {
            Some(errno) => faults.failing_opens.insert(path.to_owned(), errno),
            None => faults.failing_opens.remove(path),
        };
    }

    /// The medium does not give these bytes of the file at `path` back any more.
    pub fn lose_bytes(&self, path: &Path, bytes: Range<u64>) {
        self.faults().unreadable.push((path.to_owned(), bytes));
    }

    /// Whether the disk is full: nothing can be created or made longer, but bytes in place can be overwritten.
    pub fn set_full(&self, is_full: bool) {
        self.faults().is_full = is_full;
    }

    /// How many bytes fit on the disk: files cannot become longer than that together. `None`: there is no limit.
    pub fn set_capacity(&self, capacity: Option<u64>) {
        self.faults().capacity = capacity;
    }

    /// Gives the disk a capacity of which so many bytes are free now.
    pub fn leave_free(&self, bytes: u64) {
        let used = self.tree().size();
        self.set_capacity(Some(used + bytes));
    }

    /// Whether the file system is mounted read-only, as Linux does to one that has failed.
    pub fn set_read_only(&self, is_read_only: bool) {
        self.faults().is_read_only = is_read_only;
    }

    /// Damages one byte of a file on the medium, for readers to find. Nothing happens beyond its end.
    pub fn flip_byte(&self, path: &Path, offset: u64) -> io::Result<()> {
        let file = self.tree().find_file(path)?;
        file.content().flip_byte(to_usize(offset)?);
        Ok(())
    }

    /// How many syncs, of files and of directories, have succeeded.
    pub fn sync_count(&self) -> u64 {
        self.faults().sync_count
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.0.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.0.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_writable(&self) -> io::Result<()> {
        let mut faults = self.faults();
        faults.count_call()?;
        if faults.is_read_only { Err(io::Error::from_raw_os_error(libc::EROFS)) } else { Ok(()) }
    }

    /// Whether something new can be made.
    fn check_space(&self) -> io::Result<()> {
        if self.faults().is_full { Err(io::Error::from_raw_os_error(libc::ENOSPC)) } else { Ok(()) }
    }

    /// Whether a file can become `growth` bytes longer. No file may be locked.
    fn check_growth(&self, growth: usize) -> io::Result<()> {
        if growth == 0 {
            return Ok(());
        }
        self.check_space()?;
        let capacity = self.faults().capacity;
        match capacity {
            Some(capacity) if self.tree().size() + growth as u64 > capacity => {
                Err(io::Error::from_raw_os_error(libc::ENOSPC))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Counts a sync of `path`, or fails it as told.
    fn check_sync(&self, path: &Path) -> io::Result<()> {
        let mut faults = self.faults();
        faults.count_call()?;
        if faults.failing_syncs.iter().any(|prefix| path.starts_with(prefix)) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        faults.sync_count += 1;
        Ok(())
    }
}

impl Faults {
    fn count_call(&mut self) -> io::Result<()> {
        match &mut self.calls_left {
            Some(0) => Err(io::Error::other("the machine has stopped")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDisk").field("faults", &*self.faults()).finish_non_exhaustive()
    }
}

impl Disk for SimDisk {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        if self.is_dir(dir) {
            return Ok(());
        }
        self.check_writable()?;
        self.check_space()?;
        self.tree().create_dir_all(dir)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn File>> {
        if mode != OpenMode::Read {
            self.check_writable()?;
        }
        if let Some(errno) = self.faults().failing_opens.get(path) {
            return Err(io::Error::from_raw_os_error(*errno));
        }
        let mut tree = self.tree();
        let file = match (tree.find_file(path), mode) {
            (Ok(file), OpenMode::Create) => {
                file.content().set_len(0);
                file
            }
            (Err(error), OpenMode::Create) if error.kind() == io::ErrorKind::NotFound => {
                self.check_space()?;
                tree.create_file(path)?
            }
            (found, OpenMode::Read | OpenMode::Write | OpenMode::Create) => found?,
        };
        let life = self.faults().life;
        Ok(Box::new(SimFile { disk: self.clone(), file, path: path.to_owned(), life, mode }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        if let Some(errno) = self.faults().failing_opens.get(dir) {
            return Err(io::Error::from_raw_os_error(*errno));
        }
        self.tree().list(dir)
    }

    fn exists(&self, path: &Path) -> bool {
        self.tree().find(path).is_ok()
    }

    fn is_dir(&self, path: &Path) -> bool {
        self.tree().find_dir(path).is_ok()
    }

    fn lock_dir(&self, dir: &Path) -> io::Result<DirLock> {
        self.tree().find_dir(dir)?;
        let mut faults = self.faults();
        let life = faults.life;
        if !faults.locked.insert(dir.to_owned()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        drop(faults);
        Ok(DirLock::new(SimLock { disk: self.clone(), dir: dir.to_owned(), life }))
    }

    fn device(&self, dir: &Path) -> io::Result<u64> {
        self.tree().find_dir(dir)?;
        let faults = self.faults();
        let around = faults.mounts.iter().filter(|(mount, _)| dir.starts_with(mount));
        Ok(around.max_by_key(|(mount, _)| mount.components().count()).map_or(ROOT_DEVICE, |(_, device)| *device))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check_writable()?;
        self.tree().rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check_writable()?;
        self.check_space()?;
        self.tree().hard_link(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.check_writable()?;
        let mut tree = self.tree();
        tree.find_file(path)?;
        tree.remove(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.check_writable()?;
        let mut tree = self.tree();
        match tree.find(path)? {
            Node::Dir(_) => tree.remove(path),
            Node::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.check_sync(dir)?;
        self.tree().sync_dir(dir)
    }

    fn free_space(&self, dir: &Path) -> io::Result<Space> {
        self.tree().find_dir(dir)?;
        let (capacity, is_full) = {
            let faults = self.faults();
            (faults.capacity, faults.is_full)
        };
        let total = capacity.unwrap_or(SIZE);
        let used = if capacity.is_some() { self.tree().size() } else { 0 };
        Ok(Space { free: if is_full { 0 } else { total.saturating_sub(used) }, total })
    }
}

struct SimLock {
    disk: SimDisk,
    dir: PathBuf,
    life: u64,
}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut faults = self.disk.faults();
        if faults.life == self.life {
            faults.locked.remove(&self.dir);
        }
    }
}

struct SimFile {
    disk: SimDisk,
    file: Arc<FileNode>,
    path: PathBuf,
    life: u64,
    mode: OpenMode,
}

impl SimFile {
    fn check_alive(&self) -> io::Result<()> {
        if self.life == self.disk.faults().life {
            Ok(())
        } else {
            Err(io::Error::other("the handle is from before the crash"))
        }
    }

    fn check_writable(&self) -> io::Result<()> {
        self.check_alive()?;
        self.disk.check_writable()?;
        if self.mode == OpenMode::Read { Err(io::Error::from_raw_os_error(libc::EBADF)) } else { Ok(()) }
    }
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl File for SimFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.check_alive()?;
        let end = offset + buffer.len() as u64;
        let is_lost =
            |(path, lost): &(PathBuf, Range<u64>)| *path == self.path && lost.start < end && offset < lost.end;
        if self.disk.faults().unreadable.iter().any(is_lost) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        Ok(self.file.content().read(to_usize(offset)?, buffer))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check_writable()?;
        let offset = to_usize(offset)?;
        let before = self.file.content().len();
        self.disk.check_growth((offset + data.len()).saturating_sub(before))?;
        self.file.content().write(offset, data);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.check_alive()?;
        let mut content = self.file.content();
        match self.disk.check_sync(&self.path) {
            Ok(()) => {
                content.sync();
                Ok(())
            }
            Err(error) => {
                content.forget_dirty();
                Err(error)
            }
        }
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        self.check_alive()?;
        Ok(self.file.content().len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_writable()?;
        let len = to_usize(len)?;
        let before = self.file.content().len();
        self.disk.check_growth(len.saturating_sub(before))?;
        self.file.content().set_len(len);
        Ok(())
    }
}

fn to_usize(value: u64) -> io::Result<usize> {
    usize::try_from(value).map_err(|_| io::ErrorKind::InvalidInput.into())
}
