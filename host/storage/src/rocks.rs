//! The RocksDB engine: one database per replica, all of a process over shared threads, cache and write-buffer budget.
//!
//! RocksDB's own log is off, since the group's log is the log: after a crash a database is at its last flush. Flushes
//! happen when [`Engine::flush`] is called, when a write buffer or the shared budget is full, and when the last handle
//! is dropped. Each flush keeps a prefix of the batches, whole.

mod options;

use crate::batch::Batch;
use crate::engine::{Cause, Direction, Engine, EngineError, EngineStats, Engines, KeyRange, RowVisitor};
use bytes::Bytes;
use hedgerow_env::os::OsDisk;
use hedgerow_env::{Disk, create_dir_durably, parent_of};
use options::Shared;
use rocksdb::checkpoint::Checkpoint;
use rocksdb::properties::{ESTIMATE_NUM_KEYS, SIZE_ALL_MEM_TABLES, TOTAL_SST_FILES_SIZE};
use rocksdb::{DB, ErrorKind, ReadOptions, WriteBatch, WriteOptions};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub use options::RocksSettings;

/// Bytes that a batch's header and a change's lengths take at most in RocksDB's form.
const BATCH_OVERHEAD: usize = 12;
const CHANGE_OVERHEAD: usize = 12;
/// How much a bulk scan reads ahead, bytes.
const BULK_READAHEAD: usize = 1 << 20;

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

    fn disk(&self) -> Arc<dyn Disk> {
        Arc::clone(&self.disk)
    }
}

/// One replica's database.
pub struct RocksEngine {
    db: DB,
    dir: PathBuf,
    write_options: WriteOptions,
    expire_floor: Arc<AtomicU32>,
}

impl fmt::Debug for RocksEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RocksEngine").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl RocksEngine {
    fn open(shared: &Shared, disk: &dyn Disk, dir: &Path) -> Result<Self, EngineError> {
        let failed = |source: Cause| EngineError::Open { dir: dir.to_path_buf(), source };
        create_dir_durably(disk, dir).map_err(|error| failed(error.into()))?;
        let expire_floor = Arc::new(AtomicU32::new(0));
        let db = DB::open(&shared.database(&expire_floor), dir).map_err(|error| classify(error, failed))?;
        let mut write_options = WriteOptions::default();
        write_options.disable_wal(true);
        Ok(Self { db, dir: dir.to_path_buf(), write_options, expire_floor })
    }
}

impl Engine for RocksEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.db.get(key).map(|value| value.map(Bytes::from)).map_err(read_failed)
    }

    fn scan(&self, range: KeyRange<'_>, direction: Direction, visit: RowVisitor<'_>) -> Result<(), EngineError> {
        if range.end.is_some_and(|end| end <= range.start) {
            return Ok(());
        }
        let mut options = ReadOptions::default();
        options.set_iterate_lower_bound(range.start);
        if let Some(end) = range.end {
            options.set_iterate_upper_bound(end);
        }
        if range.is_bulk {
            options.fill_cache(false);
            options.set_readahead_size(BULK_READAHEAD);
        }
        let mut rows = self.db.raw_iterator_opt(options);
        match direction {
            Direction::Ascending => rows.seek_to_first(),
            Direction::Descending => rows.seek_to_last(),
        }
        while let Some((key, value)) = rows.item() {
            if visit(key, value).is_break() {
                return Ok(());
            }
            match direction {
                Direction::Ascending => rows.next(),
                Direction::Descending => rows.prev(),
            }
        }
        rows.status().map_err(read_failed)
    }

    fn write(&self, batch: &Batch) -> Result<(), EngineError> {
        let size = BATCH_OVERHEAD + batch.size() + CHANGE_OVERHEAD * batch.count();
        let mut changes = WriteBatch::with_capacity_bytes(size);
        for (key, value) in batch.iter() {
            match value {
                Some(value) => changes.put(key, value),
                None => changes.delete(key),
            }
        }
        self.db
            .write_opt(changes, &self.write_options)
            .map_err(|error| classify(error, |source| EngineError::Write { source }))
    }

    fn flush(&self) -> Result<(), EngineError> {
        self.db.flush().map_err(|error| classify(error, |source| EngineError::Flush { source }))
    }

    fn checkpoint(&self, into: &Path) -> Result<(), EngineError> {
        let failed = |source: Cause| EngineError::Checkpoint { into: into.to_path_buf(), source };
        let parent = parent_of(into);
        create_dir_durably(&OsDisk, parent).map_err(|error| failed(error.into()))?;
        Checkpoint::new(&self.db)
            .and_then(|checkpoint| checkpoint.create_checkpoint(into))
            .map_err(|error| classify(error, failed))?;
        // The copy's files and directory are synced by RocksDB, its name is not.
        OsDisk.sync_dir(parent).map_err(|error: io::Error| failed(error.into()))
    }

    fn set_expire_floor(&self, seconds: u32) {
        self.expire_floor.fetch_max(seconds, Ordering::AcqRel);
    }

    fn compact(&self) -> Result<(), EngineError> {
        self.flush()?;
        self.db.compact_range::<&[u8], &[u8]>(None, None);
        Ok(())
    }

    fn stats(&self) -> EngineStats {
        let property = |name| self.db.property_int_value(name).ok().flatten().unwrap_or(0);
        EngineStats {
            rows: property(ESTIMATE_NUM_KEYS),
            disk_bytes: property(TOTAL_SST_FILES_SIZE),
            unflushed_bytes: property(SIZE_ALL_MEM_TABLES),
        }
    }
}

fn read_failed(error: rocksdb::Error) -> EngineError {
    classify(error, |source| EngineError::Read { source })
}

/// Corruption is damage whatever was being done; other errors belong to what was.
fn classify(error: rocksdb::Error, other: impl FnOnce(Cause) -> EngineError) -> EngineError {
    match error.kind() {
        ErrorKind::Corruption => EngineError::damaged(error.into_string()),
        _ => other(Box::new(error)),
    }
}
