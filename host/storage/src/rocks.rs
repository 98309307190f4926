//! The RocksDB engine: one database per replica, all of a process over shared threads, cache and write-buffer budget.
//!
//! RocksDB's own log and memtables are off, since the group's log is the log: what is written stays in memory
//! (`unflushed.rs`) until [`Engine::flush`] is called or the last handle is dropped. A flush writes one sorted table
//! file and hands it over, in one atomic step, so that after a crash a database is at its last flush: a prefix of the
//! batches, whole.
//!
//! The hand-over gives the file a second name, by which the database knows it from then on, and removes the first. A
//! crash in between, or a power failure that undoes the removal, leaves the first: then it is a name of a live table,
//! and who wrote to it would destroy the table. So no flush ever uses the name of another, in this life of the engine or
//! an earlier one, and leftovers are removed when an engine opens.

mod failure;
mod flushed;
mod hot;
mod manifest;
mod merge;
mod options;
mod pace;
mod snapshot;
mod unflushed;
mod verify;

use crate::batch::Batch;
use crate::debt::Debt;
use crate::engine::{
    Cause, Direction, Engine, EngineError, EngineStats, Engines, FailureKind, KeyRange, RowVisitor, Snapshot,
};
use bytes::Bytes;
use failure::classify;
use flushed::Flushed;
use hedgerow_env::os::{OsDisk, begin_read_in, begin_write_out, random_u64};
use hedgerow_env::{Disk, OpenMode, create_dir_durably, parent_of};
use options::{Shared, SpareFiles};
use pace::STEP;
use rocksdb::checkpoint::Checkpoint;
use rocksdb::properties::{
    BACKGROUND_ERRORS, ESTIMATE_NUM_KEYS, ESTIMATE_PENDING_COMPACTION_BYTES, TOTAL_SST_FILES_SIZE, num_files_at_level,
};
use rocksdb::{
    DB, ErrorKind, IngestExternalFileOptions, Options, ReadOptions, ReadTier, SstFileWriter, WaitForCompactOptions,
};
use snapshot::RocksSnapshot;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use unflushed::{Layers, Unflushed};

pub use options::RocksSettings;

/// How the names of flushes' table files begin and end until they are handed over. Nothing of RocksDB's is called so.
const FLUSH_FILE_START: &str = "flush";
const FLUSH_FILE_END: &str = ".tmp";
/// Removed rows that a scan passes at once: in memory, and between two rows of the database.
const REMOVED_AT_ONCE_MAX: u64 = 1_024;
/// How the names of tables, and of the file without which there is no database, are written by RocksDB.
const TABLE_END: &str = ".sst";
const CURRENT_FILE: &str = "CURRENT";

/// Whether `name` is that of a table in a checkpoint: a file that never changes once it is written, whose name an engine uses
/// once, and all of which [`Engines::verify`] checks.
#[must_use]
pub fn is_table(name: &str) -> bool {
    name.ends_with(TABLE_END)
}

/// Opens RocksDB engines on the operating system's disk.
#[derive(Clone)]
pub struct RocksEngines {
    shared: Arc<Shared>,
    disk: Arc<dyn Disk>,
}

impl RocksEngines {
    /// Sets up what the engines share. Call it once per process, or per node where several run in one.
    pub fn new(settings: &RocksSettings) -> Result<Self, EngineError> {
        let shared = Shared::new(settings)
            .map_err(|error| EngineError::Open { dir: PathBuf::new(), source: Box::new(error) })?;
        Ok(Self { shared: Arc::new(shared), disk: Arc::new(OsDisk) })
    }
}

impl fmt::Debug for RocksEngines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RocksEngines").finish_non_exhaustive()
    }
}

impl Engines for RocksEngines {
    fn open(&self, dir: &Path) -> Result<Arc<dyn Engine>, EngineError> {
        Ok(Arc::new(RocksEngine::open(&self.shared, &*self.disk, dir)?))
    }

    fn verify(&self, dir: &Path) -> Result<(), EngineError> {
        verify::verify(&self.shared, &*self.disk, dir)
    }

