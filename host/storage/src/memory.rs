//! The reference engine: rows in a sorted map, and one checksummed file that a flush replaces whole.
//!
//! The file `rows` is: the 8 bytes `HGROWMEM`, u32 LE version 1, u64 LE row count, then per row u32 LE key size, u32 LE
//! value size, key, value; last a u32 LE CRC-32C of everything before. A directory without it is an empty engine.

use crate::batch::Batch;
use crate::engine::{Direction, Engine, EngineError, EngineStats, Engines, KeyRange, RowVisitor};
use crate::layout::is_droppable;
use bytes::{Buf, Bytes};
use hedgerow_env::{Disk, create_dir_durably, parent_of, read_file, write_file_durably};
use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

const FILE_NAME: &str = "rows";
const MAGIC: &[u8; 8] = b"HGROWMEM";
const VERSION: u32 = 1;
const CHECKSUM_SIZE: usize = 4;

/// Opens memory engines whose files lie on one disk.
#[derive(Clone, Debug)]
pub struct MemoryEngines {
    disk: Arc<dyn Disk>,
}

impl MemoryEngines {
    /// Engines on `disk`.
    pub fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk }
    }
}

impl Engines for MemoryEngines {
    fn open(&self, dir: &Path) -> Result<Arc<dyn Engine>, EngineError> {
        Ok(Arc::new(MemoryEngine::open(Arc::clone(&self.disk), dir)?))
    }

    // To open is to read everything.
    fn verify(&self, dir: &Path) -> Result<(), EngineError> {
        MemoryEngine::open(Arc::clone(&self.disk), dir).map(drop)
    }

    fn disk(&self) -> Arc<dyn Disk> {
        Arc::clone(&self.disk)
    }
}

/// One replica's rows in memory.
#[derive(Debug)]
pub struct MemoryEngine {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    rows: RwLock<Rows>,
    /// Held while the file is written, so that an older content never replaces a newer one.
    flushing: Mutex<()>,
    expire_floor: AtomicU32,
}

#[derive(Debug, Default)]
struct Rows {
    map: BTreeMap<Bytes, Bytes>,
    /// Bytes of batches since the last flush.
    unflushed_bytes: u64,
    is_flushed: bool,
    disk_bytes: u64,
}

impl MemoryEngine {
    /// The engine in `dir` on `disk`.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path) -> Result<Self, EngineError> {
        let failed = |source: io::Error| EngineError::Open { dir: dir.to_path_buf(), source: source.into() };
        create_dir_durably(&*disk, dir).map_err(failed)?;
        let mut rows = Rows::default();
        match read_file(&*disk, &dir.join(FILE_NAME)) {
            Ok(file) => {
                rows.disk_bytes = file.len() as u64;
                rows.map = decode(file.into())?;
                rows.is_flushed = true;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        Ok(Self {
            disk,
            dir: dir.to_path_buf(),
            rows: RwLock::new(rows),
            flushing: Mutex::new(()),
            expire_floor: AtomicU32::new(0),
        })
    }

    // A poisoned lock guards rows that are whole all the same: only `write` changes them, and it cannot panic half-way.
    fn rows(&self) -> RwLockReadGuard<'_, Rows> {
        self.rows.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn rows_mut(&self) -> RwLockWriteGuard<'_, Rows> {
        self.rows.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine for MemoryEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        Ok(self.rows().map.get(key).cloned())
    }

    fn scan(&self, range: KeyRange<'_>, direction: Direction, visit: RowVisitor<'_>) -> Result<(), EngineError> {
        let end = match range.end {
            Some(end) if end <= range.start => return Ok(()),
            Some(end) => Bound::Excluded(end),
            None => Bound::Unbounded,
        };
        let rows = self.rows();
        let mut selected = rows.map.range::<[u8], _>((Bound::Included(range.start), end));
        while let Some((key, value)) = match direction {
            Direction::Ascending => selected.next(),
            Direction::Descending => selected.next_back(),
        } {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn write(&self, batch: &Batch) -> Result<(), EngineError> {
        let mut rows = self.rows_mut();
        for (key, value) in batch.iter() {
            match value {
                Some(value) => rows.map.insert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)),
                None => rows.map.remove(key),
            };
        }
        rows.unflushed_bytes += batch.size() as u64;
        rows.is_flushed = false;
        Ok(())
    }

