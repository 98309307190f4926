//! The reference engine: rows in a sorted map, a checksummed file with all of them, and one for what each flush since has changed.
//!
//! The file `rows` is: the 8 bytes `HGROWMEM`, u32 LE version 2, u64 LE generation, u64 LE row count, then per row u32 LE key size,
//! u32 LE value size (all ones = the row is gone), key, value; last a u32 LE CRC-32C of everything before. A directory without it is
//! an empty engine. The files `more-GENERATION-NUMBER` have the same form and come on top of it, in the order of their numbers, which
//! begin at 0. Those of other generations are leftovers: once they are half as large as `rows`, that is written anew with the next one.

use crate::batch::Batch;
use crate::engine::{Direction, Engine, EngineError, EngineStats, Engines, KeyRange, RowVisitor, Snapshot};
use crate::layout::is_droppable;
use bytes::{Buf, Bytes};
use hedgerow_env::{Disk, create_dir_durably, parent_of, read_file, read_file_if_exists, write_file_durably};
use rpds::RedBlackTreeMapSync;
use std::collections::BTreeSet;
use std::io;
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

const FILE_NAME: &str = "rows";
const MAGIC: &[u8; 8] = b"HGROWMEM";
const VERSION: u32 = 2;
const HEADER_SIZE: usize = 28;
const CHECKSUM_SIZE: usize = 4;
/// Stands for the size of the value of a row that is gone.
const GONE: u32 = u32::MAX;

/// Opens memory engines whose files lie on one disk.
#[derive(Clone, Debug)]
pub struct MemoryEngines {
    disk: Arc<dyn Disk>,
    cold_interval: Option<u32>,
}

impl MemoryEngines {
    /// Engines on `disk`.
    pub fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk, cold_interval: None }
    }

    /// The same, and one in so many rows that were flushed counts as not being in memory.
    #[must_use]
    pub fn with_cold_rows(self, interval: u32) -> Self {
        Self { cold_interval: Some(interval), ..self }
    }

    fn open_engine(&self, dir: &Path) -> Result<MemoryEngine, EngineError> {
        let engine = MemoryEngine::open(Arc::clone(&self.disk), dir)?;
        Ok(MemoryEngine { cold_interval: self.cold_interval, ..engine })
    }
}

impl Engines for MemoryEngines {
    fn open(&self, dir: &Path) -> Result<Arc<dyn Engine>, EngineError> {
        Ok(Arc::new(self.open_engine(dir)?))
    }

    // To open is to read everything.
    fn verify(&self, dir: &Path) -> Result<(), EngineError> {
        self.open_engine(dir).map(drop)
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
    /// Held while a file is written, so that an older content never replaces a newer one.
    files: Mutex<Files>,
    expire_floor: AtomicU32,
    cold_interval: Option<u32>,
}

type Map = RedBlackTreeMapSync<Bytes, Bytes>;

#[derive(Debug, Default)]
struct Rows {
    /// A snapshot shares its nodes, so that neither to take one nor to write beside one copies the rows.
    map: Map,
    /// Rows that were written since the last flush began.
    changed: BTreeSet<Bytes>,
    /// Bytes of batches since the last flush.
    unflushed_bytes: u64,
    disk_bytes: u64,
}

/// What the directory holds.
#[derive(Debug, Default)]
struct Files {
    /// Of the file with all rows, if that is there and known to be.
    generation: Option<u64>,
    /// The highest generation that was ever begun.
    last_generation: u64,
    /// Bytes of that file.
    all_bytes: u64,
    /// Bytes of each file that comes on top.
    more_bytes: Vec<u64>,
}

impl Files {
    fn bytes(&self) -> u64 {
        self.all_bytes + self.more_bytes.iter().sum::<u64>()
    }
}

impl MemoryEngine {
    /// The engine in `dir` on `disk`.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path) -> Result<Self, EngineError> {
        let failed = |source: io::Error| EngineError::Open { dir: dir.to_path_buf(), source: source.into() };
        create_dir_durably(&*disk, dir).map_err(failed)?;
        let (mut rows, mut files) = (Rows::default(), Files::default());
        if let Some(file) = read_file_if_exists(&*disk, &dir.join(FILE_NAME)).map_err(failed)? {
            files.all_bytes = file.len() as u64;
            let map = &mut rows.map;
            files.last_generation = decode(file.into(), map)?;
            files.generation = Some(files.last_generation);
            read_more(&*disk, dir, &mut files, map)?;
            rows.disk_bytes = files.bytes();
        }
        Ok(Self {
            disk,
            dir: dir.to_path_buf(),
            rows: RwLock::new(rows),
            files: Mutex::new(files),
            expire_floor: AtomicU32::new(0),
            cold_interval: None,
        })
    }