    fn is_gone(&self, dir: &Path) -> bool {
        let current = self.disk.open(&dir.join(CURRENT_FILE), OpenMode::Read);
        current.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    fn hurry(&self) {
        self.shared.pacer().end();
        self.shared.verify_pacer().end();
    }

    fn disk(&self) -> Arc<dyn Disk> {
        Arc::clone(&self.disk)
    }
}

/// One replica's database.
pub struct RocksEngine {
    state: RwLock<State>,
    dir: Arc<Path>,
    /// Distinguishes the databases that share the hot rows.
    number: u64,
    shared: Arc<Shared>,
    /// How the table files of flushes are written.
    table_options: Options,
    /// How a row is read if no disk may be needed for it.
    at_once: ReadOptions,
    /// Held during a flush, so that table files are handed over in the order of their rows' age.
    flushing: Mutex<()>,
    /// Callers who wait for a flush: with any, it writes as fast as it can.
    waiting: AtomicU32,
    /// Which of the engine's lives in this directory this is, and how many flush files it has named.
    life: u64,
    flush_files: AtomicU64,
    expire_floor: Arc<AtomicU32>,
    /// Nothing is flushed any more when it is closed.
    is_given_up: AtomicBool,
    /// Given back when the database is closed.
    spare_files: SpareFiles,
}

/// What one lock guards, so that a read takes no second one.
struct State {
    /// Why it is closed, if it could not be opened again after it had stopped.
    db: Result<Arc<DB>, EngineError>,
    unflushed: Unflushed,
    flushed: Flushed,
}

impl State {
    fn db(&self) -> Result<&Arc<DB>, EngineError> {
        self.db.as_ref().map_err(failure::again)
    }
}

impl fmt::Debug for RocksEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RocksEngine").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl RocksEngine {
    fn open(shared: &Arc<Shared>, disk: &dyn Disk, dir: &Path) -> Result<Self, EngineError> {
        let failed = |source: Cause| EngineError::Open { dir: dir.to_path_buf(), source };
        let failed_io = |error: io::Error| failed(error.into());
        create_dir_durably(disk, dir).map_err(failed_io)?;
        let names = disk.list(dir).map_err(failed_io)?;
        // RocksDB would take it for a new database and remove the tables as useless.
        if names.iter().any(|name| is_table(name)) && !names.iter().any(|name| name == CURRENT_FILE) {
            return Err(EngineError::damaged(format!("{} has tables and no {CURRENT_FILE}", dir.display())));
        }
        let expire_floor = Arc::new(AtomicU32::new(0));
        let spare_files = SpareFiles::take(shared);
        let db = open_database(&spare_files, &expire_floor, disk, dir)?;
        // Not before the database has locked the directory: another process may be writing the one that would go.
        remove_leftovers(disk, dir).map_err(failed_io)?;
        shared.settle(&db).map_err(|error| classify(error, disk, dir, failed))?;
        Ok(Self {
            state: RwLock::new(State { db: Ok(db), unflushed: Unflushed::default(), flushed: Flushed::default() }),
            dir: dir.into(),
            number: shared.next_number(),
            shared: Arc::clone(shared),
            table_options: shared.flushed_table(),
            at_once: at_once(ReadOptions::default()),
            flushing: Mutex::default(),
            waiting: AtomicU32::new(0),
            life: random_u64(),
            flush_files: AtomicU64::new(0),
            expire_floor,
            is_given_up: AtomicBool::new(false),
            spare_files,
        })
    }

    // A poisoned lock guards rows that are whole all the same: what changes them cannot panic half-way.
    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// For what takes long: others may change the state meanwhile.
    fn db(&self) -> Result<Arc<DB>, EngineError> {
        self.state().db().cloned()
    }

    /// Writes `rows` into a table file and hands it over to the database.
    fn hand_over(&self, rows: &Layers) -> Result<(), EngineError> {
        let number = self.flush_files.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.join(format!("{FLUSH_FILE_START}-{:016x}-{number}{FLUSH_FILE_END}", self.life));
        let flush_failed = |error| self.classify(error, |source| EngineError::Flush { source });
        let written = self.write_table(&path, rows).map_err(flush_failed);
        let result = written.and_then(|()| {
            let result = self.ingest(&path)?.map_err(flush_failed);
            // There are descriptors again, or the table would not have been written; the database does not notice.
            if result.is_err() && self.has_stopped_for_good() && self.open_again()? {
                return self.ingest(&path)?.map_err(flush_failed);
            }
            result
        });
        if result.is_err() {
            // Its space is needed. If it stays all the same, the next open removes it.
            drop(OsDisk.remove_file(&path));
        }
        result
    }