    /// Besides, drops what may be dropped, as a compaction would.
    fn flush(&self) -> Result<(), EngineError> {
        let _flushing = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        let floor = self.expire_floor.load(Ordering::Acquire);
        let (file, unflushed_bytes) = {
            let mut rows = self.rows_mut();
            let before = rows.map.len();
            rows.map.retain(|key, value| !is_droppable(key, value, floor));
            if rows.is_flushed && rows.map.len() == before {
                return Ok(());
            }
            rows.is_flushed = true;
            (encode(&rows.map), rows.unflushed_bytes)
        };
        let written = write_file_durably(&*self.disk, &self.dir.join(FILE_NAME), &file);
        let mut rows = self.rows_mut();
        match written {
            Ok(()) => {
                rows.unflushed_bytes -= unflushed_bytes;
                rows.disk_bytes = file.len() as u64;
                Ok(())
            }
            Err(source) => {
                rows.is_flushed = false;
                Err(EngineError::Flush { source: source.into() })
            }
        }
    }

    fn checkpoint(&self, into: &Path) -> Result<(), EngineError> {
        let copy = || {
            if self.disk.exists(into) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            create_dir_durably(&*self.disk, into)?;
            let file = encode(&self.rows().map);
            write_file_durably(&*self.disk, &into.join(FILE_NAME), &file)?;
            self.disk.sync_dir(parent_of(into))
        };
        copy().map_err(|source: io::Error| EngineError::Checkpoint { into: into.to_path_buf(), source: source.into() })
    }

    fn set_expire_floor(&self, seconds: u32) {
        self.expire_floor.store(seconds, Ordering::Release);
    }

    fn compact(&self) -> Result<(), EngineError> {
        self.flush()
    }

    fn stats(&self) -> EngineStats {
        let rows = self.rows();
        EngineStats { rows: rows.map.len() as u64, disk_bytes: rows.disk_bytes, unflushed_bytes: rows.unflushed_bytes }
    }
}

fn encode(rows: &BTreeMap<Bytes, Bytes>) -> Vec<u8> {
    let size: usize = rows.iter().map(|(key, value)| 8 + key.len() + value.len()).sum();
    let mut out = Vec::with_capacity(20 + size + CHECKSUM_SIZE);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&(rows.len() as u64).to_le_bytes());
    for (key, value) in rows {
        out.extend_from_slice(&(key.len() as u32).to_le_bytes());
        out.extend_from_slice(&(value.len() as u32).to_le_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(value);
    }
    let checksum = crc32c::crc32c(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

fn decode(mut file: Bytes) -> Result<BTreeMap<Bytes, Bytes>, EngineError> {
    let damaged = || EngineError::damaged("the file of rows is not what was written");
    let body = file.len().checked_sub(CHECKSUM_SIZE).ok_or_else(damaged)?;
    let mut checksum = file.split_off(body);
    if crc32c::crc32c(&file) != checksum.get_u32_le() {
        return Err(damaged());
    }
    let header = file.len() >= 20 && file.split_to(8) == MAGIC[..] && file.get_u32_le() == VERSION;
    if !header {
        return Err(EngineError::damaged("the file of rows has an unknown form"));
    }
    let count = file.get_u64_le();
    let mut rows = BTreeMap::new();
    for _ in 0..count {
        if file.len() < 8 {
            return Err(damaged());
        }
        let (key, value) = (file.get_u32_le() as usize, file.get_u32_le() as usize);
        if file.len() < key.saturating_add(value) {
            return Err(damaged());
        }
        rows.insert(file.split_to(key), file.split_to(value));
    }
    if file.is_empty() { Ok(rows) } else { Err(damaged()) }
}