    // A poisoned lock guards rows that are whole all the same: only `write` changes them, and it cannot panic half-way.
    fn rows(&self) -> RwLockReadGuard<'_, Rows> {
        self.rows.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn rows_mut(&self) -> RwLockWriteGuard<'_, Rows> {
        self.rows.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a row counts as not being in memory.
    fn is_cold(&self, rows: &Rows, key: &[u8]) -> bool {
        is_drawn(self.cold_interval, key) && !rows.changed.contains(key)
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the rows that have changed to a file of their own.
    fn write_changes(&self, files: &mut Files, generation: u64) -> Result<(), EngineError> {
        let (changed, file, unflushed_bytes) = {
            let mut rows = self.rows_mut();
            let changed = std::mem::take(&mut rows.changed);
            let file = encode(generation, changed.iter().map(|key| (key, rows.map.get(key))));
            (changed, file, rows.unflushed_bytes)
        };
        let written =
            write_file_durably(&*self.disk, &self.dir.join(more_name(generation, files.more_bytes.len())), &file);
        let mut rows = self.rows_mut();
        match written {
            Ok(()) => {
                files.more_bytes.push(file.len() as u64);
                rows.unflushed_bytes -= unflushed_bytes;
                rows.disk_bytes = files.bytes();
                Ok(())
            }
            Err(source) => {
                rows.changed.extend(changed);
                Err(EngineError::Flush { source: source.into() })
            }
        }
    }

    /// Writes all rows anew, and drops what may be dropped, as a compaction would.
    fn write_all(&self, files: &mut Files) -> Result<(), EngineError> {
        files.last_generation += 1;
        let generation = files.last_generation;
        let floor = self.expire_floor.load(Ordering::Acquire);
        let (changed, file, unflushed_bytes) = {
            let mut rows = self.rows_mut();
            let is_dropped = |(key, value): &(&Bytes, &Bytes)| is_droppable(key, value, floor);
            let dropped: Vec<Bytes> = rows.map.iter().filter(is_dropped).map(|(key, _)| key.clone()).collect();
            for key in &dropped {
                rows.map.remove_mut(key);
            }
            (std::mem::take(&mut rows.changed), encode_all(generation, &rows.map), rows.unflushed_bytes)
        };
        let written = write_file_durably(&*self.disk, &self.dir.join(FILE_NAME), &file);
        let mut rows = self.rows_mut();
        if let Err(source) = written {
            // Which of the two is there is not known: the next flush writes all once more.
            files.generation = None;
            rows.changed.extend(changed);
            return Err(EngineError::Flush { source: source.into() });
        }
        if let Some(former) = files.generation.replace(generation) {
            for number in 0..files.more_bytes.len() {
                // What stays belongs to no generation, and the next opening removes it.
                drop(self.disk.remove_file(&self.dir.join(more_name(former, number))));
            }
        }
        (files.all_bytes, files.more_bytes) = (file.len() as u64, Vec::new());
        rows.unflushed_bytes -= unflushed_bytes;
        rows.disk_bytes = files.bytes();
        Ok(())
    }
}

impl Engine for MemoryEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        Ok(self.rows().map.get(key).cloned())
    }

    fn scan(&self, range: KeyRange<'_>, direction: Direction, visit: RowVisitor<'_>) -> Result<(), EngineError> {
        scan(&self.rows().map, range, direction, visit);
        Ok(())
    }

    fn get_at_once(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        let rows = self.rows();
        if self.is_cold(&rows, key) { Err(EngineError::NotAtOnce) } else { Ok(rows.map.get(key).cloned()) }
    }

    fn scan_at_once(
        &self,
        range: KeyRange<'_>,
        direction: Direction,
        visit: RowVisitor<'_>,
    ) -> Result<(), EngineError> {
        let rows = self.rows();
        scan_while_hot(&rows.map, range, direction, |key| self.is_cold(&rows, key), visit)
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>, EngineError> {
        Ok(Arc::new(MemorySnapshot { map: self.rows().map.clone(), cold_interval: self.cold_interval }))
    }

    fn write(&self, batch: &Batch) -> Result<(), EngineError> {
        let mut rows = self.rows_mut();
        let Rows { map, changed, .. } = &mut *rows;
        for (key, value) in batch.iter() {
            let key = Bytes::copy_from_slice(key);
            changed.insert(key.clone());
            match value {
                Some(value) => map.insert_mut(key, Bytes::copy_from_slice(value)),
                None => drop(map.remove_mut(&key)),
            }
        }
        rows.unflushed_bytes += batch.size() as u64;
        Ok(())
    }

    fn flush(&self) -> Result<(), EngineError> {
        let mut files = self.files();
        match files.generation {
            Some(_) if self.rows().changed.is_empty() => Ok(()),
            Some(generation) if files.more_bytes.iter().sum::<u64>() < files.all_bytes / 2 => {
                self.write_changes(&mut files, generation)
            }
            Some(_) | None => self.write_all(&mut files),
        }
    }

    fn checkpoint(&self, into: &Path) -> Result<(), EngineError> {
        let copy = || {
            if self.disk.exists(into) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            create_dir_durably(&*self.disk, into)?;
            let file = encode_all(0, &self.rows().map);
            write_file_durably(&*self.disk, &into.join(FILE_NAME), &file)?;
            self.disk.sync_dir(parent_of(into))
        };
        copy().map_err(|source: io::Error| EngineError::Checkpoint { into: into.to_path_buf(), source: source.into() })
    }

    fn set_expire_floor(&self, seconds: u32) {
        self.expire_floor.store(seconds, Ordering::Release);
    }

    fn compact(&self) -> Result<(), EngineError> {
        self.write_all(&mut self.files())
    }

    fn stats(&self) -> EngineStats {
        let rows = self.rows();
        EngineStats { rows: rows.map.size() as u64, disk_bytes: rows.disk_bytes, unflushed_bytes: rows.unflushed_bytes }
    }
}