    fn write_table(&self, path: &Path, rows: &Layers) -> Result<(), rocksdb::Error> {
        let mut table = SstFileWriter::create(&self.table_options);
        table.open(path)?;
        let mut written = 0;
        rows.for_each(|key, value| {
            match value {
                Some(value) => table.put(key.bytes(), value)?,
                None => table.delete(key.bytes())?,
            }
            let fresh = table.file_size() - written;
            if fresh >= STEP {
                written += fresh;
                self.keep_pace(path, fresh);
            }
            Ok(())
        })?;
        table.finish()?;
        // The writer may have told the system to forget the file (ours does not, see `build-rocksdb`). But what was written last is
        // read first, and compacted soon. Where this fails the file is read when it is needed.
        drop(begin_read_in(path));
        Ok(())
    }

    /// Called when a flush has written `fresh` more bytes to the table at `path`.
    fn keep_pace(&self, path: &Path, fresh: u64) {
        let is_urgent = || self.waiting.load(Ordering::Acquire) > 0;
        if !is_urgent() {
            // What fails here fails the flush too, when the table is finished.
            drop(begin_write_out(path));
        }
        self.shared.pacer().wait_after(fresh, is_urgent);
    }

    fn flush_in_turn(&self) -> Result<(), EngineError> {
        let _turn = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        // Once more if the last flush failed: its rows first, then what came after them.
        let has_failed_before = self.state().unflushed.is_flushing();
        for _ in 0..1 + usize::from(has_failed_before) {
            let Some(rows) = self.change_unflushed(|state| state.unflushed.begin_flush()) else { break };
            self.hand_over(&rows)?;
            // Bound first: rows are laid together, and dropped, without the lock.
            let kept = rows.together();
            let gone = self.change_unflushed(|state| {
                let bytes = state.unflushed.forget_flushed();
                state.flushed.keep(kept, bytes, self.shared.flushed_room())
            });
            drop((rows, gone));
        }
        // What a compaction meets is told by `background_failure`, here as anywhere.
        drop(self.db().map(|db| self.shared.settle(&db)));
        Ok(())
    }

    fn change_unflushed<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state_mut();
        let before = state.unflushed.bytes();
        let result = change(&mut state);
        self.shared.pacer().note_held(before, state.unflushed.bytes());
        result
    }

    /// Gives the table at `path` to the database. The outer error: there is none.
    fn ingest(&self, path: &Path) -> Result<Result<(), rocksdb::Error>, EngineError> {
        let db = match self.db() {
            Err(_) if self.open_again()? => self.db()?,
            db => db?,
        };
        let mut options = IngestExternalFileOptions::default();
        options.set_move_files(true);
        Ok(db.ingest_external_file_opts(&options, vec![path]))
    }

    /// Whether the database takes nothing more because of something that passes and that it does not recover from by
    /// itself: it waits for space on a full disk, and for nothing else.
    fn has_stopped_for_good(&self) -> bool {
        self.background_failure().is_some_and(|failure| match failure.kind() {
            FailureKind::NoDescriptors | FailureKind::NoMemory => true,
            FailureKind::NoSpace => failure.os_reason().and_then(io::Error::raw_os_error) != Some(libc::ENOSPC),
            FailureKind::Damage | FailureKind::Other => false,
        })
    }

    /// Closes the database and opens it again, while reads wait. False: somebody is at it now.
    fn open_again(&self) -> Result<bool, EngineError> {
        let mut state = self.state_mut();
        let closed = EngineError::Open { dir: self.dir.to_path_buf(), source: "it is being opened again".into() };
        match std::mem::replace(&mut state.db, Err(closed)).map(Arc::try_unwrap) {
            Ok(Err(in_use)) => {
                state.db = Ok(in_use);
                return Ok(false);
            }
            Ok(Ok(db)) => drop(db),
            Err(_) => {}
        }
        state.db = open_database(&self.spare_files, &self.expire_floor, &OsDisk, &self.dir);
        state.db().map(|_| true)
    }

    fn classify(&self, error: rocksdb::Error, other: impl FnOnce(Cause) -> EngineError) -> EngineError {
        classify(error, &OsDisk, &self.dir, other)
    }

    fn read_failed(&self, error: rocksdb::Error) -> EngineError {
        read_failed(&self.dir, error)
    }

    fn get_with(&self, key: &[u8], options: Option<&ReadOptions>) -> Result<Option<Bytes>, EngineError> {
        // Held to the end: see `hot.rs`.
        let state = self.state();
        if let Some(row) = state.unflushed.get(key) {
            return Ok(row.cloned());
        }
        let hot = self.shared.hot_rows();
        if let Some(value) = hot.get(self.number, key) {
            return Ok(Some(value));
        }
        let value = match state.flushed.get(key) {
            Some(row) => row,
            None => {
                let db = state.db()?;
                let value = options.map_or_else(|| db.get(key), |options| db.get_opt(key, options));
                value.map_err(|error| self.read_failed(error))?.map(Bytes::from)
            }
        };
        if let Some(value) = &value {
            hot.put(self.number, key, value);
        }
        Ok(value)
    }

    fn scan_with(
        &self,
        range: KeyRange<'_>,
        (options, removed_max): (ReadOptions, u64),
        direction: Direction,
        visit: RowVisitor<'_>,
    ) -> Result<(), EngineError> {
        if range.end.is_some_and(|end| end <= range.start) {
            return Ok(());
        }
        let state = self.state();
        let (layers, stored) = (state.unflushed.ranges(range.start, range.end), state.db()?.raw_iterator_opt(options));
        merge::scan(&self.dir, layers, stored, direction, removed_max, visit)
    }
}

