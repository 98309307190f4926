//! Directories of the operating system that hold what RocksDB works on, in memory where there is such a file system.
//!
//! Each is locked while it is used and removed when it is dropped. One that a killed process has left is not locked any more:
//! the next process removes it.
#![allow(clippy::disallowed_methods, reason = "RocksDB knows no other files than those of the operating system")]

use hedgerow_env::os::{OsDisk, random_u64};
use hedgerow_env::{DirLock, Disk};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// A file system in memory: syncs cost nothing there.
const IN_MEMORY: &str = "/dev/shm";
const NAME_START: &str = "hedgerow-sim-";
/// Names that are tried: another process may clear one up before it is locked.
const ATTEMPTS_MAX: u32 = 100;

/// A directory that is there as long as this is.
#[derive(Debug)]
pub(super) struct Scratch {
    path: PathBuf,
    _lock: DirLock,
}

impl Scratch {
    pub(super) fn new() -> io::Result<Self> {
        static CLEARED: Once = Once::new();
        let base = if Path::new(IN_MEMORY).is_dir() { PathBuf::from(IN_MEMORY) } else { std::env::temp_dir() };
        CLEARED.call_once(|| clear(&base));
        let mut result = Err(io::ErrorKind::AlreadyExists.into());
        for _ in 0..ATTEMPTS_MAX {
            let path = base.join(format!("{NAME_START}{:016x}", random_u64()));
            result = fs::create_dir(&path).and_then(|()| OsDisk.lock_dir(&path)).map(|lock| Self { path, _lock: lock });
            if result.is_ok() {
                break;
            }
        }
        result
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What stays is removed by the next process.
        drop(fs::remove_dir_all(&self.path));
    }
}

/// Removes what nobody uses any more.
fn clear(base: &Path) {
    for name in OsDisk.list(base).unwrap_or_default().iter().filter(|name| name.starts_with(NAME_START)) {
        let path = base.join(name);
        if let Ok(_lock) = OsDisk.lock_dir(&path) {
            drop(fs::remove_dir_all(&path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_goes_with_its_owner_and_those_of_the_dead_with_the_next_process() {
        let base = Scratch::new().unwrap();
        let (used, left) = (base.path().join("hedgerow-sim-used"), base.path().join("hedgerow-sim-left"));
        fs::create_dir(&used).unwrap();
        fs::create_dir_all(left.join("below")).unwrap();
        let lock = OsDisk.lock_dir(&used).unwrap();
        clear(base.path());
        assert_eq!((used.is_dir(), left.is_dir()), (true, false));
        drop(lock);
        let path = base.path().to_owned();
        drop(base);
        assert!(!path.exists());
    }
}