/// What an engine held once.
#[derive(Debug)]
struct MemorySnapshot {
    map: Map,
    /// As in the engine, for rows that have changed since they were written as well.
    cold_interval: Option<u32>,
}

impl Snapshot for MemorySnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        Ok(self.map.get(key).cloned())
    }

    fn scan(&self, range: KeyRange<'_>, direction: Direction, visit: RowVisitor<'_>) -> Result<(), EngineError> {
        scan(&self.map, range, direction, visit);
        Ok(())
    }

    fn get_all_at_once(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Bytes>>, EngineError> {
        if keys.iter().any(|key| is_drawn(self.cold_interval, key)) {
            return Err(EngineError::NotAtOnce);
        }
        self.get_all(keys)
    }

    fn scan_at_once(
        &self,
        range: KeyRange<'_>,
        direction: Direction,
        visit: RowVisitor<'_>,
    ) -> Result<(), EngineError> {
        scan_while_hot(&self.map, range, direction, |key| is_drawn(self.cold_interval, key), visit)
    }
}

/// Whether a row is one of those that only a disk has.
fn is_drawn(cold_interval: Option<u32>, key: &[u8]) -> bool {
    cold_interval.is_some_and(|interval| crc32c::crc32c(key).is_multiple_of(interval))
}

/// As [`scan`], up to the first row that a disk has.
fn scan_while_hot(
    rows: &Map,
    range: KeyRange<'_>,
    direction: Direction,
    is_cold: impl Fn(&[u8]) -> bool,
    visit: RowVisitor<'_>,
) -> Result<(), EngineError> {
    let mut is_over = false;
    scan(rows, range, direction, &mut |key, value| {
        is_over = is_cold(key);
        if is_over { ControlFlow::Break(()) } else { visit(key, value) }
    });
    if is_over { Err(EngineError::NotAtOnce) } else { Ok(()) }
}

