//! RocksDB on the simulated disk: each open database works on a copy of its files, and what it changes there is written to the
//! simulated disk before the call that changed it returns.
//!
//! ```text
//! open        simulated disk --copy--> scratch directory, where RocksDB opens it --changes--> simulated disk
//! flush       rows --RocksDB--> scratch directory --changes, in RocksDB's order, each synced--> simulated disk
//! kill        the scratch directory is thrown away, with all that was not flushed
//! ```
//!
//! So a kill, a power loss, a full or failing disk and the renaming of directories are those of the simulated disk, and what a
//! node finds afterwards is what had reached it. RocksDB's compactions are waited for, and nothing of its threads' timing
//! reaches the node.
#![allow(clippy::disallowed_methods, reason = "RocksDB knows no other files than those of the operating system")]

use super::scratch::Scratch;
use hedgerow_env::{Disk, OpenMode, create_dir_durably, parent_of, read_file, write_file_durably};
use hedgerow_storage::{
    Batch, Debt, Direction, Engine, EngineError, EngineStats, Engines, KeyRange, RocksEngines, RocksSettings,
    RowVisitor, Snapshot,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// RocksDB keeps so many files of options, and has a thread remove older ones.
const OPTIONS_KEPT: usize = 2;
const OPTIONS_START: &str = "OPTIONS-";
/// Without it there is no database.
const CURRENT_FILE: &str = "CURRENT";
const MANIFEST_START: &str = "MANIFEST-";
/// What says nothing of the content, or is on its way to another name.
const LOCK_FILE: &str = "LOCK";
const TEMPORARY_END: &str = ".tmp";
/// How the files of flushes are called that are no database's yet.
const FLUSH_FILE_START: &str = "flush";

/// Opens RocksDB databases whose files lie on a simulated disk, for one life of a process.
#[derive(Debug)]
pub(super) struct MirroredEngines {
    inner: RocksEngines,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    disk: Arc<dyn Disk>,
    scratch: Scratch,
    /// Numbers the directories in it.
    copies: AtomicU64,
    /// Directories with an open database.
    open: Mutex<BTreeSet<PathBuf>>,
    is_alive: AtomicBool,
}

/// What a file was like when it was last the same on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    inode: u64,
    size: u64,
    changed_at: (i64, i64),
}

/// A directory on the simulated disk, and its copy.
#[derive(Debug)]
struct Mirror {
    dir: PathBuf,
    copy: PathBuf,
    /// The files that are the same on both sides, by name.
    same: BTreeMap<String, Seen>,
}

#[derive(Debug)]
struct MirroredEngine {
    /// `None` only while it is dropped.
    inner: Option<Arc<dyn Engine>>,
    mirror: Mutex<Mirror>,
    dir: PathBuf,
    shared: Arc<Shared>,
}

impl MirroredEngines {
    pub(super) fn new(disk: Arc<dyn Disk>) -> Result<Self, EngineError> {
        let failed = |source: io::Error| EngineError::Open { dir: PathBuf::new(), source: source.into() };
        // Blocks and table files once read stay: which of them would go is a matter of RocksDB's random numbers, and a read
        // that finds them gone is left to others (`Engine::get_at_once`).
        let settings = RocksSettings {
            cache_size: 1 << 28,
            hot_rows_size: 1 << 18,
            flush_size: 64 << 10,
            write_buffer_size: 1 << 20,
            waits_for_compactions: true,
            ..RocksSettings::default()
        };
        let shared = Shared {
            disk,
            scratch: Scratch::new().map_err(failed)?,
            copies: AtomicU64::new(0),
            open: Mutex::default(),
            is_alive: AtomicBool::new(true),
        };
        Ok(Self { inner: RocksEngines::new(&settings)?, shared: Arc::new(shared) })
    }

    /// From now on nothing reaches the simulated disk.
    pub(super) fn die(&self) {
        self.shared.is_alive.store(false, Ordering::SeqCst);
    }
}