/// The same, without any disk, and past a few removed rows only.
fn at_once(mut options: ReadOptions) -> ReadOptions {
    options.set_read_tier(ReadTier::BlockCache);
    options.set_max_skippable_internal_keys(REMOVED_AT_ONCE_MAX);
    options
}

fn read_failed(dir: &Path, error: rocksdb::Error) -> EngineError {
    match error.kind() {
        ErrorKind::Incomplete => EngineError::NotAtOnce,
        _ => classify(error, &OsDisk, dir, |source| EngineError::Read { source }),
    }
}

impl Engine for RocksEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.get_with(key, None)
    }

    fn scan(&self, range: KeyRange<'_>, direction: Direction, visit: RowVisitor<'_>) -> Result<(), EngineError> {
        if range.is_bulk {
            // It may take long, and whoever writes must not wait for it.
            return self.snapshot()?.scan(range, direction, visit);
        }
        self.scan_with(range, (merge::options(range), u64::MAX), direction, visit)
    }

    fn get_at_once(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.get_with(key, Some(&self.at_once))
    }

    fn scan_at_once(
        &self,
        range: KeyRange<'_>,
        direction: Direction,
        visit: RowVisitor<'_>,
    ) -> Result<(), EngineError> {
        self.scan_with(range, (at_once(merge::options(range)), REMOVED_AT_ONCE_MAX), direction, visit)
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>, EngineError> {
        let mut state = self.state_mut();
        let db = Arc::clone(state.db()?);
        // All are of this moment: rows that a flush is handing over may be in both.
        let before = state.unflushed.bytes();
        let memory = (state.unflushed.snapshot(), state.flushed.clone());
        self.shared.pacer().note_held(before, state.unflushed.bytes());
        Ok(Arc::new(RocksSnapshot::new(db, memory, Arc::clone(&self.dir), Arc::clone(&self.shared))))
    }

    fn write(&self, batch: &Batch) -> Result<(), EngineError> {
        let mut state = self.state_mut();
        let before = state.unflushed.bytes();
        state.unflushed.write(batch);
        self.shared.pacer().note_held(before, state.unflushed.bytes());
        self.shared.hot_rows().forget(self.number, batch.iter().map(|(key, _)| key));
        Ok(())
    }

    fn flush(&self) -> Result<(), EngineError> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.shared.pacer().hurry();
        let result = self.flush_in_turn();
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        result
    }

    fn flush_at_pace(&self) -> Result<(), EngineError> {
        self.flush_in_turn()
    }

    fn checkpoint(&self, into: &Path) -> Result<(), EngineError> {
        let failed = |source: Cause| EngineError::Checkpoint { into: into.to_path_buf(), source };
        self.flush()?;
        let parent = parent_of(into);
        create_dir_durably(&OsDisk, parent).map_err(|error| failed(error.into()))?;
        Checkpoint::new(&*self.db()?)
            .and_then(|checkpoint| checkpoint.create_checkpoint(into))
            .map_err(|error| self.classify(error, failed))?;
        // The copy's files and directory are synced by RocksDB, its name is not.
        OsDisk.sync_dir(parent).map_err(|error: io::Error| failed(error.into()))
    }

    fn set_expire_floor(&self, seconds: u32) {
        self.expire_floor.store(seconds, Ordering::Release);
    }

    fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Release);
    }

    fn compact(&self) -> Result<(), EngineError> {
        self.flush()?;
        self.db()?.compact_range::<&[u8], &[u8]>(None, None);
        self.background_failure().map_or(Ok(()), Err)
    }

    fn background_failure(&self) -> Option<EngineError> {
        let db = match self.db() {
            Ok(db) => db,
            Err(error) => return Some(error),
        };
        if db.property_int_value(BACKGROUND_ERRORS).ok().flatten().unwrap_or(0) == 0 {
            return None;
        }
        // What is counted may be over. Of all calls this one tells, and returns at once if something is wrong.
        let mut options = WaitForCompactOptions::default();
        options.set_timeout(1);
        let error = db.wait_for_compact(&options).err()?;
        let is_over = matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::ShutdownInProgress | ErrorKind::Aborted);
        (!is_over).then(|| self.classify(error, |source| EngineError::Write { source }))
    }

    fn debt(&self) -> Debt {
        if self.background_failure().is_some() {
            return Debt::default();
        }
        let Ok(db) = self.db() else { return Debt::default() };
        Debt {
            files: db.property_int_value(num_files_at_level(0)).ok().flatten().unwrap_or(0),
            bytes: db.property_int_value(ESTIMATE_PENDING_COMPACTION_BYTES).ok().flatten().unwrap_or(0),
        }
    }

    fn unflushed_bytes(&self) -> u64 {
        self.state().unflushed.bytes()
    }

    fn stats(&self) -> EngineStats {
        let state = self.state();
        let property = |name| state.db.as_ref().ok()?.property_int_value(name).ok().flatten();
        EngineStats {
            rows: property(ESTIMATE_NUM_KEYS).unwrap_or(0) + state.unflushed.count(),
            disk_bytes: property(TOTAL_SST_FILES_SIZE).unwrap_or(0),
            unflushed_bytes: state.unflushed.bytes(),
        }
    }
}