fn scan(rows: &Map, range: KeyRange<'_>, direction: Direction, visit: RowVisitor<'_>) {
    let end = match range.end {
        Some(end) if end <= range.start => return,
        Some(end) => Bound::Excluded(end),
        None => Bound::Unbounded,
    };
    let mut selected = rows.range::<[u8], _>((Bound::Included(range.start), end));
    while let Some((key, value)) = match direction {
        Direction::Ascending => selected.next(),
        Direction::Descending => selected.next_back(),
    } {
        if visit(key, value).is_break() {
            break;
        }
    }
}

fn more_name(generation: u64, number: usize) -> String {
    format!("more-{generation}-{number}")
}

/// Reads what comes on top of the file with all rows, and removes leftovers.
fn read_more(disk: &dyn Disk, dir: &Path, files: &mut Files, rows: &mut Map) -> Result<(), EngineError> {
    let failed = |source: io::Error| EngineError::Open { dir: dir.to_path_buf(), source: source.into() };
    let mut names: BTreeSet<String> = disk.list(dir).map_err(failed)?.into_iter().collect();
    names.retain(|name| name.starts_with("more-"));
    while names.remove(&more_name(files.last_generation, files.more_bytes.len())) {
        let path = dir.join(more_name(files.last_generation, files.more_bytes.len()));
        let file = read_file(disk, &path).map_err(failed)?;
        files.more_bytes.push(file.len() as u64);
        if decode(file.into(), rows)? != files.last_generation {
            return Err(EngineError::damaged("a file of rows is another one's"));
        }
    }
    let own = format!("more-{}-", files.last_generation);
    if names.iter().any(|name| name.starts_with(&own) && !name.ends_with(".tmp")) {
        return Err(EngineError::damaged("a file of rows is missing"));
    }
    names.into_iter().for_each(|name| drop(disk.remove_file(&dir.join(name))));
    Ok(())
}

fn encode_all(generation: u64, rows: &Map) -> Vec<u8> {
    encode(generation, rows.iter().map(|(key, value)| (key, Some(value))))
}

fn encode<'a>(generation: u64, rows: impl Iterator<Item = (&'a Bytes, Option<&'a Bytes>)>) -> Vec<u8> {
    let rows: Vec<_> = rows.collect();
    let size: usize = rows.iter().map(|(key, value)| 8 + key.len() + value.map_or(0, Bytes::len)).sum();
    let mut out = Vec::with_capacity(HEADER_SIZE + size + CHECKSUM_SIZE);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&generation.to_le_bytes());
    out.extend_from_slice(&(rows.len() as u64).to_le_bytes());
    for (key, value) in rows {
        out.extend_from_slice(&(key.len() as u32).to_le_bytes());
        out.extend_from_slice(&value.map_or(GONE, |value| value.len() as u32).to_le_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(value.map_or(&[], |value| value));
    }
    let checksum = crc32c::crc32c(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

/// Brings what `file` says into `rows`. Returns its generation.
fn decode(mut file: Bytes, rows: &mut Map) -> Result<u64, EngineError> {
    let damaged = || EngineError::damaged("the file of rows is not what was written");
    let body = file.len().checked_sub(CHECKSUM_SIZE).ok_or_else(damaged)?;
    let mut checksum = file.split_off(body);
    if crc32c::crc32c(&file) != checksum.get_u32_le() {
        return Err(damaged());
    }
    let header = file.len() >= HEADER_SIZE && file.split_to(8) == MAGIC[..] && file.get_u32_le() == VERSION;
    if !header {
        return Err(EngineError::damaged("the file of rows has an unknown form"));
    }
    let (generation, count) = (file.get_u64_le(), file.get_u64_le());
    for _ in 0..count {
        if file.len() < 8 {
            return Err(damaged());
        }
        let (key_size, value_size) = (file.get_u32_le() as usize, file.get_u32_le());
        let size = if value_size == GONE { 0 } else { value_size as usize };
        if file.len() < key_size.saturating_add(size) {
            return Err(damaged());
        }
        let (key, value) = (file.split_to(key_size), file.split_to(size));
        if value_size == GONE {
            rows.remove_mut(&key);
        } else {
            rows.insert_mut(key, value);
        }
    }
    if file.is_empty() { Ok(generation) } else { Err(damaged()) }
}