impl Shared {
    fn open_dirs(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_alive(&self) -> bool {
        self.is_alive.load(Ordering::SeqCst)
    }

    /// Where RocksDB finds the database in `dir`, each time that it is opened: at one path, as on a real disk.
    fn copy_of(&self, dir: &Path) -> PathBuf {
        self.scratch.path().join(dir.to_string_lossy().replace('/', "+"))
    }

    fn new_copy(&self) -> PathBuf {
        self.scratch.path().join(self.copies.fetch_add(1, Ordering::Relaxed).to_string())
    }
}

impl Engines for MirroredEngines {
    fn open(&self, dir: &Path) -> Result<Arc<dyn Engine>, EngineError> {
        let failed = |source: io::Error| EngineError::Open { dir: dir.to_path_buf(), source: source.into() };
        // As RocksDB does, by the same path.
        if !self.shared.open_dirs().insert(dir.to_path_buf()) {
            return Err(failed(io::Error::other("the database is open already")));
        }
        let opened = || {
            create_dir_durably(&*self.shared.disk, dir).map_err(failed)?;
            let mut mirror = Mirror::copy_in(&self.shared, dir, self.shared.copy_of(dir)).map_err(failed)?;
            let inner = self.inner.open(&mirror.copy).map_err(|error| at(dir, error))?;
            mirror.copy_out(&self.shared).map_err(failed)?;
            Ok((inner, mirror))
        };
        match opened() {
            Ok((inner, mirror)) => Ok(Arc::new(MirroredEngine {
                inner: Some(inner),
                mirror: Mutex::new(mirror),
                dir: dir.to_path_buf(),
                shared: Arc::clone(&self.shared),
            })),
            Err(error) => {
                self.shared.open_dirs().remove(dir);
                Err(error)
            }
        }
    }

    fn verify(&self, dir: &Path) -> Result<(), EngineError> {
        let failed = |source: io::Error| EngineError::Read { source: source.into() };
        let mirror = Mirror::copy_in(&self.shared, dir, self.shared.new_copy()).map_err(failed)?;
        let verified = self.inner.verify(&mirror.copy);
        fs::remove_dir_all(&mirror.copy).map_err(failed)?;
        verified
    }

    fn is_gone(&self, dir: &Path) -> bool {
        let current = self.shared.disk.open(&dir.join(CURRENT_FILE), OpenMode::Read);
        current.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    fn disk(&self) -> Arc<dyn Disk> {
        Arc::clone(&self.shared.disk)
    }
}

/// The same error of the database in `dir`: where its copy lies says nothing.
fn at(dir: &Path, error: EngineError) -> EngineError {
    match error {
        EngineError::Open { source, .. } => EngineError::Open { dir: dir.to_path_buf(), source },
        EngineError::Read { .. }
        | EngineError::Write { .. }
        | EngineError::Flush { .. }
        | EngineError::Checkpoint { .. }
        | EngineError::NotAtOnce
        | EngineError::Damaged { .. } => error,
    }
}

impl Mirror {
    /// Copies the files in `dir` of the simulated disk into the new scratch directory `copy`.
    fn copy_in(shared: &Shared, dir: &Path, copy: PathBuf) -> io::Result<Self> {
        // Of an opening that failed.
        if copy.is_dir() {
            fs::remove_dir_all(&copy)?;
        }
        fs::create_dir(&copy)?;
        for name in shared.disk.list(dir)?.iter().filter(|name| is_mirrored(name)) {
            fs::write(copy.join(name), read_file(&*shared.disk, &dir.join(name))?)?;
        }
        let same = scan(&copy)?;
        Ok(Self { dir: dir.to_path_buf(), copy, same })
    }