impl Drop for RocksEngine {
    fn drop(&mut self) {
        if !self.is_given_up.load(Ordering::Acquire)
            && let Err(error) = self.flush()
        {
            // What is lost comes back from the log.
            tracing::debug!(directory = %self.dir.display(), %error, "the last flush failed");
        }
        self.shared.pacer().note_held(self.unflushed_bytes(), 0);
    }
}

fn open_database(
    spare_files: &SpareFiles,
    expire_floor: &Arc<AtomicU32>,
    disk: &dyn Disk,
    dir: &Path,
) -> Result<Arc<DB>, EngineError> {
    let failed = |source: Cause| EngineError::Open { dir: dir.to_path_buf(), source };
    let open = || DB::open(&spare_files.database(expire_floor), dir);
    let db = match open() {
        // Not before it was tried: as long as another process has the database open, it fails in another way.
        Err(error) if error.kind() == ErrorKind::Corruption => {
            let is_torn = manifest::cut_torn_end(disk, dir, CURRENT_FILE).map_err(|error| failed(error.into()))?;
            if is_torn { open() } else { Err(error) }
        }
        result => result,
    };
    let db = db.map_err(|error| classify(error, disk, dir, failed))?;
    Ok(Arc::new(db))
}

/// Removes the files of flushes that did not end.
fn remove_leftovers(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    let mut leftovers = disk.list(dir)?;
    leftovers.retain(|name| name.starts_with(FLUSH_FILE_START) && name.ends_with(FLUSH_FILE_END));
    for name in &leftovers {
        disk.remove_file(&dir.join(name))?;
    }
    if leftovers.is_empty() { Ok(()) } else { disk.sync_dir(dir) }
}

#[cfg(test)]
mod tests;