    /// Brings what has changed in the scratch directory to the simulated disk, in the order in which RocksDB makes it durable:
    /// what the manifest speaks of, the manifest, what names the manifest. After an error it goes on there when called again.
    fn copy_out(&mut self, shared: &Shared) -> io::Result<()> {
        let found = scan(&self.copy)?;
        let mut changed: Vec<(&String, &Seen)> =
            found.iter().filter(|(name, seen)| self.same.get(*name) != Some(seen)).collect();
        changed.sort_by_key(|(name, _)| (*name == CURRENT_FILE, name.starts_with(MANIFEST_START)));
        for (name, seen) in changed {
            let bytes = fs::read(self.copy.join(name))?;
            let path = self.dir.join(name);
            // Forgotten first: what fails half-way is written anew.
            match self.same.remove(name) {
                Some(before) if name.starts_with(MANIFEST_START) && before.has_grown_to(seen) => {
                    let file = shared.disk.open(&path, OpenMode::Write)?;
                    file.write_at(before.size, &bytes[before.size as usize..])?;
                    file.sync_data()?;
                }
                Some(_) | None => write_file_durably(&*shared.disk, &path, &bytes)?,
            }
            self.same.insert(name.clone(), *seen);
        }
        let gone: Vec<String> = self.same.keys().filter(|name| !found.contains_key(*name)).cloned().collect();
        for name in gone {
            shared.disk.remove_file(&self.dir.join(&name))?;
            self.same.remove(&name);
        }
        Ok(())
    }
}

impl Seen {
    const fn has_grown_to(&self, other: &Self) -> bool {
        self.inode == other.inode && self.size <= other.size
    }
}

/// The files in a scratch directory that belong to the database.
fn scan(copy: &Path) -> io::Result<BTreeMap<String, Seen>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(copy)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_mirrored(&name) {
            match entry.metadata() {
                Ok(it) => {
                    let changed_at = (it.mtime(), it.mtime_nsec());
                    found.insert(name, Seen { inode: it.ino(), size: it.size(), changed_at });
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    // Numbers grow longer.
    let mut options: Vec<String> = found.keys().filter(|name| name.starts_with(OPTIONS_START)).cloned().collect();
    options.sort_by_key(|name| (name.len(), name.clone()));
    for name in options.iter().rev().skip(OPTIONS_KEPT) {
        found.remove(name);
    }
    Ok(found)
}

/// Whether a file of this name belongs to the database.
fn is_mirrored(name: &str) -> bool {
    name != LOCK_FILE && (!name.ends_with(TEMPORARY_END) || name.starts_with(FLUSH_FILE_START))
}

impl MirroredEngine {
    fn inner(&self) -> &dyn Engine {
        &**self.inner.as_ref().expect("it is there until it is dropped")
    }

    fn mirror(&self) -> MutexGuard<'_, Mirror> {
        self.mirror.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn copy_out(&self) -> Result<(), EngineError> {
        self.mirror().copy_out(&self.shared).map_err(|source| EngineError::Flush { source: source.into() })
    }

    /// Whether the simulated disk takes what a flush begins with: the rows stay with RocksDB where it does not.
    fn try_disk(&self) -> Result<(), EngineError> {
        if self.inner().unflushed_bytes() == 0 {
            return Ok(());
        }
        let disk = &*self.shared.disk;
        let path = self.dir.join(format!("{FLUSH_FILE_START}-begins{TEMPORARY_END}"));
        let tried = write_file_durably(disk, &path, &[0]).and_then(|()| disk.remove_file(&path));
        tried.map_err(|source| EngineError::Flush { source: source.into() })
    }

    fn export(&self, made: &Path, into: &Path) -> io::Result<()> {
        let disk = &*self.shared.disk;
        create_dir_durably(disk, into)?;
        for name in scan(made)?.keys() {
            let file = disk.open(&into.join(name), OpenMode::Create)?;
            file.write_at(0, &fs::read(made.join(name))?)?;
            file.sync_all()?;
        }
        disk.sync_dir(into)?;
        disk.sync_dir(parent_of(into))
    }
}

impl Engine for MirroredEngine {
    fn get(&self, key: &[u8]) -> Result<Option<bytes::Bytes>, EngineError> {
        self.inner().get(key)
    }

    fn scan(&self, range: KeyRange<'_>, direction: Direction, visit: RowVisitor<'_>) -> Result<(), EngineError> {
        self.inner().scan(range, direction, visit)
    }

    fn get_at_once(&self, key: &[u8]) -> Result<Option<bytes::Bytes>, EngineError> {
        self.inner().get_at_once(key)
    }

    fn scan_at_once(
        &self,
        range: KeyRange<'_>,
        direction: Direction,
        visit: RowVisitor<'_>,
    ) -> Result<(), EngineError> {
        self.inner().scan_at_once(range, direction, visit)
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>, EngineError> {
        self.inner().snapshot()
    }

    fn give_up(&self) {
        self.inner().give_up();
    }

    fn write(&self, batch: &Batch) -> Result<(), EngineError> {
        self.inner().write(batch)
    }

    fn flush(&self) -> Result<(), EngineError> {
        self.try_disk()?;
        self.inner().flush()?;
        self.copy_out()
    }

    fn flush_at_pace(&self) -> Result<(), EngineError> {
        self.try_disk()?;
        self.inner().flush_at_pace()?;
        self.copy_out()
    }

    fn checkpoint(&self, into: &Path) -> Result<(), EngineError> {
        let failed = |source: io::Error| EngineError::Checkpoint { into: into.to_path_buf(), source: source.into() };
        if self.shared.disk.exists(into) {
            return Err(failed(io::ErrorKind::AlreadyExists.into()));
        }
        self.try_disk()?;
        let made = self.shared.new_copy();
        self.inner().checkpoint(&made)?;
        let exported = self.copy_out().and_then(|()| self.export(&made, into).map_err(failed));
        fs::remove_dir_all(&made).map_err(failed)?;
        exported
    }

    fn set_expire_floor(&self, seconds: u32) {
        self.inner().set_expire_floor(seconds);
    }

    fn compact(&self) -> Result<(), EngineError> {
        self.try_disk()?;
        self.inner().compact()?;
        self.copy_out()
    }

    fn background_failure(&self) -> Option<EngineError> {
        self.inner().background_failure()
    }

    fn debt(&self) -> Debt {
        self.inner().debt()
    }

    fn unflushed_bytes(&self) -> u64 {
        self.inner().unflushed_bytes()
    }

    fn stats(&self) -> EngineStats {
        self.inner().stats()
    }
}

impl Drop for MirroredEngine {
    fn drop(&mut self) {
        let can_flush = self.shared.is_alive() && self.try_disk().is_ok();
        // The last flush.
        drop(self.inner.take());
        if can_flush {
            // What is lost comes back from the log.
            drop(self.copy_out());
        }
        drop(fs::remove_dir_all(&self.mirror().copy));
        self.shared.open_dirs().remove(&self.dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_env::sim::SimDisk;
    use std::ops::ControlFlow;

    const DIR: &str = "/data-0/replicas/1.0-10001";

    fn engines(disk: &SimDisk) -> MirroredEngines {
        MirroredEngines::new(Arc::new(disk.clone())).unwrap()
    }

    fn write(engine: &dyn Engine, key: &str, value: &str) {
        let mut batch = Batch::new();
        batch.put(&[key.as_bytes()], &[value.as_bytes()]);
        engine.write(&batch).unwrap();
    }

    fn keys(engine: &dyn Engine) -> Vec<String> {
        let mut keys = Vec::new();
        let seen = engine.scan(KeyRange::default(), Direction::Ascending, &mut |key, _| {
            keys.push(String::from_utf8_lossy(key).into_owned());
            ControlFlow::Continue(())
        });
        seen.unwrap();
        keys
    }

    #[test]
    fn a_kill_takes_what_was_not_flushed_and_nothing_else() {
        let disk = SimDisk::new();
        let first = engines(&disk);
        let engine = first.open(Path::new(DIR)).unwrap();
        // So many that tables are compacted.
        for number in 10..30 {
            write(&*engine, &number.to_string(), "flushed");
            engine.flush().unwrap();
        }
        write(&*engine, "30", "not flushed");
        assert_eq!(keys(&*engine).len(), 21);
        first.die();
        drop((engine, first));
        disk.kill_process();
        let second = engines(&disk);
        let engine = second.open(Path::new(DIR)).unwrap();
        assert_eq!(keys(&*engine), (10..30).map(|number| number.to_string()).collect::<Vec<_>>());
        write(&*engine, "30", "flushed by the last handle");
        drop(engine);
        assert_eq!(keys(&*second.open(Path::new(DIR)).unwrap()).len(), 21);
    }

    #[test]
    fn a_look_at_all_rows_flushes_nothing() {
        let disk = SimDisk::new();
        let engines = engines(&disk);
        let engine = engines.open(Path::new(DIR)).unwrap();
        write(&*engine, "a", "1");
        let bulk = KeyRange { is_bulk: true, ..KeyRange::default() };
        engine.scan(bulk, Direction::Ascending, &mut |_, _| ControlFlow::Continue(())).unwrap();
        assert!(engine.unflushed_bytes() > 0);
    }

    #[test]
    fn a_full_disk_keeps_rows_in_memory_and_takes_them_later() {
        let disk = SimDisk::new();
        let engines = engines(&disk);
        let engine = engines.open(Path::new(DIR)).unwrap();
        write(&*engine, "a", "1");
        disk.set_full(true);
        let error = engine.flush().unwrap_err();
        assert_eq!(error.os_reason().and_then(io::Error::raw_os_error), Some(28), "{error:?}");
        assert!(engine.unflushed_bytes() > 0);
        disk.set_full(false);
        engine.flush().unwrap();
        engines.die();
        drop(engine);
        disk.kill_process();
        assert_eq!(keys(&*super::tests::engines(&disk).open(Path::new(DIR)).unwrap()), ["a"]);
    }

    /// Whatever call to the disk is the last one, a flush is there or it is not.
    #[test]
    fn a_process_that_dies_while_it_flushes_leaves_a_database() {
        let mut flushed = Vec::new();
        for calls in 0..40 {
            let disk = SimDisk::new();
            let first = engines(&disk);
            let engine = first.open(Path::new(DIR)).unwrap();
            write(&*engine, "a", "1");
            engine.flush().unwrap();
            write(&*engine, "b", "2");
            disk.stop_after(calls);
            let is_flushed = engine.flush().is_ok();
            first.die();
            drop(engine);
            disk.crash(&mut hedgerow_types::random::Random::new(calls));
            let found = keys(&*engines(&disk).open(Path::new(DIR)).unwrap());
            assert!(found == ["a", "b"] || found == ["a"] && !is_flushed, "{calls} calls: {found:?}");
            flushed.push(found.len() == 2);
        }
        assert!(flushed.contains(&false) && flushed.contains(&true));
    }

    #[test]
    fn a_checkpoint_has_what_was_not_flushed_and_is_sound() {
        let disk = SimDisk::new();
        let engines = engines(&disk);
        let engine = engines.open(Path::new(DIR)).unwrap();
        write(&*engine, "a", "1");
        let into = Path::new("/data-0/checkpoints/1");
        engine.checkpoint(into).unwrap();
        engines.verify(into).unwrap();
        assert_eq!(keys(&*engines.open(into).unwrap()), ["a"]);
        assert!(engines.open(Path::new(DIR)).is_err(), "it is open");
        let table = disk.list(into).unwrap().into_iter().find(|name| hedgerow_storage::is_table(name)).unwrap();
        disk.flip_byte(&into.join(table), 10).unwrap();
        assert!(engines.verify(into).unwrap_err().is_damage());
    }
}
